"""What `best_cuts` says when nothing fits: every number in it is checked by trying it."""

import random
import re
from dataclasses import replace

import pytest
from test_partition_exact import draw, every_cut

from headrace.layer_costs import LayerCosts
from headrace.partition import NoCutFits, Problem, best_cuts, problem_for
from headrace.schedule import Placement, build


def layers(count, *, activations=10, parameters=4, output=1):
    every = [(number,) * count for number in (1, 1, 1, parameters, 0, activations, 0, output, 0)]
    return LayerCosts(tuple(map(str, range(count))), 1, *every)


def test_bytes_that_are_missing_are_exact():
    rng = random.Random(3)
    alone = 0
    for _ in range(1500):
        problem = draw(rng, 1, "memory")
        if every_cut(problem, "layers"):
            continue
        with pytest.raises(NoCutFits) as refused:
            best_cuts(problem)
        rank, missing = refused.value.rank, refused.value.missing
        alone += rank is not None
        assert refused.value.constraint == "memory"
        assert missing > 0

        def roomier(more, rank=rank, limits=problem.limits):
            return [
                limit if limit is None or rank not in (None, number) else limit + more
                for number, limit in enumerate(limits)
            ]

        assert every_cut(replace(problem, memory=roomier(missing)), "layers")
        assert not every_cut(replace(problem, memory=roomier(missing - 1)), "layers")
    assert alone > 20


def test_the_ways_out_are_ways_out():
    def schedule(ranks):
        return build("1f1b", ranks=ranks, micro_batches=2)

    problem = problem_for(layers(12), schedule, 3, memory=70)
    with pytest.raises(NoCutFits) as refused:
        best_cuts(problem)
    said = str(refused.value)
    assert said.startswith("no cut of 12 layers into 3 stages fits into memory; ")
    assert "recompute='stage'" in said
    best_cuts(replace(problem, recompute="stage"))
    ranks = int(re.search(r"(\d+) ranks", said)[1])
    best_cuts(problem_for(layers(12), schedule, ranks, memory=70))
    with pytest.raises(NoCutFits):
        best_cuts(problem_for(layers(12), schedule, ranks - 1, memory=70))
    memory = int(re.search(r"memory=(\d+) B for every rank", said)[1])
    best_cuts(replace(problem, memory=memory))
    with pytest.raises(NoCutFits):
        best_cuts(replace(problem, memory=memory - 1))


def test_several_stages_a_rank():
    with pytest.raises(NoCutFits, match="of those that were tried, fits into memory; every rank needs 21 B more"):
        best_cuts(Problem(layers(8, parameters=10, activations=0), Placement.v(2), 4, memory=20))


@pytest.mark.parametrize(
    ("options", "constraint", "message"),
    [
        (
            {"placement": Placement.loop(7)},
            "layers",
            "no cut of 6 layers into 7 stages; every stage needs one: at most 6",
        ),
        (
            {"keep_together": [(0, 4)]},
            "layers",
            r"keep_together \(or tied weights\) leaves 2 pieces; every stage needs one: at most 2 stages",
        ),
        ({"pin_stage": {0: 1}}, "pins", r"respects all pins: leave pin_stage=\{0: 1\} out"),
        ({"pin_rank": {5: 0}}, "pins", r"respects all pins: leave pin_rank=\{5: 0\} out"),
        (
            {"memory": [None, 1, None]},
            "memory",
            "what would help: 14 B more on rank 1 alone, or 14 B more on every rank",
        ),
    ],
)
def test_constraints(options, constraint, message):
    problem = {"costs": layers(6), "placement": Placement.loop(3), "micro_batches": 4, **options}
    with pytest.raises(NoCutFits, match=message) as refused:
        best_cuts(Problem(**problem))
    assert refused.value.constraint == constraint
    assert refused.value.ways_out


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"in_flight": [1, 2]}, "in_flight has 2 numbers, but there are 3 stages"),
        ({"in_flight": 0}, "in_flight has 0, which must be finite and at least 1"),
        ({"slowness": 0}, "slowness=0 must be more than 0"),
        ({"latency": [1]}, "latency has 1 numbers, but there are 2 hops"),
        ({"memory": -1}, "memory has -1, which must be finite and at least 0"),
        ({"bandwidth": 0}, "bandwidth=0 must be finite and more than 0"),
        ({"recompute": "all"}, "recompute='all' is unknown: choose one of never, stage, layer"),
        ({"keep_together": [(0, 9)]}, "keep_together names layer 9, but there are only layers 0…5"),
        ({"pin_rank": {0: 3}}, "pin_rank names rank 3, but there are only ranks 0…2"),
        ({"micro_batches": 0}, "micro_batches=0 must be at least 1"),
        ({"placement": Placement.two_way(2, 4)}, "placement has several lanes"),
    ],
)
def test_misuse(options, message):
    problem = {"costs": layers(6), "placement": Placement.loop(3), "micro_batches": 4, **options}
    with pytest.raises(ValueError, match=message):
        Problem(**problem)


def test_unknown_objective():
    with pytest.raises(ValueError, match="objective='fast' is unknown: choose one of slowest, step"):
        best_cuts(Problem(layers(6), Placement.loop(3), 4), "fast")

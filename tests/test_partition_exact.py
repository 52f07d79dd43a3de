"""`best_cuts` against every cut and every way to recompute, on random problems with whole numbers."""

import random
import sys
import time
from fractions import Fraction
from itertools import combinations, pairwise, product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.layer_costs import LayerCosts
from headrace.partition import NoCutFits, Problem, best_cuts, partition
from headrace.partition.spans import smallest_of
from headrace.schedule import Placement

OBJECTIVES = ("slowest", "step", "parameters", "layers")


def every_cut(problem, objective):
    """(value, layers per stage) of every cut that fits, the best first: plain, not fast."""
    costs, stages, rank_of = problem.costs, problem.stages, problem.placement.rank_of
    found = []
    for inner in combinations(range(1, costs.layers), stages - 1):
        spans = list(pairwise((0, *inner, costs.layers)))
        home = {layer: stage for stage, span in enumerate(spans) for layer in range(*span)}
        if (
            any(home[layer] != home[group[0]] for group in problem.keep_together for layer in group)
            or any(home[layer] != stage for layer, stage in problem.pin_stage.items())
            or any(rank_of[home[layer]] != rank for layer, rank in problem.pin_rank.items())
        ):
            continue
        again = [fastest(problem, rank, spans) for rank in range(problem.ranks)]
        if None not in again:
            found.append((value(problem, objective, spans, again), tuple(end - start for start, end in spans)))
    return sorted(found)


def fastest(problem, rank, spans):
    """The fewest seconds of recompute with which the stages of a rank fit; None if they don't."""
    stages = [stage for stage, holder in enumerate(problem.placement.rank_of) if holder == rank]
    limit = problem.limits[rank]
    fits = [
        sum(seconds for seconds, _, _ in ways)
        for ways in product(*(ways_to_run(problem, stage, spans[stage]) for stage in stages))
        if limit is None or sum(held for _, held, _ in ways) + max(working for _, _, working in ways) <= limit
    ]
    return min(fits, default=None)


def ways_to_run(problem, stage, span):
    """(seconds of recompute, bytes held, bytes while working) of each way."""
    costs, peak, late = problem.costs, problem.peaks[stage], problem.late[stage]
    layers = range(*span)
    entry = {layer: costs.output[layer - 1] if layer else 0 for layer in layers}
    always = sum(costs.parameters[layer] + costs.trained[layer] for layer in layers)
    activations = [
        a + (s if layer == span[0] > 0 else 0)
        for layer, (a, s) in enumerate(zip(costs.activations, costs.shared, strict=True))
    ]
    kept = sum(activations[layer] for layer in layers)
    handling = max(costs.handling[layer] for layer in layers)

    def held(keep, operands):  # by all micro-batches; some of them wait for their W
        return (peak - late) * keep + late * max(keep, operands)

    undropped = sum(held(activations[layer], costs.for_weight[layer]) for layer in layers)
    ways = [(0, always + undropped, handling)]
    first = entry[layers[0]]
    operands = sum(costs.for_weight[layer] for layer in layers)
    if problem.recompute != "never":
        again = sum(costs.forward[layer] for layer in layers)
        ways.append((again, always + held(first, operands), max(0, kept - first) + handling))
    if problem.recompute == "layer":
        useful = [layer for layer in layers if activations[layer] > entry[layer]]
        for dropped in (set(some) for count in range(1, len(useful) + 1) for some in combinations(useful, count)):
            keep = {layer: entry[layer] if layer in dropped else activations[layer] for layer in layers}
            working = max(
                costs.handling[layer] + (activations[layer] - entry[layer]) * (layer in dropped) for layer in layers
            )
            of_all = sum(held(keep[layer], costs.for_weight[layer]) for layer in layers)
            ways.append((sum(costs.forward[layer] for layer in dropped), always + of_all, working))
    return ways


def value(problem, objective, spans, again):
    costs, rank_of, stages = problem.costs, problem.placement.rank_of, problem.stages
    latency = problem.latency if isinstance(problem.latency, tuple) else (problem.latency,) * (stages - 1)
    hops = [
        0
        if rank_of[hop] == rank_of[hop + 1]
        else latency[hop] + (Fraction(costs.output[spans[hop][1] - 1], problem.bandwidth) if problem.bandwidth else 0)
        for hop in range(stages - 1)
    ]
    measure = {"parameters": costs.parameters, "layers": (1,) * costs.layers}.get(objective, costs.seconds)
    loads = [0] * problem.ranks
    for stage, span in enumerate(spans):
        loads[rank_of[stage]] += sum(measure[layer] for layer in range(*span))
    if objective in ("parameters", "layers"):
        return max(loads), sum(load * load for load in loads)
    loads = [s * (load + a) for s, load, a in zip(problem.slowness_of, loads, again, strict=True)]
    chain = sum(loads) + 2 * sum(hops)
    if not problem.hidden:
        for hop, seconds in enumerate(hops):
            loads[rank_of[hop]] += seconds
            loads[rank_of[hop + 1]] += seconds
    if objective == "slowest":
        return max(loads), sum(load * load for load in loads)
    v = stages // problem.ranks
    return Fraction(chain + (problem.micro_batches * v - 1) * max(loads), v), max(loads)


def draw(rng, stages_per_rank, constraints):
    """A small problem with ties, zeros and, if `constraints` is "all", one of everything."""
    ranks = rng.randint(2, 3) if stages_per_rank > 1 else rng.randint(1, 4)
    stages = ranks * stages_per_rank
    layers = rng.randint(stages, max(stages, min(stages + 4, 8)))
    high = rng.choice((3, 20))
    columns = [tuple(rng.randint(0, high) for _ in range(layers)) for _ in range(9)]
    shared = tuple(rng.choice((0, rng.randint(0, high))) for _ in range(layers))
    costs = LayerCosts(tuple(map(str, range(layers))), 1, *columns, shared=shared)
    options = {}
    if constraints in ("memory", "all"):
        near = (sum(costs.parameters) + sum(costs.trained) + 3 * sum(costs.activations)) // ranks
        options["memory"] = rng.choice(
            (near, [rng.choice((None, near + rng.randint(0, 2 * high))) for _ in range(ranks)])
        )
        options["recompute"] = rng.choice(("never", "stage", "layer"))
        options["in_flight"] = [rng.randint(1, 4) for _ in range(stages)]
        options["waiting"] = [rng.choice((0, rng.randint(0, peak))) for peak in options["in_flight"]]
    if constraints in ("devices", "all"):
        options["slowness"] = [rng.randint(1, 3) for _ in range(ranks)]
        options["latency"] = [rng.randint(0, high) for _ in range(stages - 1)]
        options["bandwidth"] = rng.choice((None, 1, 3))
        options["hidden"] = rng.random() < 0.5
    if constraints in ("pins", "all"):
        if layers > 1 and rng.random() < 0.4:
            first = rng.randrange(layers - 1)
            options["keep_together"] = [(first, first + 1)]
        options["pin_stage"] = {rng.randrange(layers): rng.randrange(stages)} if rng.random() < 0.3 else {}
        options["pin_rank"] = {rng.randrange(layers): rng.randrange(ranks)} if rng.random() < 0.3 else {}
    turn = Placement.loop if rng.random() < 0.5 else Placement.zigzag
    return Problem(costs, turn(ranks, stages_per_rank), rng.randint(1, 6), **options)


def assert_best(problem, objective, count):
    wanted = every_cut(problem, objective)
    if not wanted:
        with pytest.raises(NoCutFits):
            best_cuts(problem, objective, count=count)
        return
    found = best_cuts(problem, objective, count=count)
    assert found.method == "exact"
    assert [cut.value for cut in found.cuts] == [of_cut for of_cut, _ in wanted[:count]]
    assert len({cut.layers for cut in found.cuts}) == found.proven == len(found.cuts)
    for cut in found.cuts:
        assert (cut.value, cut.layers) in wanted
        assert min(cut.layers) >= 1
        assert all(limit is None or held <= limit for held, limit in zip(cut.bytes, problem.limits, strict=True))


CONSTRAINTS = ("none", "memory", "devices", "pins", "all")


@pytest.mark.slow
@pytest.mark.parametrize(("turns", "cases"), [(1, 5_000), (2, 600), (3, 600)])
@pytest.mark.parametrize("constraints", CONSTRAINTS)
@pytest.mark.parametrize("objective", OBJECTIVES)
def test_equals_brute_force_over_and_over(objective, constraints, turns, cases):
    """With one stage a rank 5,000 cases for each objective and set of constraints: 100,000 in all."""
    rng = random.Random(f"{objective} {constraints} {turns}")
    for _ in range(cases):
        assert_best(draw(rng, turns, constraints), objective, rng.choice((1, 3, 100)))


@pytest.mark.parametrize("constraints", CONSTRAINTS)
@pytest.mark.parametrize("objective", OBJECTIVES)
def test_equals_brute_force(objective, constraints):
    rng = random.Random(f"{objective} {constraints}")
    for _ in range(250):
        assert_best(draw(rng, 1, constraints), objective, rng.choice((1, 3, 100)))


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_equals_brute_force_where_ranks_hold_several_stages(objective):
    rng = random.Random(objective)
    for _ in range(30):
        assert_best(draw(rng, rng.choice((2, 2, 3)), rng.choice(("none", "all"))), objective, rng.choice((1, 5)))


def test_the_fewest_bytes_of_a_span_are_those_of_its_thriftiest_way_to_run():
    rng = random.Random(3)
    for _ in range(300):
        problem = draw(rng, 1, "memory")
        stage = rng.randrange(problem.stages)
        start = rng.randrange(problem.costs.layers)
        end = rng.randint(start + 1, problem.costs.layers)
        least = min(held + working for _, held, working in ways_to_run(problem, stage, (start, end)))
        assert smallest_of(problem, stage, start, end) == least


@given(st.randoms(use_true_random=False), st.sampled_from(OBJECTIVES))
@settings(deadline=None, max_examples=60)
def test_equals_brute_force_on_what_hypothesis_finds(rng, objective):
    assert_best(draw(rng, 1, "all"), objective, 4)


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_a_graph_that_grows_with_its_bound_finds_the_same(objective, monkeypatch):
    # The package exports a function of its own name, so the module is to be had only from here.
    monkeypatch.setattr(sys.modules["headrace.partition.search"], "_FEW", -1)
    rng = random.Random(f"growing {objective}")
    for _ in range(100):
        assert_best(draw(rng, 1, "all"), objective, rng.choice((1, 3, 100)))


def test_with_little_effort_what_is_called_proven_is_best():
    rng = random.Random(7)
    for _ in range(300):
        problem, objective = draw(rng, 1, "devices"), rng.choice(OBJECTIVES)
        wanted = every_cut(problem, objective)
        found = best_cuts(problem, objective, count=6, effort=rng.randint(1, 20))
        assert 1 <= found.proven <= len(found.cuts) == min(6, len(wanted))
        values = [cut.value for cut in found.cuts]
        assert values[: found.proven] == [of_cut for of_cut, _ in wanted[: found.proven]]
        assert values == sorted(values)


def chain(kind, layers, rng):
    """A language model: embedding, equal blocks, heavy head; or a convolutional one: log-normal."""
    if kind == "language":
        forward = [1, *[100] * (layers - 2), 430]
    else:
        forward = [round(100 * rng.lognormvariate(0, 1)) for _ in range(layers)]
    nothing = (0,) * layers
    names = tuple(map(str, range(layers)))
    seconds = tuple(forward)
    return LayerCosts(names, 1, seconds, seconds, seconds, *[nothing] * 6)


@pytest.mark.parametrize("kind", ["language", "convolutional"])
def test_the_slowest_stage_is_as_fast_as_can_be(kind):
    rng = random.Random(kind)
    for _ in range(20):
        costs, stages = chain(kind, rng.randint(20, 120), rng), rng.randint(2, 16)
        cut = best_cuts(Problem(costs, Placement.loop(stages), 16)).best
        assert cut.slowest == max(sums(costs.seconds, partition(costs.seconds, stages)))
        assert list(cut.loads) == sums(costs.seconds, cut.layers)


def sums(numbers, layers):
    rest = iter(numbers)
    return [sum(next(rest) for _ in range(count)) for count in layers]


@pytest.mark.parametrize(("layers", "stages", "sizes"), [(11, 4, [2, 3, 3, 3]), (15, 8, [1, *[2] * 7])])
def test_equal_layers(layers, stages, sizes):
    costs = chain("language", layers + 2, None)
    ones = (1,) * layers
    costs = LayerCosts(costs.names[:layers], 1, ones, ones, ones, *[(0,) * layers] * 6)
    for objective in ("slowest", "step", "layers"):
        assert sorted(best_cuts(Problem(costs, Placement.loop(stages), 4), objective).best.layers) == sizes


@pytest.mark.parametrize("objective", ["slowest", "step"])
def test_four_hundred_layers_into_sixty_four_stages(objective):
    costs = chain("convolutional", 400, random.Random(0))
    start = time.process_time()
    found = best_cuts(Problem(costs, Placement.loop(64), 256, latency=5), objective, count=8)
    assert time.process_time() - start < 4
    assert len(found.cuts) == 8
    assert found.proven >= 1

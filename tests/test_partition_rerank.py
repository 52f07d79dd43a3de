"""Cuts that simulation ranks again, against the simulation of every cut; and what a cut hands to a simulation."""

import random
from dataclasses import replace
from math import comb

import pytest

from headrace import Costs, simulate
from headrace.layer_costs import LayerCosts
from headrace.partition import best_cuts, peaks, problem_for, recomputing, rerank, stage_costs
from headrace.schedule import build
from headrace.simulate import peak_memory_of


def uneven(rng, layers):
    forward = [rng.randint(10, 100) for _ in range(layers)]
    inputs = tuple(round(f * rng.uniform(0.7, 1.4)) for f in forward)
    weights = tuple(round(f * rng.uniform(0.5, 1.2)) for f in forward)
    sizes = [tuple(rng.randint(1, 30) for _ in range(layers)) for _ in range(3)]
    nothing = (0,) * layers
    names = tuple(map(str, range(layers)))
    kept = sizes[0], nothing, sizes[1], nothing, sizes[2], nothing
    shared = tuple(rng.randint(0, 10) for _ in range(layers))
    return LayerCosts(names, 1, tuple(forward), inputs, weights, *kept, shared=shared)


@pytest.mark.parametrize("name", ["1f1b", "gpipe", "zb-h1"])
def test_the_best_after_reranking_is_the_best_of_all(name):
    rng = random.Random(5)
    for case in range(30):
        ranks, layers = rng.randint(2, 4), rng.randint(6, 10)
        schedule = build(name, ranks=ranks, micro_batches=rng.choice((ranks, 2 * ranks)))
        problem = problem_for(
            uneven(rng, layers),
            lambda _, schedule=schedule: schedule,
            ranks,
            latency=[rng.randint(0, 60) for _ in range(ranks - 1)],
            bandwidth=1,
            slowness=[rng.choice((1, 2)) for _ in range(ranks)] if case % 3 == 0 else 1,
            hidden=False,
        )
        every = best_cuts(problem, "step", count=1000).cuts
        assert len(every) == comb(layers - 1, ranks - 1)

        def ranked(cuts, problem=problem, schedule=schedule):
            return rerank(cuts, lambda _: schedule, lambda cut: stage_costs(problem, cut), simulate)

        best, _ = ranked(every)[0]
        chosen, _ = ranked(best_cuts(problem, "step", count=32).cuts)[0]
        assert chosen <= 1.005 * best


def test_nothing_to_rank():
    with pytest.raises(ValueError, match="candidates is empty: give at least one cut"):
        rerank([], lambda _: None, lambda _: None, simulate)


@pytest.mark.parametrize("name", ["gpipe", "1f1b", "eager-1f1b", "zb-h1", "interleaved", "zb-v", "seq1f1b"])
def test_peaks_are_those_of_a_simulation(name):
    schedule = build(name, ranks=4, micro_batches=8)
    alone = schedule.stages == schedule.ranks
    of_ranks = [0] * 4
    for stage, peak in enumerate(peaks(schedule)):
        of_ranks[schedule.placement.rank_of[stage]] += peak
    simulated = simulate(schedule, Costs()).peak_in_flight
    assert all(a == b if alone else a >= b for a, b in zip(of_ranks, simulated, strict=True))


@pytest.mark.parametrize("mode", ["never", "stage", "layer"])
def test_predicted_bytes_and_loads_are_those_of_the_simulator(mode):
    rng = random.Random(mode)
    seen = set()
    for _ in range(60):
        ranks = rng.randint(2, 4)
        costs = uneven(rng, rng.randint(6, 9))
        if mode == "layer":  # a search does not know that what a dropped layer shares with the next one stays
            costs = replace(costs, shared=())
        memory = None if mode == "never" else sum(costs.activations) * 2 // ranks + 60
        plain = build("1f1b", ranks=ranks, micro_batches=8)
        problem = problem_for(costs, lambda _, plain=plain: plain, ranks, memory=memory, recompute=mode)
        try:
            cut = best_cuts(problem).best
        except ValueError:
            continue
        seen.update(cut.recomputes)
        of_stages = stage_costs(problem, cut)
        schedule = build("1f1b", ranks=ranks, micro_batches=8, recompute=recomputing(cut))
        busy = simulate(schedule, of_stages).busy
        assert busy == tuple(8 * load for load in cut.loads)
        assert peak_memory_of(schedule, of_stages.memory) == cut.bytes
    assert mode == "never" or len(seen) > 1

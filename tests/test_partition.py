"""The cut against every possible cut."""

import random
import time
from fractions import Fraction
from itertools import accumulate, combinations, pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace import partition


def sums(costs, sizes):
    ends = [0, *accumulate(sizes)]
    return [sum(map(Fraction, costs[a:b])) for a, b in pairwise(ends)]


def best_of_all(costs, stages):
    return min(
        max(sums(costs, [b - a for a, b in pairwise([0, *cuts, len(costs)])]))
        for cuts in combinations(range(1, len(costs)), stages - 1)
    )


def assert_optimal(costs, stages):
    sizes = partition(costs, stages)
    assert len(sizes) == stages
    assert sum(sizes) == len(costs)
    assert min(sizes) >= 1
    assert max(sums(costs, sizes)) == best_of_all(costs, stages)


DRAWS = {
    "small ints, many ties and zeros": lambda rng: rng.randrange(4),
    "ints": lambda rng: rng.randrange(1000),
    "floats": lambda rng: rng.random(),
    "floats of all sizes": lambda rng: rng.random() * 10.0 ** rng.randrange(-12, 12),
    "tenths": lambda rng: rng.randrange(10) / 10,
    "fractions": lambda rng: Fraction(rng.randrange(50), rng.randrange(1, 50)),
    "one heavy layer": lambda rng: 100 if rng.random() < 0.15 else 1,
}


@pytest.mark.parametrize("kind", DRAWS)
def test_equals_brute_force_on_random_cases(kind):
    rng = random.Random(kind)
    for _ in range(500):
        layers = rng.randint(1, 9)
        assert_optimal([DRAWS[kind](rng) for _ in range(layers)], rng.randint(1, layers))


@given(
    st.lists(st.one_of(st.integers(0, 10**30), st.floats(0, 1e300), st.fractions(0, 10)), min_size=1, max_size=7),
    st.data(),
)
@settings(deadline=None)
def test_equals_brute_force_on_awkward_numbers(costs, data):
    assert_optimal(costs, data.draw(st.integers(1, len(costs))))


@given(st.lists(st.integers(0, 100), min_size=2, max_size=60), st.data())
@settings(deadline=None)
def test_scaling_the_costs_changes_nothing_and_more_stages_never_hurt(costs, data):
    stages = data.draw(st.integers(1, len(costs) - 1))
    sizes = partition(costs, stages)
    assert partition([Fraction(c, 7) for c in costs], stages) == sizes
    assert partition([c * 10**400 for c in costs], stages) == sizes
    assert max(sums(costs, partition(costs, stages + 1))) <= max(sums(costs, sizes))


@pytest.mark.parametrize(
    ("costs", "stages", "sizes"),
    [
        ([1, 1, 1, 1], 2, (2, 2)),
        ([5, 1, 1, 1, 1, 1], 2, (1, 5)),
        ([1, 2, 3, 4, 5, 6, 7, 8, 9], 3, (5, 2, 2)),
        ([3], 1, (1,)),
        ([0, 0, 0], 3, (1, 1, 1)),
        ([9, 1, 1, 1, 1], 3, (1, 2, 2)),  # the light stages are even, though the first alone sets the pace
        ([10, 3, 3, 1, 1], 3, (1, 1, 3)),  # 3 + 5 rather than 6 + 2
        ([1.0] * 8, 8, (1,) * 8),
    ],
)
def test_cuts_by_hand(costs, stages, sizes):
    assert partition(costs, stages) == sizes


def test_compute_is_balanced_not_the_number_of_layers():
    assert partition([10, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1], 2) == (1, 10)


def test_a_thousand_layers_into_sixteen_stages_take_milliseconds():
    rng = random.Random(0)
    costs = [rng.random() for _ in range(1000)]
    spent = []
    for _ in range(3):
        start = time.process_time()
        partition(costs, 16)
        spent.append(time.process_time() - start)
    assert min(spent) < 0.05


@pytest.mark.parametrize(
    ("costs", "stages", "error", "message"),
    [
        ([1, 2], 3, ValueError, "stages=3, but there are only 2 layers and every stage needs one: use fewer ranks"),
        ([], 1, ValueError, "stages=1, but there are only 0 layers"),
        ([1, 2], 0, ValueError, "stages=0 must be at least 1"),
        ([1, 2], 1.0, TypeError, "stages=1.0 must be a whole number"),
        ([1, -2], 1, ValueError, r"costs\[1\]=-2 must be a finite number that is not negative"),
        ([1, float("inf")], 1, ValueError, r"costs\[1\]=inf must be"),
        ([float("nan"), 1], 1, ValueError, r"costs\[0\]=nan must be"),
        ([1, "2"], 1, TypeError, r"costs\[1\]='2' must be a number, not str"),
    ],
)
def test_refusals(costs, stages, error, message):
    with pytest.raises(error, match=message):
        partition(costs, stages)


def test_the_best_of_the_cuts_that_keep_layers_together():
    rng = random.Random(3)
    for _ in range(300):
        costs = [rng.randrange(20) for _ in range(rng.randint(3, 8))]
        groups = [sorted(rng.sample(range(len(costs)), 2)) for _ in range(rng.randint(1, 2))]
        allowed = [end for end in range(1, len(costs)) if not any(a < end <= b for a, b in groups)]
        if not allowed:
            continue
        stages = rng.randint(2, len(allowed) + 1)
        sizes = partition(costs, stages, groups)
        assert set(accumulate(sizes[:-1])) <= set(allowed)
        best = min(
            max(sums(costs, [b - a for a, b in pairwise([0, *ends, len(costs)])]))
            for ends in combinations(allowed, stages - 1)
        )
        assert max(sums(costs, sizes)) == best


def test_too_few_pieces_are_refused():
    with pytest.raises(ValueError, match=r"stages=3, but layers that must stay together.* leave only 2 pieces"):
        partition([1, 1, 1, 1], 3, [(0, 2)])

"""Closed forms of the literature, exactly, for any p, m and costs for which they are said to hold."""

import json
from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from headrace import Costs, simulate
from headrace.schedule import build, check
from headrace.simulate import closed_form
from headrace.simulate import closed_forms as theory

ONE = Fraction(1)  # keeps fractions of time exact
RANKS, MICRO_BATCHES, COST = st.integers(1, 8), st.integers(1, 20), st.integers(1, 12)


def played(name, p, m, f, i, w, c=0, pair=None, **options):
    schedule = build(name, ranks=p, micro_batches=m, **options)
    return simulate(schedule, Costs(f, i, w, transfer=c, pair=pair))


def peaks(name, p, m, **options):
    return check(build(name, ranks=p, micro_batches=m, **options)).peak_in_flight


def span(timeline):
    """From the first start of a rank to its last end, of the rank where that is longest."""
    return max(track.ends[-1] - track.starts[0] for track in timeline.tracks)


@given(RANKS, MICRO_BATCHES, COST, COST, COST, st.integers(0, 9))
@settings(max_examples=40, deadline=None)
def test_one_stage_a_rank(p, m, f, i, w, c):
    assert played("gpipe", p, m, f, i, w, c).makespan == theory.gpipe_makespan(p, m, f, i + w, c)
    assert played("1f1b", p, m, f, i, w, c).makespan == theory.one_f_one_b_makespan(p, m, f, i + w, c)
    if 2 * c <= f + i + w:
        assert played("eager-1f1b", p, m, f, i, w, c).makespan == theory.eager_1f1b_makespan(p, m, f, i + w, c)
    assert peaks("1f1b", p, m) == tuple(min(p - r, m) for r in range(p))
    assert peaks("eager-1f1b", p, m) == tuple(min(2 * (p - r) - 1, m) for r in range(p))


@given(st.integers(2, 8), MICRO_BATCHES, st.integers(1, 4), COST, COST, COST, st.integers(0, 9))
@settings(max_examples=40, deadline=None)
def test_several_stages_a_rank(p, m, v, f, i, w, c):
    b = i + w
    loop = played("looped-bfs", p, m, f, i, w, c, stages_per_rank=v)
    assert loop.makespan == theory.looped_bfs_makespan(p, m, v, f, b, c)
    assert loop.peak_in_flight == (m * v,) * p
    rounds = -(-m // 4)
    c = min(c, f, b)
    interleaved = played("interleaved", p, rounds * p, f, i, w, c, stages_per_rank=v)
    assert interleaved.makespan == theory.interleaved_makespan(p, rounds * p, v, f, b, c)


@given(RANKS, MICRO_BATCHES, st.integers(1, 4), st.data())
@settings(max_examples=40, deadline=None)
def test_peak_of_interleaved_follows_from_its_group(p, m, v, data):
    works = [n for n in range(min(p, m), m + 1) if m % n == 0 or m % n >= p]
    group = data.draw(st.sampled_from([None, *works]))
    size = group or works[0]
    found = peaks("interleaved", p, m, stages_per_rank=v, group=group)
    assert found == tuple(min((v - 1) * size + 2 * (p - 1 - r) + 1, m * v) for r in range(p))


@given(RANKS, MICRO_BATCHES, st.integers(1, 4), COST, COST, COST)
@settings(max_examples=40, deadline=None)
def test_seq1f1b(p, m, segments, f, i, w):
    timeline = played("seq1f1b", p, m, f, i, w, segments=segments)
    assert timeline.makespan == theory.seq1f1b_makespan(p, m, segments, f, i + w)
    assert timeline.peak_in_flight == tuple(min(p - 1 - r + segments, m * segments) for r in range(p))


@given(RANKS, st.integers(0, 12), COST, COST, COST)
@settings(max_examples=40, deadline=None)
def test_zero_bubble(p, more, f, i, w):
    if w <= min(f, i):
        h1 = played("zb-h1", p, p + more, f, i, w)
        assert h1.makespan == theory.zb_h1_makespan(p, p + more, f, i, w)
        assert h1.peak_in_flight == (p,) * p
    m = 2 * p - 1 + more
    if min(i, w) <= f:
        h2 = played("zb-h2", p, m, f, i, w)
        assert span(h2) == theory.zb_h2_span(p, m, f, i, w)
        assert h2.peak_in_flight == (2 * p - 1,) * p
    w, f, i = sorted((f, i, w))
    v = played("zb-v", p, m, f, i, w)
    assert v.makespan == theory.zb_v_makespan(p, m, f, i, w)
    assert v.peak_in_flight == (2 * p,) * p


@pytest.mark.parametrize("p", range(2, 13))
@pytest.mark.parametrize("more", [0, 1, 5, 12])
def test_v_min_and_v_half(p, more):
    m = 2 * p + more
    v_min = played("v-min", p, m, 1, 1, 1)
    assert v_min.makespan - 6 * m == theory.v_min_idle(p)
    assert max(v_min.peak_in_flight) == 2 * ((p + 4) // 3)
    v_half = played("v-half", p, m, 1, 1, 1)
    if p > 2:
        assert v_half.makespan - 6 * m == theory.v_half_idle(p)
    assert max(v_half.peak_in_flight) == 2 * ((p + 2) // 2)


@given(st.sampled_from([2, 4, 6, 8]), st.integers(0, 10), COST, COST, st.data())
@settings(max_examples=40, deadline=None)
def test_dualpipe(p, more, f, w, data):
    w = min(f, w)
    b = f + w
    pair = data.draw(st.integers(max(f, b), f + b))
    timeline = played("dualpipe", p, 2 * p + more, f, f, w, pair=pair)
    innermost = p // 2 - 1
    if more % 2 == 0:
        assert timeline.makespan - timeline.busy[innermost] == theory.dualpipe_idle(p, pair, b, w)
        assert timeline.peak_in_flight == (p + 1,) * p


@given(RANKS, st.integers(0, 10))
@settings(max_examples=30, deadline=None)
def test_memory_of_dualpipe_v(p, more):
    assert peaks("dualpipe-v", p, 2 * p + more) == (2 * p + 1,) * p


@pytest.mark.parametrize("p", [2, 4, 6, 8, 10])
def test_chimera(p):
    assert played("chimera", p, p, ONE, ONE, ONE).bubble_fraction == theory.chimera_bubble_fraction(p, p, twice=True)
    for blocks in (1, 2, 5):
        timeline = played("chimera", p, blocks * p, ONE, ONE, 0)
        assert timeline.bubble_fraction == theory.chimera_bubble_fraction(p, blocks * p, twice=False)
        assert (min(timeline.peak_in_flight), max(timeline.peak_in_flight)) == (p // 2 + 1, p)


@pytest.mark.parametrize("waves", [1, 2, 3])
@pytest.mark.parametrize("p", range(1, 10))
def test_hanayo_is_no_worse_than_published(p, waves):
    timeline = played("hanayo", p, p, ONE, ONE, ONE, waves=waves)
    assert timeline.bubble_fraction <= theory.hanayo_bubble_bound(p, waves)
    assert max(timeline.peak_in_flight) == 2 * p * waves
    assert max(peaks("hanayo", p, 3 * p, waves=waves)) == 2 * p * waves


@pytest.mark.parametrize(
    ("p", "waves", "optimum"),
    [(2, 1, Fraction(4, 16)), (4, 1, Fraction(12, 36)), (4, 2, Fraction(12, 60)), (8, 1, Fraction(28, 76))],
)
def test_hanayo_reaches_the_known_optima(p, waves, optimum):
    assert played("hanayo", p, p, ONE, ONE, ONE, waves=waves).bubble_fraction == optimum


@pytest.mark.parametrize(("name", "rate"), [("1f1b", 0.2431), ("zb-h1", 0.1585), ("zb-h2", 0.1083)])
def test_published_rates_of_zero_bubble(name, rate):
    """Qi et al., 2024, Table 5: (longest span − longest work) ÷ longest span; milliseconds."""
    timeline = played(name, 8, 24, 18.522, 18.086, 9.337, 0.601)
    assert round((span(timeline) - max(timeline.busy)) / span(timeline), 4) == rate


def test_published_comparison_of_dualpipe():
    """DeepSeek-AI, 2024, Table 2: idle (p−1)(F+B), (p−1)(F+B−2W) and (p/2−1)(F&B+B−3W), with p, p and p+1 in flight."""
    p, m, f, w = 8, 24, 10, 6
    b, pair = f + w, 20
    for name, idle, peak in [
        ("1f1b", (p - 1) * (f + b), p),
        ("zb-h1", (p - 1) * (f + b - 2 * w), p),
        ("dualpipe", theory.dualpipe_idle(p, pair, b, w), p + 1),
    ]:
        timeline = played(name, p, m, f, f, w, pair=pair)
        assert timeline.makespan - timeline.busy[p // 2 - 1] == idle
        assert max(timeline.peak_in_flight) == peak


@given(RANKS, MICRO_BATCHES, COST, COST, COST, st.integers(0, 9))
@settings(max_examples=40, deadline=None)
def test_nothing_beats_the_lower_bound(p, m, f, i, w, c):
    for name in ("gpipe", "1f1b", "eager-1f1b", "zb-h1", "zb-h2"):
        timeline = played(name, p, m, f, i, w, c)
        assert timeline.makespan >= theory.one_stage_lower_bound(p, m, max(timeline.peak_in_flight), f, i, w, c)
    if m >= p:
        assert played("zb-h1", p, m, f, f, f).makespan == theory.one_stage_lower_bound(p, m, p, f, f, f)


def test_no_proven_optimum_beats_the_lower_bound():
    text = (Path(__file__).parent / "data" / "golden.json").read_text(encoding="utf-8")
    cases = [
        c for c in json.loads(text)["optimal"]["cases"] if (c["placement"], c["objective"]) == ("loop", "makespan")
    ]
    assert len(cases) > 5
    for c in cases:
        bound = theory.one_stage_lower_bound(c["p"], c["m"], c["mem_cap"] // 2, c["F"], c["B"], c["W"], c["comm"])
        assert c["value"] >= bound


@given(
    st.sampled_from(["gpipe", "1f1b", "eager-1f1b", "interleaved", "looped-bfs", "seq1f1b", "zb-h1", "zb-v", "hanayo"]),
    RANKS,
    MICRO_BATCHES,
    st.integers(1, 3),
    COST,
    COST,
    COST,
)
@settings(max_examples=120, deadline=None)
def test_what_the_command_line_prints(name, p, m, v, f, i, w):
    options = {"seq1f1b": {"segments": v}, "interleaved": {"stages_per_rank": v}, "looped-bfs": {"stages_per_rank": v}}
    schedule = build(name, ranks=p, micro_batches=m, **options.get(name, {}))
    assert closed_form(name, p, schedule.micro_batches, f, i + w) is None or name in ("gpipe", "1f1b", "eager-1f1b")
    found = closed_form(name, p, schedule.micro_batches, f, i + w, weight=w, **options.get(name, {}))
    assume(found is not None)
    timeline = simulate(schedule, Costs(f, i, w))
    assert found.makespan == timeline.makespan
    assert found.bubble_fraction == pytest.approx(timeline.bubble_fraction, rel=1e-12, abs=1e-12)
    assert found.peak_in_flight == timeline.peak_in_flight

"""Charts, tables and units: what people read."""

import io
import random
import re
import time

import pytest
from rich.console import Console

from headrace import Costs, Timeline, simulate
from headrace.report import gantt, in_words, ranks_table, table
from headrace.schedule import Action, build, parse
from headrace.timeline import Span
from headrace.units import count, percent, seconds, size, time_unit


def chart(timeline, width=100):
    lines = gantt(timeline, width).plain.split("\n")
    assert all(len(line) <= width for line in lines)
    return lines


def of(*spans, ranks=1):
    return Timeline(ranks, tuple(Span(rank, Action.parse(text), start, end) for rank, text, start, end in spans))


def test_a_schedule_is_drawn_to_scale():
    timeline = simulate(build("1f1b", ranks=3, micro_batches=4), Costs(1, 1, 1))
    assert chart(timeline, 64) == [
        "rank 0  F0 F1 F2 ············[B0  ]F3 [B1  ]···[B2  ]···[B3  ]",
        "rank 1  ···F0 F1 ······[B0  ]F2 [B1  ]F3 [B2  ]···[B3  ]······",
        "rank 2  ······F0 [B0  ]F1 [B1  ]F2 [B2  ]F3 [B3  ]············",
        "     s  0              5              10             15",
        "        F forward   [B] backward   · idle",
    ]


def test_split_backwards_and_recompute_look_different():
    assert chart(simulate(parse("0F0,0R0,0I0,0W0"), Costs()), 40) == [
        "rank 0  F0      {R0    }(I0    )<W0    >",
        "     s  0       1       2       3      4",
        "        F forward",
        "        (I) backward (input gradient)",
        "        <W> backward (weight gradient)",
        "        {R} recompute   · idle",
    ]


def test_ranks_with_several_stages_name_the_stage():
    timeline = simulate(parse("0F0,2F0,2B0,0B0\n1F0,1B0"), Costs(2, 1, 1))
    assert chart(timeline, 80)[:2] == [
        "rank 0  0F0         ············2F0         [2B0       ]············[0B0       ]",
        "rank 1  ············1F0         ························[1B0       ]············",
    ]
    assert chart(timeline, 38)[0] == "rank 0  0F0  ·····2F0  [2B0]·····[0B0]"


def test_labels_shrink_with_the_columns_and_never_lose_half_a_number():
    spans = [(0, f"0F{k}", k, k + 1) for k in range(10, 20)]
    timeline = of((0, "0B10", 0, 10), *spans)
    assert chart(timeline, 8 + 80)[0] == "rank 0  [B10" + " " * 35 + "]" + "".join(f"F{k} " for k in range(10, 20))
    assert chart(timeline, 8 + 60)[0].endswith("F10F11F12F13F14F15F16F17F18F19")
    assert chart(timeline, 8 + 40)[0].endswith("F F F F F F F F F F ")
    assert chart(of(*spans), 8 + 35)[0].endswith("FFFFFFFFFF")


def test_one_action():
    assert chart(of((0, "0F0", 0, 0.002)), 40) == [
        "rank 0  F0                              ",
        "    ms  0.0     0.5     1.0     1.5  2.0",
        "        F forward   · idle",
    ]


def test_no_action_at_all():
    idle = "·" * 32
    assert chart(Timeline(2, ()), 40) == [f"rank 0  {idle}", f"rank 1  {idle}", "     s  0", "        · idle"]


def test_actions_that_take_no_time_are_seen_where_there_is_room():
    timeline = of((0, "0F0", 0, 0), (0, "0W0", 5, 5), (0, "0F1", 6, 8), (0, "0W1", 7, 7), (0, "0B0", 10, 10))
    assert chart(timeline, 48)[0] == "rank 0  F···················W···F1      ·······B"
    assert chart(of((0, "0F0", 0, 0)), 40)[0] == "rank 0  F" + "·" * 31


def test_a_rank_without_work_is_all_idle():
    assert chart(of((0, "0F0", 0, 1), ranks=3), 40)[2] == "rank 2  " + "·" * 32


def test_measured_times_of_any_kind_keep_the_picture_whole():
    rng = random.Random(0)
    for _ in range(50):
        now, spans = rng.random() * 0.01, []
        for k in range(rng.randint(1, 60)):
            now += rng.random() * 10.0 ** -rng.randint(2, 7)
            end = now + rng.random() * 10.0 ** -rng.randint(2, 7)
            spans.append((rng.randrange(3), f"0{rng.choice('FBIWR')}{k}", now, end))
            now = end
        lines = chart(of(*spans, ranks=3), 100)
        rows = lines[:3]
        assert len({len(row) for row in rows}) == 1
        assert all(set(row[8:]) <= set("FBIWR0123456789[](){}<> ·") for row in rows)
        ticks = re.findall(r"\S+", lines[3])
        assert ticks[0] in {"s", "ms", "µs", "ns"}
        assert [float(tick) for tick in ticks[1:]] == sorted(float(tick) for tick in ticks[1:])


def test_axis_labels_stand_where_their_time_is():
    for makespan in (3, 7.5, 10, 33, 99.9, 0.0123, 4e-7, 12345.0):
        line = chart(of((0, "0F0", 0, makespan)), 108)[1]
        unit = time_unit(makespan)
        labels = [(m.start(), float(m.group())) for m in re.finditer(r"[\d.]+", line[8:])]
        assert len(labels) >= 3
        for column, value in labels[:-1]:
            assert column == pytest.approx(value * unit.in_seconds / makespan * 100, abs=0.51)


def test_a_hundred_thousand_spans_are_drawn_in_a_moment():
    spans = tuple(Span(r, Action(r, "F", k), float(k), k + 0.7) for r in range(10) for k in range(10_000))
    start = time.process_time()
    lines = chart(Timeline(10, spans))
    assert time.process_time() - start < 2
    assert lines[0] == "rank 0  " + "F" * 92


def test_the_narrowest_chart():
    timeline = simulate(build("1f1b", ranks=2, micro_batches=2), Costs())
    chart(timeline, 38)
    with pytest.raises(ValueError, match="width=37 is too narrow for a chart: give it at least 38 columns"):
        gantt(timeline, 37)


def rendered(thing, **options):
    console = Console(file=io.StringIO(), width=100, **options)
    console.print(thing)
    return console.file.getvalue()


def test_colour_in_a_terminal_and_none_elsewhere():
    picture = gantt(simulate(build("1f1b", ranks=2, micro_batches=2), Costs()), 60)
    assert "\x1b[" not in rendered(picture)
    coloured = rendered(picture, force_terminal=True, color_system="standard")
    assert "\x1b[" in coloured
    assert re.sub(r"\x1b\[[\d;]*m", "", coloured) == rendered(picture)


def test_tables():
    timeline = simulate(build("1f1b", ranks=2, micro_batches=3), Costs(1, 1, 1))
    lines = rendered(ranks_table(timeline)).splitlines()
    assert lines[0].split() == ["rank", "busy", "idle", "bubble", "peak", "in", "flight"]
    assert [line.split() for line in lines[2:]] == [
        ["0", "9", "s", "3", "s", "25.0", "%", "2"],
        ["1", "9", "s", "3", "s", "25.0", "%", "1"],
    ]
    assert "0.0 %" in rendered(ranks_table(Timeline(1, ())))
    titled = rendered(table(["name", "n"], [["a", 1], ["bcd", 20]], title="T"))
    assert [line.split() for line in titled.splitlines()] == [
        ["T"],
        ["name", "n"],
        ["─" * 9],
        ["a", "1"],
        ["bcd", "20"],
    ]
    with pytest.raises(ValueError, match="a row has 1 cells, but the table has 2 columns"):
        table(["a", "b"], [["1"]])


def test_in_a_narrow_terminal_names_stay_whole_and_nothing_is_cut_off():
    written = io.StringIO()
    made = table(["schedule", "needs"], [["interleaved-zb", "causal layers that carry keys and values " * 2]])
    Console(file=written, width=40).print(made)
    assert "interleaved-zb" in written.getvalue()
    written = io.StringIO()
    Console(file=written, width=12).print(table(["", "", ""], [["some name", "1234567.89 ms", "1234567.89 ms"]]))
    assert "…" not in written.getvalue()


def test_numbers_per_rank_in_words():
    assert in_words((8, 8, 8)) == "8 on every rank"
    assert in_words((5,)) == "5"
    assert in_words((3, 2, 1)) == "3, 2, 1"
    assert in_words(tuple(range(64, 0, -1))) == "64, 63, 62, …, 1"


@pytest.mark.parametrize(
    ("write", "value", "text"),
    [
        (seconds, 0, "0 s"),
        (seconds, 33, "33 s"),
        (seconds, 1.25, "1.25 s"),
        (seconds, 0.0123456, "12.35 ms"),
        (seconds, 80e-6, "80 µs"),
        (seconds, 5e-10, "0.5 ns"),
        (seconds, -0.002, "-2 ms"),
        (seconds, 12345.6, "12,346 s"),
        (size, 512, "512 B"),
        (size, 16 * 1024, "16 KiB"),
        (size, 1.5 * 2**20, "1.5 MiB"),
        (size, 2**40, "1 TiB"),
        (count, 950, "950"),
        (count, 12345, "12.3 k"),
        (count, 4_820_000, "4.82 M"),
        (count, 1_500_000_000, "1.5 G"),
        (percent, 3 / 11, "27.3 %"),
    ],
)
def test_units(write, value, text):
    assert write(value) == text

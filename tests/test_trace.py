"""Traces: of predicted steps of any schedule, and of real ones of threads and of processes."""

import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from fractions import Fraction
from itertools import pairwise
from pathlib import Path
from typing import Any

import chrome_trace
import naive
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from headrace import Costs, simulate
from headrace.cli.main import app
from headrace.planner.run_profile import TIMELINE, read_run, read_timelines
from headrace.planner.run_timelines import RunTimelines
from headrace.report.trace import as_trace
from headrace.schedule import CATALOGUE, Schedule, build
from headrace.schedule.actions import KIND_NAMES, Action
from headrace.schedule.messages import Message, channels, produced_by, wanted_by
from headrace.simulate import transfers
from headrace.timeline import ClockOffset, Span, Timeline, Transfer

TINY = ["--layers", "2", "--dim", "16", "--heads", "2", "--seq", "16", "--batch", "8", "--steps", "5"]


def with_messages(schedule: Schedule, costs: Costs) -> Timeline:
    timeline = simulate(schedule, costs)
    return Timeline.from_tracks(timeline.tracks, transfers(schedule, costs, timeline))


def traced(run: RunTimelines, slack: float = 0.0) -> chrome_trace.Trace:
    return chrome_trace.read(json.dumps(as_trace(run)), slack)


# -- predicted -------------------------------------------------------------------------------------------------------


def some_costs(rng: Any, schedule: Schedule) -> Costs:
    def some(count: int) -> list[Any]:
        return [rng.choice([0, 1, 2, Fraction(1, 3), Fraction(5, 2)]) for _ in range(count)]

    s, hops = schedule.stages, schedule.stages - 1
    return Costs(
        some(s), some(s), some(s), transfer=some(hops), message=some(hops), pair=rng.choice([None, some(s)]),
        bandwidth=rng.choice([None, 1, Fraction(2, 3)]), one_at_a_time=rng.random() < 0.5,
    )  # fmt: skip


def check_predicted(schedule: Schedule, costs: Costs) -> None:
    timeline = with_messages(schedule, costs)
    spans = {span.action: span for span in timeline.spans}
    by_message = {(t.sender, t.receiver, t.message): t for t in timeline.transfers}
    expected = {(*channel, out.message) for channel, each in channels(schedule).items() for out in each}
    assert by_message.keys() == expected
    assert len(timeline.transfers) == len(expected)
    producers = {produced_by(action, schedule.stages): action for action in spans}
    for rank in range(schedule.ranks):
        free: Any = 0
        for cell in schedule.cells(rank):
            for action in cell:
                message = wanted_by(action, schedule.stages)
                sender = None if message is None else spans[producers[message]].rank
                if message is not None and sender is not None and sender != rank:
                    transfer = by_message[sender, rank, message]
                    assert transfer.sent == spans[producers[message]].end
                    assert transfer.sent <= transfer.left <= transfer.got
                    assert transfer.asked == free <= transfer.got
                    free = transfer.got
            assert spans[cell[0]].start == free  # nothing else is waited for
            free = spans[cell[-1]].end
    if costs.one_at_a_time:
        sending = costs.sending(schedule.stages)
        for channel, messages in channels(schedule).items():
            times = [
                (by_message[*channel, out.message].left, sending[min(out.action.stage, out.message.stage)])
                for out in messages
            ]
            assert all(left - takes >= before for (before, _), (left, takes) in pairwise(times))
    trace = traced(RunTimelines(schedule.name, timeline, timeline))
    assert Counter(slice_.track.split()[0] for slice_ in trace.slices if not chrome_trace.waits(slice_)) == {
        what: 2 * count
        for what, count in (("compute", schedule.actions), ("send", len(expected)), ("receive", len(expected)))
        if count
    }


@given(naive.rich_schedules(), st.randoms(use_true_random=False))
@settings(max_examples=60, deadline=None)
def test_any_predicted_step_makes_a_valid_trace(schedule: Schedule, rng: Any) -> None:
    check_predicted(schedule, some_costs(rng, schedule))


@given(st.sampled_from(sorted(CATALOGUE)), st.randoms(use_true_random=False))
@settings(max_examples=60, deadline=None)
def test_any_schedule_of_the_catalogue_makes_a_valid_trace(name: str, rng: Any) -> None:
    options = {"segments": 2} if name == "seq1f1b" else {}
    schedule = build(name, ranks=rng.choice([2, 4]), micro_batches=rng.choice([8, 12]), **options)
    check_predicted(schedule, some_costs(rng, schedule))


def test_messages_by_hand() -> None:
    schedule = build("gpipe", ranks=2, micro_batches=2)
    costs = Costs(1, 1, 1, transfer=Fraction(1, 2), message=4, bandwidth=2, one_at_a_time=True)
    found = with_messages(schedule, costs).transfers
    assert [(t.sender, t.receiver, *t.message) for t in found] == [
        (0, 1, "activation", 1, 0), (0, 1, "activation", 1, 1), (1, 0, "gradient", 0, 1), (1, 0, "gradient", 0, 0),
    ]  # fmt: skip
    half = Fraction(1, 2)
    # sent, left, asked, got: each occupies the link for 2 s; rank 1 runs from 3½ to 4½ and from 5½ to 6½
    assert [tuple(t[3:]) for t in found] == [
        (1, 3, 0, 3 + half), (2, 5, 4 + half, 5 + half),
        (8 + half, 10 + half, 2, 11), (10 + half, 12 + half, 13, 13),
    ]  # fmt: skip


def test_a_timeline_of_another_schedule_has_none_of_its_messages() -> None:
    costs = Costs()
    other = simulate(build("gpipe", ranks=2, micro_batches=2), costs)
    for size in ({"ranks": 2, "micro_batches": 3}, {"ranks": 3, "micro_batches": 2}):
        with pytest.raises(ValueError, match="the timeline is not one of 1f1b"):
            transfers(build("1f1b", **size), costs, other)


# -- measured, with threads ------------------------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("name", ["1f1b", "zb-v", "chimera", "pipedream"])
def test_a_real_step_knows_its_messages(name: str) -> None:
    import headrace as hr

    model = torch.nn.Sequential(*(torch.nn.Linear(4, 4) for _ in range(4)))
    optimizer = (lambda named: torch.optim.SGD(named, lr=0.1)) if name == "pipedream" else None
    with hr.Pipeline(
        model, torch.nn.functional.mse_loss, ranks=2, micro_batches=4, schedule=name, optimizer=optimizer
    ) as pipe:
        assert pipe.timeline() == Timeline(2)
        for _ in range(2):
            pipe.step(torch.ones(8, 4), torch.zeros(8, 4))
        timeline, schedule = pipe.timeline(), pipe.schedule
    check_measured(schedule, timeline)
    assert timeline.clocks == (ClockOffset(0.0, 0.0),) * 2
    names = {kind.__name__: kind for kind in (Action, ClockOffset, Message, Span, Timeline, Transfer)}
    assert eval(repr(timeline), names) == timeline
    costs = Costs()
    trace = traced(RunTimelines(name, with_messages(schedule, costs), timeline))
    assert {s.process for s in trace.slices} == {
        f"rank {rank} {which}" for rank in (0, 1) for which in ("measured", "predicted")
    }
    assert not trace.labels


def check_measured(schedule: Schedule, timeline: Timeline, slack: float = 0.0) -> None:
    spans = {span.action: span for span in timeline.spans}
    expected = {(*channel, out.message): out.action for channel, each in channels(schedule).items() for out in each}
    consumers = {(span.rank, wanted_by(action, schedule.stages)): span for action, span in spans.items()}
    found = {(t.sender, t.receiver, t.message): t for t in timeline.transfers if t.message.what != "replica"}
    assert found.keys() == expected.keys()
    for key, transfer in found.items():
        assert transfer.asked <= transfer.got <= consumers[transfer.receiver, transfer.message].start
        assert spans[expected[key]].end <= transfer.sent <= transfer.left
        assert transfer.sent <= transfer.got + slack
    replicas = [t for t in timeline.transfers if t.message.what == "replica"]
    assert bool(replicas) == (len(schedule.placement.lanes) > 1)


# -- a run, as people make one ---------------------------------------------------------------------------------------

SHIFTED = """
import os, sys, time

real = time.perf_counter
if os.environ["RANK"] == "1":
    time.perf_counter = lambda: real() + 1000.0  # as on another host, that was switched on earlier

from headrace.cli.main import main

main()
"""


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A run of threads, and one of two processes whose clocks are a thousand seconds apart."""
    folder = tmp_path_factory.mktemp("runs")
    text = folder / "text.txt"
    text.write_text("".join(f"line {i} of a text about clocks and messages\n" for i in range(400)))
    script = folder / "shifted.py"
    script.write_text(SHIFTED)
    out = {name: folder / name for name in ("threads", "processes")}
    arguments = {
        name: ["train", *TINY, "--data", str(text), "--out", str(path), "--tensorboard", str(folder / f"{name} board")]
        for name, path in out.items()
    }
    done = CliRunner().invoke(app, arguments["threads"])
    assert done.exit_code == 0, done.output
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(script)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    process = subprocess.run(
        [*launcher, *arguments["processes"]], capture_output=True, text=True, env=environment, timeout=100, check=False
    )
    assert process.returncode == 0, process.stderr
    return out


def test_clocks_that_are_apart_are_aligned_within_the_stated_error(runs: dict[str, Path]) -> None:
    first, second = read_timelines(runs["processes"]).measured.clocks
    assert first == (0.0, 0.0)
    assert abs(second.offset + 1000.0) <= second.error
    profile, timeline = read_run(runs["processes"])
    assert 0 < second.error < 100  # of a thousand: it says something
    check_measured(profile.schedule, timeline, slack=second.error)
    assert min(span.start for span in timeline.spans) == 0


@pytest.mark.parametrize("name", ["threads", "processes"])
def test_a_run_has_a_trace(runs: dict[str, Path], name: str, tmp_path: Path) -> None:
    file = tmp_path / "trace.json"
    done = CliRunner().invoke(app, ["trace", str(runs[name]), "-o", str(file)])
    assert done.exit_code == 0, done.output
    assert "1f1b, 2 ranks: 16 actions and 8 messages, measured and predicted" in done.stdout
    assert str(file) in done.stdout
    run = read_timelines(runs[name])
    error = max(clock.error for clock in run.measured.clocks)
    text = file.read_text(encoding="utf-8")
    trace = chrome_trace.read(text, slack=error)
    assert [rank for rank, label in trace.labels.items() if label.startswith("clock ± ")] == (
        ["rank 1 measured"] if name == "processes" else []
    )
    clocks = json.loads(text)["otherData"]["clocks"]
    assert [clock["error_us"] for clock in clocks] == [1e6 * clock.error for clock in run.measured.clocks]
    shift = {(s.process, s.name): s.start for s in trace.slices if s.track == "compute"}
    for which, timeline in (("measured", run.measured), ("predicted", run.predicted)):
        base = shift[f"rank 0 {which}", "0F0"] - 1e9 * timeline.tracks[0].starts[0]
        for span in timeline.spans:
            start = shift[f"rank {span.rank} {which}", str(span.action)]
            assert start == pytest.approx(base + 1e9 * span.start, abs=2)
    about = next(s.args for s in trace.slices if s.name == "1B3")
    assert about == {"stage": 1, "kind": KIND_NAMES["B"], "micro_batch": 3}
    found = Counter(s.process.split()[2] for s in trace.slices if not chrome_trace.waits(s))
    assert found == {"measured": 32, "predicted": 32}


def test_the_command_for_programs_and_its_default_file(runs: dict[str, Path]) -> None:
    done = CliRunner().invoke(app, ["trace", str(runs["processes"]), "--json"])
    assert done.exit_code == 0, done.output
    summary = json.loads(done.stdout)
    file = runs["processes"] / "trace.json"
    clock = read_timelines(runs["processes"]).measured.clocks[1]
    assert summary == {
        "trace": str(file), "schedule": "1f1b", "ranks": 2, "actions": 16, "messages": 8, "clock_error": clock.error,
    }  # fmt: skip
    chrome_trace.read(file.read_text(), slack=clock.error)


def test_mistakes_end_with_code_2_and_one_line(runs: dict[str, Path], tmp_path: Path) -> None:
    for arguments, says in (
        ([str(tmp_path)], "holds no finished run: timeline.json cannot be read"),
        ([str(runs["threads"]), "-o", str(tmp_path / "nowhere" / "trace.json")], "nowhere"),
        ([], "Missing argument"),
    ):
        done = CliRunner().invoke(app, ["trace", *arguments])
        assert done.exit_code == 2, done.output
        assert says in done.stderr
        assert "Traceback" not in done.stderr


# -- timeline.json ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda d: d.update(version=1), "version is 1, but this headrace reads runs of version 2: train again"),
        (lambda d: d.update(colour="red"), "the timeline has an unknown key 'colour'"),
        (lambda d: d.pop("clocks"), "the timeline lacks 'clocks'"),
        (lambda d: d["transfers"].pop("measured"), "transfers lacks 'measured'"),
        (lambda d: d["transfers"]["measured"][0].update(lost=1), "transfers: measured: 0 has an unknown key 'lost'"),
        (lambda d: d["transfers"]["predicted"][0].update(sender=2), "rank 2 is none of the run's 2"),
        (lambda d: d["measured"][0].update(rank=-1), "rank -1 is none of the run's 2"),
        (lambda d: d["measured"][0].pop("end"), "measured: 0 lacks 'end'"),
        (lambda d: d["clocks"].pop(), "clocks has 1 entries, but there are 2 ranks"),
        (lambda d: d["clocks"][0].pop("error"), "clocks: 0 lacks 'error'"),
        (lambda d: d["measured"][0].update(start="0"), "measured: 0: start is '0', but must be a number"),
        (lambda d: d["measured"][0].update(start=2, end=1), "the span of 0F0 is from 2 to 1"),
        (
            lambda d: d["transfers"]["measured"][0].update(what="pigeon"),
            "what is 'pigeon', but must be one of activation",
        ),
    ],
)
def test_timelines_are_read_strictly(
    runs: dict[str, Path], tmp_path: Path, change: Callable[[Any], Any], message: str
) -> None:
    data = json.loads((runs["threads"] / TIMELINE).read_text(encoding="utf-8"))
    change(data)
    (tmp_path / TIMELINE).write_text(json.dumps(data), encoding="utf-8")
    with pytest.raises(ValueError, match=message) as refusal:
        read_timelines(tmp_path)
    assert str(refusal.value).startswith(str(tmp_path / TIMELINE))


def test_timelines_survive_their_file(tmp_path: Path) -> None:
    schedule, costs = build("zb-v", ranks=2, micro_batches=4), Costs(0.25, 0.5, 0.125, transfer=0.5)
    predicted = with_messages(schedule, costs)
    measured = Timeline(2, predicted.spans, predicted.transfers[::2], [ClockOffset(0.0, 0.0), ClockOffset(-3.5, 1e-4)])
    run = RunTimelines("zb-v", predicted, measured)
    (tmp_path / TIMELINE).write_text(run.to_json(), encoding="utf-8")
    assert read_timelines(tmp_path) == run
    assert replace(run, measured=predicted) != run


def test_a_receive_begins_when_its_message_is_sent_and_waits_before() -> None:
    timeline = with_messages(build("gpipe", ranks=2, micro_batches=1), Costs(2, 1, 1, transfer=1))
    trace = traced(RunTimelines("gpipe", timeline, timeline))
    received = [
        (s.name, s.start, s.end) for s in trace.slices if (s.process, s.track) == ("rank 1 measured", "receive")
    ]
    assert received == [
        ("wait for rank 0", 0, 2_000_000_000),
        ("activation 0 from rank 0", 2_000_000_000, 3_000_000_000),
    ]  # fmt: skip


def test_moments_before_the_first_start_do_not_become_negative() -> None:
    """A rank may wait before any rank has begun."""
    timeline = with_messages(build("1f1b", ranks=2, micro_batches=2), Costs(1.0, 1.0, 1.0))
    early: list[Transfer] = [t._replace(asked=t.asked - 0.5) for t in timeline.transfers[:1]]
    trace = traced(RunTimelines("1f1b", timeline, Timeline(2, timeline.spans, early)))
    starts = {s.process: s.start for s in trace.slices if s.name == "0F0"}
    assert starts == {"rank 0 measured": 500_000_000, "rank 0 predicted": 500_000_000}


# -- metrics ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["threads", "processes"])
def test_tensorboard_and_metrics_say_the_same(runs: dict[str, Path], name: str) -> None:
    accumulators = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    folder = runs[name].with_name(f"{name} board")
    assert len(list(folder.iterdir())) == 1  # only the first process writes
    events = accumulators.EventAccumulator(str(folder))
    events.Reload()
    lines = [json.loads(line) for line in (runs[name] / "metrics.jsonl").read_text().splitlines()]
    tags = {
        "loss/train": "loss", "loss/held_out": "held_out_loss", "optimizer/learning_rate": "learning_rate",
        "optimizer/gradient_norm": "gradient_norm", "time/step_seconds": "seconds",
        "time/tokens_per_second": "tokens_per_second", "time/bubble_fraction": "bubble_fraction",
    }  # fmt: skip
    assert set(events.Tags()["scalars"]) == set(tags)
    for tag, key in tags.items():
        written = {line["step"]: line[key] for line in lines if key in line}
        assert {event.step: event.value for event in events.Scalars(tag)} == pytest.approx(written, rel=1e-6)
    assert [line["step"] for line in lines] == [1, 2, 3, 4, 5]
    assert all(line["tokens_per_second"] == pytest.approx(8 * 16 / line["seconds"]) for line in lines)
    assert all(0 <= line["bubble_fraction"] < 1 for line in lines)


def test_without_tensorboard_it_says_how_to_get_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    out = tmp_path / "run"
    done = CliRunner().invoke(app, ["train", *TINY, "--tensorboard", str(tmp_path / "board"), "--out", str(out)])
    assert done.exit_code == 2
    assert "--tensorboard needs TensorBoard: pip install headrace[tensorboard]" in done.stderr
    assert not out.exists()

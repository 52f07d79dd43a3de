"""The report's file: what is read, what is said, and that nothing in it can run or be fetched."""

import json
import math
import re
import subprocess
import sys
from base64 import b64encode
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from run_folders import layers, leave, shaken
from typer.testing import CliRunner

from headrace.cli.main import app
from headrace.costs import Costs
from headrace.planner import Request, make_plan
from headrace.report.explain import Explanation, explain
from headrace.report.page import read, run_page, write_report
from headrace.report.page.charts import curve_line, gantt_chart, memory_chart
from headrace.report.page.html import Fact, facts, paragraph, settings, table
from headrace.report.page.page import as_json, page, section
from headrace.schedule import build, parse
from headrace.simulate import simulate
from headrace.simulate.critical_path import waits

ONE_F_ONE_B = build("1f1b", ranks=2, micro_batches=4)
EVIL = "</script><img src=x onerror='alert(1)'>&amp;\u2028"


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return leave(tmp_path / "run", ONE_F_ONE_B)


def test_data_cannot_end_its_script() -> None:
    text = as_json({EVIL: [EVIL, 1.5, None]})
    assert json.loads(text) == {EVIL: [EVIL, 1.5, None]}
    assert not set("<>&\u2028") & set(text)
    with pytest.raises(ValueError, match="JSON compliant"):
        as_json(float("nan"))


def test_every_piece_of_html_escapes_its_texts() -> None:
    for html in (
        paragraph(EVIL, EVIL),
        facts([Fact(EVIL, EVIL, EVIL)]),
        settings([(EVIL, EVIL)]),
        table([EVIL, EVIL], [[EVIL, EVIL]], EVIL),
        section("name", EVIL),
        page(EVIL, "", [], None, []),
    ):
        assert "<img" not in html
        assert "&lt;img src=x onerror=&#x27;alert(1)&#x27;&gt;&amp;amp;" in html


def test_a_browser_may_run_the_scripts_of_the_page_and_nothing_else(run: Path) -> None:
    html = run_page(read(run))
    (policy,) = re.findall(r'Content-Security-Policy" content="(.*?)"', html)
    assert policy.startswith("default-src 'none'")
    allowed = set(re.findall(r"'sha256-(.*?)'", policy))
    scripts = re.findall(r"<script>(.*?)</script>", html, re.DOTALL)
    assert {b64encode(sha256(text.encode()).digest()).decode() for text in scripts} == allowed
    assert not re.search(r"https?://|@import|url\(|\bon\w+=", html)


def test_what_is_read_is_what_was_run(run: Path) -> None:
    found = read(run)
    assert (found.name, found.profile.schedule.rows, found.plan, found.limits) == ("run", ONE_F_ONE_B.rows, None, None)
    assert found.predicted.makespan < found.measured.makespan
    assert (len(found.steps), found.steps[-1].held_out_loss) == (20, 0.3)
    assert found.whole_step == pytest.approx(1.1 * found.measured.makespan)
    assert not isinstance(found.again, str)
    assert found.again.plan.alternatives
    html = run_page(found)
    for heading in ("Timeline", "Where the time went", "Why it differs from the prediction", "The cut", "Loss"):
        assert f">{heading}</h2>" in html
    assert str(found.again).replace("'", "&#x27;") in html


def test_steps_before_a_re_planning_do_not_count(tmp_path: Path) -> None:
    folder = leave(tmp_path, ONE_F_ONE_B, config={"replan_after": 3})
    lines = [json.dumps({"step": i, "loss": 1.0, "seconds": 9.0 if i <= 3 else 1.0}) for i in range(1, 6)]
    (folder / "metrics.jsonl").write_text("\n".join(lines))
    assert read(folder).whole_step == 1.0


def test_a_plan_in_the_folder_gives_limits_and_alternatives(tmp_path: Path) -> None:
    plan = make_plan(Request([layers(4)], batch=16, ranks=2, memory=2.0**26, micro_batches=[4]))
    assert plan.memory == (2.0**26, 2.0**26)
    found = read(leave(tmp_path, ONE_F_ONE_B, plan=plan))
    assert (found.plan, found.limits) == (plan, plan.memory)
    html = run_page(found)
    assert "What the plan chose over" in html
    assert plan.alternatives[0].reason in html


def test_asynchronous_runs_are_not_planned_again(tmp_path: Path) -> None:
    found = read(leave(tmp_path, build("pipedream", ranks=2, micro_batches=4)))
    assert found.again == "pipedream updates its weights within the step; plans are for steps that do not."
    assert "the best that is known" not in run_page(found)


def test_what_was_asked_for_is_in_the_words_of_the_field(run: Path) -> None:
    found = read(run)
    html = run_page(replace(found, config={**found.config, "micro_batches": 4}))
    assert "<dt>micro-batches</dt>" in html
    assert "headrace plan --from RUN_DIR -o plan.json" in html


def test_what_cannot_be_planned_says_why(tmp_path: Path) -> None:
    plan = make_plan(Request([layers(4)], batch=16, ranks=2, micro_batches=[4]))
    found = read(leave(tmp_path, ONE_F_ONE_B, plan=replace(plan, memory=(1.0, 1.0))))
    assert isinstance(found.again, str)
    assert found.again.startswith("Nothing could be planned: ")
    assert found.again in run_page(found).replace("&#x27;", "'")


# -- charts ----------------------------------------------------------------------------------------------------------


def test_spans_are_numbered_through_all_ranks() -> None:
    schedule = parse("0F0,0F1,,0B0,,0B1\n,1F0,1B0,1F1,1B1,")
    timeline = simulate(schedule, Costs(1, 1, 1))
    chart = gantt_chart("t", timeline, schedule, waits(timeline, schedule))
    first, second = chart["tracks"]
    assert (first["actions"], second["actions"]) == (["0F0", "0F1", "0B0", "0B1"], ["1F0", "1B0", "1F1", "1B1"])
    assert (first["waits"], second["waits"]) == ([-1, 0, 5, 7], [0, 4, 5, 6])
    assert (first["critical"], second["critical"]) == ([1, 0, 0, 1], [1, 1, 1, 1])
    assert (first["starts"], first["ends"], chart["end"]) == ([0, 1, 4, 7], [1, 2, 6, 9], 9)


def test_moments_are_rounded_far_below_what_can_be_seen() -> None:
    for unit in (1e-7, 1, 1e6):
        timeline = shaken(simulate(ONE_F_ONE_B, Costs(1.23456789 * unit, unit, unit)))
        chart = gantt_chart("t", timeline, ONE_F_ONE_B, waits(timeline, ONE_F_ONE_B, unit))
        for track, drawn in zip(timeline.tracks, chart["tracks"], strict=True):
            assert drawn["ends"] == pytest.approx(list(track.ends), abs=1e-7 * timeline.makespan)


def test_memory_has_a_limit_per_rank_or_none() -> None:
    costs = layers(4).stage_costs((2, 2))
    timeline = simulate(ONE_F_ONE_B, costs)
    for limits in (None, (5.0, 6.0)):
        ranks = memory_chart(timeline, ONE_F_ONE_B, costs.memory, limits)["ranks"]
        assert [rank["limit"] for rank in ranks] == list(limits or (None, None))
        assert ranks[0]["points"][0] == [0, round(sum(layers(4).parameters[:2]) + sum(layers(4).trained[:2]))]


def test_long_curves_are_thinned_and_keep_their_end() -> None:
    points = [(float(i), 0.0) for i in range(12_345)]
    drawn = curve_line("loss", points)["points"]
    assert len(drawn) <= 1001
    assert (drawn[0], drawn[-1]) == ([0, 0], [12_344, 0])
    assert curve_line("loss", points[:3])["points"] == [[0, 0], [1, 0], [2, 0]]
    assert curve_line("loss", [])["points"] == []


def test_an_explanation_survives_its_file() -> None:
    found = explain(ONE_F_ONE_B, Costs(2, 2, 2), simulate(ONE_F_ONE_B, Costs([2, 3], 2, 2, transfer=1)))
    assert Explanation.from_data(json.loads(json.dumps(found.as_data()))) == found
    with pytest.raises(ValueError, match="version is 7, but this headrace reads explanations of version 1"):
        Explanation.from_data({**found.as_data(), "version": 7})


# -- the command -----------------------------------------------------------------------------------------------------


def test_the_command_writes_beside_the_run_or_where_it_is_told(run: Path, tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["report", str(run)])
    assert (done.exit_code, done.stdout) == (0, f"report written to {run / 'report.html'}\n")
    elsewhere = tmp_path / "mine.html"
    done = CliRunner().invoke(app, ["report", str(run), "-o", str(elsewhere), "--json"])
    assert (done.exit_code, json.loads(done.stdout)) == (0, {"report": str(elsewhere)})
    assert elsewhere.read_text(encoding="utf-8") == (run / "report.html").read_text(encoding="utf-8")


def test_losses_that_are_not_finite_are_left_out_and_said(run: Path) -> None:
    lines = [{"step": 1, "loss": 2.5}, {"step": 2, "loss": math.nan}, {"step": 3, "loss": None, "held_out_loss": None}]
    (run / "metrics.jsonl").write_text("\n".join(json.dumps({**line, "seconds": 1.0}) for line in lines))
    html = run_page(read(run))
    assert "Of 2 of 3 steps, the first of them 2, the loss is not finite." in html
    assert '"lines":[{"name":"trained","points":[[1,2.5]]}]' in html


def _old(file: Path) -> None:
    data = json.loads(file.read_text())
    file.write_text(json.dumps({**data, "version": 0}))


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (
            lambda run: (run / "profile.json").unlink(),
            "No such file or directory). The run in it did not end: train again",
        ),
        (lambda run: (run / "metrics.jsonl").unlink(), "holds no finished run: metrics.jsonl cannot be read"),
        (lambda run: _old(run / "profile.json"), "profile.json: version is 0"),
        (lambda run: _old(run / "timeline.json"), "timeline.json: version is 0"),
        (lambda run: _old(run / "explain.json"), "explain.json: version is 0"),
        (lambda run: (run / "config.json").write_text("[]"), "config.json is not what headrace train writes"),
        (
            lambda run: (run / "config.json").write_text('{"sequence": "a"}'),
            "config.json: sequence is 'a', but must be",
        ),
        (lambda run: (run / "config.json").write_text("{"), "config.json is no JSON"),
        (
            lambda run: (run / "explain.json").write_text('{"version": 1}'),
            "explain.json: the explanation lacks 'actions'",
        ),
        (lambda run: (run / "metrics.jsonl").write_text('{"step": 1}'), "metrics.jsonl, line 1, is not what headrace"),
        (lambda run: (run / "plan.json").write_text('{"version": 0}'), "plan.json: version is 0"),
        (lambda run: (run / "metrics.jsonl").write_bytes(b"\xff"), "metrics.jsonl is no text: its byte 0 is not UTF-8"),
        (lambda run: (run / "config.json").write_bytes(b"{}\xff"), "config.json is no text: its byte 2 is not UTF-8"),
        (lambda run: (run / "profile.json").write_bytes(b"\xff"), "profile.json is no text: its byte 0 is not UTF-8"),
        (lambda run: (run / "config.json").write_text("[" * 200_000), "config.json is nested too deeply"),
        (
            lambda run: (run / "config.json").write_text('{"a": 1, "a": 2}'),
            "config.json is no JSON: the key 'a' is the",
        ),
        (lambda run: (run / "config.json").write_text('{"a": NaN}'), "config.json is no JSON: NaN is no number"),
    ],
)
def test_what_is_no_finished_run_is_refused_by_name(run: Path, change: Any, says: str) -> None:
    change(run)
    done = CliRunner().invoke(app, ["report", str(run)])
    assert done.exit_code == 2, done.output
    assert says in done.stderr
    assert not (run / "report.html").exists()


def test_misuse_ends_with_code_2(run: Path, tmp_path: Path) -> None:
    for arguments in ([str(tmp_path / "nowhere")], [str(run), "-o", str(tmp_path / "no" / "folder.html")]):
        done = CliRunner().invoke(app, ["report", *arguments])
        assert done.exit_code == 2, done.output
        assert done.stderr.startswith("headrace report: ")


def test_a_report_needs_no_torch(run: Path) -> None:
    code = f"""
import sys
from pathlib import Path
from headrace.report.page import write_report
write_report(Path({str(run)!r}))
sys.exit(bool({{"torch", "numpy", "matplotlib"}} & sys.modules.keys()))
"""
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
    assert write_report(run).exists()

"""Pictures show the numbers that they are made from, and come out the same each time."""

import json
import re
import subprocess
import sys
from fractions import Fraction
from pathlib import Path
from xml.etree import ElementTree

import pytest
from typer.testing import CliRunner

import headrace as hr
from headrace.cli.exits import Exit
from headrace.cli.main import app
from headrace.report.plots.bubble import bubbles, draw_bubbles
from headrace.report.plots.canvas import save
from headrace.report.plots.gantt import colour, draw_gantt
from headrace.report.plots.memory import PeakMemory, draw_memory, gpipe_formula
from headrace.report.plots.throughput import Point, Throughput, draw_throughput
from headrace.schedule import Action, build
from headrace.timeline import Span, Timeline

M = 2**20
SVG = "{http://www.w3.org/2000/svg}"


def run(*arguments: str):
    return CliRunner().invoke(app, list(arguments))


def numbers(*arguments: str):
    result = run("plot", *arguments, "--json")
    assert result.exit_code == Exit.DONE, result.stderr
    return json.loads(result.stdout)


def svg(figure, folder: Path) -> ElementTree.Element:
    save(figure, folder / "it.svg")
    return ElementTree.parse(folder / "it.svg").getroot()


def texts(root: ElementTree.Element) -> list[str]:
    return ["".join(text.itertext()) for text in root.iter(f"{SVG}text")]


def boxes(root: ElementTree.Element) -> list[tuple[float, float, float, float, str]]:
    """Left, right, top, bottom and fill of what a Gantt chart has drawn, as far as it is an action."""
    (group,) = (group for group in root.iter(f"{SVG}g") if group.get("id") == "PolyCollection_1")
    found = []
    for path in group.iter(f"{SVG}path"):
        at = [float(n) for n in re.findall(r"[\d.]+", path.get("d", ""))]
        (fill,) = re.findall(r"fill: (#\w+)", path.get("style", ""))
        found.append((min(at[0::2]), max(at[0::2]), min(at[1::2]), max(at[1::2]), fill))
    return found


@pytest.mark.parametrize("name", ["1f1b", "zb-v", "chimera"])
def test_a_box_is_where_its_action_is(tmp_path: Path, name: str) -> None:
    timeline = hr.simulate(build(name, ranks=4, micro_batches=8), hr.Costs(1, 2, Fraction(1, 2)))
    root = svg(draw_gantt(timeline, name), tmp_path)
    drawn = boxes(root)
    assert len(drawn) == len(timeline.spans)
    left, right = min(box[0] for box in drawn), max(box[1] for box in drawn)
    scale = (right - left) / float(timeline.makespan)
    for span, (start, end, _, _, fill) in zip(timeline.spans, drawn, strict=True):
        assert start == pytest.approx(left + float(span.start) * scale, abs=0.01)
        assert end == pytest.approx(left + float(span.end) * scale, abs=0.01)
        assert fill == colour(span.action)
    heights = {span.rank: box[2:4] for span, box in zip(timeline.spans, drawn, strict=True)}
    assert [heights[rank] for rank in range(4)] == sorted(heights.values())  # rank 0 on top
    assert {"rank 0", "rank 3", "F forward", "idle", "time in s"} <= set(texts(root))


def test_labels_are_as_long_as_fits_everywhere(tmp_path: Path) -> None:
    def labels(*sizes: int) -> set[str]:
        ends = [sum(sizes[: i + 1]) for i in range(len(sizes))]
        spans = [
            Span(0, Action(0, "F", 10 + i), end - s, end) for i, (s, end) in enumerate(zip(sizes, ends, strict=True))
        ]
        return {text for text in texts(svg(draw_gantt(Timeline(1, spans)), tmp_path)) if re.fullmatch(r"F?1\d", text)}

    assert labels(3, 3, 3) == {"F10", "F11", "F12"}
    assert labels(*[3] * 9, 1000) == {"19"}
    assert labels(100, 100, 3, 100) == {"10", "11", "13"}


def test_overlapping_actions_share_the_height_of_their_row(tmp_path: Path) -> None:
    pair = [Span(0, Action(0, "F", 1), 1, 3), Span(0, Action(0, "B", 0), 1, 3)]
    drawn = boxes(svg(draw_gantt(Timeline(1, [Span(0, Action(0, "F", 0), 0, 1), *pair])), tmp_path))
    whole, upper, lower = [(top, bottom) for _, _, top, bottom, _ in drawn]
    assert upper[0] == whole[0]
    assert upper[1] == lower[0] == pytest.approx(sum(whole) / 2)
    assert lower[1] == whole[1]


def test_colours_are_hues_of_micro_batches_and_shades_of_kinds() -> None:
    every = {kind: [colour(Action(0, kind, k)) for k in range(8)] for kind in "FBW"}
    assert all(len(set(of_kind)) == 8 for of_kind in every.values())
    light = [[sum(bytes.fromhex(c[1:])) for c in every[kind]] for kind in "FBW"]
    assert all(f > b > w for f, b, w in zip(*light, strict=True))
    assert colour(Action(3, "I", 2)) == colour(Action(1, "B", 10))


def test_empty_and_crowded_timelines_are_drawn(tmp_path: Path) -> None:
    assert "rank 1" in texts(svg(draw_gantt(Timeline(2)), tmp_path))
    timeline = hr.simulate(build("1f1b", ranks=40, micro_batches=30), hr.Costs(1e-5, 1e-5, 1e-5))
    assert len(boxes(svg(draw_gantt(timeline), tmp_path))) == 40 * 60


def test_simulate_draws_the_same_bytes_each_time(tmp_path: Path) -> None:
    for ending, begins in ((".svg", b"<?xml"), (".png", b"\x89PNG"), (".pdf", b"%PDF")):
        files = [tmp_path / f"{i}{ending}" for i in range(2)]
        for file in files:
            result = run("simulate", "--ranks", "2", "--micro-batches", "3", "--text", "--plot", str(file))
            assert result.exit_code == Exit.DONE
            assert result.stdout == build("1f1b", ranks=2, micro_batches=3).to_text()
            assert result.stderr == f"picture written to {file}\n"
        first, second = (file.read_bytes() for file in files)
        assert first == second
        assert first.startswith(begins)


def test_another_process_draws_the_same_bytes(tmp_path: Path) -> None:
    arguments = ["plot", "bubble", "--micro-batches", "1,2", "-o"]
    assert run(*arguments, str(tmp_path / "here.svg")).exit_code == Exit.DONE
    subprocess.run([sys.executable, "-m", "headrace", *arguments, str(tmp_path / "there.svg")], check=True)
    assert (tmp_path / "here.svg").read_bytes() == (tmp_path / "there.svg").read_bytes()


def test_what_cannot_be_drawn_is_refused_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for command in (["simulate", "--plot"], ["plot", "bubble", "-o"], ["plot", "memory", "-o"]):
        refused = run(*command, "it.gif")
        assert refused.exit_code == Exit.USAGE
        assert "it.gif names no kind of picture: let it end with .svg, .png, .pdf" in refused.stderr
    nowhere = run("plot", "bubble", "-o", str(tmp_path / "no" / "it.svg"))
    assert nowhere.exit_code == Exit.USAGE
    assert "there is no folder" in nowhere.stderr
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    absent = run("simulate", "--plot", "it.svg")
    assert absent.exit_code == Exit.USAGE
    assert "pictures need matplotlib: pip install headrace[plot]" in absent.stderr
    assert run("simulate").exit_code == Exit.DONE


def test_numbers_and_help_need_neither_torch_nor_matplotlib() -> None:
    script = (
        "import sys; from headrace.cli.main import app\n"
        "app(sys.argv[1:], standalone_mode=False)\n"
        "assert not {'torch', 'numpy', 'matplotlib'} & set(sys.modules)"
    )
    for arguments in (["plot", "bubble", "--json"], ["plot", "memory", "--help"]):
        subprocess.run([sys.executable, "-c", script, *arguments], check=True, capture_output=True)


def test_the_bubble_is_the_closed_form_where_there_is_one() -> None:
    found = bubbles(["gpipe", "1f1b", "zb-h1"], 4, [8, 1, 32], hr.Costs(1, 1, 1))
    assert found.closed_form == (3 / 11, 3 / 4, 3 / 35)
    assert found.simulated["gpipe"] == pytest.approx(found.closed_form)
    assert found.simulated["1f1b"] == pytest.approx(found.closed_form)
    assert found.simulated["zb-h1"][0] == pytest.approx(1 / 9)


def test_the_bubble_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="schedule='2f2b' is unknown"):
        bubbles(["2f2b"], 4, [8], hr.Costs())
    refused = run("plot", "bubble", "--schedules", "dualpipe", "--ranks", "3")
    assert refused.exit_code == Exit.USAGE
    assert "dualpipe" in refused.stderr
    assert "0: every number must be 1 or more" in run("plot", "bubble", "--micro-batches", "4,0").stderr


def test_curves_have_a_point_for_each_number(tmp_path: Path) -> None:
    made = {
        "bubble": draw_bubbles(bubbles(["gpipe", "zb-h1"], 4, [8, 1, 32], hr.Costs())),
        "memory": draw_memory(
            PeakMemory(
                "it",
                (1, 4),
                {"never": (5 * M, 5 * M), "always": (5 * M, M)},
                {"never": (4 * M, 4 * M), "always": (4 * M, M / 2)},
            )
        ),
        "throughput": draw_throughput(
            Throughput("it", (Point(2, "1f1b, m = 4", 9.0, None), Point(1, "a, b", 5.0, 4.0)))
        ),
    }
    points = {
        name: {line.get_label(): [*zip(*line.get_data(), strict=True)] for line in figure.axes[0].get_lines()}
        for name, figure in made.items()
    }
    bubble = points["bubble"]
    assert bubble.keys() == {"(p−1)/(m+p−1)", "gpipe", "zb-h1"}
    for line in ("gpipe", "(p−1)/(m+p−1)"):
        assert dict(bubble[line]) == pytest.approx({1: 3 / 4, 8: 3 / 11, 32: 3 / 35})
    assert bubble["zb-h1"][1] == pytest.approx((8, 1 / 9))
    assert points["memory"] == {
        "everything kept: (L/K)·N": [(1, 4), (4, 4)],
        "everything kept: measured": [(1, 5), (4, 5)],
        "recompute: N + (L/K)·(N/M)": [(1, 4), (4, 0.5)],
        "recompute: measured": [(1, 5), (4, 1)],
    }
    assert points["throughput"] == {
        "in proportion to K": [(1, 5), (2, 10)],
        "planned": [(1, 5), (2, 9)],
        "measured here": [(1, 4)],
    }
    assert "MiB of the fullest rank" in texts(svg(made["memory"], tmp_path))
    assert {"1f1b", "m = 4"} <= set(texts(svg(made["throughput"], tmp_path)))


def test_memory_is_measured_beside_the_formula() -> None:
    small = ["--layers", "4", "--dim", "16", "--heads", "2", "--seq", "16", "--batch", "8", "--ranks", "2"]
    found = numbers("memory", *small, "--micro-batches", "1,8")
    for mode in ("never", "always"):
        for of_m, formula in zip(found["measured"][mode], found["formula"][mode], strict=True):
            assert formula <= of_m <= 2 * formula
    assert found["measured"]["always"][1] < 0.4 * found["measured"]["never"][1]
    assert gpipe_formula(10, 2, 8, 4, True) == 2 * 8 + 10 * 2
    assert gpipe_formula(10, 2, 8, 4, False) == 80


def test_throughput_is_planned_for_hardware_that_is_not_here() -> None:
    small = ["--layers", "6", "--dim", "512", "--seq", "256", "--batch", "32", "--hardware", "v100-16g"]
    found = numbers("throughput", *small, "--ranks", "1,2", "--schedules", "1f1b")
    one, two = found["points"]
    assert two["plan"].startswith("1f1b, m = ")
    assert one["measured"] is None
    assert 1 < two["predicted"] / one["predicted"] <= 2
    refused = run("plot", "throughput", *small, "--run", "1")
    assert refused.exit_code == Exit.USAGE
    assert "--run 1: v100-16g is not here" in refused.stderr


def test_throughput_is_measured_where_it_runs() -> None:
    small = ["--layers", "2", "--dim", "16", "--heads", "2", "--seq", "8", "--batch", "4", "--schedules", "1f1b"]
    found = numbers("throughput", *small, "--ranks", "1,2", "--run", "2", "--steps", "2")
    one, two = found["points"]
    assert one["measured"] is None
    assert two["measured"] > 0

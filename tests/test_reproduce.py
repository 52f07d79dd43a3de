"""Published results: what comes out within tolerance stays so, and what does not is known by name."""

import json
from importlib import import_module

import pytest
from typer.testing import CliRunner

from headrace.analytic.published.workloads import images, texts
from headrace.cli.exits import Exit
from headrace.cli.main import app
from headrace.cli.reproduce import TABLES

TOO_FAR = {
    "gpipe-table1": {"AmoebaNet-D (18, 544), Pipeline-2: parameters"},
    "gpipe-table2": {
        "AmoebaNet-D (18, 256), M=32, K=2",
        "AmoebaNet-D (18, 256), M=32, K=4",
        "AmoebaNet-D (18, 256), M=32, K=8",
        "Transformer, 48 layers, M=32, K=8",
    },
    "gpipe-table3": {"AmoebaNet-D (18, 128), M=32, K=8"},
    "torchgpipe": {"AmoebaNet-D (18, 256), m=4, n=4", "AmoebaNet-D (18, 256), m=32, n=2"},
    "zero-bubble": set(),
}
"""What is claimed (no note says why it may differ) and does not come out."""


def run(*arguments):
    return CliRunner().invoke(app, ["reproduce", *arguments])


def test_zero_bubble_comes_out():
    result = run("zero-bubble", "--json")
    assert result.exit_code == Exit.DONE
    found = json.loads(result.stdout)
    assert found["name"] == "zero-bubble"
    claimed = [figure for figure in found["figures"] if not figure["note"]]
    assert len(claimed) == 3 + 4 * 2
    assert all(figure["agrees"] for figure in claimed)
    assert all(abs(figure["deviation"]) < 0.085 for figure in found["figures"])


@pytest.mark.parametrize(
    ("workload", "parameters", "digit"),
    [
        (lambda: images(18, 208, auxiliary=True), 82e6, 1e6),
        (lambda: images(18, 416, auxiliary=True), 318e6, 1e6),
        (lambda: images(18, 544, auxiliary=True), 541e6, 1e6),  # the paper has 542M
        (lambda: texts(3), 282.2e6, 1e5),
        (lambda: texts(13), 785.8e6, 1e5),
        (lambda: texts(103), 5.3e9, 1e8),
    ],
)
def test_the_sizes_of_table_1_come_out_to_the_printed_digits(workload, parameters, digit):
    count = sum(parameter.numel() for parameter in workload().model.parameters())
    assert round(count / digit) == round(parameters / digit)


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", TABLES)
def test_claims(name):
    found = import_module(f"headrace.analytic.published.{TABLES[name]}").reproduce()
    assert {figure.name for figure in found.figures if not figure.note and not figure.agrees} == TOO_FAR[name]


def test_a_table_shows_ours_beside_theirs_with_reasons():
    result = run("zero-bubble")
    assert result.exit_code == Exit.DONE
    assert result.stderr == ""
    lines = [" ".join(line.split()) for line in result.stdout.splitlines()]
    assert lines[0] == "Zero bubble: bubble rates and throughput (Qi et al., 2024)"
    assert "1.5B, bubble rate of zb-h1 0.1585 0.1585 +0.0 % ±5e-05 yes" in lines
    assert "1.5B, interleaved ÷ 1F1B 1.177 1.11 +6.0 % ±0.056 (1)" in lines
    assert any(line.startswith("(1) here all its messages") for line in lines)


def test_an_unknown_table():
    result = run("alexnet")
    assert result.exit_code == Exit.USAGE
    assert "NAME alexnet is none of gpipe-table1, " in result.stderr


def test_help_names_all_tables():
    text = " ".join(run("--help").stdout.split())
    assert all(name in text for name in TABLES)

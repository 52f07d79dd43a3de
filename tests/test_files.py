"""Whatever file is handed over that is no text, the error names it."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from headrace.cli.main import app


@pytest.mark.parametrize(
    ("command", "file"),
    [
        (("trace",), "timeline.json"),
        (("report",), "profile.json"),
        (("plan", "--from"), "profile.json"),
        (("train", "--plan"), "a.json"),
        (("train", "--schedule-file"), "a.csv"),
        (("simulate", "--schedule-file"), "a.csv"),
        (("schedules", "check"), "a.csv"),
        (("plan", "--hardware"), "a.toml"),
    ],
)
def test_what_is_no_text_is_named(command: tuple[str, ...], file: str, tmp_path: Path) -> None:
    path = tmp_path / file
    path.write_bytes(b"0F0\xff\x00")
    given = path if file.startswith("a.") else tmp_path
    done = CliRunner().invoke(app, [*command, str(given)])
    assert done.exit_code == 2, done.output
    assert f"{path} is no text: its byte 3 is not UTF-8" in done.stderr


@pytest.mark.parametrize(
    "command",
    [
        ("plan", "-o"),
        ("profile", "-o"),
        ("report", "RUN", "-o"),
        ("trace", "RUN", "-o"),
        ("plot", "memory", "-o"),
        ("simulate", "--plot"),
    ],
    ids="-".join,
)
def test_where_nothing_can_be_written_nothing_is_computed(
    command: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (
        "headrace.planner.model.measured",
        "headrace.report.page.write_report",
        "headrace.cli.simulate.Costs",
    ):
        monkeypatch.setattr(module, pytest.fail)
    (tmp_path / "folder.svg").mkdir()
    for target, says in (("folder.svg", "is a folder"), ("nowhere/file.svg", "cannot be written: there is no folder")):
        done = CliRunner().invoke(app, [*command, str(tmp_path / target)])
        assert done.exit_code == 2, done.output
        assert says in done.stderr

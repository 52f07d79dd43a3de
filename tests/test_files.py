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

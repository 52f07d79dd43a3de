"""Draws docs/pictures/ by the commands that anybody can give.

python docs/make_pictures.py              draw what is computed: schedules, and the bubble
python docs/make_pictures.py --check      exit code 1 if these are not what would be drawn
python docs/make_pictures.py --measured   draw what is measured, too, on a machine that does nothing else
"""

import argparse
import shlex
import sys
import tempfile
from pathlib import Path
from typing import Final

from typer.testing import CliRunner

from headrace.cli.main import app

FOLDER: Final = Path(__file__).parent / "pictures"

_SIZE: Final = "--ranks 4 --micro-batches 8 --text"
_HALF: Final = "--forward 1/2 --backward 1"  # a rank with two stages has two halves of a model's p-th
COMPUTED: Final = {
    "gpipe": f"simulate --schedule gpipe {_SIZE} --plot",
    "gpipe-recompute": f"simulate --schedule gpipe --recompute always {_SIZE} --plot",
    "1f1b": f"simulate --schedule 1f1b {_SIZE} --plot",
    "interleaved": f"simulate --schedule interleaved {_SIZE} {_HALF} --plot",
    "zb-h1": f"simulate --schedule zb-h1 {_SIZE} --plot",
    "zb-v": f"simulate --schedule zb-v {_SIZE} {_HALF} --plot",
    "dualpipe": f"simulate --schedule dualpipe {_SIZE} --plot",
    "bubble": "plot bubble -o",
}
MEASURED: Final = {
    "memory": "plot memory -o",
    "throughput": "plot throughput --dim 256 --schedules 1f1b -o",
    "throughput-v100": "plot throughput --hardware v100-16g --layers 24 --dim 1024 --heads 16 --seq 1024 -o",
}


def draw(name: str, command: str, folder: Path) -> bytes:
    """The picture `name`, drawn into `folder` by `headrace` and `command`."""
    file = folder / f"{name}.svg"
    result = CliRunner().invoke(app, [*shlex.split(command), str(file)], catch_exceptions=False)
    if result.exit_code:
        sys.exit(f"headrace {command} {file}: {result.stderr}")
    return file.read_bytes()


def stale() -> list[str]:
    """The computed pictures that are not what would be drawn now."""
    with tempfile.TemporaryDirectory() as folder:
        drawn = {name: draw(name, command, Path(folder)) for name, command in COMPUTED.items()}
    files = {name: FOLDER / f"{name}.svg" for name in drawn}
    return [name for name, file in files.items() if not file.exists() or file.read_bytes() != drawn[name]]


def main() -> None:
    """Draw, or check."""
    arguments = argparse.ArgumentParser(description="Draw docs/pictures.")
    arguments.add_argument("--check", action="store_true", help="only compare")
    arguments.add_argument("--measured", action="store_true", help="draw what is measured as well")
    options = arguments.parse_args()
    if options.check:
        old = stale()
        sys.exit(f"{', '.join(old)} in {FOLDER}: not current, run python docs/make_pictures.py" if old else 0)
    FOLDER.mkdir(exist_ok=True)
    for name, command in (COMPUTED | MEASURED if options.measured else COMPUTED).items():
        draw(name, command, FOLDER)


if __name__ == "__main__":
    main()

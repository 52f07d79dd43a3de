"""What the scripts of this folder share: a page is written, or compared with what would be written."""

import argparse
import sys
from collections.abc import Callable
from pathlib import Path


def write(page: Callable[[], str], to: Path, script: str) -> None:
    """Write `page` to a file; with --check, only compare, and end with 1 if it is not current."""
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--check", action="store_true", help="only compare")
    text = page()
    if not arguments.parse_args().check:
        to.write_text(text, encoding="utf-8")
    elif to.read_text(encoding="utf-8") != text:
        sys.exit(f"{to} is not current: run python {script}")

"""Pages that are written by a script are what the script would write now."""

import importlib.util
from pathlib import Path
from types import ModuleType

from headrace.schedule import CATALOGUE

DOCS = Path(__file__).parent.parent / "docs"


def script(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, DOCS / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_page_of_schedules_is_current() -> None:
    page = script("make_schedules")
    assert (DOCS / "schedules.md").read_text(encoding="utf-8") == page.page(), "run python docs/make_schedules.py"
    assert set(page.WHEN) == set(CATALOGUE)


def test_the_page_of_planning_is_current() -> None:
    page = script("make_planning")
    assert (DOCS / "planning.md").read_text(encoding="utf-8") == page.page(), "run python docs/make_planning.py"


def test_the_pictures_are_current() -> None:
    pictures = script("make_pictures")
    assert pictures.stale() == [], "run python docs/make_pictures.py"
    drawn = {path.stem for path in pictures.FOLDER.glob("*.svg")}
    assert drawn == pictures.COMPUTED.keys() | pictures.MEASURED.keys()

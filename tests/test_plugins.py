"""Packages add schedules by entry points."""

from pathlib import Path

import pytest

from headrace.schedule import build, check

GENERATORS = """
from headrace.schedule import build

def backwards_first(ranks, micro_batches, *, recompute="never"):
    return build("1f1b", ranks=ranks, micro_batches=micro_batches, recompute=recompute)

def nothing(ranks, micro_batches):
    return None
"""


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder on sys.path as an installed package leaves it."""
    (tmp_path / "fancy_schedules.py").write_text(GENERATORS)
    points = "[headrace.schedules]\nfancy = fancy_schedules:backwards_first\nnothing = fancy_schedules:nothing\n"
    install(tmp_path, "fancy", points + "broken = fancy_schedules:absent\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


def install(folder: Path, name: str, points: str) -> None:
    info = folder / f"{name}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(points)


@pytest.mark.usefixtures("package")
def test_a_name_of_another_package_is_built_with_its_options() -> None:
    schedule = build("fancy", ranks=2, micro_batches=3, recompute="always")
    assert check(schedule).peak_in_flight == (2, 1)
    with pytest.raises(ValueError, match="schedule 'fancy' has no option 'waves': it takes recompute"):
        build("fancy", ranks=2, micro_batches=3, waves=2)
    with pytest.raises(
        ValueError, match=r"schedule='absent' is unknown: choose one of gpipe, .*, broken, fancy, nothing"
    ):
        build("absent", ranks=2, micro_batches=3)


@pytest.mark.usefixtures("package")
def test_what_a_package_gets_wrong_is_said_by_name() -> None:
    with pytest.raises(TypeError, match="the generator of schedule='nothing' returned None"):
        build("nothing", ranks=2, micro_batches=3)
    with pytest.raises(ValueError, match=r"schedule='broken' of fancy \(fancy_schedules:absent\) cannot be imported"):
        build("broken", ranks=2, micro_batches=3)


def test_two_packages_cannot_have_one_name(package: Path) -> None:
    install(package, "other", "[headrace.schedules]\nfancy = fancy_schedules:nothing\n")
    with pytest.raises(ValueError, match=r"schedule='fancy' is claimed by several packages: fancy .*, other"):
        build("fancy", ranks=2, micro_batches=3)

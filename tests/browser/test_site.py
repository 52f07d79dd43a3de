"""The built site opens offline, without a complaint, and asks for nothing."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from playwright.sync_api import Page

DOCS = Path(__file__).parent.parent.parent / "docs"
FETCHED = re.compile(
    r"<(?:script|img|source|iframe)[^>]*\ssrc=[\"'](?:https?:)?//|<link[^>]*\shref=[\"'](?:https?:)?//"
)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    build = ["-m", "sphinx", "-q", "-W", "--keep-going", "-b", "html", "-d", str(folder / "trees"), str(DOCS)]
    done = subprocess.run([sys.executable, *build, str(folder / "html")], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return folder / "html"


@pytest.mark.slow
def test_pages_open_and_fetch_nothing(site: Path, page: Page) -> None:
    for name in ("index", "tutorial", "schedules", "troubleshooting", "reference/pipeline", "reference/cli"):
        page.goto((site / f"{name}.html").as_uri())
        assert page.locator("h1").count() >= 1
    page.set_viewport_size({"width": 380, "height": 800})
    page.goto((site / "index.html").as_uri())
    assert page.evaluate("document.documentElement.scrollWidth") <= 380
    for file in site.rglob("*.html"):
        assert not FETCHED.search(file.read_text(encoding="utf-8")), file


@pytest.mark.slow
def test_the_reference_has_the_public_face_and_every_command(site: Path) -> None:
    import headrace
    from headrace.cli.main import app

    pages = "".join(file.read_text(encoding="utf-8") for file in (site / "reference").glob("*.html"))
    for name in set(headrace.__all__) - {"__version__", "schedule", "carry"}:
        assert f'id="headrace.{name}"' in pages, name
    for command in app.registered_commands:
        assert command.callback is not None
        assert f'id="headrace-{command.name or command.callback.__name__}"' in pages

"""Each test starts from the same random numbers, and the summary says whose files were tested."""

from typing import Any

import pytest
import torch

from course.chosen import FOLDER


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)


def pytest_terminal_summary(terminalreporter: Any) -> None:
    terminalreporter.write_line(f"course: tested the files in course/{FOLDER} (COURSE=exercises for yours)")

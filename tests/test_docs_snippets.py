"""Every block of every page of docs/ runs, and prints what the page shows."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from test_docs import DOCS, script

snippets = script("snippets")
PAGES = snippets.pages()


def name(page: Path) -> str:
    return str(page.relative_to(DOCS))


def has_slow(page: Path) -> bool:
    return "<!-- slow -->" in page.read_text(encoding="utf-8")


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    with torch.random.fork_rng():
        yield
    torch.set_num_threads(threads)


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_a_page_says_what_happens(page: Path) -> None:
    check(page, slow=False)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("page", [page for page in PAGES if has_slow(page)], ids=name)
def test_a_page_says_what_happens_slow_blocks_included(page: Path) -> None:
    check(page, slow=True)


def check(page: Path, *, slow: bool) -> None:
    for output in snippets.run(page.read_text(encoding="utf-8"), slow=slow):
        where = f"{page}, line {output.line}: run python docs/make_outputs.py"
        if output.measured:
            assert output.as_shown, f"{where} --measured\n{output.printed}"
        else:
            assert output.shown == output.printed, where


EXAMPLE = """
```python
print(1 + 1)
```

```text
3
```

<!-- measured -->
```console
$ headrace schedules --ranks 2 --micro-batches 2
seconds   12

$ headrace --version
```

<!-- not run: it never ends -->
```python
while True: pass
```
"""


def test_blocks_are_read_run_and_compared() -> None:
    first, second, third = snippets.run(EXAMPLE)
    assert (first.shown, first.printed, first.as_shown) == ("3\n", "2\n", False)
    assert "1f1b" in second.printed
    assert second.as_shown  # a line with digits may differ
    assert EXAMPLE[second.start : second.end] == second.shown == "seconds   12\n"
    assert EXAMPLE[third.start : third.end] == third.shown == ""


def test_a_line_of_words_must_be_there_even_if_numbers_vary() -> None:
    output = snippets.Output(1, "stage   layers\n0   9\n", "stage layers\n0   7\n", True, 0, 0)
    assert output.as_shown
    assert not snippets.Output(1, "stage   rows\n", output.printed, True, 0, 0).as_shown

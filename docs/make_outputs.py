"""Writes into the pages what their commands print: of those that always print the same.

python docs/make_outputs.py              all pages
python docs/make_outputs.py --measured   measured and slow ones as well: minutes, with the numbers of this machine
python docs/make_outputs.py … PAGE       only these pages, such as docs/tutorial.md
"""

import argparse
from pathlib import Path

from snippets import pages, run


def renewed(text: str, *, measured: bool) -> str:
    """A page with the outputs of today."""
    for output in reversed(run(text, slow=measured)):
        if measured or not output.measured:
            text = text[: output.start] + output.printed + text[output.end :]
    return text


if __name__ == "__main__":
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--measured", action="store_true", help="measured and slow ones as well")
    arguments.add_argument("pages", nargs="*", type=Path, help="only these")
    given = arguments.parse_args()
    for page in given.pages or pages():
        old = page.read_text(encoding="utf-8")
        new = renewed(old, measured=given.measured)
        if new != old:
            page.write_text(new, encoding="utf-8")
            print(f"{page} renewed")

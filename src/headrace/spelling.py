"""What somebody may have meant by a name that is not there."""

import difflib
from collections.abc import Collection


def meant(name: str, known: Collection[str]) -> str:
    """For the end of an error: "did you mean 'block1'?", or which names there are."""
    like = difflib.get_close_matches(name, known, n=1)
    few = list(known) if len(known) <= 8 else [*list(known)[:4], "…", *list(known)[-2:]]
    return f"did you mean {like[0]!r}?" if like else f"there are {', '.join(few)}"

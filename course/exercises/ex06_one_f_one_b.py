"""Exercise 6: 1F1B, the same bubble in bounded memory.

GPipe starts no backward before all forwards are done, so it holds m micro-batches. 1F1B (one forward, one backward)
lets each backward run as soon as it can, and so frees its memory for the next forward:

    rank 0  F0 F1 F2 ············[B0  ]F3 [B1  ]···[B2  ]···[B3  ]
    rank 1  ···F0 F1 ······[B0  ]F2 [B1  ]F3 [B2  ]···[B3  ]······
    rank 2  ······F0 [B0  ]F1 [B1  ]F2 [B2  ]F3 [B3  ]············

A row has three parts: the *warm-up*, min(p − 1 − r, m) forwards on rank r; the *steady state*, pairs of one forward
and one backward; and the *cool-down*, the backwards that are left. So rank r holds min(p − r, m) micro-batches,
however large m is. The bubble is that of GPipe: the first micro-batch still needs p − 1 hops to reach the last rank.

A schedule is nothing but these rows; when everything happens follows from them:

    end of an action = max(end of the one before it on its rank, end of what it needs) + its cost

If at some point no rank can go on, each waits for another in a circle: a *deadlock*. Rows that end once always end, at
whatever speed, and so playing them once is a proof. `hr.schedule.check` is built on this, and so is what you write
here.
"""

from collections.abc import Sequence

import headrace as hr

Rows = list[list[str]]


def row(rank: int, ranks: int, m: int) -> list[str]:
    """What one rank does, in order, such as ["1F0", "1F1", "1B0", …]."""
    raise NotImplementedError("TODO 6.1: write the row of 1F1B: warm-up, pairs of forward and backward, cool-down.")


def peak(row: Sequence[str]) -> int:
    """How many micro-batches are in flight at most: forward begun, backward not ended."""
    raise NotImplementedError(
        "TODO 6.2: walk along the row: +1 at each F, −1 at each B, and remember the largest value."
    )


def prove(rows: Rows) -> hr.schedule.Proof:
    """Headrace's proof that the rows are complete and cannot deadlock."""
    raise NotImplementedError(
        "TODO 6.3: write the rows as text, a line per rank with commas between actions; parse it and check it."
    )


def needs(action: str, ranks: int) -> str | None:
    """The action on another rank that this one waits for; None if its data is already there."""
    # Hint: stage s is on rank s here, so `action[0]` would do for up to ten ranks; better split at the letter.
    raise NotImplementedError(
        "TODO 6.4: say whose output it needs: a forward that of the stage before, a backward that of the stage after."
    )


def simulate(rows: Rows, forward: float, backward: float) -> dict[str, float]:
    """The end of each action. ValueError("deadlock …") if the rows do."""
    raise NotImplementedError(
        "TODO 6.5: again and again, let each rank run what can run; stop when all rows are done, or nothing moves."
    )

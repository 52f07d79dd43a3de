"""What an action waits for: the one description of data flow that check, simulator and runtime share.

                       stage s−1            stage s             stage s+1
    forward            F(s−1,k) ─────────▶ F(s,k) ──────────▶ F(s+1,k)
                                             │ ┊
    recompute                                ▼ ┊ (or, without R)
                                           R(s,k)
                                             │ ┊
    backward           B(s−1,k) ◀───────── B(s,k) ◀────────── B(s+1,k)
                                             ┊
    weights, if split                      I(s,k) ──▶ W(s,k)

Of a split backward, I takes B's place in the chain. A gradient leaves a stage at the end of its B or I.

Where sequences are cut, a segment's forward needs what the segment before it left on the stage (keys and values), and
its backward needs the gradient of what it left, from the segment after it. An overlapped pair begins when both of its
actions may. An update waits for nothing but the backward before it.
"""

from collections.abc import Collection, Iterable, Sequence
from itertools import pairwise

from headrace.schedule.actions import (
    BACKWARD,
    BACKWARD_INPUT,
    BACKWARD_WEIGHT,
    FORWARD,
    GIVES_INPUT_GRADIENT,
    RECOMPUTE,
    UPDATE,
    Action,
)


class Dependencies:
    """The data-flow edges of one schedule; iterate `of(action)`.

    Which edges there are depends on what the schedule contains (an R, a split backward), so this
    looks once at all its actions.

    Args:
        rows: one sequence of actions per rank.
        stages: how many stages there are.
        segments: in how many pieces the sequences are cut.
        pairs: the first actions of overlapped pairs.
    """

    def __init__(
        self,
        rows: Iterable[Sequence[Action]],
        stages: int,
        segments: int = 1,
        pairs: Collection[Action] = frozenset(),
    ) -> None:
        self._last_stage = stages - 1
        self._segments = segments
        self._partner: dict[Action, Action] = {}
        self._recomputed: set[tuple[int, int]] = set()
        self._split: set[tuple[int, int]] = set()
        for row in rows:
            if pairs:
                self._partner.update((a, b) for a, b in pairwise(row) if a in pairs)
            for stage, kind, micro_batch in row:
                if kind == RECOMPUTE:
                    self._recomputed.add((stage, micro_batch))
                elif kind == BACKWARD_INPUT:
                    self._split.add((stage, micro_batch))

    def gradient_from(self, stage: int, micro_batch: int) -> Action:
        """The action at whose end the gradient of this stage's input is known."""
        split = (stage, micro_batch) in self._split
        return Action(stage, BACKWARD_INPUT if split else BACKWARD, micro_batch)

    def of(self, action: Action) -> Iterable[Action]:
        """The actions that must have ended before `action` may start, those on its own rank first."""
        if action in self._partner:
            return (*self._alone(action), *self._alone(self._partner[action]))
        return self._alone(action)

    def _alone(self, action: Action) -> tuple[Action, ...]:
        stage, kind, k = action
        if kind == FORWARD:
            before = (Action(stage - 1, FORWARD, k),) if stage > 0 else ()
            return (Action(stage, FORWARD, k - 1), *before) if k % self._segments else before
        if kind == RECOMPUTE:
            return (Action(stage, FORWARD, k),)
        if kind in GIVES_INPUT_GRADIENT:
            own: tuple[Action, ...] = (Action(stage, RECOMPUTE if (stage, k) in self._recomputed else FORWARD, k),)
            if (k + 1) % self._segments:
                own = (*own, self.gradient_from(stage, k + 1))
            return (*own, self.gradient_from(stage + 1, k)) if stage < self._last_stage else own
        if kind == UPDATE:
            return (Action(stage, BACKWARD_WEIGHT if (stage, k) in self._split else BACKWARD, k),)
        return (Action(stage, BACKWARD_INPUT, k),)

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
"""

from collections.abc import Iterable, Sequence

from headrace.schedule.actions import BACKWARD, BACKWARD_INPUT, FORWARD, GIVES_INPUT_GRADIENT, RECOMPUTE, Action


class Dependencies:
    """The data-flow edges of one schedule; iterate `of(action)`.

    Which edges there are depends on what the schedule contains (an R, a split backward), so this
    looks once at all its actions.

    Args:
        rows: one sequence of actions per rank.
        stages: how many stages there are.
    """

    def __init__(self, rows: Iterable[Sequence[Action]], stages: int) -> None:
        self._last_stage = stages - 1
        self._recomputed: set[tuple[int, int]] = set()
        self._split: set[tuple[int, int]] = set()
        for row in rows:
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
        stage, kind, k = action
        if kind == FORWARD:
            return (Action(stage - 1, FORWARD, k),) if stage > 0 else ()
        if kind == RECOMPUTE:
            return (Action(stage, FORWARD, k),)
        if kind in GIVES_INPUT_GRADIENT:
            own = Action(stage, RECOMPUTE if (stage, k) in self._recomputed else FORWARD, k)
            return (own, self.gradient_from(stage + 1, k)) if stage < self._last_stage else (own,)
        return (Action(stage, BACKWARD_INPUT, k),)

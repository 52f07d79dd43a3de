"""Play words against durations, fast enough to do it thousands of times; `simulate` says the same, action by action."""

from dataclasses import dataclass
from operator import itemgetter
from typing import Literal

from headrace.search.problem import Problem, Words

Objective = Literal["makespan", "span"]


@dataclass(frozen=True)
class Played:
    """What came of it, in units of the problem.

    Attributes:
        ends: per letter, when its micro-batches ended.
        last: per rank, the last end.
        first: per rank, the start of its first action.
    """

    ends: list[list[int]]
    last: list[int]
    first: list[int]

    def value(self, objective: Objective) -> int:
        """The makespan, or the span: the most of any rank from its first start to its last end."""
        if objective == "makespan":
            return max(self.last)
        return max(last - first for last, first in zip(self.last, self.first, strict=True))


def play(problem: Problem, words: Words) -> Played | None:
    """When everything ends if every rank starts each action as soon as it can; None if the words deadlock.

    Args:
        problem: durations and lags.
        words: one per rank, each of which passes `fits`.
    """
    duration, needs, lag = problem.duration, problem.needs, problem.lag
    ends: list[list[int]] = [[] for _ in duration]
    position = [0] * len(words)
    clock = [0] * len(words)
    stalled = [-1] * len(duration)  # by letter: the rank that waits for its next end
    ready = list(range(len(words)))
    while ready:
        rank = ready.pop()
        word, now = words[rank], clock[rank]
        for at in range(position[rank], len(word)):
            letter = word[at]
            needed = needs[letter]
            mine = ends[letter]
            if needed >= 0:
                theirs = ends[needed]
                k = len(mine)
                if k >= len(theirs):
                    stalled[needed] = rank
                    position[rank] = at
                    break
                came = theirs[k] + lag[letter]
                if came > now:  # noqa: PLR1730 - max() would take twice as long
                    now = came
            now += duration[letter]
            mine.append(now)
            woken = stalled[letter]
            if woken >= 0:
                stalled[letter] = -1
                if woken != rank:
                    ready.append(woken)
        else:
            position[rank] = len(word)
        clock[rank] = now
    if any(position[rank] < len(word) for rank, word in enumerate(words)):
        return None
    return Played(ends, clock, [ends[word[0]][0] - duration[word[0]] for word in words])


def in_order_of_time(problem: Problem, words: Words, played: Played) -> list[tuple[int, int, int]]:
    """All actions as (start, rank, letter) by start, each after what it needs even where actions take no time."""
    done = [0] * len(problem.duration)
    position = [0] * len(words)
    order: list[tuple[int, int, int]] = []
    moved = True
    while moved:
        moved = False
        for rank, word in enumerate(words):
            at = position[rank]
            while at < len(word):
                letter = word[at]
                k, needed = done[letter], problem.needs[letter]
                if needed >= 0 and done[needed] <= k:
                    break
                order.append((played.ends[letter][k] - problem.duration[letter], rank, letter))
                done[letter] = k + 1
                at += 1
            moved = moved or at > position[rank]
            position[rank] = at
    order.sort(key=itemgetter(0))
    return order

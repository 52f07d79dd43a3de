"""List scheduling: whenever a rank is free, it starts the most urgent action that can start – or waits, if that pays.

    rank 0  F0 F1 F2 F3 ··I0 W0 F4 I1 W1 …        F while the window and the room allow, I as soon as its gradient is
    rank 1  ···F0 F1 F2 I0 F3 I1 W0 F4 I2 …       there, W where nothing else can run (or before, as the rule says)

What makes it safe where room is tight: a forward is admitted only if, with all owed W's done, every older micro-batch
could still be finished, oldest first, each with what is free plus what those before it give back (the banker's rule).
The oldest one can therefore always go on, so a step never gets stuck half-way.
"""

from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import product
from random import Random

from headrace.search.bounds import paths
from headrace.search.problem import F, I, Problem, W, Words


@dataclass(frozen=True)
class Rule:
    """How a rank chooses.

    Attributes:
        window: how many micro-batches may be between begin of their first F and end of their last I.
        owed: how many W's rank 0 lets wait before they go before F's; rank r, `owed` + r · `per_rank`.
        per_rank: see `owed`.
        patient: whether a W that would not end before the next known arrival gives way to it.
        forward_first: whether F's go before I's.
        deep_first: whether F's of higher stages go before those of lower ones.
    """

    window: int
    owed: int
    per_rank: int
    patient: bool
    forward_first: bool
    deep_first: bool

    def __str__(self) -> str:
        traits = [
            f"a window of {self.window}",
            "W at once" if not self.owed and not self.per_rank else "W late",
            "patient" if self.patient else "never idle",
        ]
        return ", ".join(traits + ["F first"] * self.forward_first)


def rules(problem: Problem) -> list[Rule]:
    """Rules that differ: first those that are best most often, then the others as they come."""
    p, m = problem.ranks, problem.micro_batches
    v = -(-problem.stages // p)
    room = problem.room
    whole = min(
        capacity // max(1, sum(room.before[s] for s in mine))
        for capacity, mine in zip(room.capacity, problem.stages_of, strict=True)
    )
    sizes = (2 * p, p, whole, whole + 1, whole + 2, p + p // 2, 2 * p - 1, p + 1, p * v, m)
    windows = list(dict.fromkeys(max(1, min(m, size)) for size in sizes))
    late = ((m, 0), (0, 1), (0, 0), (0, 2), (1, 0), (p, 0))
    orders = ((False, True), (True, False), (True, True), (False, False)) if v > 1 else ((False, True),)
    made = [Rule(window, m, 0, patient, *orders[0]) for patient in (True, False) for window in windows]
    others = [
        Rule(window, owed, per_rank, patient, forward_first, deep_first)
        for (owed, per_rank), patient, window, (forward_first, deep_first) in product(
            late, (True, False), windows, orders
        )
    ]
    Random(0).shuffle(others)
    return list(dict.fromkeys(made + others))


def list_schedule(problem: Problem, rule: Rule) -> Words:
    """The words that `rule` leads to; always complete, and within the room."""
    return _Run(problem, rule).words


class _Run:
    """One run of the clock."""

    def __init__(self, problem: Problem, rule: Rule) -> None:
        self.problem, self.rule = problem, rule
        self.words: Words = [[] for _ in range(problem.ranks)]
        self.ends: list[list[int]] = [[] for _ in problem.duration]
        self.free = list(problem.room.capacity)
        self.owed = [0] * problem.ranks  # W's, by rank
        self.owed_room = [0] * problem.ranks  # what they hold
        self.rank_of = problem.placement.rank_of
        tail = paths(problem).tail
        self.urgency = [0] * len(problem.duration)
        for s in range(problem.stages):
            self.urgency[3 * s + F] = s if rule.deep_first else -s
            self.urgency[3 * s + I] = tail[s]
        self._run()

    def _run(self) -> None:
        problem = self.problem
        left = [3 * problem.micro_batches * len(mine) for mine in problem.stages_of]
        busy_until = [0] * problem.ranks
        events = [(0, rank) for rank in range(problem.ranks)]
        asleep: set[int] = set()
        while events:
            now, rank = heappop(events)
            if not left[rank] or busy_until[rank] > now:
                continue
            letter, wake = self._choose(rank, now)
            if letter < 0:
                asleep.add(rank)
                if wake >= 0:
                    heappush(events, (wake, rank))
                continue
            asleep.discard(rank)
            end = now + problem.duration[letter]
            self._take(rank, letter, end)
            left[rank] -= 1
            busy_until[rank] = end
            heappush(events, (end, rank))
            receiver = self._receiver(letter)
            if receiver in asleep:
                asleep.remove(receiver)
                heappush(events, (now, receiver))

    def _receiver(self, letter: int) -> int:
        """The rank for which the end of `letter` is a message; −1 if none."""
        stage, kind = divmod(letter, 3)
        if kind == F and stage + 1 < self.problem.stages:
            return self.rank_of[stage + 1]
        return self.rank_of[stage - 1] if kind == I and stage else -1

    def _choose(self, rank: int, now: int) -> tuple[int, int]:
        """The letter that `rank` starts at `now`, or −1 and when to ask again (−1: once something has happened)."""
        rule, m, ends = self.rule, self.problem.micro_batches, self.ends
        best = wait = -1
        best_key: tuple[int, int] | None = None
        for s in self.problem.stages_of[rank]:
            for letter in (3 * s + F, 3 * s + I):
                k = len(ends[letter])
                forward = letter % 3 == F
                if forward:
                    if k == m or (s == 0 and k - len(ends[I]) >= rule.window):
                        continue
                elif k == len(ends[letter - 1]):
                    continue
                needed = self.problem.needs[letter]
                came = 0
                if needed >= 0:
                    if k >= len(ends[needed]):
                        continue
                    came = ends[needed][k] + self.problem.lag[letter]
                if forward and not self._admitted(s, k):
                    continue
                if came > now:
                    wait = came if wait < 0 else min(wait, came)
                    continue
                key = (int(forward == rule.forward_first), self.urgency[letter])
                if best_key is None or key > best_key:
                    best, best_key = letter, key
        if self.owed[rank]:
            limit = rule.owed + rule.per_rank * rank
            if best >= 0 and best % 3 == F and (self.owed[rank] > limit or not self._holds(best // 3)):
                return self._weight(rank), -1
            if best < 0:
                weight = self._weight(rank)
                if wait < 0 or not rule.patient or now + self.problem.duration[weight] <= wait:
                    return weight, -1
        return best, wait

    def _holds(self, stage: int) -> bool:
        """Whether there is room for one more forward without doing owed W's first."""
        return self.free[self.rank_of[stage]] >= self.problem.room.before[stage]

    def _weight(self, rank: int) -> int:
        """The W that `rank` owes for longest: that of the highest stage that owes most."""
        mine = self.problem.stages_of[rank]
        stage = max(mine, key=lambda s: (len(self.ends[3 * s + I]) - len(self.ends[3 * s + W]), s))
        return 3 * stage + W

    def _admitted(self, stage: int, k: int) -> bool:
        """Whether forward k of `stage` leaves every older micro-batch a way to its end (see the module)."""
        rank = self.rank_of[stage]
        room, ends = self.problem.room, self.ends
        available = self.free[rank] + self.owed_room[rank] - room.before[stage]
        if available < 0:
            return False
        mine = self.problem.stages_of[rank]
        if len(mine) == 1:
            return True
        # Micro-batches that have ended their I on the rank's lowest stage hold nothing but owed W's.
        for older in range(len(ends[3 * mine[0] + I]), k):
            needed = returned = 0
            for s in mine:
                if older >= len(ends[3 * s + F]):
                    needed += room.before[s]
                elif older >= len(ends[3 * s + I]):
                    returned += room.before[s]
            if needed > available:
                return False
            available += returned
        return True

    def _take(self, rank: int, letter: int, end: int) -> None:
        stage, kind = divmod(letter, 3)
        room = self.problem.room
        if kind == F:
            self.free[rank] -= room.before[stage]
        elif kind == I:
            self.free[rank] += room.before[stage] - room.after[stage]
            self.owed[rank] += 1
            self.owed_room[rank] += room.after[stage]
        else:
            self.free[rank] += room.after[stage]
            self.owed[rank] -= 1
            self.owed_room[rank] -= room.after[stage]
        self.ends[letter].append(end)
        self.words[rank].append(letter)

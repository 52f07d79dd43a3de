"""What is searched for, in whole numbers: durations, lags and room, and orders as words.

All micro-batches are alike, so nothing is lost if each stage takes them in their order, for F, I and W alike. Take any
schedule and number anew, on each stage, its F by the time they start, its I and its W likewise: the k-th smallest of
numbers that are each at least their partner's is at least the k-th smallest of the partners, so every dependency still
holds, nothing has moved, and as much memory is in use at every instant.

So the order of a rank is a word of letters (stage, kind); the micro-batch of a letter is how often it came before:

    0F0 0F1 0I0 0F2 0W0 …   is the word   F F I F W …   of stage 0      letter = 3 · stage + (F: 0, I: 1, W: 2)

A whole B is the same as I W, but sends its gradient later and never holds less, so words have none.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from headrace.costs import Costs
from headrace.schedule.actions import BACKWARD, BACKWARD_INPUT, BACKWARD_WEIGHT, FORWARD, Action, Kind
from headrace.schedule.numbers import at_least
from headrace.schedule.placement import Placement
from headrace.schedule.schedule import Schedule
from headrace.search.limits import Limit, Room, exact, grain, room

Word = list[int]
Words = list[Word]
"""One word per rank."""

KINDS: tuple[Kind, ...] = (FORWARD, BACKWARD_INPUT, BACKWARD_WEIGHT)
F, I, W = range(3)  # noqa: E741 - the field's letter


@dataclass(frozen=True)
class Problem:
    """Numbers in units of `unit` seconds, indexed by letter unless said otherwise.

    Attributes:
        placement: which rank holds which stage.
        micro_batches: m.
        duration: of an action.
        needs: the letter on another stage that must have come as often before; −1 if none.
        lag: how long its message travels.
        stages_of: the stages of each rank, in model order.
        room: memory.
        unit: seconds.
        exact_numbers: whether all costs are ints or Fractions, so that results are too.
    """

    placement: Placement
    micro_batches: int
    duration: tuple[int, ...]
    needs: tuple[int, ...]
    lag: tuple[int, ...]
    stages_of: tuple[tuple[int, ...], ...]
    room: Room
    unit: Fraction
    exact_numbers: bool

    @property
    def ranks(self) -> int:
        """How many ranks there are (p)."""
        return len(self.stages_of)

    @property
    def stages(self) -> int:
        """How many stages there are (S)."""
        return len(self.duration) // 3

    @property
    def actions(self) -> int:
        """How many actions there are on all ranks together."""
        return len(self.duration) * self.micro_batches

    def seconds(self, value: int) -> float:
        """`value` units in the kind of number in which the costs came: ints and Fractions stay exact."""
        if not self.exact_numbers:
            return float(value * self.unit)
        whole = value * self.unit
        return whole.numerator if whole.denominator == 1 else whole  # type: ignore[return-value]

    def schedule(self, words: Sequence[Sequence[int]], name: str = "searched") -> Schedule:
        """The schedule that `words` stand for."""
        rows = []
        for word in words:
            times = [0] * len(self.duration)
            row = []
            for letter in word:
                row.append(Action(letter // 3, KINDS[letter % 3], times[letter]))
                times[letter] += 1
            rows.append(tuple(row))
        return Schedule(name, tuple(rows), self.placement, self.micro_batches)


def problem_of(costs: Costs, placement: Placement, micro_batches: int, memory: Limit | None) -> Problem:
    """The problem in whole numbers, without rounding: all costs are multiples of a common unit.

    Raises:
        TypeError, ValueError: an argument is out of its range, or the memory too little for one micro-batch.
    """
    if not isinstance(costs, Costs):
        raise TypeError(f"costs={costs!r} must be a headrace Costs")
    if not isinstance(placement, Placement):
        raise TypeError(f"placement={placement!r} must be a headrace Placement, such as Placement.loop(4)")
    if placement.other_lanes:
        raise ValueError("placement has several lanes: search knows only one-way schedules, so give rank_of alone")
    at_least(1, micro_batches=micro_batches)
    stages = placement.stages
    by_kind = costs.per_stage(stages)
    hops = zip(costs.per_hop(stages), costs.sending(stages), strict=True)
    travel = [exact(hop) + exact(sending) for hop, sending in hops]
    travel = [Fraction(0) if placement.hop_is_local(s) else time for s, time in enumerate(travel)]
    seconds = [exact(by_kind[kind][s]) for s in range(stages) for kind in KINDS]
    unit = grain([*seconds, *travel])
    hop_units = [int(time / unit) for time in travel]
    needs, lag = [-1] * (3 * stages), [0] * (3 * stages)
    for s in range(stages - 1):
        needs[3 * (s + 1) + F], lag[3 * (s + 1) + F] = 3 * s + F, hop_units[s]
        needs[3 * s + I], lag[3 * s + I] = 3 * (s + 1) + I, hop_units[s]
    raw = [n for kind in KINDS for n in by_kind[kind]] + costs.per_hop(stages) + costs.sending(stages)
    return Problem(
        placement,
        micro_batches,
        tuple(int(time / unit) for time in seconds),
        tuple(needs),
        tuple(lag),
        tuple(placement.stages_of(rank) for rank in range(placement.ranks)),
        room(memory, costs, placement, micro_batches),
        unit,
        not any(isinstance(n, float) for n in raw),
    )


def words_of(schedule: Schedule) -> Words:
    """The words of a schedule of F, B, I and W; each B as I W."""
    spelt: dict[Kind, tuple[int, ...]] = {FORWARD: (F,), BACKWARD: (I, W), BACKWARD_INPUT: (I,), BACKWARD_WEIGHT: (W,)}
    return [[3 * stage + part for stage, kind, _ in row for part in spelt[kind]] for row in schedule.rows]


def fits(problem: Problem, word: Word, rank: int) -> bool:
    """Whether a word has each letter after those of its own stage that it needs, and stays within the rank's room."""
    before, after = problem.room.before, problem.room.after
    left = problem.room.capacity[rank]
    done = [0] * len(problem.duration)
    for letter in word:
        stage, kind = divmod(letter, 3)
        if kind == F:
            left -= before[stage]
            if left < 0:
                return False
        elif done[letter] >= done[letter - 1]:
            return False
        elif kind == I:
            left += before[stage] - after[stage]
        else:
            left += after[stage]
        done[letter] += 1
    return True


def repaired(problem: Problem, word: Word, rank: int) -> Word | None:
    """`word` with what is in the way of `fits` brought forward or put off; None if that does not help.

    Where there is no room for a forward, the W's that are owed come first, and if none is, the next action that can be.
    An action that comes before what it needs on its own stage waits for it.
    """
    if fits(problem, word, rank):
        return word
    before, after = problem.room.before, problem.room.after
    left = problem.room.capacity[rank]
    done = [0] * len(problem.duration)
    rest = word[::-1]
    result: Word = []
    while rest:
        full = False
        for at in range(len(rest) - 1, -1, -1):
            letter = rest[at]
            stage, kind = divmod(letter, 3)
            if kind == F:
                possible = left >= before[stage]
                full = full or not possible
            else:
                possible = done[letter] < done[letter - 1] and not (full and kind == I and _owes(problem, rank, done))
            if possible:
                break
        else:
            return None
        del rest[at]
        left += (-before[stage], before[stage] - after[stage], after[stage])[kind]
        done[letter] += 1
        result.append(letter)
    return result


def _owes(problem: Problem, rank: int, done: list[int]) -> bool:
    return any(done[3 * s + I] > done[3 * s + W] for s in problem.stages_of[rank])

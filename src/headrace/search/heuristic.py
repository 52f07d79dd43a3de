"""Good schedules without proof: the catalogue's, list schedules, repeated blocks, and what local moves make of them."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import islice

from headrace.schedule.schedule import Schedule
from headrace.search.bounds import bound
from headrace.search.budget import Budget
from headrace.search.improve import improve
from headrace.search.known import known_schedules
from headrace.search.list_scheduling import list_schedule, rules
from headrace.search.periodic import blocks, repeat
from headrace.search.play import Objective, play
from headrace.search.problem import Problem, Words, fits, words_of

# A list schedule costs as much as playing its actions so often.
_LIST_WORK = 10
# More actions than this are too many to improve one by one: a block is looked for in fewer micro-batches.
_MANY_ACTIONS = 6000
# How many of the best starts are improved.
_STARTS = 3


@dataclass(frozen=True)
class Candidate:
    """A complete order within the room.

    Attributes:
        value: what it takes, in units of the problem.
        words: the order.
        how: where it came from, in words.
        original: the catalogue's schedule, if it is one.
    """

    value: int
    words: Words
    how: str
    original: Schedule | None = None


def best_found(problem: Problem, objective: Objective, goal: int, budget: Budget) -> list[Candidate]:
    """All candidates, the best first; at least one.

    Args:
        problem: what is searched for.
        objective: what to lessen.
        goal: a lower bound, at which to stop.
        budget: how long to go on.
    """
    found = list(_known(problem, objective))
    few = max(16, 6 * problem.ranks)
    many = problem.actions > _MANY_ACTIONS and problem.micro_batches > 2 * few
    if many and all(candidate.value > goal for candidate in found):
        found += _repeated(problem, objective, few, budget)
    may_go_on = budget.share(0.3)
    for rule in rules(problem):
        if found and (min(c.value for c in found) == goal or not may_go_on(_LIST_WORK * problem.actions)):
            break
        found += as_candidates(problem, objective, list_schedule(problem, rule), f"list scheduling ({rule})")
    found.sort(key=lambda candidate: candidate.value)
    if found[0].value > goal and not many:
        found += _improved(problem, objective, goal, budget, found)
        found.sort(key=lambda candidate: candidate.value)
    return found


def _known(problem: Problem, objective: Objective) -> Iterator[Candidate]:
    for schedule in known_schedules(problem.placement, problem.micro_batches):
        for candidate in as_candidates(problem, objective, words_of(schedule), f"the catalogue's {schedule.name}"):
            yield replace(candidate, original=schedule)


def as_candidates(problem: Problem, objective: Objective, words: Words, how: str) -> Iterator[Candidate]:
    """The words as a candidate, if they stay within the room and do not deadlock."""
    if all(fits(problem, word, rank) for rank, word in enumerate(words)):
        played = play(problem, words)
        if played is not None:
            yield Candidate(played.value(objective), words, how)


def _improved(
    problem: Problem, objective: Objective, goal: int, budget: Budget, found: list[Candidate]
) -> Iterator[Candidate]:
    starts: dict[str, Candidate] = {}
    for candidate in found:
        starts.setdefault(str(candidate.words), candidate)
    for start in islice(starts.values(), _STARTS):
        words, moves = improve(problem, start.words, objective, goal, budget.share(0.7 / _STARTS))
        if moves:
            yield from as_candidates(problem, objective, words, f"{start.how}, improved by {moves} moves")


def _repeated(problem: Problem, objective: Objective, few: int, budget: Budget) -> Iterator[Candidate]:
    """A small search whose best orders have a block that can be repeated."""
    small = replace(problem, micro_batches=few)
    kinds: set[str] = set()
    for candidate in best_found(small, objective, bound(small, objective), budget)[:_STARTS]:
        played = play(small, candidate.words)
        if played is None or candidate.how in kinds:
            continue
        kinds.add(candidate.how)
        for block in blocks(small, candidate.words, played):
            words = repeat(problem, small, candidate.words, played, block)
            how = f"{candidate.how}, at {few} micro-batches, whose block of {block[2]} is repeated"
            yield from as_candidates(problem, objective, words, how)

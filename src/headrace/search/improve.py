"""Local improvement: take the chain of actions that decides the makespan, and move one of them out of its way.

    rank 0  F0 F1 W0 I0 F2 …        what the end waits for is a chain of blocks, one rank after the other;
                  └┬─┘              within a block, order is all that can change the end
                   └─ W0 after I0: the gradient leaves earlier

A move takes an action of a block to another place in its row, mostly the block's ends; where that takes more room than
there is, W's come first or F's wait (`repaired`). It is kept if it does not make the makespan longer (or now and then
all the same, to get out of a hollow); the best words seen are what is returned, and what a long fruitless walk goes
back to. The random numbers are the same every time, so the same problem gives the same schedule.
"""

from collections.abc import Callable
from random import Random

from headrace.search.play import Objective, Played, play
from headrace.search.problem import Problem, Word, Words, repaired

# How often a move is kept although it lengthens the makespan.
_WORSE_CHANCE = 0.02
# So many moves without a new best lead back to the best.
_FRUITLESS = 400


def improve(
    problem: Problem, words: Words, objective: Objective, goal: int, may_go_on: Callable[[int], bool]
) -> tuple[Words, int]:
    """Words at least as good as `words`, and how many moves bettered them.

    Args:
        problem: what they are for.
        words: where to start.
        objective: what to lessen.
        goal: a lower bound, at which to stop.
        may_go_on: asked before each try, with the number of actions that a try plays.
    """
    random = Random(0)
    played = play(problem, words)
    if played is None:
        raise ValueError("improve was given words that deadlock")
    now, value = [list(word) for word in words], played.value(objective)
    best, least, bettered, since = [list(word) for word in words], value, 0, 0
    actions = sum(map(len, words))
    while least > goal and may_go_on(actions):
        move = _move(problem, now, played, objective, random)
        if move is None:
            break
        rank, word = move
        since += 1
        kept = now[rank]
        mended = repaired(problem, word, rank)
        if mended is not None and mended != kept:
            now[rank] = mended
            after = play(problem, now)
            if after is not None and (after.value(objective) <= value or random.random() < _WORSE_CHANCE):
                played, value = after, after.value(objective)
                if value < least:
                    best, least, bettered, since = [list(w) for w in now], value, bettered + 1, 0
            else:
                now[rank] = kept
        if since > _FRUITLESS:
            now, since = [list(word) for word in best], 0
            again = play(problem, now)
            if again is None:
                break
            played, value = again, again.value(objective)
    return best, bettered


def _move(
    problem: Problem, words: Words, played: Played, objective: Objective, random: Random
) -> tuple[int, Word] | None:
    """A rank, and its word with one action moved out of the way of the critical chain; None if there is no block."""
    blocks = _critical_blocks(problem, words, played, objective)
    if not blocks:
        return None
    rank, start, stop = blocks[random.randrange(len(blocks))]
    word = words[rank]
    at = random.randrange(start, stop)
    if random.random() < 0.5:
        to = random.choice((start, at - 1, stop - 1, at + 1))
        to = min(max(to, start), stop - 1)
    else:  # far: past a gap that can take it
        to = random.randrange(len(word))
    if to == at:
        to = at + 1 if at + 1 < len(word) else at - 1
    moved = word[:at] + word[at + 1 :]
    moved.insert(to, word[at])
    return rank, moved


def _critical_blocks(
    problem: Problem, words: Words, played: Played, objective: Objective
) -> list[tuple[int, int, int]]:
    """The blocks (rank, start, stop) of two or more actions in a row on the chain that ends last."""
    duration, needs, lag, ends = problem.duration, problem.needs, problem.lag, played.ends
    if objective == "makespan":
        rank = max(range(len(words)), key=played.last.__getitem__)
    else:
        rank = max(range(len(words)), key=lambda r: played.last[r] - played.first[r])
    times = [_times(word, len(duration)) for word in words]
    blocks = []
    at = stop = len(words[rank])
    at -= 1
    while True:
        letter, k = words[rank][at], times[rank][at]
        start = ends[letter][k] - duration[letter]
        if at and ends[words[rank][at - 1]][times[rank][at - 1]] == start:
            at -= 1
            continue
        if stop - at > 1:
            blocks.append((rank, at, stop))
        if needs[letter] < 0 or ends[needs[letter]][k] + lag[letter] != start:
            return blocks
        letter = needs[letter]
        rank = problem.placement.rank_of[letter // 3]
        at = _position(words[rank], letter, k)
        stop = at + 1


def _times(word: Word, letters: int) -> list[int]:
    """For each place of a word, how often its letter came before."""
    counts = [0] * letters
    result = []
    for letter in word:
        result.append(counts[letter])
        counts[letter] += 1
    return result


def _position(word: Word, letter: int, k: int) -> int:
    """Where `letter` comes for the k-th time."""
    at = -1
    for _ in range(k + 1):
        at = word.index(letter, at + 1)
    return at

"""Many micro-batches: find a good beginning, middle and end for a few, and repeat the middle.

    few     F F F I W F I W F I W F I W I W I W        the same counts of F, I and W lie ahead of each other at ╎ and ╎,
                      ╎     ╎                          one micro-batch further on: what happened between may be repeated
    many    F F F I W ╎F I W╎F I W╎F I W … F I W I W I W

Order all actions by time. After each, the state is how far ahead of stage 0's forwards each letter is, on all ranks.
Where a state comes back, q micro-batches later, what lies between can be repeated any number of times: what an action
needs, and how much room is taken, depends on the differences only. So the result is complete, free of deadlock and
within the room because the small one was. If m is no whole number of blocks more, the surplus micro-batches are
dropped, which takes no dependency from any other and only frees room.
"""

from headrace.search.play import Played, in_order_of_time
from headrace.search.problem import F, Problem, Words

Block = tuple[int, int, int]
"""Where it starts and stops in the order of time, and how many micro-batches (q) it takes on."""


def blocks(problem: Problem, words: Words, played: Played, most: int = 3) -> list[Block]:
    """The repeatable blocks that take the least time per micro-batch, fastest first.

    Args:
        problem: the small problem.
        words: its solution.
        played: and when everything happens.
        most: how many blocks to name, of different beginnings.
    """
    order = in_order_of_time(problem, words, played)
    counts = [0] * len(problem.duration)
    seen: dict[tuple[int, ...], list[tuple[int, int, int]]] = {}
    found = []
    for at, (start, _, letter) in enumerate(order):
        state = tuple(count - counts[F] for count in counts)
        for earlier, then, forwards in seen.get(state, ()):
            q = counts[F] - forwards
            if q > 0:
                found.append(((start - then) / q, -(at - earlier), earlier, at, q))
        seen.setdefault(state, []).append((at, start, counts[F]))
        counts[letter] += 1
    chosen: dict[int, Block] = {}
    for _, _, start, stop, q in sorted(found):
        chosen.setdefault(start, (start, stop, q))
        if len(chosen) == most:
            break
    return list(chosen.values())


def repeat(problem: Problem, small: Problem, words: Words, played: Played, block: Block) -> Words:
    """The words of `problem` that come of repeating `block` in those of `small`.

    Args:
        problem: the same as `small`, with more micro-batches.
        small: what `words` solve.
        words: as said.
        played: when everything happens in them.
        block: one of `blocks`.
    """
    order = in_order_of_time(small, words, played)
    start, stop, q = block
    times = 1 + -(-(problem.micro_batches - small.micro_batches) // q)
    order = order[:start] + order[start:stop] * times + order[stop:]
    counts = [0] * len(problem.duration)
    result: Words = [[] for _ in words]
    for _, rank, letter in order:
        if counts[letter] < problem.micro_batches:
            counts[letter] += 1
            result[rank].append(letter)
    return result

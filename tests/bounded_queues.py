"""Schedules run over queues of limited depth: simply tried out, and as a search for a cycle in a graph of waits.

A rank's program is its row with every message written out. A send is done at the end of its action and waits for room
in the channel's queue; receives are done in the order of the sends, so one that is wanted early takes those before it
along, and keeps them aside:

    rank 1   receive F0 · compute F0 · send F0 · receive F1 · compute F1 · send F1 · receive B0 …

A queue of depth 0 is a rendezvous: the send ends when its receive is reached.
"""

import random
from collections.abc import Callable, Mapping
from math import inf
from typing import NamedTuple

import naive

from headrace.schedule import Action, Schedule

Link = tuple[int, int]
Depth = Callable[[Link], float]
"""How many messages the queue from one rank to another holds."""


class Op(NamedTuple):
    """One step of a rank: "compute" a unit, or "send" or "receive" message `number` of a link."""

    what: str
    unit: tuple[Action, ...] = ()
    link: Link = (-1, -1)
    number: int = -1


def programs(schedule: Schedule) -> list[list[Op]]:
    """Each rank's row with its messages."""
    wanted = naive.needs(schedule)
    rows = [naive.units(row, schedule.pairs) for row in schedule.rows]
    holder = {action: rank for rank, row in enumerate(schedule.rows) for action in row}
    taker = {d: a for a, ds in wanted.items() for d in ds if holder[d] != holder[a]}
    sent: dict[Link, list[Action]] = {}
    for row in schedule.rows:
        for action in row:
            if action in taker:
                sent.setdefault((holder[action], holder[taker[action]]), []).append(action)
    result = []
    for rank, row in enumerate(rows):
        program: list[Op] = []
        received: dict[Link, int] = {}
        for unit in row:
            for d in (d for action in unit for d in wanted[action] if holder[d] != rank):
                link = (holder[d], rank)
                last = sent[link].index(d)
                program += [Op("receive", link=link, number=i) for i in range(received.get(link, 0), last + 1)]
                received[link] = max(received.get(link, 0), last + 1)
            program.append(Op("compute", unit))
            links = [((rank, holder[taker[a]]), a) for a in unit if a in taker]
            program += [Op("send", link=link, number=sent[link].index(a)) for link, a in links]
        result.append(program)
    return result


def never_blocks_a_send(schedule: Schedule, depth: Mapping[Link, int], rng: random.Random) -> bool:
    """Run it with ranks of some order of speeds: does every send find room at once, and does all end?"""
    speeds = list(range(schedule.ranks))
    rng.shuffle(speeds)
    ended, blocked = _run(schedule, depth.__getitem__, speeds)
    return ended and not blocked


def ends(schedule: Schedule, depth: float) -> bool:
    """Try it with queues of this depth."""
    return _run(schedule, lambda _: depth, list(range(schedule.ranks)))[0]


def _run(schedule: Schedule, depth: Depth, speeds: list[int]) -> tuple[bool, bool]:
    """Whether all programs end, and whether a send had to wait on the way; who can move and is fastest, moves."""
    wanted, left = naive.needs(schedule), programs(schedule)
    done: set[Action] = set()
    queued: dict[Link, int] = {}
    blocked = False

    def moves(rank: int) -> bool:
        nonlocal blocked
        op = left[rank][0]
        if op.what == "compute":
            here = set(schedule.rows[rank])
            if not all(d in done for action in op.unit for d in wanted[action] if d in here):
                return False
            done.update(op.unit)
        elif op.what == "receive":
            if not queued.get(op.link):
                return False
            queued[op.link] -= 1
        else:
            other = left[op.link[1]]
            meets = depth(op.link) == 0 and other and other[0] == op._replace(what="receive")
            if meets:
                other.pop(0)
            elif queued.get(op.link, 0) >= depth(op.link):
                blocked = True
                return False
            else:
                queued[op.link] = queued.get(op.link, 0) + 1
        left[rank].pop(0)
        return True

    while any(left[rank] and moves(rank) for rank in speeds):
        pass
    return not any(left), blocked


def waits_in_a_circle(schedule: Schedule, depth: float) -> bool:
    """Whether the graph of waits has a cycle: who is after whom in a program, in the data, and for room in a queue."""
    after: dict[Op, set[Op]] = {}  # the ops that must have ended before each
    wanted = naive.needs(schedule)
    for program in programs(schedule):
        computes = {action: op for op in program if op.what == "compute" for action in op.unit}
        for before, op in zip([None, *program], program, strict=False):
            needed = after.setdefault(op, set())
            needed |= {before} if before else set()
            needed |= {computes[d] for action in op.unit for d in wanted[action] if d in computes}
            if op.what == "send":
                receive = op._replace(what="receive")
                begun = before if depth == 0 else op  # at a rendezvous the receive ends first, once the send has begun
                after.setdefault(receive, set()).add(begun)
                if op.number >= depth:
                    needed.add(receive._replace(number=int(op.number - depth)))
    while free := [op for op, needed in after.items() if not needed]:
        for op in free:
            del after[op]
        for needed in after.values():
            needed -= set(free)
    return bool(after)


DEPTHS = (0, 1, 2, inf)

"""Why no cut fits, and what would: every way out that is named was tried.

    what would help: 3.1 GiB more on rank 0 alone, or recompute='stage' (stage 0), or 6 ranks, or 9.4 GiB on every rank
                     ╰─ the least that one rank would have to grow                               │
                                                the least that all would have to grow together ──╯

With one stage a rank both numbers are exact. A span's smallest size only grows with its end, so

    from the left    boundaries that stages 0 … s − 1 reach while they fit    ├──────┤
    from the right   boundaries from which stages s + 1 … fit                            ├─────┤
    rank of s alone  the smallest span that closes the gap between them              ├─▶─┤
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import accumulate, pairwise
from math import inf

from headrace.costs import Bytes
from headrace.partition.errors import NoCutFits
from headrace.partition.minmax import partition
from headrace.partition.problem import Allowed, Problem
from headrace.partition.result import Found
from headrace.partition.spans import smallest_bytes, smallest_of

Solve = Callable[[Problem], Found | None]
_STEPS = 20


def refuse(problem: Problem, solve: Solve) -> NoCutFits:
    """The refusal of a problem without a cut.

    Args:
        problem: as given by the user.
        solve: searches a problem for one cut.
    """
    pieces = len(problem.boundaries) - 1
    what = f"no cut of {_counted(problem.costs.layers, 'layer')} into {_counted(problem.stages, 'stage')}"
    if pieces < problem.stages:
        together = ""
        if pieces < problem.costs.layers:
            together = f": keep_together (or tied weights) leaves {_counted(pieces, 'piece')}"
        ways = [f"at most {_counted(pieces, 'stage')}"]
        if pieces < problem.costs.layers and problem.costs.layers >= problem.stages:
            ways.append("keep fewer layers together")
        ways.append("split the model into finer layers")
        return NoCutFits(f"{what}{together}; every stage needs one: {_either(ways)}", "layers", ways_out=tuple(ways))
    if not _pins_allow(problem):
        ways = list(_fewer_pins(problem))
        return NoCutFits(f"{what} respects all pins: {_either(ways)}", "pins", ways_out=tuple(ways))
    alone = _one_rank(problem) if problem.one_stage_a_rank else None
    everyone = _all_ranks(problem) if problem.one_stage_a_rank else _all_ranks_by_search(problem, solve)
    ways = list(_ways_out(problem, solve))
    limits = set(problem.limits)
    limit = limits.pop()
    if limit is None or limits:
        ways.append(f"{size(everyone)} more on every rank")
    else:
        ways.append(f"memory={size(limit + everyone)} for every rank")
    if alone is not None:
        rank, missing = alone
        helps = _either([f"{size(missing)} more on rank {rank} alone", *ways])
        message = f"{what} fits into memory; what would help: {helps}"
        return NoCutFits(message, "memory", rank, missing, tuple(ways))
    tried = "" if problem.one_stage_a_rank else ", of those that were tried,"
    message = f"{what}{tried} fits into memory; every rank needs {size(everyone)} more: {_either(ways)}"
    return NoCutFits(message, "memory", None, everyone, tuple(ways))


def size(value: Bytes) -> str:
    """Bytes for people, never less than they are: 512 B, 3.1 GiB."""
    unit, name = 1, "B"
    for name_of in ("KiB", "MiB", "GiB", "TiB"):
        if value < 1024 * unit:
            break
        unit, name = 1024 * unit, name_of
    tenths = -(-value * 10 // unit)
    return f"{float(tenths) / 10:.4g} {name}" if unit > 1 else f"{float(-(-value // 1)):.0f} B"


def _ways_out(problem: Problem, solve: Solve) -> Iterator[str]:
    more: dict[str, tuple[Allowed, ...]] = {"never": ("stage", "layer"), "stage": ("layer",), "layer": ()}
    for mode in more[problem.recompute]:
        found = solve(replace(problem, recompute=mode))
        if found:
            stages = [str(s) for s, recomputes in enumerate(found.best.recomputes) if recomputes != "nothing"]
            which = f"stage{'s' * (len(stages) > 1)} {', '.join(stages)}"
            yield f"recompute={mode!r} ({which if len(stages) < problem.stages else 'every stage'})"
            break
    if problem.with_ranks is not None:
        most = min(len(problem.boundaries) - 1, problem.ranks + 64)
        for ranks in range(problem.ranks + 1, most + 1):
            other = problem.with_ranks(ranks)
            if other.stages >= len(other.boundaries):
                break
            if anything_fits(other) if other.one_stage_a_rank else solve(other):
                yield f"{ranks} ranks"
                break


def _fewer_pins(problem: Problem) -> Iterator[str]:
    """The pins without which, one at a time, there would be a cut."""
    for layer, stage in problem.pin_stage.items():
        others = {other: there for other, there in problem.pin_stage.items() if other != layer}
        if _pins_allow(replace(problem, pin_stage=others)):
            yield f"leave pin_stage={{{layer}: {stage}}} out"
    for layer, rank in problem.pin_rank.items():
        others = {other: there for other, there in problem.pin_rank.items() if other != layer}
        if _pins_allow(replace(problem, pin_rank=others)):
            yield f"leave pin_rank={{{layer}: {rank}}} out"


def _sizes(problem: Problem, stage: int, start: int) -> Iterator[tuple[int, Bytes]]:
    """For each boundary behind `start`, how many bytes a stage up to there is too large; 0 or less if it fits."""
    limit = problem.limits[problem.placement.rank_of[stage]]
    allowed, homes, anywhere = problem.is_boundary, problem.homes, (stage,)
    for end, held in smallest_bytes(problem, stage, start):
        if stage not in homes.get(end - 1, anywhere):
            return
        if allowed[end]:
            yield end, 0 if limit is None else held - limit


def _pins_allow(problem: Problem) -> bool:
    """Whether there is a cut at all, memory aside."""
    allowed = set(problem.boundaries)
    reached = {0}
    for stage in range(problem.stages):
        ends: set[int] = set()
        open_span = False
        for layer in range(problem.costs.layers):
            open_span = (open_span or layer in reached) and stage in problem.homes.get(layer, (stage,))
            if open_span and layer + 1 in allowed:
                ends.add(layer + 1)
        reached = ends
    return problem.costs.layers in reached


def anything_fits(problem: Problem) -> bool:
    """Whether there is a cut, with one stage a rank, however slow it is."""
    return _filled(problem) or problem.costs.layers in _from_left(problem)[-1]


def _filled(problem: Problem) -> bool:
    """Whether all layers are placed if each stage takes as many as it can: a quick yes, or nothing known."""
    at, boundaries = 0, problem.boundaries
    for behind in range(problem.stages - 1, -1, -1):
        latest = boundaries[len(boundaries) - 1 - behind]
        start = at
        for end, too_large in _sizes(problem, problem.stages - 1 - behind, start):
            if too_large > 0 or end > latest:
                break
            at = end
        if at == start:
            return False
    return at == problem.costs.layers


def _from_left(problem: Problem) -> list[set[int]]:
    """For each stage, and for the end, the boundaries that the stages before it can reach."""
    reached = [{0}]
    for stage in range(problem.stages):
        ends: set[int] = set()
        for start in reached[-1]:
            for end, too_large in _sizes(problem, stage, start):
                if too_large > 0:
                    break
                ends.add(end)
        reached.append(ends)
    return reached


def _from_right(problem: Problem) -> list[set[int]]:
    """For each stage, and for the end, the boundaries from which it and those behind it fit."""
    reached = [{problem.costs.layers}]
    for stage in range(problem.stages - 1, -1, -1):
        starts: set[int] = set()
        for start in problem.boundaries[:-1]:
            for end, too_large in _sizes(problem, stage, start):
                if too_large > 0:
                    break
                if end in reached[-1]:
                    starts.add(start)
                    break
        reached.append(starts)
    return reached[::-1]


def _one_rank(problem: Problem) -> tuple[int, Bytes] | None:
    """The rank that alone would have to grow least, and by how much; None if no rank alone is in the way."""
    left, right = _from_left(problem), _from_right(problem)
    best: tuple[Bytes, int] | None = None
    for stage in range(problem.stages):
        for start in left[stage]:
            for end, too_large in _sizes(problem, stage, start):
                if best is not None and too_large >= best[0]:
                    break
                if end in right[stage + 1]:
                    best = too_large, problem.placement.rank_of[stage]
                    break
    return None if best is None else (best[1], best[0])


def _all_ranks(problem: Problem) -> Bytes:
    """By how many bytes all ranks together would have to grow, at least."""
    # An even cut, if pins allow it, says how much is surely enough, which keeps the rows short.
    pieces = list(pairwise(problem.boundaries))
    even = partition([smallest_of(problem, 0, start, end) for start, end in pieces], problem.stages)
    ends = [problem.boundaries[at] for at in accumulate(even)]
    enough: Bytes = 0
    for stage, (start, end) in enumerate(pairwise((0, *ends))):
        enough = max(enough, dict(_sizes(problem, stage, start)).get(end, inf))
    here: dict[int, Bytes] = {0: 0}
    for stage in range(problem.stages):
        ahead: dict[int, Bytes] = {}
        for start, so_far in here.items():
            for end, too_large in _sizes(problem, stage, start):
                if too_large > enough:
                    break
                ahead[end] = min(ahead.get(end, inf), max(so_far, too_large))
        here = ahead
    return here[problem.costs.layers]


def _all_ranks_by_search(problem: Problem, solve: Solve) -> Bytes:
    """The same for ranks with several stages: the least that the search found to be enough, by halving."""
    small: Bytes = 0
    large = max(held for stage in range(problem.stages) for _, held in smallest_bytes(problem, stage, 0))
    large *= problem.stages
    for _ in range(_STEPS):
        middle = (small + large) // 2
        roomier = [None if limit is None else limit + middle for limit in problem.limits]
        if solve(replace(problem, memory=roomier)):
            large = middle
        else:
            small = middle
    return large


def _counted(number: int, what: str) -> str:
    return f"{number} {what}{'s' * (number != 1)}"


def _either(ways: list[str]) -> str:
    return ", or ".join(ways) if ways else "no single change that we tried is enough"

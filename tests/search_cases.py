"""What the tests of the search share: instances, and plain ways to measure what it promises."""

from hypothesis import strategies as st

from headrace import Costs
from headrace.costs import Memory
from headrace.schedule import Placement
from headrace.search import Bytes, InFlight


@st.composite
def instances(draw, most_ranks=4, most_micro_batches=6):
    """Costs, placement, micro-batches and a memory limit that is just enough, ample, or none."""
    ranks = draw(st.integers(1, most_ranks))
    make = draw(st.sampled_from([Placement.loop, lambda p: Placement.loop(p, 2), Placement.v, odd]))
    placement = make(ranks)
    stages = placement.stages
    seconds = st.lists(st.integers(0, 9), min_size=stages, max_size=stages)
    sizes = st.lists(st.integers(0, 5), min_size=stages, max_size=stages)
    activations, parameters = draw(sizes), draw(sizes)
    for_weight = [draw(st.integers(0, held)) for held in activations]
    costs = Costs(
        draw(seconds),
        draw(seconds),
        draw(seconds),
        transfer=draw(st.lists(st.integers(0, 6), min_size=stages - 1, max_size=stages - 1)),
        memory=Memory(activations, for_weight, parameters=parameters),
    )
    kind = draw(st.sampled_from(["none", "in flight", "bytes"]))
    memory = None
    if kind == "in flight":
        memory = InFlight([len(placement.stages_of(r)) + draw(st.integers(0, 4)) for r in range(placement.ranks)])
    elif kind == "bytes":
        memory = Bytes([least_bytes(costs, placement, r) + draw(st.integers(0, 12)) for r in range(placement.ranks)])
    return costs, placement, draw(st.integers(1, most_micro_batches)), memory


def odd(ranks):
    """A placement that is neither loop nor V: uneven numbers of stages, neighbours on one rank."""
    return Placement((*range(ranks), 0, 0, ranks - 1))


def least_bytes(costs, placement, rank):
    mine, whole = placement.stages_of(rank), placement.stages
    held = costs.memory.per_stage("activations", whole), costs.memory.per_stage("parameters", whole)
    return sum(of[s] for s in mine for of in held) + max(costs.memory.per_stage("working", whole)[s] for s in mine)


def within(schedule, costs, memory):
    """Whether each row, played in its order, stays within `memory`."""
    if memory is None:
        return True
    placement, whole = schedule.placement, schedule.stages
    before = costs.memory.per_stage("activations", whole) if isinstance(memory, Bytes) else [1] * whole
    after = costs.memory.per_stage("for_weight", whole) if isinstance(memory, Bytes) else [1] * whole
    parameters = costs.memory.per_stage("parameters", whole) if isinstance(memory, Bytes) else [0] * whole
    working = costs.memory.per_stage("working", whole) if isinstance(memory, Bytes) else [0] * whole
    for rank, row in enumerate(schedule.rows):
        most = memory.most[rank] if isinstance(memory.most, list) else memory.most
        used = sum(parameters[s] for s in placement.stages_of(rank))
        for stage, kind, _ in row:
            held, rest = before[stage], after[stage]
            used += held if kind == "F" else 0
            if used + working[stage] > most:
                return False
            used += {"F": 0, "I": rest - held, "W": -rest, "B": -held}[kind]
    return True

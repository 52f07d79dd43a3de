"""Our orders against those that torch generates for the schedules that it has, action by action.

Torch's schedule classes want stages with models; only the parts of them that write an order are run here.
"""

import pytest
from torch.distributed.pipelining import schedules as torchs

from headrace.schedule import build

SIZES = [(p, m) for p in (1, 2, 3, 4, 6, 8) for m in (1, 2, 3, 4, 8, 9, 16)]


def instance(cls, p, m, v):
    """A schedule of torch's without what needs stages."""
    made = object.__new__(cls)
    made.pp_group_size, made._n_microbatches, made.n_local_stages = p, m, v
    made._stages, made.num_stages, made._num_stages = [None] * v, p * v, p * v
    made.number_of_rounds = max(1, m // p)
    made.microbatches_per_round = m // made.number_of_rounds
    return made


def words(actions):
    """Torch's actions as we write them; idle ticks and reductions over replicas are no work of the pipeline."""
    found = []
    for action in actions:
        if action is None or "REDUCE_GRAD" in str(action):
            continue
        found += [str(a) for a in action.sub_actions] if action.sub_actions else [str(action)]
    return found


def pairs(actions):
    """The first halves of torch's overlapped actions."""
    return [str(action.sub_actions[0]) for action in actions if action is not None and action.sub_actions]


def check_rows(name, cls, p, m, v=1, **options):
    ours, theirs = build(name, ranks=p, micro_batches=m, **options), instance(cls, p, m, v)
    for rank, row in enumerate(ours.rows):
        expected = theirs._calculate_single_rank_operations(rank)
        assert [str(action) for action in row] == words(expected)
        assert [str(action) for action in row if action in ours.pairs] == pairs(expected)


@pytest.mark.parametrize(("p", "m"), SIZES)
def test_gpipe(p, m):
    theirs = instance(torchs.ScheduleGPipe, p, m, 1)._get_pipeline_order()
    ours = build("gpipe", ranks=p, micro_batches=m, drain="forward")
    assert [[str(a) for a in row] for row in ours.rows] == [words(theirs[rank]) for rank in range(p)]


@pytest.mark.parametrize(("p", "m"), [(p, m) for p, m in SIZES if m >= p])  # torch refuses m < p
def test_1f1b(p, m):
    ours = build("1f1b", ranks=p, micro_batches=m)
    theirs = instance(torchs.Schedule1F1B, p, m, 1)._get_pipeline_order()
    for rank, row in enumerate(ours.rows):
        warm_up = p - 1 - rank
        same = torchs._get_1f1b_rank_ops(
            1, p, warm_up, m - warm_up, warm_up, rank, lambda _, r=rank: r, lambda _, r=rank: r
        )
        assert [str(action) for action in row] == words(same)
        # For the last rank, which has no warm-up, torch 2.13's picture counts its forwards from 1 (its run does not).
        if rank < p - 1:
            assert [str(action) for action in row] == words(theirs[rank])


@pytest.mark.parametrize("v", [1, 2, 3])
def test_looped_bfs(v):
    for p, m in SIZES:
        check_rows("looped-bfs", torchs.ScheduleLoopedBFS, p, m, v, stages_per_rank=v)


@pytest.mark.parametrize("v", [1, 2, 3])
@pytest.mark.parametrize(
    ("name", "cls"),
    [
        ("interleaved", torchs.ScheduleInterleaved1F1B),
        ("interleaved-zb", torchs.ScheduleInterleavedZeroBubble),
    ],
)
def test_interleaved(name, cls, v):
    for p, m in SIZES:
        if m % max(1, m // p) == 0:  # torch refuses others, as its groups would not be equal
            check_rows(name, cls, p, m, v, stages_per_rank=v)


@pytest.mark.parametrize(("p", "m"), SIZES)
def test_zb_v(p, m):
    check_rows("zb-v", torchs.ScheduleZBVZeroBubble, p, m, 2)


@pytest.mark.parametrize(("p", "m"), [(p, m) for p, m in SIZES if m >= 2 * p])  # torch refuses m < 2p
def test_dualpipe_v(p, m):
    check_rows("dualpipe-v", torchs.ScheduleDualPipeV, p, m, 2)

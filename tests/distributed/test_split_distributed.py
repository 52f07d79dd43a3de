"""Split backwards between processes: the same bits as between threads and as in no pipeline."""

import pytest
from runtime.reference import order_of
from runtime.splits import split

from distributed.test_parity_distributed import CREWS, assert_same, in_threads, train_all, unsplit
from distributed.work import Setting, together
from headrace.schedule import Schedule, build, parse

TWO_STAGES_EACH = parse(
    "0F0,0F1,2F0,2F1,2I0,2I1,0I0,2W0,0I1,2W1,0W0,0W1\n"
    "1F0,3F0,3I0,1F1,3F1,1I0,3W0,3I1,1W0,1I1,3W1,1W1\n",
    "two stages a rank",
)  # fmt: skip
FEW = ("plain", "dropout", "token_ids", "skip_connection", "tied_in_a_stage", "conv_net", "output_without_grad")


@pytest.mark.parametrize("name", ["never", "always", "two stages a rank"])
def test_processes_compute_the_same_bits(crew: CREWS, name: str) -> None:
    schedule: Schedule = TWO_STAGES_EACH
    if name != schedule.name:
        schedule = split(build("1f1b", ranks=3, micro_batches=4, recompute=name))
    order = tuple(order_of(schedule, 0, "W"))
    assert all(tuple(order_of(schedule, stage, "W")) == order for stage in range(schedule.stages))
    settings = [
        Setting(case, schedule.ranks, schedule.micro_batches, schedule, links=links)
        for case in FEW
        for links in ("shared_memory", "process_group")
    ]
    parts = crew(schedule.ranks).run(train_all, settings, deadline=300)
    for setting, of_ranks in zip(settings, zip(*parts, strict=True), strict=True):
        ours = together(of_ranks)
        assert_same(f"{setting} against no pipeline", ours, unsplit(setting.case, order))
        assert_same(f"{setting} against threads", ours, in_threads(Setting(setting.case, *_of(schedule))))


def _of(schedule: Schedule) -> tuple[int, int, Schedule]:
    return schedule.ranks, schedule.micro_batches, schedule

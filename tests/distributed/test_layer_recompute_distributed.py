"""Layers that recompute one by one, in processes: the same bits as between threads and as in no pipeline."""

from typing import Final

import pytest
import torch.distributed as dist
from runtime.reference import order_of

import headrace as hr
from distributed.test_parity_distributed import CREWS, assert_same, in_threads, train_all, unsplit
from distributed.work import Setting, together
from headrace.schedule import build

CASES: Final = (
    *("plain", "dropout", "batch_norm", "counting_buffer", "token_ids", "deep_skip", "tied_in_a_stage"),
    *("used_twice_in_a_layer", "conv_net", "in_place_later", "output_without_grad", "checkpointed"),
)


@pytest.mark.parametrize(("name", "ranks", "m"), [("gpipe", 2, 4), ("1f1b", 3, 5), ("zb-h1", 2, 3)])
def test_processes_compute_the_same_bits(crew: CREWS, name: str, ranks: int, m: int) -> None:
    schedule = build(name, ranks=ranks, micro_batches=m)
    ends = "W" if name == "zb-h1" else "B"
    order = tuple(order_of(schedule, 0, ends))
    assert all(tuple(order_of(schedule, stage, ends)) == order for stage in range(schedule.stages))
    settings = [
        Setting(case, ranks, m, schedule, "layer", links)
        for case, links in zip(CASES, ("shared_memory", "process_group") * len(CASES), strict=False)
    ]
    parts = crew(ranks).run(train_all, settings, deadline=300)
    for setting, of_ranks in zip(settings, zip(*parts, strict=True), strict=True):
        ours = together(of_ranks)
        assert_same(f"{setting} against no pipeline", ours, unsplit(setting.case, order))
        assert_same(f"{setting} against threads", ours, in_threads(Setting(setting.case, ranks, m, schedule, "layer")))


def differ() -> str:
    """In a worker: ask for other layers than the other ranks do."""
    case = Setting("plain", 2, 2).make()
    try:
        hr.Pipeline(case.model, case.loss_fn, ranks=2, micro_batches=2, recompute={str(dist.get_rank())})
    except ValueError as error:
        return str(error)
    return "no error"


def test_processes_must_name_the_same_layers(crew: CREWS) -> None:
    assert all("recompute" in said for said in crew(2).run(differ))

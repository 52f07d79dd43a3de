"""Bytes of ranks are those of the tensors that they hold."""

import gc

import torch
from torch import nn

import headrace as hr
from headrace.profiling.rank_bytes import Ledger, bytes_of_step, watched

ROWS, DIM = 8, 32
ACTIVATION = ROWS * DIM * 4


def test_memory_belongs_to_its_last_user_until_it_is_freed() -> None:
    ledger = Ledger()
    tensor = torch.zeros(100)
    ledger.see(tensor, 0)
    ledger.see(tensor[10:20], 0)
    ledger.see(torch.empty(0), 0)
    assert dict(ledger.now) == {0: 400}
    ledger.see(tensor.view(10, 10), 1)
    assert dict(ledger.now) == {0: 0, 1: 400}
    assert dict(ledger.peak) == {0: 400, 1: 400}
    ledger.restart()
    assert ledger.peak[0] == 0
    del tensor
    gc.collect()
    assert ledger.now[1] == 0
    assert ledger.peak[1] == 400


def pipeline(m: int, schedule: str, recompute: str = "never") -> hr.Pipeline:
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Sequential(nn.Linear(DIM, DIM), nn.Tanh()) for _ in range(6)))
    loss_fn = nn.functional.mse_loss
    return hr.Pipeline(model, loss_fn, ranks=2, micro_batches=m, schedule=schedule, recompute=recompute)


def test_ranks_own_their_parameters_and_gradients() -> None:
    x = torch.randn(ROWS, DIM)
    with pipeline(4, "1f1b") as pipe, watched(pipe) as ledger:
        pipe.step(x, x)
        gc.collect()
        weights = 3 * (DIM * DIM + DIM) * 4
        for rank in range(2):
            assert 0 <= ledger.now[rank] - 2 * weights <= 2 * ACTIVATION  # and the batch, or a last message
        held = dict(ledger.now)
    pipe.close()
    assert held == dict(ledger.now)


def test_recompute_and_1f1b_hold_less() -> None:
    """On the first rank, with activations A for the batch: A of GPipe, 2/m of it with 1F1B, 1/m with recompute.

    A third of A is what the rank hands on: it belongs to the next rank as soon as that has used it, and waits
    here until then.
    """
    m, rows = 8, 1024
    x = torch.randn(rows, DIM)
    peak = {}
    for how in (("gpipe", "never"), ("1f1b", "never"), ("gpipe", "always")):
        with pipeline(m, *how) as pipe:
            peak[how] = bytes_of_step(pipe, x, x)[0]
    everything = 3 * rows * DIM * 4
    moment = 2 * DIM * DIM * 4 + 4 * rows // m * DIM * 4  # gradients of one layer, and of a micro-batch's activations
    handed_on = rows // m * DIM * 4
    assert everything * 2 / 3 <= peak["gpipe", "never"] <= everything + moment + m * handed_on
    assert everything * 2 / 3 * 2 / m <= peak["1f1b", "never"] <= everything * 2 / m + moment + 3 * handed_on
    assert everything * 2 / 3 / m <= peak["gpipe", "always"] <= everything / m + moment + m * handed_on
    assert peak["gpipe", "always"] < peak["gpipe", "never"]

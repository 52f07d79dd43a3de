"""What ranks keep for their backwards is what is predicted of it, byte by byte."""

from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from torch import nn

import headrace as hr
from headrace.costs import Memory
from headrace.layer_costs import at_rows
from headrace.models.gpt import gpt, next_byte_loss
from headrace.profiling import profile
from headrace.profiling.kept_bytes import kept_in_step
from headrace.schedule.joined import joined
from headrace.simulate import peak_memory_of

ROWS, FLOAT = 8, 4
SCALARS = 16 * ROWS  # losses and their weights


def convolutions():
    """Uneven, and both a ReLU and the convolution behind it keep what is between them."""
    torch.manual_seed(0)
    widths = (3, 8, 12, 16)
    blocks = [(nn.Conv2d(a, b, 3, padding=1), nn.GroupNorm(4, b), nn.ReLU()) for a, b in pairwise(widths)]
    model = nn.Sequential(*(layer for block in blocks for layer in block), nn.Flatten(), nn.Linear(16 * 64, 5))
    return model, torch.randn(ROWS, 3, 8, 8), torch.randint(0, 5, (ROWS,)), nn.functional.cross_entropy


def small_gpt():
    torch.manual_seed(0)
    tokens = torch.randint(0, 256, (2, ROWS, 16))
    return gpt(6, 16, heads=2, sequence=16), *tokens, next_byte_loss


CUTS = {"convolutions": {1: (11,), 2: (6, 5), 4: (3, 3, 3, 2)}, "gpt": {1: (8,), 2: (4, 4), 4: (2, 2, 2, 2)}}


@pytest.fixture(scope="module")
def profiled():
    """Of each model the layers' bytes for micro-batches of two rows, out of what was measured for one and for four."""
    models = {"convolutions": convolutions(), "gpt": small_gpt()}
    found = {}
    for name, (model, x, y, loss_fn) in models.items():
        sizes = [
            profile(model, x[:n], loss_fn=loss_fn, target=y[:n], repeats=1, warm_up=0).layer_costs(n) for n in (1, 4)
        ]
        found[name] = (*models[name], at_rows(sizes, 2))
    return found


@pytest.mark.parametrize("mode", ["never", "always"])
@pytest.mark.parametrize(
    ("schedule", "ranks", "stages"),
    [
        ("gpipe", 1, 1),
        ("gpipe", 2, 2),
        ("1f1b", 4, 4),
        ("zb-h1", 2, 2),
        ("zb-h1", 4, 4),
        ("interleaved", 1, 2),
        ("interleaved", 2, 4),
        ("zb-v", 2, 4),
    ],
)
@pytest.mark.parametrize("name", ["convolutions", "gpt"])
def test_counted_is_predicted(profiled, name, schedule, ranks, stages, mode):
    model, x, y, loss_fn, layers = profiled[name]
    made = hr.schedule.build(schedule, ranks=ranks, micro_batches=4, recompute=mode)
    cut = CUTS[name][stages]
    costs = layers.stage_costs(cut)
    memory = replace(costs.memory, parameters=0)
    arrived = max(costs.message, default=0)  # a gradient that has come stays until the whole stage is through
    with_work = peak_memory_of(joined(made), memory)
    predicted = peak_memory_of(joined(made), replace(memory, working=0))
    with hr.Pipeline(model, loss_fn, ranks=ranks, micro_batches=4, schedule=made, cut=cut) as pipe:
        counted = kept_in_step(pipe, x, y)
    for rank in range(ranks):
        kept = counted[rank].between_actions
        assert 0 <= kept - predicted[rank] <= SCALARS
        assert kept == pytest.approx(predicted[rank], rel=0.05)
        assert with_work[rank] <= 1.3 * counted[rank].at_most
        assert counted[rank].at_most <= with_work[rank] + arrived + SCALARS


def test_counted_by_hand():
    """A Linear keeps its input and a ReLU its output; on one rank they are one, but those of the batch are none."""
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU())
    x, y = torch.randn(ROWS, 8), torch.zeros(ROWS, 16)
    wide = ROWS // 4 * 16 * FLOAT
    with hr.Pipeline(model, nn.functional.mse_loss, ranks=2, micro_batches=4, schedule="gpipe", cut=(2, 2)) as pipe:
        counted = kept_in_step(pipe, x, y)
        again = kept_in_step(pipe, x, y)
    assert counted == again
    assert counted[0].between_actions == 4 * wide  # the ReLU's
    assert 0 <= counted[1].between_actions - 4 * (wide + wide) <= SCALARS  # what was received, and the ReLU's


def test_a_pipeline_is_left_as_it_was():
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))
    x = torch.randn(ROWS, 8)
    with hr.Pipeline(model, nn.functional.mse_loss, ranks=2, micro_batches=2) as pipe:
        stages = [stage for run in pipe._holding.executors.values() for stage in run._stages.values()]
        before = [dict(vars(stage)) for stage in stages]
        kept_in_step(pipe, x, x)
        assert [vars(stage).keys() for stage in stages] == [of_stage.keys() for of_stage in before]


def test_what_is_shared_across_a_cut_counts_on_both_sides():
    layers = profile(convolutions()[0], convolutions()[1], repeats=1, warm_up=0).layer_costs(ROWS)
    boundary = ROWS * 8 * 64 * FLOAT
    apart, together = (layers.stage_costs(cut).memory for cut in ((3, 8), (11,)))
    assert apart.shared == (0, boundary)
    assert sum(apart.activations) == sum(together.activations) + boundary
    assert isinstance(apart, Memory)

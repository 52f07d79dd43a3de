"""Two-way schedules between processes: each stage's replicas begin alike and stay alike, to the last bit."""

from dataclasses import replace
from typing import Final

import pytest
import torch
import torch.distributed as dist
from runtime.cases import Case, make
from runtime.parity import stages_of_parameters
from runtime.reference import Unsplit, everything, flat_layers
from torch import Tensor, nn

import headrace as hr
from distributed.test_parity_distributed import CREWS
from distributed.work import SEED, same_bits
from headrace.schedule import Schedule, build

STEPS: Final = 4


def case_seeded(seed: int) -> Case:
    """A chain of four stages whose weights differ from seed to seed, with the same data each time."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        layers = (nn.Sequential(nn.Linear(6, 6), nn.LayerNorm(6), nn.Dropout(0.2)) for _ in range(4))
        return replace(make("plain"), model=nn.Sequential(*layers))


def cut_for(ranks: int) -> tuple[int, ...]:
    return (12 // ranks,) * ranks


def train_from_other_weights(schedule: Schedule) -> list[tuple[Tensor, dict[str, Tensor]]]:
    """In a worker: after each step, its loss and what this process holds."""
    case = case_seeded(dist.get_rank())
    torch.manual_seed(SEED)
    with hr.Pipeline(
        case.model,
        case.loss_fn,
        ranks=schedule.ranks,
        micro_batches=schedule.micro_batches,
        schedule=schedule,
        cut=cut_for(schedule.ranks),
    ) as pipe:
        optimizer = torch.optim.AdamW(pipe.parameters(), lr=0.05)
        found = []
        for step in range(STEPS):
            loss = pipe.step(*case.batch(step))
            optimizer.step()
            optimizer.zero_grad()
            found.append((loss, {name: tensor.clone() for name, tensor in pipe.state_dict().items()}))
        return found


def unsplit(schedule: Schedule) -> list[tuple[Tensor, dict[str, Tensor]]]:
    """The same without a pipeline, from the weights that the rank of lane 0 has for each stage."""
    case = case_seeded(0)
    stages = [stage for stage, count in enumerate(cut_for(schedule.ranks)) for _ in range(count)]
    for number, (layer, stage) in enumerate(zip(flat_layers(case.model), stages, strict=True)):
        seed = schedule.placement.rank_of[stage]
        layer.load_state_dict(flat_layers(case_seeded(seed).model)[number].state_dict())
    stage_of = stages_of_parameters(case.model, cut_for(schedule.ranks))
    reference = Unsplit(case, SEED)
    optimizer = torch.optim.AdamW(case.model.parameters(), lr=0.05)
    found = []
    for step in range(STEPS):
        loss = reference.step_by_stages(case.batch(step), schedule, stage_of)
        optimizer.step()
        optimizer.zero_grad()
        found.append((loss, everything(case.model)))
    return found


@pytest.mark.parametrize(("name", "ranks"), [("chimera", 2), ("chimera", 4), ("dualpipe", 4)])
def test_the_weights_of_lane_0_win_and_replicas_stay_the_same(crew: CREWS, name: str, ranks: int) -> None:
    schedule = build(name, ranks=ranks, micro_batches=5)
    of_ranks = crew(ranks).run(train_from_other_weights, schedule)
    for step, (expected_loss, expected) in enumerate(unsplit(schedule)):
        held = [of_rank[step] for of_rank in of_ranks]
        assert all(same_bits(loss, expected_loss) for loss, _ in held), f"losses of step {step}"
        for parameter, value in expected.items():
            replicas = [state[parameter] for _, state in held if parameter in state]
            assert len(replicas) == 2
            assert all(same_bits(replica, value) for replica in replicas), f"{parameter} after step {step}"

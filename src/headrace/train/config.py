"""What `headrace train` is asked to do."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from math import inf
from typing import Any, get_args

from headrace.planner.replan import Freedom
from headrace.runtime.model.recompute import Recompute, of_stages
from headrace.schedule.catalogue import build
from headrace.schedule.numbers import at_least
from headrace.schedule.schedule import Schedule


@dataclass(frozen=True)
class TrainConfig:
    """One training job.

    Attributes:
        ranks: p.
        micro_batches: m.
        schedule, recompute: as for `Pipeline`; a `Schedule` must be for these ranks and micro-batches, and beside it
            `recompute` names layers only.
        layers, dim, heads: of the GPT.
        sequence: bytes per row.
        batch: rows per step.
        steps: how many.
        learning_rate: the highest, after warm-up.
        warm_up: steps until then; afterwards it falls along a cosine to a twentieth of it.
        clip: the largest global norm of the gradients.
        device: "cpu" or "cuda"; "auto" for cuda where there is some.
        seed: of initialisation, batches and dropout.
        plan: the file of a plan for this model and these batches, whose cut and recomputed layers are taken; its
            schedule is `schedule`.
        data: a file or folder of text; None for the standard library's own source.
        evaluate_every: steps between evaluations on held-out text.
        evaluation_batches: how many batches an evaluation takes.
        replan_after: after so many steps, plan again with the costs that these have shown, and go on with that plan if
            it is faster; None to keep the first one. The number of micro-batches stays, so losses stay comparable.
        replan: what that may change: "schedule", or "cut" only, which keeps the losses to the last bit.

    Raises:
        TypeError, ValueError: a number is out of its range.
    """

    ranks: int = 2
    micro_batches: int = 4
    schedule: str | Schedule = "1f1b"
    recompute: Recompute = "never"
    layers: int = 6
    dim: int = 128
    heads: int = 4
    sequence: int = 128
    batch: int = 16
    steps: int = 400
    learning_rate: float = 2e-3
    warm_up: int = 50
    clip: float = 1.0
    device: str = "auto"
    seed: int = 0
    plan: str | None = None
    data: str | None = None
    evaluate_every: int = 100
    evaluation_batches: int = 16
    replan_after: int | None = None
    replan: Freedom = "schedule"

    def __post_init__(self) -> None:
        at_least(
            1,
            ranks=self.ranks,
            micro_batches=self.micro_batches,
            layers=self.layers,
            dim=self.dim,
            heads=self.heads,
            sequence=self.sequence,
            batch=self.batch,
            steps=self.steps,
            evaluate_every=self.evaluate_every,
            evaluation_batches=self.evaluation_batches,
        )
        at_least(0, seed=self.seed, warm_up=self.warm_up)
        if self.seed >= 2**64:
            raise ValueError(f"seed={self.seed} must be less than 2**64, as torch takes no larger ones")
        if self.batch < self.micro_batches:
            raise ValueError(
                f"batch={self.batch} rows cannot be cut into micro_batches={self.micro_batches}: "
                "give each micro-batch at least one row"
            )
        if self.ranks > self.layers + 2:
            raise ValueError(
                f"ranks={self.ranks}, but layers={self.layers} blocks, the embedding and the head make only "
                f"{self.layers + 2} layers to cut: use fewer ranks or more layers"
            )
        order = self.order()
        if order.stages > self.layers + 2:
            raise ValueError(
                f"schedule {order.name!r} has {order.stages} stages, but layers={self.layers} blocks, the embedding "
                f"and the head make only {self.layers + 2} layers to cut: use more layers or fewer stages"
            )
        if order.asynchronous:
            raise ValueError(
                f"schedule {order.name!r} is asynchronous: its stages learn with delayed weights, which is not the job "
                "that headrace train compares; use hr.Pipeline(…, optimizer=…) for it"
            )
        if self.replan_after is not None and not 1 <= self.replan_after < self.steps:
            raise ValueError(
                f"replan_after={self.replan_after} must be at least 1 and less than steps={self.steps}: "
                "the steps before it are measured, those after it gain"
            )
        if self.replan not in get_args(Freedom):
            raise ValueError(f"replan={self.replan!r} must be one of {', '.join(get_args(Freedom))}")
        if self.plan is not None and self.recompute != "never":
            raise ValueError(f"recompute={self.recompute!r} goes without plan=: the plan says what recomputes")
        for name in ("learning_rate", "clip"):
            if not 0 < getattr(self, name) < inf:
                raise ValueError(f"{name}={getattr(self, name)} must be above 0 and finite")
        if self.device not in ("auto", "cpu", "cuda"):
            raise ValueError(f"device={self.device!r} must be auto, cpu or cuda")

    def order(self) -> Schedule:
        """The schedule itself.

        Raises:
            ValueError: there is none for these numbers.
        """
        if isinstance(self.schedule, Schedule):
            return self.schedule
        stages = of_stages(self.recompute)
        return build(self.schedule, ranks=self.ranks, micro_batches=self.micro_batches, recompute=stages)

    def as_dict(self) -> dict[str, Any]:
        """Plain data for config.json; of a Schedule, its name and the grid."""
        plain = {item.name: getattr(self, item.name) for item in fields(self)}
        if isinstance(self.schedule, Schedule):
            plain |= {"schedule": self.schedule.name, "grid": self.schedule.to_text()}
        if isinstance(self.recompute, Mapping):
            plain["recompute"] = dict(self.recompute)
        elif not isinstance(self.recompute, str):
            plain["recompute"] = sorted(self.recompute, key=lambda each: (isinstance(each, str), each))
        return plain

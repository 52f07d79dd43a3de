"""One sum of gradients for all replicas of a stage.

    lane 0   Σ of its micro-batches ──┬──▶ lane 0 + lane 1 ──▶ .grad
                                      ╳                              in this order on every rank, so bit by bit the same
    lane 1   Σ of its micro-batches ──┴──▶ lane 0 + lane 1 ──▶ .grad

What was in `.grad` before the step is set aside meanwhile, as every replica has it and it must be counted once.
"""

from collections.abc import Mapping, Sequence

from torch import Tensor, nn

from headrace.runtime.model.cut import named_buffers, named_parameters, refuse_gradient_hooks
from headrace.runtime.stage.gradients import Gradients
from headrace.runtime.work import Endpoint
from headrace.schedule.messages import Message


class LaneSum:
    """The gradients of one stage that has replicas on several ranks.

    Args:
        stage: its number.
        layers: of the replica that is held here.
        ranks: of all replicas, in the order of lanes.
        rank: which of them this is.
        keepers: the ranks that want the sum; the others follow the weights of one that does.
    """

    def __init__(
        self, stage: int, layers: Mapping[str, nn.Module], ranks: Sequence[int], rank: int, keepers: Sequence[int]
    ) -> None:
        self._stage = stage
        self._layers = layers
        self._parameters = [parameter for _, parameter in named_parameters(layers)]
        self._ranks = ranks
        self._rank = rank
        self._keepers = keepers
        self._before: list[Tensor | None] | None = None
        self._buffers: dict[str, int] = {}

    @property
    def shared(self) -> bool:
        """Whether several processes keep the weights of this stage, each its own."""
        return len(self._keepers) > 1

    def align(self, endpoint: Endpoint) -> None:
        """Give all replicas the weights and buffers of the first, so that equal updates keep them equal."""
        mine = tuple(t.detach() for _, t in (*named_parameters(self._layers), *named_buffers(self._layers)))
        first, *others = self._keepers
        message = Message("replica", self._stage, 0)
        if self._rank == first:
            for other in others:
                endpoint.send(other, message, mine)
        else:
            for own, theirs in zip(mine, endpoint.receive(first, message), strict=True):
                own.copy_(theirs)

    def begin(self) -> None:
        """Before a step: set aside what is in `.grad`.

        Raises:
            ValueError: a parameter has hooks on its gradient.
        """
        refuse_gradient_hooks(named_parameters(self._layers), "which in a two-way schedule would see one lane's only")
        self._buffers = self._versions()
        self._before = [parameter.grad for parameter in self._parameters]
        for parameter in self._parameters:
            parameter.grad = None

    def finish(self, endpoint: Endpoint) -> None:
        """After it: exchange gradients with the other replicas, and add them up.

        Raises:
            ValueError: a layer changed a buffer, so that the replicas differ.
        """
        changed = [name for name, version in self._versions().items() if version != self._buffers.get(name)]
        if changed:
            raise ValueError(
                f"buffers {', '.join(changed)} were changed in a step of a two-way schedule: stage {self._stage} has "
                "a replica that saw other micro-batches, so they would drift apart. Use a one-way schedule"
            )
        mine: Gradients = tuple(parameter.grad for parameter in self._parameters)
        place = self._ranks.index(self._rank)
        for keeper in self._keepers:
            if keeper != self._rank:
                endpoint.send(keeper, Message("replica", self._stage, place), mine)
        if self._rank in self._keepers:
            of_lanes = [
                mine if rank == self._rank else endpoint.receive(rank, Message("replica", self._stage, lane))
                for lane, rank in enumerate(self._ranks)
            ]
            for parameter, before, *lanes in zip(self._parameters, self._before or (), *of_lanes, strict=True):
                parameter.grad = _total(before, lanes)
        else:
            for parameter in self._parameters:
                parameter.grad = None
        self._before = None

    def _versions(self) -> dict[str, int]:
        """One number per buffer: another one when it is written to or replaced."""
        return {name: id(buffer) + buffer._version for name, buffer in named_buffers(self._layers)}

    def abandon(self) -> None:
        """After a failure: put back what was there before."""
        if self._before is not None:
            for parameter, before in zip(self._parameters, self._before, strict=True):
                parameter.grad = before
            self._before = None


def _total(before: Tensor | None, lanes: Sequence[Tensor | None]) -> Tensor | None:
    """The sum of what is there, in memory of its own."""
    parts = [part for part in lanes if part is not None]
    if not parts:
        return before
    total = parts[0]
    for part in parts[1:]:
        total = total + part
    if before is not None:
        return before.add_(total)
    return total.clone() if len(parts) == 1 else total

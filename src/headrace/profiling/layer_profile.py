"""What a measurement of a model found, and what it says about a cut."""

from collections.abc import Sequence
from dataclasses import dataclass

from headrace.costs import Costs, Seconds


@dataclass(frozen=True)
class LayerProfile:
    """Seconds and sizes of the layers of a model, for one micro-batch.

    Attributes:
        names: of the layers, in order.
        forward: median seconds of each layer's forward.
        backward: median seconds of each layer's whole backward: for its input, where that needs a gradient, and for
            its parameters.
        spread: seconds between the first and the third quartile of forward + backward.
        parameters: how many numbers each layer learns or holds frozen.
        loss_forward, loss_backward: the loss function's median seconds; 0 if it was not measured.
    """

    names: tuple[str, ...]
    forward: tuple[Seconds, ...]
    backward: tuple[Seconds, ...]
    spread: tuple[Seconds, ...]
    parameters: tuple[int, ...]
    loss_forward: Seconds = 0.0
    loss_backward: Seconds = 0.0

    @property
    def costs(self) -> tuple[Seconds, ...]:
        """Forward + backward of each layer, for `partition`; the last one's with the loss, which runs where it does."""
        both = [forward + backward for forward, backward in zip(self.forward, self.backward, strict=True)]
        both[-1] += self.loss_forward + self.loss_backward
        return tuple(both)

    def stage_costs(self, cut: Sequence[int], segments: int = 1) -> Costs:
        """What the stages of a cut take, the loss counted in the last one.

        The two parts of the backward are not measured apart: a layer with parameters gets half of it for each, as
        matrix products do the same arithmetic twice; a layer without has only the part for the input.

        Args:
            cut: how many layers each stage has, as `partition` says.
            segments: in how many pieces sequences are cut; each gets an equal share, though attention makes later
                ones dearer.

        Raises:
            ValueError: the cut has an empty stage, or not as many layers as the model.
        """
        if any(count < 1 for count in cut) or sum(cut) != len(self.names):
            raise ValueError(
                f"cut={tuple(cut)} must give every stage a layer or more, {len(self.names)} layers in all: "
                "take it from partition(profile.costs, stages)"
            )
        weight = [seconds / 2 if own else 0.0 for seconds, own in zip(self.backward, self.parameters, strict=True)]
        inputs = [seconds - part for seconds, part in zip(self.backward, weight, strict=True)]
        forward, backward_input, backward_weight = (_sums(part, cut) for part in (self.forward, inputs, weight))
        forward[-1] += self.loss_forward
        backward_input[-1] += self.loss_backward
        f, i, w = ([each / segments for each in part] for part in (forward, backward_input, backward_weight))
        return Costs(forward=f, backward_input=i, backward_weight=w)


def _sums(values: Sequence[Seconds], cut: Sequence[int]) -> list[Seconds]:
    rest = iter(values)
    return [sum(next(rest) for _ in range(count)) for count in cut]

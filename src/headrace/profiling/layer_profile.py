"""What a measurement of a model found, and what it says about a cut."""

from collections.abc import Sequence
from dataclasses import dataclass

from headrace.costs import Bytes, Costs, Seconds
from headrace.layer_costs import LayerCosts, stage_sums, whole
from headrace.profiling.bytes_held import Held


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
        backward_input, backward_weight: median seconds of the two halves of each layer's split backward.
        parameter_bytes, trained_bytes: of each layer's parameters and buffers, and of those that learn; what several
            layers share counts in the first of them.
        held: bytes of each layer for one micro-batch, but for those that are shared.
        shared: bytes that each layer receives and that are kept before it as well as from it on.
        loss_activations: bytes that the loss keeps for its backward.
        loss_transient: bytes that it needs only while it runs.
    """

    names: tuple[str, ...]
    forward: tuple[Seconds, ...]
    backward: tuple[Seconds, ...]
    spread: tuple[Seconds, ...]
    parameters: tuple[int, ...]
    loss_forward: Seconds = 0.0
    loss_backward: Seconds = 0.0
    backward_input: tuple[Seconds, ...] = ()
    backward_weight: tuple[Seconds, ...] = ()
    parameter_bytes: tuple[Bytes, ...] = ()
    trained_bytes: tuple[Bytes, ...] = ()
    held: tuple[Held, ...] = ()
    shared: tuple[Bytes, ...] = ()
    loss_activations: Bytes = 0
    loss_transient: Bytes = 0

    @property
    def costs(self) -> tuple[Seconds, ...]:
        """Forward + backward of each layer, for `partition`; the last one's with the loss, which runs where it does."""
        both = [forward + backward for forward, backward in zip(self.forward, self.backward, strict=True)]
        both[-1] += self.loss_forward + self.loss_backward
        return tuple(both)

    def stage_costs(self, cut: Sequence[int], segments: int = 1) -> Costs:
        """What the stages of a cut take, the loss counted in the last one.

        The halves of a backward were measured apart from the whole one, as splitting costs a little. Without that
        measurement a layer with parameters gets half for each, as matrix products do the same arithmetic twice.

        Args:
            cut: how many layers each stage has, as `partition` says.
            segments: in how many pieces sequences are cut; each gets an equal share, though attention makes later
                ones dearer.

        Raises:
            ValueError: the cut has an empty stage, or not as many layers as the model.
        """
        whole(cut, len(self.names))
        inputs, weight = self._halves()
        parts = (self.forward, self.backward, inputs, weight)
        forward, backward, backward_input, backward_weight = (stage_sums(part, cut) for part in parts)
        forward[-1] += self.loss_forward
        backward[-1] += self.loss_backward
        backward_input[-1] += self.loss_backward
        f, b, i, w = ([x / segments for x in each] for each in (forward, backward, backward_input, backward_weight))
        return Costs(forward=f, backward_input=i, backward_weight=w, backward=b)

    def _halves(self) -> tuple[Sequence[Seconds], Sequence[Seconds]]:
        """What I takes and what W takes."""
        if self.backward_weight:
            return self.backward_input, self.backward_weight
        weight = [seconds / 2 if own else 0.0 for seconds, own in zip(self.backward, self.parameters, strict=True)]
        return [seconds - part for seconds, part in zip(self.backward, weight, strict=True)], weight

    def layer_costs(self, rows: int, optimizer_bytes: float = 2) -> LayerCosts:
        """What a planner asks: for a micro-batch of the `rows` rows that were measured.

        Args:
            rows: of the sample.
            optimizer_bytes: the optimizer's state, in bytes per byte of what learns: 2 for Adam, 0 for plain SGD.

        Raises:
            ValueError: bytes were not measured.
        """
        if not self.held:
            raise ValueError("this profile has no bytes: take it with hr.profile")
        inputs, weight = self._halves()
        last = len(self.names) - 1
        return LayerCosts(
            names=self.names,
            rows=rows,
            forward=_with_last(self.forward, self.loss_forward),
            backward_input=_with_last(inputs, self.loss_backward),
            backward_weight=tuple(weight),
            backward=_with_last(self.backward, self.loss_backward),
            parameters=self.parameter_bytes,
            trained=tuple((1 + optimizer_bytes) * size for size in self.trained_bytes),
            activations=_with_last([h.activations for h in self.held], self.loss_activations),
            for_weight=tuple(h.for_weight for h in self.held),
            output=tuple(h.output if i < last else 0 for i, h in enumerate(self.held)),
            transient=(
                *(h.transient for h in self.held[:-1]),
                # what it hands on is no message, but the loss needs it
                max(self.held[-1].transient + self.held[-1].output, self.loss_transient),
            ),
            shared=self.shared,
            spread=self.spread,
        )


def _with_last(values: Sequence[float], more: float) -> tuple[float, ...]:
    return (*values[:-1], values[-1] + more)

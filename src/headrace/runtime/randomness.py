"""Random numbers that depend on nothing but seed, step, layer and micro-batch.

Dropout must draw the same mask in a recompute as in the first run, and the masks must not depend on the schedule, the
cut, or on which thread came first. So every (layer, micro-batch) of a step has a stream of its own:

    stream = hash(torch.initial_seed(), number of the step, number of the layer, micro-batch)

In a process of its own a rank simply seeds the generators before each layer and puts them back afterwards. Threads of
one process share the CPU generator, which torch offers no way to replace. There, an operation that draws is caught
on its way to the kernel (torch tags such operations), and runs with the rank's own state swapped in, under a lock:

    thread of rank 0   … linear │ lock, swap in, bernoulli_, swap out │ mul …
    thread of rank 1   … linear, gelu, linear, add …          (not held up)

Catching costs microseconds per operation, so only layers that were seen to draw in their first forward are caught.
What draws in a backward (torch.utils.checkpoint around a dropout) would read the shared generator and is refused.
The user's generators are left as they were.
"""

import threading
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any, Final, Protocol

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

_MASK: Final = 2**64 - 1
_GLOBAL_GENERATORS: Final = threading.RLock()


def stream(*numbers: int) -> int:
    """One seed out of several numbers, by splitmix64's mixing."""
    state = 0
    for number in numbers:
        state = (state + number + 0x9E3779B97F4A7C15) & _MASK
        state = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
        state = ((state ^ (state >> 27)) * 0x94D049BB133111EB) & _MASK
        state ^= state >> 31
    return state >> 1


def generators_of(device: torch.device) -> list[torch.Generator]:
    """The generators that operations of a layer on `device` may draw from."""
    found = [torch.default_generator]
    if device.type == "cuda":
        found.append(torch.cuda.default_generators[device.index or 0])
    return found


class Draws(Protocol):
    """Gives layers their random numbers."""

    def action(self) -> Any:
        """A context around an F or R."""

    def layer(self, layer: nn.Module, mode: int, seed: int) -> Any:
        """A context around one layer's forward, whose draws come from the stream `seed`.

        `mode` tells apart the combinations of training flags, as a layer may draw in one and not in another.
        """

    def backward(self, layers: Sequence[nn.Module], mode: int) -> Any:
        """A context around the backward of some layers."""


class OwnGenerators:
    """For the only rank that uses its generators: seed them before each layer."""

    def __init__(self, device: torch.device) -> None:
        self._generators = generators_of(device)

    @contextmanager
    def action(self) -> Iterator[None]:
        before = [g.get_state() for g in self._generators]
        try:
            yield
        finally:
            for generator, state in zip(self._generators, before, strict=True):
                generator.set_state(state)

    def layer(self, layer: nn.Module, mode: int, seed: int) -> Any:  # noqa: ARG002 - see the protocol
        for generator in self._generators:
            generator.manual_seed(seed)
        return nullcontext()

    def backward(self, layers: Sequence[nn.Module], mode: int) -> Any:  # noqa: ARG002 - see the protocol
        return nullcontext()


class SharedGenerators:
    """For ranks that are threads of one process."""

    def __init__(self, device: torch.device) -> None:
        self._generators = generators_of(device)
        self._draws: dict[tuple[nn.Module, int], bool] = {}

    def learn_again(self) -> None:
        """Forget which layers draw."""
        self._draws.clear()

    def action(self) -> Any:
        return nullcontext()

    @contextmanager
    def layer(self, layer: nn.Module, mode: int, seed: int) -> Iterator[None]:
        key = (layer, mode)
        draws = self._draws.get(key)
        if draws is False:
            yield
            return
        if _is_compiled(layer):
            with self._alone(key, seed):
                yield
            return
        with _Caught(self._generators, seed) as caught:
            yield
        self._draws[key] = caught.drew

    def backward(self, layers: Sequence[nn.Module], mode: int) -> Any:
        draw = any(self._draws.get((layer, mode)) for layer in layers)
        return _Refused() if draw else nullcontext()

    @contextmanager
    def _alone(self, key: tuple[nn.Module, int], seed: int) -> Iterator[None]:
        """A compiled layer draws where nothing can be caught: nobody else draws while it runs."""
        with _GLOBAL_GENERATORS:
            before = [g.get_state() for g in self._generators]
            for generator in self._generators:
                generator.manual_seed(seed)
            seeded = [g.get_state() for g in self._generators]
            try:
                yield
                after = [g.get_state() for g in self._generators]
                self._draws[key] = not all(map(torch.equal, seeded, after))
            finally:
                for generator, state in zip(self._generators, before, strict=True):
                    generator.set_state(state)


class _Caught(TorchDispatchMode):
    """Operations that draw run with the states of one stream."""

    def __init__(self, generators: Sequence[torch.Generator], seed: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._generators = generators
        self._seed = seed
        self._states: list[Tensor] | None = None

    @property
    def drew(self) -> bool:
        return self._states is not None

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if torch.Tag.nondeterministic_seeded not in func.tags or kwargs.get("generator") is not None:
            return func(*args, **kwargs)
        with _GLOBAL_GENERATORS:
            before = [g.get_state() for g in self._generators]
            try:
                self._swap_in()
                result = func(*args, **kwargs)
                self._states = [g.get_state() for g in self._generators]
            finally:
                for generator, state in zip(self._generators, before, strict=True):
                    generator.set_state(state)
        return result

    def _swap_in(self) -> None:
        for i, generator in enumerate(self._generators):
            if self._states is None:
                generator.manual_seed(self._seed)
            else:
                generator.set_state(self._states[i])


class _Refused(TorchDispatchMode):
    """No operation may draw."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if torch.Tag.nondeterministic_seeded in func.tags and (kwargs or {}).get("generator") is None:
            raise RuntimeError(
                f"{func} draws random numbers in a backward, and ranks that are threads share one generator, so it "
                "could not repeat what its forward drew: use the pipeline's recompute= instead of "
                "torch.utils.checkpoint inside a layer, or run under torchrun"
            )
        return func(*args, **(kwargs or {}))


@contextmanager
def drawing_watched(shared: Sequence[SharedGenerators], recomputes: bool) -> Iterator[None]:
    """Around a step of threads: notice a draw by a layer that drew nothing in its first forward.

    Raises:
        RuntimeError: there was one, and a recompute could not repeat it.
    """
    if not shared:
        yield
        return
    before = torch.default_generator.get_state()
    yield
    if torch.equal(before, torch.default_generator.get_state()):
        return
    for draws in shared:
        draws.learn_again()
    message = (
        "random numbers were drawn outside of their streams during a step: by a layer that drew none in its first "
        "forward, or by another thread"
    )
    if recomputes:
        raise RuntimeError(
            f"{message}. A recompute cannot have repeated them, so the gradients of this step are wrong: call "
            "zero_grad and repeat the step (from now on such layers are known)"
        )
    warnings.warn(f"{message}. The numbers of this step depend on which thread came first", stacklevel=3)


def _is_compiled(layer: nn.Module) -> bool:
    return any(
        isinstance(module, torch._dynamo.OptimizedModule) or module._compiled_call_impl is not None
        for module in layer.modules()
    )

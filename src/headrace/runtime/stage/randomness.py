"""Random numbers that depend on nothing but seed, step, layer and micro-batch.

Dropout must draw the same mask in a recompute as in the first run, and the masks must not depend on the schedule, the
cut, or on which thread came first. So every (layer, micro-batch) of a step has a stream of its own:

    stream = hash(torch.initial_seed(), number of the step, number of the layer, micro-batch)

In a process of its own a rank simply seeds the generators before each layer and puts them back afterwards. Threads of
one process share the CPU generator, which torch offers no way to replace. There, an operation that draws is caught
on its way to the kernel (torch tags such operations), and is handed a generator of the stream's own. Few operations
take none; they run with its state swapped into the shared one, under a lock:

    thread of rank 0   … linear, bernoulli_(generator=own), mul … │ lock, swap in, native_dropout, swap out │ …
    thread of rank 1   … linear, gelu, linear, add …                          (not held up)

So the shared generator rests while ranks draw, and torch.utils.checkpoint may save it and put it back meanwhile.

Catching costs some ten microseconds per operation, so only layers that were seen to draw in their first forward are
caught.
What draws in a backward (torch.utils.checkpoint around a dropout) would read the shared generator and is refused.
The user's generators are left as they were.
"""

import sys
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from functools import cache
from typing import Any, Final, Protocol

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode, _pop_mode_temporarily

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


@contextmanager
def _nobody_else_draws() -> Iterator[None]:
    """Have the shared generators alone.

    While torch compiles, in whichever thread, it remembers their state and puts it back in the end: that waits, too.
    """
    compiler = sys.modules.get("torch._dynamo.convert_frame")
    with nullcontext() if compiler is None else compiler.compile_lock, _GLOBAL_GENERATORS:
        yield


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

    def rerun(self) -> Any:
        """A context around a layer that runs again within a backward."""


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

    def rerun(self) -> Any:
        return self.action()


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
        if is_compiled(layer):
            with self._alone(key, seed):
                yield
            return
        with _Caught(self._generators, seed) as caught:
            yield
        self._draws[key] = caught.drew

    def backward(self, layers: Sequence[nn.Module], mode: int) -> Any:
        draw = any(self._draws.get((layer, mode)) for layer in layers)
        return _Refused() if draw else nullcontext()

    def rerun(self) -> Any:
        refused = isinstance(_get_current_dispatch_mode(), _Refused)
        return _pop_mode_temporarily() if refused else nullcontext()

    @contextmanager
    def _alone(self, key: tuple[nn.Module, int], seed: int) -> Iterator[None]:
        """A compiled layer draws where nothing can be caught: nobody else draws while it runs."""
        with _nobody_else_draws():
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
    """Operations that draw get a generator of one stream."""

    def __init__(self, shared: Sequence[torch.Generator], seed: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._shared = shared
        self._seed = seed
        self._own: dict[str, torch.Generator] = {}

    @property
    def drew(self) -> bool:
        return bool(self._own)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if not _may_draw(func, args, kwargs):
            return func(*args, **kwargs)
        if not self._own:
            self._own = {g.device.type: torch.Generator(g.device).manual_seed(self._seed) for g in self._shared}
        overload = _taking_generator(func)
        own = self._own.get(_device_type(args, kwargs))
        if overload is not None and own is not None:
            return overload(*args, **kwargs, generator=own)
        return self._swapped_in(lambda: func(*args, **kwargs))

    def _swapped_in(self, draw: Callable[[], Any]) -> Any:
        with _nobody_else_draws():
            before = [g.get_state() for g in self._shared]
            try:
                for generator in self._shared:
                    generator.set_state(self._own[generator.device.type].get_state())
                result = draw()
                for generator in self._shared:
                    self._own[generator.device.type].set_state(generator.get_state())
            finally:
                for generator, state in zip(self._shared, before, strict=True):
                    generator.set_state(state)
        return result


def _may_draw(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Whether an operation may draw from a shared generator: not from the user's own, nor to drop nothing."""
    if torch.Tag.nondeterministic_seeded not in func.tags:
        return False
    named = {a.name: value for a, value in zip(func._schema.arguments, args, strict=False)} | dict(kwargs)
    attends = any(argument.name == "dropout_p" for argument in func._schema.arguments)
    return named.get("generator") is None and not (attends and named.get("dropout_p", 0) == 0)


@cache
def _taking_generator(func: Any) -> Any:
    """The same operation with an argument `generator`; None if there is none."""
    wanted = [(a.name, str(a.type)) for a in func._schema.arguments]
    for name in func.overloadpacket.overloads():
        overload = getattr(func.overloadpacket, name)
        arguments = [(a.name, str(a.type)) for a in overload._schema.arguments]
        others = [argument for argument in arguments if argument[0] != "generator"]
        if len(others) < len(arguments) and wanted in (arguments, others):
            return overload
    return None


def _device_type(args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
    """Where an operation computes."""
    found = next((arg.device for arg in args if isinstance(arg, Tensor)), kwargs.get("device"))
    return torch.device("cpu" if found is None else found).type


class _Refused(TorchDispatchMode):
    """No operation may draw."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if _may_draw(func, args, kwargs or {}):
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
    before = _undisturbed_state()
    yield
    if torch.equal(before, _undisturbed_state()):
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


def _undisturbed_state() -> Tensor:
    """The state of the CPU generator while no operation of any pipeline draws."""
    with _nobody_else_draws():
        return torch.default_generator.get_state()


def is_compiled(layer: nn.Module) -> bool:
    if "torch._dynamo" not in sys.modules:  # importing it takes a second
        return False
    return any(
        isinstance(module, torch._dynamo.OptimizedModule) or module._compiled_call_impl is not None
        for module in layer.modules()
    )

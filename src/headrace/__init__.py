"""Headrace: pipeline-parallel training of PyTorch models – planned, proved, run and explained.

What needs torch is imported when it is first asked for, so that schedules and simulations work in a blink, and on
machines without torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from headrace import schedule
from headrace.costs import Costs, Memory
from headrace.partition import partition
from headrace.search import Bytes, InFlight, search
from headrace.simulate import simulate
from headrace.timeline import Timeline

if TYPE_CHECKING:
    from headrace.planner.model import plan
    from headrace.profiling import measured_cut, profile
    from headrace.runtime.failure import PipelineFailure
    from headrace.runtime.pipeline import Pipeline
    from headrace.runtime.stage import carry
    from headrace.train.verify import verify

    __version__: str

_LAZY: Final = {
    "Pipeline": "headrace.runtime.pipeline",
    "PipelineFailure": "headrace.runtime.failure",
    "carry": "headrace.runtime.stage.carry",
    "measured_cut": "headrace.profiling",
    "plan": "headrace.planner.model",
    "profile": "headrace.profiling",
    "verify": "headrace.train.verify",
}

__all__ = [
    "Bytes",
    "Costs",
    "InFlight",
    "Memory",
    "Pipeline",
    "PipelineFailure",
    "Timeline",
    "__version__",
    "carry",
    "measured_cut",
    "partition",
    "plan",
    "profile",
    "schedule",
    "search",
    "simulate",
    "verify",
]


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version

        value: Any = version("headrace")
    elif name in _LAZY:
        module = import_module(_LAZY[name])
        value = module if name == "carry" else getattr(module, name)
    else:
        raise AttributeError(f"module 'headrace' has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})

"""Actions have their names in the traces of PyTorch's profiler, and cost nothing while there is none.

Ranks that are threads are seen only by a profiler that looks at all threads; by default it sees the one that began it:

    from torch.profiler import _ExperimentalConfig, profile

    with profile(experimental_config=_ExperimentalConfig(profile_all_threads=True)) as profiler:
        pipe.step(x, y)

Under torchrun a rank computes in its process's own thread, so `profile()` is enough there.
"""

from collections.abc import Callable
from typing import Any

from torch.autograd import profiler

from headrace.schedule.actions import Action

Perform = Callable[[Action, Any], Any]


def in_ranges(perform: Perform) -> Perform:
    """`perform`, each of whose calls is a range such as "2F0" if a profiler is active in this process."""
    if not profiler._is_profiler_enabled:  # the public ways to ask know of this thread only
        return perform

    def performed(action: Action, received: Any) -> Any:
        with profiler.record_function(str(action)):
            return perform(action, received)

    return performed

"""Measure in company: ranks that compute at once on one machine slow each other down.

    thread of the measurement    ┊ layer 0: F, B ┊ layer 1: F, B ┊ …        its seconds are those of a rank among others
    p − 1 other threads            F B F B F B F B F B F B F B …            copies of the model, for as long as it takes

They share caches, memory and the interpreter, so a layer alone is faster than a layer in a pipeline will be.
"""

import copy
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import nn

from headrace.profiling.probe import Probe, copy_of
from headrace.runtime.stage.boundary import Value


@contextmanager
def in_company(layers: Mapping[str, nn.Module], sample: Value, others: int) -> Iterator[None]:
    """Within it, `others` threads run copies of `layers` on `sample`, over and over.

    Whatever goes wrong there ends the thread silently: the measurement will meet it as well.
    """
    threads_of_each = torch.get_num_threads()
    enough = threading.Event()

    def keep_busy() -> None:
        torch.get_num_threads()  # or a new thread forgets what is set next
        torch.set_num_threads(threads_of_each)
        probes = [Probe(name, layer, layer) for name, layer in copy.deepcopy(dict(layers)).items()]
        try:
            while not enough.is_set():
                parcel = copy_of(sample, "sample")
                for probe in probes:
                    parcel = probe.run(parcel, (), "whole", counts=False)
        except Exception:
            return

    company = [threading.Thread(target=keep_busy, name="headrace company", daemon=True) for _ in range(others)]
    for thread in company:
        thread.start()
    try:
        yield
    finally:
        enough.set()
        for thread in company:
            thread.join()

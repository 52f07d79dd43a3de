"""Skeletons as bytes: what a parcel is besides its tensors.

Plain pickling would do but for two things. All leaves of nests are one object, and making others, as unpickling does,
is deprecated in torch. And a dataclass that the sender's pytree has opened must be known to the receiver's too.
"""

import dataclasses
import io
import pickle
from functools import lru_cache
from typing import Any, Final, cast

from torch.utils import _pytree as pytree

from headrace.runtime.stage.boundary import ONE_TENSOR, Skeleton

_LEAF: Final = ONE_TENSOR.spec


def encode(skeleton: Skeleton) -> bytes | None:
    """The bytes; None for the commonest one, a single tensor."""
    if skeleton is ONE_TENSOR:
        return None
    buffer = io.BytesIO()
    _Pickler(buffer, pickle.HIGHEST_PROTOCOL).dump((skeleton.spec, skeleton.leaves))
    return buffer.getvalue()


def decode(data: bytes | None) -> Skeleton:
    """What `encode` was given."""
    return ONE_TENSOR if data is None else _decode(data)


@lru_cache(maxsize=64)
def _decode(data: bytes) -> Skeleton:
    return Skeleton(*_Unpickler(io.BytesIO(data)).load())


class _Pickler(pickle.Pickler):
    def reducer_override(self, obj: Any) -> Any:
        return (_leaf, ()) if obj is _LEAF else NotImplemented


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        found: Any = super().find_class(module, name)
        if dataclasses.is_dataclass(found) and module != pytree.__name__ and found not in pytree.SUPPORTED_NODES:
            pytree.register_dataclass(cast(type, found))
        return found


def _leaf() -> pytree.TreeSpec:
    return _LEAF

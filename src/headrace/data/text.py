"""Real text for the main job, as bytes, split so that nothing in the held-out part was trained on.

    a file, a folder, or the standard library ──load──▶ Text(train, held_out) ──Batches──▶ (tokens, targets)

**The split.** Whole files are held out, picked in the order of the hash of their *content*: a sample from all over the
folder (the last files by name would be one or two packages, and nothing like the rest), the same on every machine, and
a file that occurs twice is one content, kept once, so that no copy of a held-out file is trained on. One file, or files
too large to hold out whole, cannot be split that way: there the end of the text is held out.
"""

import hashlib
import os
import sysconfig
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from headrace.schedule.numbers import at_least

HELD_OUT_SHARE = 0.05
STANDARD_LIBRARY_BYTES = 8_000_000
# Not the library itself, or (encodings) tables so alike that holding one out would hold nothing out.
SKIPPED = frozenset(
    ("test", "tests", "idlelib", "site-packages", "dist-packages", "lib2to3", "turtledemo", "encodings", "__pycache__")
)
BINARY_PROBE = 8192


@dataclass(frozen=True)
class Text:
    """Bytes to train on and bytes to test on: two uint8 tensors of one dimension.

    `notes` says, for people, what was read and what was left out.
    """

    train: Tensor
    held_out: Tensor
    notes: tuple[str, ...] = ()


def load(path: str | Path | None = None, *, max_bytes: int | None = None) -> Text:
    """Text from a file, from all text files below a folder, or (`path` None) from Python's own standard library.

    Binary files (with a zero byte in the first 8 KiB, as git tells them), hidden, unreadable and empty ones are left
    out of a folder, and `notes` counts them.

    Args:
        path: a file or a folder.
        max_bytes: read no more than this; by default all, but 8 MB of the standard library.

    Raises:
        FileNotFoundError: there is nothing at `path`.
        TypeError, ValueError: there is no text, or `max_bytes` is not a positive number.
    """
    if max_bytes is not None:
        at_least(1, max_bytes=max_bytes)
    if path is None:
        library = Path(sysconfig.get_path("stdlib"))
        return _folder(library, max_bytes or STANDARD_LIBRARY_BYTES, suffix=".py", skipped=SKIPPED)
    path = Path(path)
    if path.is_dir():
        return _folder(path, max_bytes)
    if not path.exists():
        raise FileNotFoundError(f"there is no file or folder {str(path)!r} to read text from")
    return _file(path, max_bytes)


def _file(path: Path, max_bytes: int | None) -> Text:
    size = path.stat().st_size
    if not path.is_file() or size == 0:
        raise ValueError(f"{str(path)!r} is {'empty' if path.is_file() else 'not a regular file'}: give it some text")
    with path.open("rb") as file:
        if b"\0" in file.read(BINARY_PROBE):
            raise ValueError(f"{str(path)!r} looks binary (it has zero bytes): give a file or folder of text")
    used = min(size, max_bytes or size)
    # Mapped, not read: each rank is a process, and the file may be large.
    mapped = torch.from_file(str(path), shared=False, size=used, dtype=torch.uint8)
    return _end_held_out(mapped, (f"{used:,} of {size:,} bytes of {path}, the last {HELD_OUT_SHARE:.0%} held out",))


def _folder(folder: Path, max_bytes: int | None, suffix: str = "", skipped: frozenset[str] = frozenset()) -> Text:
    contents: dict[bytes, bytes] = {}  # by hash, in the order of the names
    left_out = Counter[str]()
    total = 0
    for path in _files(folder, suffix, skipped):
        try:
            content = path.read_bytes()
        except OSError:
            left_out["unreadable"] += 1
            continue
        key = hashlib.sha256(content).digest()
        if b"\0" in content[:BINARY_PROBE]:
            left_out["binary"] += 1
        elif key in contents:
            left_out["repeated"] += 1
        elif content:
            contents[key] = content[: None if max_bytes is None else max_bytes - total]
            total += len(contents[key])
            if total == max_bytes:
                break
    notes = [f"{total:,} bytes of {len(contents):,} files in {folder}"]
    notes += [f"{count:,} {why} file{'s' * (count > 1)} left out" for why, count in sorted(left_out.items())]
    if not contents:
        raise ValueError(f"there is no text in {str(folder)!r}: {', '.join(notes)}")
    if total == max_bytes:
        notes.append(f"what comes after the first {max_bytes:,} bytes, in the order of names, left out")
    return _files_held_out(contents, notes)


def _files_held_out(contents: dict[bytes, bytes], notes: list[str]) -> Text:
    budget = left = int(sum(map(len, contents.values())) * HELD_OUT_SHARE)
    held: set[bytes] = set()
    for key in sorted(contents):
        if len(contents[key]) <= left:
            held.add(key)
            left -= len(contents[key])
    if not held or left > budget / 2:
        notes.append(f"the last {HELD_OUT_SHARE:.0%} held out, for the files are too large to hold out whole ones")
        return _end_held_out(_tensor(contents.values()), tuple(notes))
    notes.append(f"{len(held):,} whole files held out, {budget - left:,} bytes")
    return Text(
        _tensor(content for key, content in contents.items() if key not in held),
        _tensor(content for key, content in contents.items() if key in held),
        tuple(notes),
    )


def _files(folder: Path, suffix: str, skipped: frozenset[str]) -> Iterator[Path]:
    """Regular files below `folder`, in the order of their names, the same on every machine; links are not followed."""
    for root, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if name not in skipped and not name.startswith("."))
        for name in sorted(names):
            path = Path(root, name)
            if name.endswith(suffix) and not name.startswith(".") and path.is_file() and not path.is_symlink():
                yield path


def _tensor(contents: Iterable[bytes]) -> Tensor:
    return torch.frombuffer(bytearray().join(contents), dtype=torch.uint8)


def _end_held_out(text: Tensor, notes: tuple[str, ...]) -> Text:
    kept = len(text) - int(len(text) * HELD_OUT_SHARE)
    return Text(text[:kept], text[kept:], notes)


class Batches:
    """Windows of a text, the same on every rank without a message: a batch follows from (seed, step) alone.

    Args:
        text: what `load` read.
        batch: rows per batch.
        sequence: tokens per row.
        seed: not negative; another seed gives other batches.

    Raises:
        TypeError, ValueError: a number is impossible, or a part of the text is too short for one row.
    """

    def __init__(self, text: Text, *, batch: int, sequence: int, seed: int = 0) -> None:
        at_least(1, batch=batch, sequence=sequence)
        at_least(0, seed=seed)
        for name, part in (("training", text.train), ("held-out", text.held_out)):
            if len(part) <= sequence:
                raise ValueError(
                    f"the {name} text has {len(part):,} bytes, too few for sequence={sequence}, which needs "
                    f"{sequence + 1:,} (a row and the byte after it): use a shorter sequence, or more text"
                )
        self.rows, self.sequence, self.seed = batch, sequence, seed
        # Every window that there is, as a view [windows, sequence + 1]: a batch copies only its own bytes.
        self._train = text.train.unfold(0, sequence + 1, 1)
        self._held_out = text.held_out.unfold(0, sequence + 1, 1)

    def batch(self, step: int) -> tuple[Tensor, Tensor]:
        """Tokens and targets, int64 [batch, sequence] each: random windows; a target is the byte after its token."""
        at_least(0, step=step)
        starts = np.random.default_rng((self.seed, step)).integers(len(self._train), size=self.rows)
        return _tokens_and_targets(self._train, torch.from_numpy(starts))

    def held_out_batches(self, count: int) -> Iterator[tuple[Tensor, Tensor]]:
        """`count` batches spread evenly over the held-out text, whatever the seed (rows overlap if it is short)."""
        at_least(1, count=count)
        total, last = count * self.rows, len(self._held_out) - 1
        starts = torch.arange(total) * last // max(1, total - 1)
        for first in range(0, total, self.rows):
            yield _tokens_and_targets(self._held_out, starts[first : first + self.rows])


def _tokens_and_targets(windows: Tensor, starts: Tensor) -> tuple[Tensor, Tensor]:
    rows = windows[starts]
    return rows[:, :-1].long(), rows[:, 1:].long()

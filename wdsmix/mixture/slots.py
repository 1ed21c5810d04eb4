"""Slots: blocks of batch memory that are used again, within a process and across a process border.

A fresh 25 MB batch costs more in page faults than its vectors cost to compute, and a fresh *shared* one half of
decoding it. So each process that builds batches keeps a few slots. A slot is *lent* to a batch; when the last tensor
or array over it is gone, it is free again; a builder that finds none free allocates one more. So a batch may be held
for as long as anyone likes: its bytes stay.

In a worker process a slot is anonymous shared memory (a memfd: no name, no file, no limit by /dev/shm, gone with the
last process that maps it). `SlotBatch` pickles as the number of its slot. The receiving process opens the memory as the
builder's ``/proc/PID/fd/N`` when it sees it first (no socket, no file in a temporary folder, nothing to leave behind
when killed), and keeps the mapping for as long as the builder and the dataset live. Two bytes behind the block say who
uses it: the builder alone writes one; the other is set by the builder before it sends, and cleared by the receiver.
"""

from __future__ import annotations

import contextlib
import functools
import math
import mmap
import os
import tempfile
import time
import uuid
import weakref
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from wdsmix.errors import DataError
from wdsmix.mixture.batch import Field

__all__ = ["Note", "Slot", "SlotBatch", "SlotRing", "lend_tensors", "listen", "tell"]

Block = npt.NDArray[np.uint8]

_ENOUGH = 3
"""Slots that a worker process needs for one batch at the consumer, one on the way and one in the making."""

_PATIENCE = 500, 50
"""Milliseconds to wait for one of them before there is a fourth, and before each further one: a consumer that was only
slow for a moment must not cost memory for good, and one that holds batches should not wait each time."""

_FLAGS = 64  # bytes behind a block; [0]: the builder's tensors live, [1]: sent and not yet dropped


class Where(NamedTuple):
    """Where another process finds a slot's memory, and how it knows it."""

    process: int
    descriptor: int
    device: int
    inode: int

    @classmethod
    def of(cls, descriptor: int) -> Where:
        """Of an open descriptor of this process."""
        facts = os.fstat(descriptor)
        return cls(os.getpid(), descriptor, facts.st_dev, facts.st_ino)

    def map(self, size: int) -> mmap.mmap:
        """Maps it.

        Raises:
            DataError: the process is gone, or may not be looked into.
        """
        path = f"/proc/{self.process}/fd/{self.descriptor}"
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError as error:
            raise self._died() from error
        except OSError as error:
            raise DataError(
                f"the memory of a DataLoader worker can't be opened: {error.strerror}",
                path=path,
                hint="may this process not look into it?",
            ) from error
        try:
            facts = os.fstat(descriptor)
            if (facts.st_dev, facts.st_ino) != (self.device, self.inode):  # the number was given to another process
                raise self._died()
            return mmap.mmap(descriptor, size)
        finally:
            os.close(descriptor)

    def _died(self) -> DataError:
        return DataError(f"DataLoader worker (pid {self.process}) has died, and with it a batch that it had built")


@dataclass(kw_only=True, slots=True, eq=False)
class Slot:
    """One block."""

    ring: str
    """Token of its ring: unique over processes."""
    number: int
    size: int
    memory: mmap.mmap
    flags: Block
    """uint8 [64] at the block's end."""
    descriptor: int = -1
    """Of shared memory; -1 elsewhere."""
    where: Where | None = None
    """Where another process finds shared memory."""

    @property
    def flat(self) -> Block:
        """uint8 [size]: a new array over the block."""
        return np.frombuffer(self.memory, dtype=np.uint8, count=self.size)

    def lend(self) -> Block:
        """A new array over the block that keeps the slot in use for as long as anything made from it lives."""
        return _watched(self.flat, self.flags, 0)


class SlotRing:
    """Slots of one size.

    Args:
        size: Bytes of a block.
        shared: Whether another process is to receive what is lent.
    """

    def __init__(self, size: int, *, shared: bool) -> None:
        self.size = size
        self.shared = shared
        self._token = f"{os.getpid()}-{uuid.uuid4().hex}"
        self._slots: list[Slot] = []
        self._descriptors: list[int] = []
        weakref.finalize(self, _close, self._descriptors, os.getpid())

    def __len__(self) -> int:
        return len(self._slots)

    def take(self) -> Slot:
        """A slot that nobody uses, marked as used by the builder; a new one where there is none.

        A shared ring of a few slots waits a moment first: a consumer in another process is about to drop a batch, and
        memory that is allocated stays.
        """
        patience = 0
        if self.shared and len(self._slots) >= _ENOUGH:
            patience = _PATIENCE[len(self._slots) > _ENOUGH]
        slot = self._free()
        while slot is None and patience:
            time.sleep(0.001)
            patience -= 1
            slot = self._free()
        if slot is None:
            slot = self._new()
            self._slots.append(slot)
        slot.flags[0] = 1
        return slot

    def _free(self) -> Slot | None:
        return next((slot for slot in self._slots if not slot.flags[:2].any()), None)

    def give_back(self, slot: Slot) -> None:
        """Frees a taken slot that was not lent."""
        slot.flags[0] = 0

    def _new(self) -> Slot:
        total = self.size + _FLAGS
        descriptor = -1
        if self.shared:
            descriptor = _shared_file(total)
            self._descriptors.append(descriptor)
            memory = mmap.mmap(descriptor, total)
        else:
            memory = mmap.mmap(-1, total, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
            with contextlib.suppress(AttributeError, OSError):  # not every kernel has huge pages
                memory.madvise(mmap.MADV_HUGEPAGE)
        return Slot(
            ring=self._token,
            number=len(self._slots),
            size=self.size,
            memory=memory,
            flags=_flags(memory, self.size),
            descriptor=descriptor,
            where=Where.of(descriptor) if self.shared else None,
        )


def _shared_file(size: int) -> int:
    if hasattr(os, "memfd_create"):
        descriptor = os.memfd_create("wdsmix-batch", os.MFD_CLOEXEC)
    else:
        with tempfile.TemporaryFile() as file:
            descriptor = os.dup(file.fileno())
    os.ftruncate(descriptor, size)
    return descriptor


def _close(descriptors: list[int], process: int) -> None:
    if os.getpid() == process:
        while descriptors:
            os.close(descriptors.pop())


def _flags(memory: mmap.mmap, size: int) -> Block:
    return np.frombuffer(memory, dtype=np.uint8, offset=size, count=_FLAGS)


def _watched(array: Block, flags: Block, place: int) -> Block:
    """Has a flag cleared when ``array`` dies, which is after all tensors and arrays made from it."""
    weakref.finalize(array, _clear, flags, place, os.getpid()).atexit = False
    return array


def _clear(flags: Block, place: int, process: int) -> None:
    # A forked child that lets go of what it inherited says nothing about its parent.
    if os.getpid() == process:
        flags[place] = 0


def lend_tensors(array: Block, fields: Mapping[str, Field]) -> dict[str, torch.Tensor]:
    """The arrays of a batch as tensors over one block; pictures channels-first by view.

    Args:
        array: uint8, the block. The tensors keep it alive.
        fields: Where each array lies in it.
    """
    flat = torch.from_numpy(array[: array.size & ~63])
    typed: dict[np.dtype[Any], torch.Tensor] = {}
    out: dict[str, torch.Tensor] = {}
    for name, field in fields.items():
        base = typed.get(field.dtype)
        if base is None:
            base = typed[field.dtype] = flat.view(_torch_dtype(field.dtype))
        shape, strides = _layout(field.shape, name in ("images", "goal_images"))
        out[name] = torch.as_strided(base, shape, strides, field.start // field.dtype.itemsize)
    return out


@functools.cache
def _layout(shape: tuple[int, ...], channels_first: bool) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Shape and strides (elements) of a contiguous array, or of its view whose last axis comes third from the end."""
    strides = tuple(math.prod(shape[axis + 1 :]) for axis in range(len(shape)))
    if not channels_first:
        return shape, strides
    order = (*range(len(shape) - 3), len(shape) - 1, len(shape) - 3, len(shape) - 2)
    return tuple(shape[axis] for axis in order), tuple(strides[axis] for axis in order)


@functools.cache
def _torch_dtype(dtype: np.dtype[Any]) -> torch.dtype:
    return torch.from_numpy(np.empty(0, dtype=dtype)).dtype


class SlotBatch(dict[str, Any]):
    """A batch over a shared slot, as a worker process yields it: a dict that pickles without its bytes.

    The receiver gets a plain dict. Entries that were replaced or added in between travel as they are.

    Args:
        entries: Of the batch.
        slot: It lies in.
        block: The array that was lent for it: keeps the slot in use until the batch is sent, whatever happens to the
            tensors (torch moves a tensor that is sent on its own to memory of its own).
        fields: Where each array lies in the slot.
    """

    def __init__(self, entries: Mapping[str, Any], slot: Slot, block: Block, fields: Mapping[str, Field]) -> None:
        super().__init__(entries)
        self._slot = slot
        self._block = block
        self._fields = fields
        self._lent = {name: entries[name] for name in fields}
        self.note: Note | None = None
        """What the receiving process is to know."""

    def __copy__(self) -> SlotBatch:
        # torch's default_convert copies mappings; copy.copy would go through __reduce__ and send the slot.
        new = SlotBatch.__new__(SlotBatch)
        dict.__init__(new, self)
        new.__dict__.update(self.__dict__)
        return new

    def __reduce__(self) -> tuple[Callable[..., dict[str, Any]], tuple[Any, ...]]:
        slot = self._slot
        fields = {name: field for name, field in self._fields.items() if self.get(name) is self._lent[name]}
        rest = {name: value for name, value in self.items() if name not in fields}
        slot.flags[1] = 1
        return _receive, ((slot.ring, slot.number), slot.size, slot.where, fields, list(self), rest, self.note)


Note = tuple[str, object]
"""What a builder wants its dataset in the receiving process to know: the dataset's token, and the message."""

_mapped: dict[tuple[str, int], tuple[str, mmap.mmap]] = {}
"""Slots of other processes that this process has mapped, with the token of the dataset that they are for."""

os.register_at_fork(after_in_child=_mapped.clear)

_listeners: dict[str, tuple[int, weakref.WeakMethod[Callable[[Any], None]]]] = {}


def listen(token: str, method: Callable[[Any], None]) -> None:
    """Has a bound method called with what is told under ``token`` in this process, while its object lives.

    When the object is gone, so are the mappings of slots that were for it (batches keep theirs).
    """
    gone = functools.partial(_forget, token, _listeners, _mapped)
    _listeners[token] = os.getpid(), weakref.WeakMethod(method, lambda _: gone())


def tell(note: Note | None) -> None:
    """Calls the listener of a note, if this process has it."""
    if note is None:
        return
    process, reference = _listeners.get(note[0], (0, None))
    method = reference() if reference is not None and process == os.getpid() else None
    if method is not None:
        method(note[1])


def _receive(
    key: tuple[str, int],
    size: int,
    where: Where | None,
    fields: Mapping[str, Field],
    names: Iterable[str],
    rest: dict[str, Any],
    note: Note | None,
) -> dict[str, Any]:
    """Rebuilds a batch in the process that receives it."""
    if key not in _mapped:
        if where is None:
            raise DataError("a batch in memory that is not shared can't be sent")
        _forget_the_dead()
        _mapped[key] = "" if note is None else note[0], where.map(size + _FLAGS)
    memory = _mapped[key][1]
    array = _watched(np.frombuffer(memory, dtype=np.uint8, count=size), _flags(memory, size), 1)
    tensors = lend_tensors(array, fields)
    batch = {name: tensors[name] if name in tensors else rest[name] for name in names}
    tell(note)
    return batch


def _forget(token: str, listeners: dict[str, Any], mapped: dict[tuple[str, int], Any]) -> None:
    # What it needs is handed to it: at exit, this module's names may be gone before the last dataset.
    listeners.pop(token, None)
    for key in [key for key, (owner, _) in mapped.items() if owner == token]:
        mapped.pop(key, None)


def _forget_the_dead() -> None:
    """Unmaps the slots of processes that are gone; batches over them keep their own reference."""
    for key in list(_mapped):
        try:
            os.kill(int(key[0].split("-", 1)[0]), 0)
        except ProcessLookupError:
            _mapped.pop(key, None)
        except PermissionError:
            pass

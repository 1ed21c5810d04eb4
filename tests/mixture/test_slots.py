"""Slots: memory that is used again only when nobody looks at it any more."""

from __future__ import annotations

import copy
import gc
import os
import pickle
from itertools import islice
from multiprocessing import get_context, reduction
from pathlib import Path

import numpy as np
import pytest
import torch

from wdsmix import MixtureDataset
from wdsmix.mixture import slots
from wdsmix.mixture.batch import BatchMemory, Field
from wdsmix.mixture.slots import SlotBatch, SlotRing, lend_tensors, listen

FIELDS = {
    "images": Field(shape=(2, 1, 1, 4, 5, 3), dtype=np.dtype(np.uint8), start=0),
    "state": Field(shape=(2, 3), dtype=np.dtype(np.float32), start=128),
}
SIZE = BatchMemory.size_of(FIELDS)


def filled(ring: SlotRing, value: int) -> dict[str, torch.Tensor]:
    slot = ring.take()
    memory = BatchMemory(FIELDS, slot.flat)
    for array in memory.arrays.values():
        array[...] = value
    return lend_tensors(slot.lend(), FIELDS)


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize(
    "keep",
    [
        lambda t: t["state"],
        lambda t: t["state"][1:, :2],
        lambda t: t["state"].data,
        lambda t: t["state"].detach().numpy(),
        lambda t: t["images"][0].numpy()[..., 0],
        lambda t: t["images"].untyped_storage(),
    ],
)
def test_a_slot_is_used_again_only_when_all_that_looks_at_it_is_gone(shared, keep):
    ring = SlotRing(SIZE, shared=shared)
    held = keep(filled(ring, 7))
    filled(ring, 8)
    assert len(ring) == 2
    filled(ring, 9)
    assert len(ring) == 2
    if not isinstance(held, torch.UntypedStorage):
        assert (np.asarray(held) == 7).all()
    del held
    gc.collect()
    both = [filled(ring, 1), filled(ring, 2)]
    assert len(ring) == 2
    assert all((t["state"] == v).all() for t, v in zip(both, (1, 2), strict=True))


def test_pictures_are_channels_first_views_of_nhwc_memory():
    tensors = filled(SlotRing(SIZE, shared=False), 3)
    assert tensors["images"].shape == (2, 1, 1, 3, 4, 5)
    assert tensors["images"].permute(0, 1, 2, 4, 5, 3).is_contiguous()


def test_a_taken_slot_can_be_given_back():
    ring = SlotRing(SIZE, shared=False)
    ring.give_back(ring.take())
    ring.take()
    assert len(ring) == 1


def _builder(connection, rounds: int) -> None:
    ring = SlotRing(SIZE, shared=True)
    for number in range(rounds):
        slot = ring.take()
        memory = BatchMemory(FIELDS, slot.flat)
        for array in memory.arrays.values():
            array[...] = number
        block = slot.lend()
        batch = SlotBatch({**lend_tensors(block, FIELDS), "n": number}, slot, block, FIELDS)
        batch.note = "token", number * 10
        if number == 3:
            batch["state"] = batch["state"] + 100  # a transform in the worker
        connection.send_bytes(reduction.ForkingPickler.dumps(copy.copy(batch)))
        del batch, memory, block
        connection.recv()
    connection.send(len(ring))
    connection.close()


class Listener:
    def __init__(self) -> None:
        self.heard: list[object] = []

    def hear(self, note: object) -> None:
        self.heard.append(note)


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_batches_cross_a_process_border_and_keep_their_bytes_while_held(method):
    context = get_context(method)
    here, there = context.Pipe()
    process = context.Process(target=_builder, args=(there, 12), daemon=True)
    process.start()
    there.close()
    listener = Listener()
    listen("token", listener.hear)
    held = []
    descriptors = []
    for number in range(12):
        batch = pickle.loads(here.recv_bytes())
        assert type(batch) is dict
        assert list(batch) == ["images", "state", "n"]
        held.append((number, batch["images"], batch["state"][0]))
        del batch
        for value, images, state in held[-4:]:
            assert (images == value).all()
            assert (state == (value if value != 3 else 103)).all()
        held = held[-4:]
        descriptors.append(len(list(Path("/proc/self/fd").iterdir())))
        here.send(None)
    assert 4 <= here.recv() <= 6
    assert listener.heard == [n * 10 for n in range(12)]
    assert max(descriptors) - descriptors[0] <= 6  # one a slot (Python's mmap keeps it), not one a batch
    process.join()
    assert process.exitcode == 0
    slots._forget_the_dead()
    assert not [key for key in slots._mapped if key[0].startswith(f"{process.pid}-")]
    assert all((images == value).all() for value, images, _ in held)


def test_a_forked_child_that_lets_go_does_not_free_its_parents_slot():
    ring = SlotRing(SIZE, shared=True)
    tensors = filled(ring, 5)
    child = os.fork()
    if child == 0:
        tensors.clear()
        gc.collect()
        os._exit(0)
    os.waitpid(child, 0)
    filled(ring, 6)
    assert len(ring) == 2
    assert (tensors["state"] == 5).all()


def test_pictures_lie_beside_the_alignment_that_makes_decoders_write_past_the_caches(mixture: dict) -> None:
    """Rows aligned to 32 bytes get non-temporal stores from libjpeg-turbo; everything else stays aligned."""
    dataset = MixtureDataset(mixture, 3, num_threads=1)
    for batch in islice(dataset, 4):
        assert batch["images"].data_ptr() % 32 == 16
        for name in ("state", "action", "episode"):
            assert batch[name].data_ptr() % 64 == 0

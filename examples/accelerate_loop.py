"""accelerate: prepare the model and the optimizer, and leave the loader alone.

The dataset gives every rank its own part already. A prepared loader would take rank 0's batches and hand them to all
ranks (``dispatch_batches``, the default for iterable datasets), so that most of the data were never seen.

``accelerate launch examples/accelerate_loop.py demo-out/mixture.yaml --steps 20``
"""

from __future__ import annotations

import argparse
from itertools import islice
from pathlib import Path

import torch
from accelerate import Accelerator
from accelerate.utils import send_to_device
from policy import Policy
from torch.utils.data import DataLoader

from wdsmix import MixtureDataset


def main() -> None:
    """Trains for some steps; --resume goes on from the folder that an earlier run saved."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("mixture", type=Path)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("accelerate-out"))
    parser.add_argument("--resume", action="store_true")
    args = parser.parse_args()

    accelerator = Accelerator()
    rank, world = accelerator.process_index, accelerator.num_processes
    dataset = MixtureDataset(args.mixture, args.batch_size, rank=rank, world_size=world)
    policy = Policy(next(iter(MixtureDataset(args.mixture, 2, rank=rank, world_size=world))))
    policy, optimizer = accelerator.prepare(policy, torch.optim.AdamW(policy.parameters(), lr=3e-4))
    accelerator.register_for_checkpointing(dataset)  # its state_dict and load_state_dict
    if args.resume:
        accelerator.load_state(str(args.out))

    loader = DataLoader(dataset, batch_size=None, num_workers=args.workers)  # not prepared
    for batch in islice(loader, args.steps):
        moved = send_to_device(batch, accelerator.device)
        loss = accelerator.unwrap_model(policy).loss(moved)
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        accelerator.print(f"step {batch['step']}: loss {loss.item():.4f}")
    # Workers may have read ahead: put the position to that of the last batch used.
    dataset.load_state_dict(batch["cursor"])
    accelerator.save_state(str(args.out))


if __name__ == "__main__":
    main()

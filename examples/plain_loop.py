"""A plain PyTorch loop that can be killed at any time and goes on exactly where its last checkpoint was.

Run it twice: ``python examples/plain_loop.py demo-out/mixture.yaml --steps 20``; the second run adds 20 steps.
On several GPUs: ``torchrun --nproc-per-node 8 examples/plain_loop.py ...``; each rank reads its own part.
"""

from __future__ import annotations

import argparse
import sys
from itertools import islice
from pathlib import Path

import torch
from policy import Policy
from torch.utils.data import DataLoader

from wdsmix import MixtureDataset


def main() -> None:
    """Trains for some steps, from the checkpoint if there is one."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("mixture", type=Path)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--workers", type=int, default=0, help="DataLoader workers; 0 decodes on threads")
    parser.add_argument("--checkpoint", type=Path, default=Path("plain_loop.pt"))
    args = parser.parse_args()

    torch.manual_seed(0)
    dataset = MixtureDataset(args.mixture, args.batch_size)
    policy = Policy(next(iter(MixtureDataset(args.mixture, 2))))
    optimizer = torch.optim.AdamW(policy.parameters(), lr=3e-4)
    if args.checkpoint.exists():
        saved = torch.load(args.checkpoint, weights_only=True)
        policy.load_state_dict(saved["policy"])
        optimizer.load_state_dict(saved["optimizer"])
        dataset.load_state_dict(saved["data"])

    loader = DataLoader(dataset, batch_size=None, num_workers=args.workers)
    for batch in islice(loader, args.steps):
        loss = policy.loss(batch)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        sys.stdout.write(f"step {batch['step']}: loss {loss.item():.4f}\n")

    # The cursor of the last batch used: exact, however far the loader has read ahead.
    data = dataset.state_dict(cursor=batch["cursor"])
    saved = {"policy": policy.state_dict(), "optimizer": optimizer.state_dict(), "data": data}
    part = args.checkpoint.with_suffix(".partial")
    torch.save(saved, part)
    part.replace(args.checkpoint)


if __name__ == "__main__":
    main()

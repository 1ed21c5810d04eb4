"""Lightning: a LightningDataModule whose state goes into every checkpoint, and validation over a split.

``python examples/lightning_module.py demo-out/mixture.yaml --steps 20``; ``--resume FILE.ckpt`` goes on from one.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import lightning
import torch
from policy import Policy
from torch.utils.data import DataLoader

from wdsmix import EvaluationDataset, MixtureDataset


class MixtureModule(lightning.LightningDataModule):
    """The mixture as Lightning wants it."""

    def __init__(self, mixture: Path, batch_size: int, workers: int, sources: list[str]) -> None:
        super().__init__()
        # Made before the process group: rank and world size are settled when iteration starts.
        self.train = MixtureDataset(mixture, batch_size)
        self.val = EvaluationDataset(mixture, batch_size, "val", sources=sources) if sources else None
        self.workers = workers
        self.cursor: dict[str, Any] | None = None

    def train_dataloader(self) -> DataLoader:
        """Endless: bound the run by max_steps."""
        return DataLoader(self.train, batch_size=None, num_workers=self.workers)

    def val_dataloader(self) -> DataLoader | list[DataLoader]:
        """One exact pass; all ranks have the same number of batches."""
        return DataLoader(self.val, batch_size=None, num_workers=self.workers) if self.val else []

    def state_dict(self) -> dict[str, Any]:
        """The position after the last batch that was trained on."""
        return self.train.state_dict(cursor=self.cursor)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Comes before the first iteration."""
        self.train.load_state_dict(state)


class Cloning(lightning.LightningModule):
    """Behaviour cloning."""

    def __init__(self, mixture: Path) -> None:
        super().__init__()
        self.mixture = mixture

    def setup(self, stage: str) -> None:
        """Sizes the policy by a batch; the process group is there by now, so that this rank knows its place."""
        self.policy = Policy(next(iter(MixtureDataset(self.mixture, 2))))

    def training_step(self, batch: dict[str, Any], index: int) -> torch.Tensor:
        """Also notes how far the data were used."""
        self.trainer.datamodule.cursor = batch["cursor"]
        loss = self.policy.loss(batch)
        self.log("loss", loss, batch_size=len(batch["task"]))
        return loss

    def validation_step(self, batch: dict[str, Any], index: int) -> None:
        """Samples that only fill the last batch count for nothing."""
        keep = {name: v[batch["valid"]] for name, v in batch.items() if isinstance(v, torch.Tensor)}
        if len(keep["state"]):
            self.log("val_loss", self.policy.loss(keep), batch_size=len(keep["state"]), sync_dist=True)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """AdamW."""
        return torch.optim.AdamW(self.parameters(), lr=3e-4)


def main() -> None:
    """Trains and saves last.ckpt."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("mixture", type=Path)
    parser.add_argument("--steps", type=int, default=20, help="of the whole run, earlier parts included")
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--val", nargs="*", default=[], metavar="SOURCE", help="sources to validate on")
    parser.add_argument("--resume", type=Path)
    parser.add_argument("--out", type=Path, default=Path("lightning-out"))
    args = parser.parse_args()
    data = MixtureModule(args.mixture, args.batch_size, args.workers, args.val)
    trainer = lightning.Trainer(
        max_steps=args.steps,
        val_check_interval=args.steps if args.val else None,
        accelerator="auto",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=args.out,
    )
    trainer.fit(Cloning(args.mixture), datamodule=data, ckpt_path=args.resume)
    trainer.save_checkpoint(args.out / "last.ckpt")


if __name__ == "__main__":
    main()

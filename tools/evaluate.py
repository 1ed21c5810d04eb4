"""``wdsmix evaluate``: how far a checkpoint's actions are from those of held-out episodes."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from wdsmix.tools.console import plain, result_console

from wdsmix.errors import ConfigError

if TYPE_CHECKING:
    from wdsmix.mixture.config import MixtureConfig

__all__ = ["HELP", "configure", "run", "show"]

HELP = """Evaluate a checkpoint on the held-out split of a mixture.

  wdsmix evaluate run mixture.yaml                          the run's latest checkpoint
  wdsmix evaluate run/checkpoints/step-00001000.pt mixture.yaml --split test --json

mse and l1 are means over the real numbers of a source, in normalised units; "mean action" is the mse of predicting
the mean action of the source for each place in the chunk; ratio is mse by that. real: in the units of the source."""


def configure(parser: argparse.ArgumentParser) -> None:
    """Adds the options."""
    parser.add_argument("checkpoint", type=Path, metavar="CKPT", help="a checkpoint, or a run's folder")
    parser.add_argument("mixture", type=Path, metavar="MIXTURE.YAML")
    parser.add_argument("--split", default="val", help="held-out split; of several, a source's first (%(default)s)")
    parser.add_argument("--batch-size", type=int, default=64, help="samples a batch and rank (%(default)s)")
    parser.add_argument("--frames", type=int, help="at most about so many of each source (all)")
    parser.add_argument("--weights", choices=("ema", "last"), help="averaged weights or the last step's (ema if kept)")
    parser.add_argument("--precision", choices=("auto", "fp32", "fp16", "bf16"), default="auto")
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda or cuda:N (%(default)s)")
    parser.add_argument("--threads", type=int, help="threads that decode (the cores)")
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(args: argparse.Namespace) -> int:
    """Evaluates and shows the report."""
    from wdsmix.mixture.config import load_mixture
    from wdsmix.training.checkpoint import load_checkpoint
    from wdsmix.training.distributed import joined
    from wdsmix.training.evaluation import Evaluator, load_policy
    from wdsmix.training.precision import autoselect

    for option in ("batch_size", "frames"):
        value = getattr(args, option)
        if value is not None and value < 1:
            raise ConfigError("bad value", where=f"--{option.replace('_', '-')}", expected="1 or more", found=value)
    mixture = load_mixture(args.mixture)
    with joined(args.device) as group:
        checkpoint = load_checkpoint(args.checkpoint)
        precision = autoselect(group.device, args.precision)
        splits = [word for word in args.split.split(",") if word]
        try:
            evaluator = Evaluator(mixture, splits, args.batch_size, group, frames=args.frames, threads=args.threads)
        except ConfigError as error:
            if error.where != "eval_split":
                raise
            raise _no_such_split(mixture, args.split) from error
        policy = load_policy(checkpoint, args.weights)
        evaluator.check(checkpoint)
        report = evaluator.run(policy.to(group.device), precision)
        if not group.leads:
            return 0
        found = {"step": checkpoint["step"], "policy": policy.config.policy, "precision": precision.name, **report}
        if args.json:
            sys.stdout.write(json.dumps(found, indent=1) + "\n")
        else:
            show(found, title=f"{policy.config.policy}, step {checkpoint['step']:,}")
    return 0


def _no_such_split(mixture: MixtureConfig, split: str) -> ConfigError:
    """What ``--split`` could have been."""
    from wdsmix.mixture.catalog import open_catalog

    sources = open_catalog(mixture).sources
    trained = {source.config.split for source in sources}
    known = dict.fromkeys(name for source in sources for name in source.set.index.splits if name != source.config.split)
    return ConfigError(
        "no source has this split, or it is the one that is trained on",
        path=mixture.path,
        where="--split",
        expected=", ".join(known) or f"a split that is held out; the sets have only {', '.join(sorted(trained))}",
        found=split,
    )


def show(report: Mapping[str, Any], *, title: str) -> None:
    """Prints a report as tables."""
    from rich.table import Table

    console = result_console()
    table = Table(title=title, title_justify="left")
    for name in ("source", "split", "frames", "mse", "l1", "mean action", "ratio"):
        table.add_column(name, justify="left" if name in ("source", "split") else "right")
    for name, row in report["sources"].items():
        table.add_row(plain(name), row["split"], f"{row['frames']:,}", *_figures(row))
    table.add_row("mean", "", "", *_figures(report), style="bold")
    console.print(table)
    groups = Table(title="dimensions", title_justify="left")
    for name in ("source", "group", "dims", "mse", "l1", "mean action", "ratio", "real rmse", "real l1"):
        groups.add_column(name, justify="left" if name in ("source", "group") else "right")
    for name, row in report["sources"].items():
        for group, inner in row["groups"].items():
            if inner["dims"]:
                cells = (*_figures(inner), _number(inner["real_rmse"]), _number(inner["real_l1"]))
                groups.add_row(plain(name), plain(group), str(inner["dims"]), *cells)
    console.print(groups)
    if report["left_out"]:
        console.print(f"nothing held out: {plain(', '.join(report['left_out']))}", soft_wrap=True)


def _figures(row: Mapping[str, Any]) -> list[str]:
    return [_number(row[key]) for key in ("mse", "l1", "mean_mse", "ratio")]


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.4g}"

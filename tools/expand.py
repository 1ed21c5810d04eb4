"""``wdsmix expand``: more robots, wider states and wider actions for a trained policy."""

from __future__ import annotations

import argparse
from pathlib import Path

__all__ = ["HELP", "configure", "run"]

HELP = """Grow a checkpoint: rows of the embodiment table, columns and rows of the state and action layers.

CKPT is a checkpoint of `wdsmix train`, its run's folder, a .safetensors file, or a torch file with a state dict; OUT is
a new file of the same kind. Weights, averaged weights and the optimiser's moments grow together; `wdsmix train
--start-from OUT` goes on from it. Outputs for old inputs stay the same, in float32 to the bit. New columns hold zeros,
new rows what --init says. A file that is not of wdsmix needs --rule.
Exit codes: 0 done, 1 unreadable file, 2 bad usage, 3 OUT exists or a size would shrink.
"""


def configure(parser: argparse.ArgumentParser) -> None:
    """Adds the options."""
    parser.add_argument("checkpoint", type=Path, metavar="CKPT")
    parser.add_argument("out", type=Path, metavar="OUT")
    parser.add_argument("--num-embodiments", dest="embodiment", type=int, metavar="N", help="rows of the robots' table")
    parser.add_argument("--state-dim", dest="state", type=int, metavar="N", help="width of the state")
    parser.add_argument("--action-dim", dest="action", type=int, metavar="N", help="width of the actions")
    parser.add_argument(
        "--init",
        choices=["mean", "zeros", "normal"],
        default="mean",
        help="new rows: the mean of the old ones, zeros, or normal numbers of their spread (mean)",
    )
    parser.add_argument("--seed", type=int, default=0, help="for --init normal (0)")
    parser.add_argument(
        "--rule",
        action="append",
        default=[],
        metavar="PATTERN=SIDE:AXIS",
        help="which tensors grow, for files of other programs: '*.state_proj.weight=state:1'; SIDE is state, action or "
        "embodiment; repeats",
    )


def run(args: argparse.Namespace) -> int:
    """Grows, reports, and returns the exit code."""
    from wdsmix.tools.console import result_console

    from wdsmix.errors import ConfigError
    from wdsmix.texts import counted, printable
    from wdsmix.training.expand import SIDES, Rule
    from wdsmix.training.expand_file import expand_file

    sizes = {side: getattr(args, side) for side in SIDES if getattr(args, side) is not None}
    options = {key: f"--{key.replace('_', '-')}" for key in SIDES.values()}
    if not sizes:
        raise ConfigError("nothing to grow", expected="at least one of " + ", ".join(options.values()))
    rules = [Rule.parse(text) for text in args.rule]
    try:
        changed = expand_file(args.checkpoint, args.out, sizes, init=args.init, seed=args.seed, rules=rules)
    except ConfigError as error:
        error.where = options.get(error.where or "", error.where)
        raise
    console = result_console()
    for name, (old, new) in changed.items():
        console.print(f"{printable(name)}  {old} -> {new}", markup=False)
    console.print(f"{counted(len(changed), 'tensor')} grew; written to {printable(str(args.out))}", markup=False)
    return 0

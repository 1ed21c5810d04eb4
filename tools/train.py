"""``wdsmix train``: a reference policy on a mixture."""

from __future__ import annotations

import argparse
import importlib.util
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from wdsmix.errors import ConfigError, ConflictError
from wdsmix.texts import counted

if TYPE_CHECKING:
    from wdsmix.mixture.config import MixtureConfig
    from wdsmix.training.distributed import Group
    from wdsmix.training.trainer import Outcome

__all__ = ["HELP", "configure", "run"]

HELP = """Train a reference policy on a mixture.

  wdsmix train mixture.yaml --policy bc --steps 10000 --out run
  wdsmix train mixture.yaml --out run --resume                    go on after a stop, to the bit
  torchrun --nproc-per-node 4 -m wdsmix.cli train mixture.yaml --policy transformer --steps 10000 --out run

Policies: bc, transformer, vla, offline-rl. OUT gets log.jsonl and checkpoints/; Ctrl-C and SIGTERM write a checkpoint
first. Every key of train.yaml (--config) that has no flag here can be set with --set KEY=VALUE."""

FLAGS: dict[str, tuple[type, str]] = {
    "policy": (str, "bc, transformer, vla or offline-rl (bc)"),
    "steps": (int, "steps at which the run is over, counted from its very start"),
    "batch_size": (int, "samples a step and rank (32)"),
    "lr": (float, "peak learning rate (3e-4)"),
    "warmup_steps": (int, "steps of warm-up (a twentieth, 500 at most)"),
    "schedule_steps": (int, "steps of the learning rate's cosine (steps)"),
    "precision": (str, "auto, fp32, fp16 or bf16 (auto)"),
    "device": (str, "auto, cpu, cuda or cuda:N (auto)"),
    "seed": (int, "of weights, dropout and augmentation (0)"),
    "eval_every": (int, "steps between evaluations, 0 for none (500)"),
    "eval_split": (str, "held-out split; of several, a source's first (val)"),
    "checkpoint_every": (int, "steps between checkpoints (500)"),
    "workers": (int, "DataLoader worker processes (0: threads)"),
    "threads": (int, "threads that decode (the cores)"),
    "image_size": (int, "side of the pictures the network sees (the mixture's)"),
}
"""Key of `TrainConfig` -> type and help of its flag."""


def configure(parser: argparse.ArgumentParser) -> None:
    """Adds the options."""
    parser.add_argument("mixture", type=Path, metavar="MIXTURE.YAML")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="the run's folder")
    parser.add_argument("--config", type=Path, metavar="TRAIN.YAML", help="keys of the run; flags go before it")
    for key, (kind, text) in FLAGS.items():
        parser.add_argument(f"--{key.replace('_', '-')}", type=kind, default=argparse.SUPPRESS, help=text)
    parser.add_argument("--tensorboard", action="store_true", default=argparse.SUPPRESS, help="needs the extra train")
    parser.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", help="any other key, such as options.width=256"
    )
    parser.add_argument(
        "--resume",
        nargs="?",
        const="must",
        choices=("must", "auto"),
        help="go on from the latest checkpoint in DIR; auto: begin where there is none",
    )
    parser.add_argument(
        "--start-from",
        type=Path,
        metavar="CKPT",
        help="go on from another run's or an expanded checkpoint, where DIR has none yet",
    )
    parser.add_argument("--safetensors", action="store_true", help="write DIR/model.safetensors at the end")


def run(args: argparse.Namespace) -> int:
    """Trains; 0, or 128 + the signal that ended it."""
    from wdsmix.mixture.config import load_mixture
    from wdsmix.training.distributed import joined

    mixture = load_mixture(args.mixture)
    flags = {key: getattr(args, key) for key in (*FLAGS, "tensorboard") if hasattr(args, key)}
    values = _values(args, flags)
    if args.safetensors and importlib.util.find_spec("safetensors") is None:
        raise ConfigError("safetensors is not installed", where="--safetensors", hint="pip install 'wdsmix[train]'")
    with _claimed(args.out):
        start = _start(args)
        saved = {} if start is None else start["train"]
        with joined(str(values.get("device", saved.get("device", "auto")))) as group:
            return _ended(_train(args, mixture, values, start, group), group)


def _ended(outcome: Outcome, group: Group) -> int:
    if outcome.signal:
        if group.leads:
            sys.stderr.write(f"wdsmix: stopped by a signal after step {outcome.step}; go on with --resume\n")
        return 128 + outcome.signal
    if group.leads and outcome.evaluation is not None:
        from wdsmix.tools.evaluate import show

        show(outcome.evaluation, title=f"held out, step {outcome.step:,}")
    return 0


@contextmanager
def _claimed(out: Path) -> Iterator[None]:
    """The run's folder, made and locked by the first rank, so that no two runs write to it."""
    from wdsmix.store.transfer import exclusive
    from wdsmix.training.distributed import leads_by_environment

    if not leads_by_environment():
        yield
        return
    with ExitStack() as stack:
        try:
            out.mkdir(parents=True, exist_ok=True)
            stack.enter_context(exclusive(out / ".lock", "trains in this folder"))
        except OSError as error:
            raise ConfigError(f"not a folder to write to: {error.strerror}", where="--out", found=out) from error
        yield


def _start(args: argparse.Namespace) -> dict[str, Any] | None:
    """The checkpoint to go on from."""
    from wdsmix.training.checkpoint import CheckpointFolder, load_checkpoint

    newest = CheckpointFolder(args.out / "checkpoints").latest()
    if newest is not None and not args.resume:
        raise ConflictError(
            "the folder holds a run", path=args.out, found=newest.name, hint="say --resume, or name another folder"
        )
    if newest is None and args.resume == "must" and args.start_from is None:
        raise ConfigError("no checkpoint to go on from", path=args.out, hint="leave --resume out, or say --resume auto")
    source = newest or args.start_from
    return None if source is None else load_checkpoint(source)


def _train(
    args: argparse.Namespace, mixture: MixtureConfig, values: dict[str, Any], start: dict[str, Any] | None, group: Group
) -> Outcome:
    from wdsmix.training.checkpoint import load_checkpoint
    from wdsmix.training.config import checked, resumed_config
    from wdsmix.training.trainer import Trainer

    if start is None:
        train = checked(values, args.config)
    else:
        train = resumed_config(
            start["train"], values, ranks_then=start["world"], ranks_now=group.world, path=args.config
        )
    trainer = Trainer(train, mixture, args.out, group, start)
    if group.leads:
        _tell(trainer, start)
    outcome = trainer.run()
    if args.safetensors and group.leads and not outcome.signal:
        from wdsmix.training.export import export_safetensors

        export_safetensors(args.out / "model.safetensors", load_checkpoint(args.out))
    return outcome


def _tell(trainer: Any, start: dict[str, Any] | None) -> None:
    parameters = sum(p.numel() for p in trainer.policy.parameters())
    precision, world = trainer.precision, trainer.group.world
    begun = "" if start is None else f", from step {trainer.step:,}"
    sys.stderr.write(
        f"{trainer.policy.config.policy}: {parameters / 1e6:.2f} M parameters; {precision.device}, {precision.name} "
        f"({precision.reason}); {counted(trainer.train.batch_size, 'sample')} a step and rank, "
        f"{counted(world, 'rank')}{begun}\n"
    )
    if trainer.step >= trainer.train.steps:
        sys.stderr.write(
            f"the run is finished: it is at step {trainer.step:,}, steps is {trainer.train.steps:,}; "
            "nothing is left to do; give a larger --steps to go on\n"
        )
    if trainer.train.eval_every and trainer.evaluator is None:
        sys.stderr.write(f"no source has the split {' or '.join(trainer.train.eval_split)}: nothing is held out\n")


def _values(args: argparse.Namespace, flags: dict[str, Any]) -> dict[str, Any]:
    """Keys of the run: from the file, then --set, then flags."""
    from wdsmix.training.config import load_train_config

    values = load_train_config(args.config, {})
    for text in args.set:
        key, equals, value = text.partition("=")
        if not equals or not key:
            raise ConfigError("bad value", where="--set", expected="KEY=VALUE", found=text)
        try:
            read = yaml.safe_load(value)
        except (RecursionError, yaml.YAMLError) as error:
            raise ConfigError("not YAML", where=f"--set {key}", found=value[:100]) from error
        first, _, rest = key.partition(".")
        if rest:
            inner = values.get(first) or {}
            if not isinstance(inner, dict):
                raise ConfigError("not a mapping of keys", where=f"--set {first}", found=inner)
            values[first] = {**inner, rest: read}
        else:
            values[first] = read
    return {**values, **flags}

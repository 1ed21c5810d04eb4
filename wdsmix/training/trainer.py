"""The trainer: one loop for every policy, on one process or many, that stops and goes on to the bit.

What a run is lies in one checkpoint: weights, averages, optimiser, scaler, the mixture's position, random states. On a
CPU, 2 N steps give the same bits as N, a checkpoint, a new process and N more. With another number of ranks the batches
over all ranks stay the same; random states, which belong to a rank, then begin anew.
"""

from __future__ import annotations

import os
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from pydantic import ValidationError
from torch import Tensor
from torch.utils.data import DataLoader

from wdsmix.errors import DataError, StorageError, WdsmixError
from wdsmix.mixture.config import MixtureConfig
from wdsmix.mixture.explain import explain
from wdsmix.mixture.loader import Batch, MixtureDataset
from wdsmix.progress import Progress
from wdsmix.training.augment import AugmentConfig, Augmenter
from wdsmix.training.batches import prepare
from wdsmix.training.checkpoint import CheckpointFolder, misfits
from wdsmix.training.config import TrainConfig, within
from wdsmix.training.distributed import Group, parallel
from wdsmix.training.ema import Ema
from wdsmix.training.evaluation import Evaluator, Report, held_out
from wdsmix.training.logs import RunLog
from wdsmix.training.policies import build_policy, policy_config
from wdsmix.training.precision import Stepper, autoselect, check_bounds
from wdsmix.training.randomness import kept, random_state, restore, seed_all
from wdsmix.training.schedule import Schedule
from wdsmix.training.shape import check_shape, policy_shape
from wdsmix.training.signals import Interrupts
from wdsmix.training.statistics import embodiments_of, grown, merged_scales, scales_of

__all__ = ["Outcome", "Trainer", "named_groups"]

Watch = Callable[[int, Batch], None]


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """How a run ended."""

    step: int
    """Steps done, over the whole run."""
    signal: int
    """The signal that ended it; 0: it came to its end."""
    evaluation: Report | None
    """The last evaluation in this process."""


class Trainer:
    """Trains one policy on one mixture.

    Args:
        train: The run.
        mixture: What it is trained on.
        out: The run's folder.
        group: The ranks.
        start: A checkpoint to go on from; None: begin.
        quiet: Show no progress.

    Raises:
        ConfigError: run, mixture, policy and checkpoint do not fit each other.
        ConflictError: the mixture is not the checkpoint's.
        DataError: parts of the checkpoint do not fit each other.
    """

    def __init__(
        self,
        train: TrainConfig,
        mixture: MixtureConfig,
        out: Path,
        group: Group,
        start: Mapping[str, Any] | None = None,
        *,
        quiet: bool = False,
    ) -> None:
        self.train, self.out, self.group, self._quiet = train, out, group, quiet
        self.precision = autoselect(group.device, train.precision)
        self.dataset = MixtureDataset(
            mixture, train.batch_size, rank=group.rank, world_size=group.world, num_threads=train.threads
        )
        catalog = self.dataset.catalog
        self._offsets = catalog.layout.offsets
        self._names = [source.name for source in catalog.sources]
        check_bounds(self.precision, catalog)
        if train.deterministic:
            os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # without it cuBLAS refuses
            torch.use_deterministic_algorithms(True)
        seed_all(train.seed)
        config = policy_shape(catalog, train) if start is None else policy_config(start["policy"])
        check_shape(config, catalog)
        self.policy = build_policy(config.policy, config)
        self.policy.check_mixture(config, catalog)
        self.policy.to(group.device)
        self.augmenter = _augmenter(train, group, catalog)
        self.embodiments = embodiments_of(catalog)
        self.normalization = scales_of(catalog)
        self.step = 0
        self.schedule = Schedule(peak=train.lr, warmup=train.warmup, total=train.length, floor=train.lr_floor)
        groups = named_groups(self.policy, train.weight_decay)
        self._optimizer_names = [[name for name, _ in group["params"]] for group in groups]
        self.optimizer = torch.optim.AdamW(
            [{**group, "params": [parameter for _, parameter in group["params"]]} for group in groups], lr=train.lr
        )
        self.stepper = Stepper(self.precision, self.optimizer, train.clip_norm)
        self.ema = Ema(self.policy, train.ema) if train.ema else None
        seed_all(train.seed, 1, group.rank)
        if start is not None:
            with misfits():
                self._restore(start)
        self._losses = parallel(self.policy, group)
        self._loader_state = self.dataset.state_dict()
        self.evaluator = self._made_evaluator(mixture)
        self._folder = CheckpointFolder(out / "checkpoints", train.keep)

    def run(self, watch: Watch | None = None) -> Outcome:
        """Trains to the last step, or until a signal comes; either way a checkpoint is written at the end.

        Args:
            watch: Called after each step with its number, from 1, and this rank's batch.

        Raises:
            DataError: a loss or a gradient is not finite; says in which samples. Or an evaluation is not.
            StorageError: log or checkpoint can't be written.
            WdsmixError: a worker process of the loader died.
        """
        log = self._opened_log()
        evaluation: Report | None = None
        saved = -1
        total, begun = self.train.steps, self.step
        show = Progress(
            total - begun, "steps", f"train {self.policy.config.policy}", quiet=not self.group.leads or self._quiet
        )
        with Interrupts() as interrupts, show, self._workers_watched():
            batches = iter(self._batches())
            stop = 0
            meter = _Meter()
            while self.step < total and not stop:
                waited = time.perf_counter()
                batch = next(batches)
                meter.waited += time.perf_counter() - waited
                values, stop = self._one_step(batch, interrupts)
                meter.add(values, len(batch["task"]) * self.group.world)
                if watch is not None:
                    watch(self.step, batch)
                last = self.step == total
                if self.step % self.train.log_every == 0 or last or stop:
                    row = meter.taken(self.group)
                    show.advance(meter.steps_taken, loss=f"{row['loss']:.4g}", lr=f"{row['lr']:.2g}")
                    if log is not None:
                        log.write("train", self.step, row)
                paused = time.perf_counter()
                if self.evaluator is not None and not stop and (last or self.step % self.train.eval_every == 0):
                    evaluation = self.evaluate()
                    if log is not None and evaluation is not None:
                        log.write("evaluation", self.step, evaluation)
                every = self.train.checkpoint_every
                if last or stop or (every and self.step % every == 0):
                    self.save()
                    saved = self.step
                meter.pause(time.perf_counter() - paused)
            if saved != self.step:  # nothing was left to do
                self.save()
        if log is not None:
            log.close()
        return Outcome(step=self.step, signal=stop, evaluation=evaluation)

    def evaluate(self) -> Report | None:
        """Evaluates the averaged weights, where there are some, on the held-out split; None without one."""
        if self.evaluator is None:
            return None
        with kept(self.group.device):
            if self.ema is None:
                return self.evaluator.run(self.policy, self.precision)
            with self.ema.applied():
                return self.evaluator.run(self.policy, self.precision)

    def save(self) -> None:
        """Writes a checkpoint; all ranks call it, the first one writes."""
        random = self.group.gathered(
            {**random_state(self.group.device), "augment": self.augmenter.state_dict() if self.augmenter else None}
        )
        if self.group.leads:
            self._folder.save(
                self.step,
                {
                    "step": self.step,
                    "policy": self.policy.config.model_dump(mode="json"),
                    "model": self.policy.state_dict(),
                    "optimizer": self.optimizer.state_dict(),
                    "optimizer_names": self._optimizer_names,
                    "stepper": self.stepper.state_dict(),
                    "schedule": asdict(self.schedule),
                    "ema": None if self.ema is None else self.ema.state_dict(),
                    "loader": self._loader_state,
                    "normalization": self.normalization,
                    "embodiments": self.embodiments,
                    "random": random,
                    "train": {**self.train.model_dump(mode="json"), "schedule_steps": self.train.length},
                    "world": self.group.world,
                },
            )
        self.group.barrier()

    def _one_step(self, batch: Batch, interrupts: Interrupts) -> tuple[dict[str, float], int]:
        """Returns the numbers of the step, and the signal that came to any rank."""
        self.policy.train()
        seen = prepare(batch, self.group.device, self.policy.config, self.augmenter, offsets=self._offsets)
        rate = self.schedule.apply(self.optimizer, self.step)
        with self.precision.autocast():
            losses: dict[str, Tensor] = self._losses(seen)
        self.stepper.backward(losses["loss"])
        values = {name: float(value.detach()) for name, value in losses.items()}
        # Every rank has been through its backward pass, so that all can stop in the same step.
        bad = not torch.isfinite(torch.tensor(values["loss"]))
        stop, any_bad = self.group.largest(interrupts.number, int(bad))
        if any_bad:
            raise self._not_finite("the loss is not finite", batch, values["loss"] if bad else None)
        try:
            report = self.stepper.step()
        except DataError as error:
            raise self._not_finite(error.message, batch, error.found) from error
        if not report.skipped:
            self.policy.after_step()
            if self.ema is not None:
                self.ema.update()
        self.step += 1
        self._loader_state = self.dataset.state_dict(cursor=batch["cursor"])
        values |= {
            "lr": rate,
            "gradient_norm": report.gradient_norm,
            "scale": report.scale,
            "skipped": self.stepper.skipped,
        }
        return values, stop

    def _not_finite(self, message: str, batch: Batch, found: object) -> DataError:
        counts = Counter(batch["source_id"].tolist())
        sources = ", ".join(f"{self._names[k]!r} (id {k}) {n} times" for k, n in sorted(counts.items()))
        first = ", ".join(
            f"{self._names[s]} {e:06d}_{f:06d}"
            for s, e, f in zip(*(batch[key].tolist()[:4] for key in ("source_id", "episode", "frame")), strict=True)
        )
        return DataError(
            message,
            where=f"step {self.step + 1}, rank {self.group.rank}",
            found=found if found is not None else "finite on this rank, not on another",
            hint=f"the batch holds source {sources}; its first samples are {first}",
        )

    @contextmanager
    def _workers_watched(self) -> Iterator[None]:
        """Tells of a worker's end, which torch raises wherever the trainer just is."""
        try:
            yield
        except (RuntimeError, DataError) as error:
            if not str(error).startswith("DataLoader worker (pid"):
                raise
            raise WdsmixError(
                f"a process of the loader died: {error}",
                where=f"step {self.step + 1}, rank {self.group.rank}",
                hint="killed by the system, it was out of memory: take fewer --workers; then go on with --resume",
            ) from error

    def _batches(self) -> Iterator[Batch]:
        if not self.train.workers:
            return iter(self.dataset)
        return iter(
            DataLoader(
                self.dataset,
                batch_size=None,
                num_workers=self.train.workers,
                pin_memory=self.group.device.type == "cuda",
                worker_init_fn=_leave_signals_to_the_trainer,
                generator=torch.Generator(),  # else it would draw from the one that dropout draws from
            )
        )

    def _opened_log(self) -> RunLog | None:
        if not self.group.leads:
            return None
        try:
            self.out.mkdir(parents=True, exist_ok=True)
            return RunLog(self.out, self.step, tensorboard=self.train.tensorboard)
        except OSError as error:
            raise StorageError(f"can't write the log: {error}", path=self.out) from error

    def _made_evaluator(self, mixture: MixtureConfig) -> Evaluator | None:
        train = self.train
        if not train.eval_every or not held_out(mixture, train.eval_split)[0]:
            return None
        return Evaluator(
            mixture, train.eval_split, train.batch_size, self.group, frames=train.eval_frames, threads=train.threads
        )

    def _restore(self, start: Mapping[str, Any]) -> None:
        """Goes to a checkpoint's position in everything."""
        catalog = self.dataset.catalog
        rows = self.policy.config.num_embodiments
        self.embodiments = grown(start["embodiments"], self.embodiments, rows=rows, may_grow=True)
        self.normalization = merged_scales(start["normalization"], catalog)
        self.policy.load_state_dict(start["model"])
        if start["optimizer_names"] != self._optimizer_names:
            raise ValueError("the optimiser's parameters are not the policy's")
        self.optimizer.load_state_dict(start["optimizer"])
        for parameter, moments in self.optimizer.state.items():
            if any(value.shape not in (parameter.shape, ()) for value in moments.values()):
                raise ValueError("the optimiser's moments are not of the parameters' shapes")
        for group in self.optimizer.param_groups:  # what the run is told now, not what it was told
            if group["weight_decay"]:
                group["weight_decay"] = self.train.weight_decay
        self.stepper.load_state_dict(start["stepper"])
        if self.ema is not None:
            if start["ema"] is None:
                self.ema = Ema(self.policy, self.train.ema)
            else:
                self.ema.load_state_dict(start["ema"])
        self.dataset.load_state_dict(start["loader"])
        self.step = int(start["step"])
        if len(start["random"]) == self.group.world:
            mine = start["random"][self.group.rank]
            restore(mine, self.group.device)
            if self.augmenter is not None and mine["augment"] is not None:
                self.augmenter.load_state_dict(mine["augment"])
        else:  # a rank's states belong to a number of ranks
            seed = seed_all(self.train.seed, 1, self.group.rank, self.step, self.group.world)
            if self.augmenter is not None:
                self.augmenter = _augmenter(self.train, self.group, catalog, seed)


def named_groups(policy: torch.nn.Module, weight_decay: float) -> list[dict[str, Any]]:
    """The optimiser's groups, with named parameters: matrices and kernels decay, all else does not."""
    named = [(name, parameter) for name, parameter in policy.named_parameters() if parameter.requires_grad]
    decays = [(name, p) for name, p in named if p.ndim >= 2 and "embed" not in name]
    chosen = {name for name, _ in decays}
    return [
        {"params": decays, "weight_decay": weight_decay},
        {"params": [(name, p) for name, p in named if name not in chosen], "weight_decay": 0.0},
    ]


def _augmenter(train: TrainConfig, group: Group, catalog: Any, seed: int | None = None) -> Augmenter | None:
    if train.augment is None:
        return None
    try:
        config = AugmentConfig.model_validate(train.augment)
    except ValidationError as error:
        with within("augment"):
            raise explain(error, path=None, known={(): tuple(AugmentConfig.model_fields)}) from error
    mixed = (train.seed * 1_000_003 + group.rank) % 2**63 if seed is None else seed
    return Augmenter(config, mixed, catalog)


def _leave_signals_to_the_trainer(_: int) -> None:
    """In a worker: terminals, schedulers and torchrun signal all processes, and only the trainer is to act on it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, _second_time_for_real)


def _second_time_for_real(number: int, _: object) -> None:
    signal.signal(number, signal.SIG_DFL)


class _Meter:
    """Averages the numbers of the steps between two lines of the log."""

    def __init__(self) -> None:
        self._reset()
        self.steps_taken = 0

    def _reset(self) -> None:
        self._sums: Counter[str] = Counter()
        self._last: dict[str, float] = {}
        self._steps = self._samples = 0
        self.waited = 0.0
        self._started = time.perf_counter()

    def add(self, values: Mapping[str, float], samples: int) -> None:
        self._last = dict(values)
        self._sums.update(values)
        self._steps += 1
        self._samples += samples

    def pause(self, seconds: float) -> None:
        """Leaves out time in which nothing was trained."""
        self._started += seconds

    def taken(self, group: Group) -> dict[str, float]:
        """Losses averaged over steps and ranks; rate, scale and the count of skipped steps as they are now."""
        told = ("lr", "scale", "skipped")
        averaged = [name for name in self._last if name not in told]
        sums = group.total(torch.tensor([self._sums[name] for name in averaged], dtype=torch.float64))
        row = {
            name: float(value) / (self._steps * group.world)
            for name, value in zip(averaged, sums.tolist(), strict=True)
        }
        seconds = max(time.perf_counter() - self._started, 1e-9)
        row |= {name: self._last[name] for name in told}
        row |= {"samples_per_s": self._samples / seconds, "wait_share": self.waited / seconds}
        self.steps_taken = self._steps
        self._reset()
        return row

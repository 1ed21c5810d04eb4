"""What one measurement is of."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

__all__ = ["BATCH", "CONTENDERS", "Contender", "chosen"]

BATCH = 64


@dataclass(frozen=True, kw_only=True, slots=True)
class Contender:
    """One way of getting batches.

    A batch is 64 samples of two pictures of 256x256, drawn 50 : 30 : 20 from three sources and shuffled, state and
    action padded to 32 with masks, and a task string each.
    """

    name: str
    title: str
    module: str
    """In benchmarks/contenders."""
    peer: str | None = None
    """Environment it runs in; None: the base one."""
    form: str = ""
    """Of a peer: ``docs`` as its documentation writes it, ``tuned`` with simplejpeg straight into the batch."""
    workers: int | None = None
    """DataLoader worker processes; None: no DataLoader."""
    threads: int | None = None
    """Decoding threads; None: the contender's default."""
    history: int = 1
    chunk: int = 1
    subsampling: str = "444"
    seed: int = 1

    @property
    def pictures(self) -> int:
        """Of a sample."""
        return 2 * self.history

    def data(self, root: Path) -> Path:
        """Where its data are."""
        return root / f"{self.module}-{self.subsampling}"

    def store(self, root: Path) -> Path:
        """The store that its data were made from."""
        return root / f"store-{self.subsampling}"


def _wdsmix(name: str, title: str, **options: object) -> Contender:
    return Contender(name=f"wdsmix-{name}", title=f"wdsmix, {title}", module="wdsmix", **options)  # type: ignore[arg-type]


def _peer(peer: str, title: str) -> list[Contender]:
    return [
        Contender(
            name=f"{peer}-{form}{'' if workers == 2 else f'-workers{workers}'}",
            title=f"{title}, {words}, {workers} workers",
            module=peer,
            peer=peer,
            form=form,
            workers=workers,
        )
        for workers in (2, 1, 0)
        for form, words in (("docs", "as documented"), ("tuned", "tuned"))
    ]


CONTENDERS: dict[str, Contender] = {
    contender.name: contender
    for contender in (
        Contender(name="decode", title="decode alone, one thread", module="decode"),
        Contender(name="decode-420", title="decode alone, 4:2:0", module="decode", subsampling="420"),
        _wdsmix("threads1", "1 thread", threads=1),
        _wdsmix("threads2", "2 threads", threads=2),
        _wdsmix("workers0", "DataLoader, 0 workers", workers=0),
        _wdsmix("workers1", "DataLoader, 1 worker", workers=1),
        _wdsmix("workers2", "DataLoader, 2 workers", workers=2),
        _wdsmix("temporal-threads2", "temporal, 2 threads", threads=2, history=2, chunk=16),
        _wdsmix("temporal-workers2", "temporal, 2 workers", workers=2, history=2, chunk=16),
        _wdsmix("420-workers2", "4:2:0, 2 workers", workers=2, subsampling="420"),
        *_peer("webdataset", "webdataset"),
        *_peer("mosaic", "mosaicml-streaming"),
        *_peer("litdata", "litdata"),
        *_peer("energon", "megatron-energon"),
        *_peer("hf", "HF datasets"),
        *_peer("grain", "grain"),
    )
}


def chosen(only: list[str], peer_workers: list[int]) -> list[Contender]:
    """The contenders to measure.

    Args:
        only: Names, or their first parts (``wdsmix``, ``webdataset``, ``wdsmix-temporal``); empty: all.
        peer_workers: Worker counts at which peers are measured.

    Raises:
        ValueError: a name that fits nothing.
    """
    for part in only:
        if not any(_fits(name, part) for name in CONTENDERS):
            raise ValueError(f"no contender {part!r}; there are {', '.join(CONTENDERS)}")
    return [
        contender
        for contender in CONTENDERS.values()
        if contender.module != "decode"
        and (contender.peer is None or contender.workers in peer_workers)
        and (not only or any(_fits(contender.name, part) for part in only))
    ]


def _fits(name: str, part: str) -> bool:
    return name == part or name.startswith(part + "-")

"""Virtual environments: one for wdsmix and the limit, and a thin one over it for each peer.

A peer's environment sees the base environment's packages (so torch, NumPy and simplejpeg are the same for all, and not
installed seven times) and holds the peer itself. A peer that can't be installed is reported, never fatal.
"""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
from dataclasses import dataclass
from pathlib import Path

__all__ = ["PEERS", "REPOSITORY", "Peer", "environment", "prepare"]

REPOSITORY = Path(__file__).resolve().parents[1]
STUB_VERSION = "0.28.0"


@dataclass(frozen=True, kw_only=True, slots=True)
class Peer:
    """A package to measure against."""

    name: str
    """Name of its module in benchmarks/contenders and of its environment."""
    requirements: tuple[str, ...]
    distribution: str
    """Whose version the report names."""
    stub_torchvision: bool = False
    """Names torchvision as a dependency, which its loader doesn't use here and which pulls in another torch."""


PEERS = {
    peer.name: peer
    for peer in (
        Peer(name="webdataset", requirements=("webdataset==1.0.2",), distribution="webdataset"),
        Peer(
            name="mosaic",
            requirements=("mosaicml-streaming==0.13.0",),
            distribution="mosaicml-streaming",
            stub_torchvision=True,
        ),
        Peer(name="litdata", requirements=("litdata==0.2.76",), distribution="litdata", stub_torchvision=True),
        Peer(
            name="energon",
            requirements=("megatron-energon==7.4.1",),
            distribution="megatron-energon",
            stub_torchvision=True,
        ),
        Peer(name="hf", requirements=("datasets==5.2.0",), distribution="datasets"),
        Peer(name="grain", requirements=("grain==0.2.18",), distribution="grain"),
    )
}


def environment(work: Path, peer: str | None) -> Path:
    """The Python that runs a peer (None: wdsmix and the limit)."""
    return Path(sys.executable) if peer is None else work / "peers" / peer / "bin" / "python"


def prepare(work: Path, peer: Peer) -> str | None:
    """Makes the environment of a peer, once.

    Returns:
        None, or why it can't be had.
    """
    folder = work / "peers" / peer.name
    wanted = "\n".join((*peer.requirements, sys.executable))
    ready = folder / ".ready"
    if ready.is_file() and ready.read_text() == wanted:
        return None
    log = work / "peers" / f"{peer.name}.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("w") as output:

        def call(*command: str) -> bool:
            return subprocess.run(command, stdout=output, stderr=subprocess.STDOUT, check=False).returncode == 0

        if not call(sys.executable, "-m", "venv", "--clear", str(folder)):
            return f"no virtual environment, see {log}"
        packages = folder / Path(sysconfig.get_path("purelib")).relative_to(sys.prefix)
        base = sysconfig.get_path("purelib")
        (packages / "base.pth").write_text(f"import site; site.addsitedir({base!r})\n")
        if peer.stub_torchvision:
            _stub_torchvision(packages)
        python = str(folder / "bin" / "python")
        if not call(python, "-m", "pip", "install", "--disable-pip-version-check", *peer.requirements):
            return _reason(log)
    ready.write_text(wanted)
    return None


def _stub_torchvision(packages: Path) -> None:
    """An importable torchvision that only satisfies ``import`` lines; image work in it raises AttributeError."""
    for module, text in {
        "__init__": f"__version__ = {STUB_VERSION!r}\n",
        "datasets/__init__": "class VisionDataset:\n    pass\n",
        "transforms/__init__": "",
        "transforms/functional": "def to_tensor(picture):\n    raise NotImplementedError\n",
    }.items():
        path = packages / "torchvision" / f"{module}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    facts = packages / f"torchvision-{STUB_VERSION}.dist-info"
    facts.mkdir(exist_ok=True)
    (facts / "METADATA").write_text(f"Metadata-Version: 2.1\nName: torchvision\nVersion: {STUB_VERSION}\n")
    (facts / "INSTALLER").write_text("stub\n")
    (facts / "RECORD").write_text("")


def _reason(log: Path) -> str:
    lines = [line for line in log.read_text(errors="replace").splitlines() if line.startswith("ERROR")]
    return (lines[0] if lines else "pip failed")[:200] + f" (see {os.path.relpath(log, REPOSITORY)})"

"""The picture of a run."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from pathlib import Path

from benchmarks.results import Row

__all__ = ["draw"]


def draw(table: Sequence[Row], path: Path) -> bool:
    """Bars of CPU time over decoding alone, and of samples a second.

    Args:
        table: Of one run.
        path: PNG to write.

    Returns:
        Whether it was drawn: matplotlib may not be there.
    """
    if importlib.util.find_spec("matplotlib") is None:
        return False
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot

    shown = [row for row in table if row.contender.module != "decode"][::-1]
    colours = ["tab:blue" if row.contender.peer is None else "tab:gray" for row in shown]
    titles = [row.contender.title for row in shown]
    figure, (left, right) = pyplot.subplots(1, 2, sharey=True, figsize=(11, 1.2 + 0.28 * len(shown)), layout="tight")
    left.barh(titles, [row.cost for row in shown], color=colours)
    left.axvline(1, color="black", linewidth=1, linestyle="--")
    left.set_xlabel("CPU time, × decoding alone (less is better)")
    right.barh(titles, [row.rate for row in shown], color=colours)
    right.set_xlabel("samples per second (more is better)")
    for axes, values, form in (
        (left, [row.cost for row in shown], "{:.2f}"),
        (right, [row.rate for row in shown], "{:,.0f}"),
    ):
        bars = axes.containers[0]
        axes.bar_label(bars, [form.format(value) for value in values], padding=3, fontsize=8)
        axes.margins(x=0.12)
        axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=110)
    pyplot.close(figure)
    return True

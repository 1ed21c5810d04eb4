"""Progress of long work: a bar on a terminal, a plain line now and then elsewhere (logs, job schedulers)."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable
from types import TracebackType
from typing import TextIO

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, MofNCompleteColumn, TextColumn
from rich.progress import Progress as RichProgress

__all__ = ["Progress"]

_LINE_EVERY = 10.0
_BAR_EVERY = 0.1


class Progress:
    """Counts units of work and shows rate, time left, and named fields.

    Args:
        total: Units there are to do; 0 where unknown.
        unit: What is counted, such as ``frames``.
        label: What is being done, such as ``convert``.
        stream: Where it is shown (default: stderr); a bar if that is a terminal, else at most one line every 10 s and
            one at the end.
        quiet: Show nothing.
        clock: Monotonic seconds.
    """

    def __init__(
        self,
        total: int,
        unit: str,
        label: str,
        *,
        stream: TextIO | None = None,
        quiet: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.total = total
        self.unit = unit
        self.label = label
        self.done = 0
        self.fields: dict[str, object] = {}
        self._stream = sys.stderr if stream is None else stream
        self._clock = clock
        self._started = self._shown = clock()
        self._quiet = quiet
        self._told = 0
        self._bar: RichProgress | None = None
        if not quiet and self._stream.isatty():
            self._bar = RichProgress(
                TextColumn("{task.description}"),
                BarColumn(),
                DownloadColumn() if unit == "bytes" else MofNCompleteColumn(),
                TextColumn("{task.fields[text]}"),
                console=Console(file=self._stream),
                auto_refresh=False,
                transient=True,
            )
            self._task = self._bar.add_task(label, total=total or None, text="")

    def __enter__(self) -> Progress:
        self._started = self._shown = self._clock()
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()
        if not self._quiet and self.done != self._told:
            self._line()

    @property
    def rate(self) -> float:
        """Units per second since the start."""
        return max(self.done, 0) / max(self._clock() - self._started, 1e-9)

    def advance(self, n: int = 1, **fields: object) -> None:
        """Counts ``n`` more units (negative where work has to be done again); shows ``fields`` after the rate."""
        self.done += n
        self.fields.update(fields)
        if self._quiet:
            return
        now = self._clock()
        if now - self._shown < (_LINE_EVERY if self._bar is None else _BAR_EVERY):
            return
        self._shown = now
        if self._bar is None:
            self._line()
        else:
            self._bar.update(self._task, completed=self.done, text=self._text())
            self._bar.refresh()

    def _text(self) -> str:
        slow = self.unit != "bytes" and self.rate < 10
        parts = [f"{self.rate:.2g} {self.unit}/s" if slow else f"{self._amount(self.rate)}/s"]
        left = self.total - self.done
        if left > 0 and self.done > 0:
            parts.append(f"ETA {_duration(left / self.rate)}")
        else:
            parts.append(_duration(self._clock() - self._started))
        parts += [f"{name} {value}" for name, value in self.fields.items()]
        return "  ".join(parts)

    def _amount(self, number: float) -> str:
        """So many units; bytes in decimal ones."""
        if self.unit != "bytes":
            return f"{number:,.0f} {self.unit}"
        power = min(int(math.log10(max(number, 1))) // 3, 4)
        return f"{number / 1000**power:.{1 if power else 0}f} {('B', 'kB', 'MB', 'GB', 'TB')[power]}"

    def _line(self) -> None:
        self._told = self.done
        share = f" ({100 * self.done / self.total:.0f} %)" if self.total else ""
        done = f"{self.done:,}/" if self.total and self.unit != "bytes" else ""
        done += f"{self._amount(self.done)} of " if self.total and self.unit == "bytes" else ""
        self._stream.write(f"{self.label}: {done}{self._amount(self.total or self.done)}{share}  {self._text()}\n")
        self._stream.flush()


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"

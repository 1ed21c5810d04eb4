"""Progress: what is shown, and how rarely."""

from __future__ import annotations

import io

from wdsmix.progress import Progress


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_plain_lines_are_rare_and_the_last_one_comes():
    clock, stream = Clock(), io.StringIO()
    with Progress(1000, "frames", "convert", stream=stream, clock=clock) as progress:
        for _ in range(100):
            clock.now += 0.25
            progress.advance(5, drops=2)
    lines = stream.getvalue().splitlines()
    assert lines[0] == "convert: 200/1,000 frames (20 %)  20 frames/s  ETA 0:40  drops 2"
    assert lines[-1] == "convert: 500/1,000 frames (50 %)  20 frames/s  ETA 0:25  drops 2"
    assert len(lines) == 3


def test_work_done_again_counts_back():
    clock, stream = Clock(), io.StringIO()
    with Progress(10, "frames", "convert", stream=stream, clock=clock) as progress:
        progress.advance(8)
        progress.advance(-8)
        clock.now += 4000
        progress.advance(10)
    assert progress.done == 10
    assert stream.getvalue().splitlines()[-1] == "convert: 10/10 frames (100 %)  0.0025 frames/s  1:06:40"


def test_unknown_total_and_quiet():
    clock, stream = Clock(), io.StringIO()
    with Progress(0, "files", "check", stream=stream, clock=clock) as progress:
        clock.now += 2
        progress.advance(4)
    assert stream.getvalue() == "check: 4 files  2 files/s  0:02\n"
    with Progress(5, "files", "check", stream=stream, quiet=True) as progress:
        progress.advance(5)
    assert stream.getvalue().count("\n") == 1


def test_bar_on_a_terminal():
    clock, stream = Clock(), Terminal()
    with Progress(100, "frames", "convert", stream=stream, clock=clock) as progress:
        for _ in range(10):
            clock.now += 1
            progress.advance(7, drops=1)
    assert "70/100" in stream.getvalue()
    assert "7 frames/s" in stream.getvalue()
    assert "drops 1" in stream.getvalue()


def test_bytes_are_shown_in_decimal_units():
    stream = io.StringIO()
    clock = Clock()
    with Progress(1_813_951, "bytes", "push", stream=stream, clock=clock) as progress:
        clock.now += 2
        progress.advance(1_000_000)
    assert stream.getvalue() == "push: 1.0 MB of 1.8 MB (55 %)  500.0 kB/s  ETA 0:02\n"

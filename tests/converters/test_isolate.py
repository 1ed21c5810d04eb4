"""Calls in a process of their own: one that crashes or never ends costs that call alone."""

from __future__ import annotations

import os
import time
from pathlib import Path

import numpy as np
import pytest
from helpers.fake_source import FakeEpisode, FakeSource
from PIL import Image
from wdsmix.converters import preview
from wdsmix.converters.isolate import Isolated

from wdsmix.errors import DataError


def test_a_call_that_never_ends_is_given_up_and_its_process_ended():
    with Isolated(patience=0.5) as child:
        before = child.call(os.getpid)
        begun = time.monotonic()
        with pytest.raises(DataError, match=r"longer than 0\.5 s and was given up"):
            child.call(time.sleep, 600)
        assert time.monotonic() - begun < 30
        assert not Path(f"/proc/{before}").exists()
        after = child.call(os.getpid)  # the next one has a new process
        assert after not in (before, os.getpid())


def test_a_call_that_crashes_is_told_and_patience_is_for_calls_alone():
    with Isolated(patience=60) as child:
        with pytest.raises(DataError, match="crashed the process"):
            child.call(os.abort)
        assert child.call(os.getpid) != os.getpid()
        with pytest.raises(OSError, match="no such address"):  # an error of the function's own goes through
            child.call(_own_error)
    with Isolated() as child:
        assert child.call(os.getpid) != os.getpid()


def _own_error() -> None:
    raise TimeoutError("no such address")


def test_a_preview_goes_on_after_an_episode_that_takes_for_ever(tmp_path, monkeypatch):
    monkeypatch.setattr(preview, "_PATIENCE", 2.0)
    source = FakeSource(
        [FakeEpisode("fine"), FakeEpisode("endless", file="b.fake", does="endless"), FakeEpisode("too")]
    )
    told = preview.preview_source(source, tmp_path / "sheet.png")
    assert len(told) == 1
    assert told[0].startswith("b.fake/endless: reading it took longer than 2 s")
    sheet = np.array(Image.open(tmp_path / "sheet.png").convert("RGB"))
    assert (sheet[:, :, 0] < 200).mean() > 0.2  # the pictures of the other two

"""The frames that stand for an episode are the same wherever it is looked at."""

from __future__ import annotations

import numpy as np
import pytest

from wdsmix.report.moments import moments
from wdsmix.report.sheet import SheetHead, SheetRow, draw_sheet


def test_first_middle_and_last():
    expected = {0: [], 1: [0], 2: [0, 1], 3: [0, 1, 2], 4: [0, 2, 3], 5: [0, 2, 4], 100: [0, 50, 99]}
    assert {frames: moments(frames) for frames in expected} == expected


@pytest.mark.parametrize(("frames", "columns"), [(1, [0, 0, 0]), (2, [0, 1, 1]), (3, [0, 1, 2]), (4, [0, 2, 3])])
def test_a_sheet_has_a_picture_in_each_column_of_a_short_episode_too(frames, columns):
    colours = [(200, 10 * (frame + 1), 5) for frame in range(frames)]
    pictures = [np.full((8, 8, 3), colours[frame], np.uint8) for frame in moments(frames)]
    head = SheetHead(title="t", settings="s", cameras={"cam0": ("key", "how")}, sizes=[(8, 8)])
    sheet = np.array(draw_sheet(head, [SheetRow(caption="c", origin="o", pictures={"cam0": pictures})], cell=20))
    line = sheet[-6 - 10]  # through the middle of the cells
    shown = [tuple(int(value) for value in line[6 + column * 26 + 10]) for column in range(3)]
    assert shown == [colours[frame] for frame in columns]

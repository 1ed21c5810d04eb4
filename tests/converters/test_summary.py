"""What a person reads at the end of a run."""

from __future__ import annotations

import io
import subprocess
import sys
from pathlib import Path

import pytest
from helpers.fake_source import FakeEpisode, FakeSource, many
from rich.console import Console
from wdsmix.converters.base import ConvertOptions
from wdsmix.converters.run import run
from wdsmix.converters.summary import exit_code, show, too_many_dropped, unreadable_files

from wdsmix.manifest import Dropped


def shown(outcome) -> str:
    stream = io.StringIO()
    show(outcome, console=Console(file=stream, width=200))
    return stream.getvalue()


def test_drops_are_grouped_by_reason_files_first(tmp_path):
    made = [
        *many(4),
        *(FakeEpisode(id=f"odd{k}", fault="[red]too short[/red]") for k in range(5)),
        FakeEpisode(id="", file="cut[0].fake", fault="truncated", fault_kind="file"),
        FakeEpisode(id="low", fault="score below 3", fault_kind="filter"),
    ]
    outcome = run(FakeSource(made), tmp_path / "set[1]", ConvertOptions(hz=12))
    text = shown(outcome)
    lines = [line for line in text.splitlines() if "│" in line]
    assert "left out: 7" in text
    places = [text.index(word) for word in ("truncated", "[red]too short[/red]", "score below 3")]
    assert places == sorted(places)
    assert "a.fake/odd0, a.fake/odd1, a.fake/odd2, ..." in text
    assert "cut[0].fake" in text
    assert "set[1]" in text
    assert any(line.startswith("cam0") and "100 % passed through" in line for line in lines)
    assert any(line.startswith("cam1") and " 0 % passed through" in line for line in lines)
    assert "warning: --hz 12 of 30 gives 15 frames per second" in text
    assert exit_code(outcome.dropped) == 1
    assert "already complete" in shown(run(FakeSource(made), tmp_path / "set[1]", ConvertOptions(hz=12)))


def test_fewer_episodes_than_asked_for_are_told(tmp_path):
    made = many(6, e1="bad")
    text = shown(run(FakeSource(made), tmp_path / "three", ConvertOptions(max_episodes=3)))
    assert "3 episodes (--max-episodes), got 2" in text
    assert "asked for" not in shown(run(FakeSource(many(6)), tmp_path / "all", ConvertOptions(max_episodes=3)))
    assert "asked for" not in shown(run(FakeSource(made), tmp_path / "any", ConvertOptions()))


@pytest.mark.parametrize(("kind", "code"), [("file", 1), ("episode", 0), ("filter", 0)])
def test_exit_code(kind, code):
    drop = Dropped(episode=1, source_file="a", source_episode="b", kind=kind, reason="x")
    assert exit_code([drop]) == code
    assert unreadable_files([drop]) == ("1 unreadable file left out: a: x" if code else "")
    assert exit_code([]) == 0


@pytest.mark.parametrize(
    ("bad", "filtered", "kept", "most", "told"),
    [
        (98, 0, 2, 0.5, True),
        (1, 0, 1, 0.5, False),
        (2, 0, 1, 0.5, True),
        (0, 9, 1, 0.0, False),
        (1, 0, 99, 0.0, True),
        (9, 0, 1, 1.0, False),
        (3, 50, 7, 0.3, False),
    ],
)
def test_more_bad_episodes_than_a_user_would_take(bad, filtered, kept, most, told):
    def drop(number, kind, reason):
        return Dropped(episode=number, source_file="a", source_episode=str(number), kind=kind, reason=reason)

    dropped = [drop(k, "episode", "no video" if k else "odd") for k in range(bad)]
    dropped += [drop(bad + k, "filter", "score") for k in range(filtered)]
    said = too_many_dropped(dropped, kept, most)
    assert bool(said) == told
    if bad == 98:
        assert said == ("98 of 100 episodes were left out, more than --max-dropped 0.5 allows; 97 times: no video")


def test_a_script_without_guard_is_told(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        "import sys\n"
        "from helpers.fake_source import FakeSource, many\n"
        "from wdsmix import convert\n"
        "from wdsmix.converters import workfolder\n"
        "workfolder._PATIENCE = 0.1\n"
        f"convert(FakeSource(many(2)), {str(tmp_path / 'set')!r})\n"
    )
    done = subprocess.run(
        [sys.executable, str(script)],
        capture_output=True,
        text=True,
        timeout=60,
        env={"PYTHONPATH": str(Path(__file__).parents[1]), "PATH": ""},
    )
    assert done.returncode == 1
    assert '__name__ == "__main__"' in done.stderr.splitlines()[-1]

"""Text on its way to a person: what could command a terminal, reorder or break lines is spelled out."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import unicodedata

from hypothesis import given
from hypothesis import strategies as st
from wdsmix.converters.check import Line, Report
from wdsmix.converters.check import _show as show_check
from wdsmix.converters.summary import _row, _table
from wdsmix.tools.console import plain

from wdsmix.errors import DataError
from wdsmix.texts import counted, encodable, printable, tolerant_streams


def test_counts_agree_with_their_nouns_and_verbs():
    assert [counted(number, "shard") for number in (0, 1, 2, 2000)] == [
        "0 shards",
        "1 shard",
        "2 shards",
        "2,000 shards",
    ]
    assert counted(1, "trajectory is", "trajectories are") == "1 trajectory is"
    assert counted(3, "trajectory is", "trajectories are") == "3 trajectories are"


HOSTILE = "a\x1b[2Jb\x9b31m\u202e\u2066\u2028\r\n\t\udcff"


@given(st.text(alphabet=st.characters()))
def test_nothing_but_printable_characters_comes_out(text):
    out = printable(text)
    assert all(unicodedata.category(c)[0] in "LMNPS" or unicodedata.category(c) == "Zs" for c in out)
    assert printable(out) == out
    assert printable(text, lines=True).replace("\n", "") == printable(text.replace("\n", ""))
    out.encode()
    assert encodable(text) == text or any("\ud800" <= c <= "\udfff" for c in text)


def test_each_is_spelled():
    assert printable(HOSTILE) == "a\\x1b[2Jb\\x9b31m\\u202e\\u2066\\u2028\\r\\n\\t\\udcff"
    assert printable("把积木 放\u3000进 é") == "把积木 放\u3000进 é"
    assert encodable("bad\udcff\x1b.h5") == "bad\\udcff\x1b.h5"


def test_everything_that_is_shown_goes_through_it(capsys):
    from rich.console import Console

    for shown in (plain(HOSTILE), str(DataError("bad", path=HOSTILE, where=HOSTILE))):
        assert shown.isprintable()
    table, out = _table(HOSTILE), io.StringIO()
    _row(table, HOSTILE, HOSTILE)
    Console(file=out, width=200).print(table)
    line = Line("file opens")
    line.fail(HOSTILE, "it is bad")
    show_check(Report(HOSTILE, "x", 1, 1, 0, 1, {"file opens": line}, warnings=[HOSTILE]))
    for text in (out.getvalue(), capsys.readouterr().out):
        assert "\\x1b[2J" in text
        assert all(c.isprintable() or c == "\n" for c in text)


def test_a_stream_without_the_characters_spells_them_the_way_json_does(monkeypatch):
    raw = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(raw, encoding="ascii"))
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    tolerant_streams()
    value = {"text": "✓ é 🤖 \udcff"}
    sys.stdout.write(json.dumps(value, ensure_ascii=False))
    sys.stdout.flush()
    assert json.loads(raw.getvalue()) == value


def test_inspect_on_an_ascii_terminal(tmp_path):
    from helpers.fake_source import FakeSource, many
    from wdsmix.converters.base import ConvertOptions
    from wdsmix.converters.run import convert

    convert(FakeSource(many(3)), tmp_path / "set", ConvertOptions(name="set"))
    env = {**os.environ, "LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"}
    for words in (["inspect", "set"], ["validate", "set"]):
        done = subprocess.run(
            [sys.executable, "-m", "wdsmix.cli", *words], cwd=tmp_path, env=env, capture_output=True, check=False
        )
        assert (done.returncode, b"Traceback" in done.stderr) == (0, False), done.stderr
        done.stdout.decode("ascii")

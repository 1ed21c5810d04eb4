"""The command: finding subcommands, exit codes, errors in one line."""

from __future__ import annotations

import argparse
import pickle
from importlib.metadata import EntryPoint

import pytest

from wdsmix import cli
from wdsmix.errors import ConfigError, ConflictError, DataError, StorageError, WdsmixError


@pytest.mark.parametrize("kind", [WdsmixError, DataError, ConfigError, ConflictError, StorageError])
def test_errors_say_all_they_know_and_survive_a_process_border(kind):
    error = kind("bad thing", path="a/b", where="row 3", expected=4, found=5, hint="do this")
    assert str(error) == "a/b: row 3: bad thing (expected 4, found 5); do this"
    again = pickle.loads(pickle.dumps(error))
    assert (type(again), str(again), again.exit_code) == (kind, str(error), kind.exit_code)
    assert str(kind("just this")) == "just this"
    assert str(kind("x", found=0)) == "x (found 0)"


@pytest.mark.parametrize(
    ("raised", "code"),
    [
        (DataError("d"), 1),
        (ConfigError("c"), 2),
        (ConflictError("r"), 3),
        (StorageError("s"), 4),
        (KeyboardInterrupt(), 130),
        (None, 7),
    ],
)
def test_exit_codes(raised, code, monkeypatch, capsys):
    class Fake:
        HELP = "a fake"

        def configure(self, parser: argparse.ArgumentParser) -> None:
            parser.add_argument("x")

        def run(self, args: argparse.Namespace) -> int:
            assert args.x == "1"
            if raised is not None:
                raise raised
            return 7

    class Point:
        name = "fake"

        def load(self) -> Fake:
            return Fake()

    monkeypatch.setattr(cli, "_commands", lambda: {"fake": Point()})
    assert cli.main(["fake", "1"]) == code
    err = capsys.readouterr().err
    assert len(err.splitlines()) == (0 if raised is None else 1)


@pytest.mark.parametrize("argv", [[], ["nonsense"], ["mix"], ["convert", "hdf5"], ["validate", "x", "--level", "deep"]])
def test_wrong_usage_exits_2(argv, capsys):
    assert cli.main(argv) == 2
    assert "usage: wdsmix" in capsys.readouterr().err


def test_help_lists_every_command(capsys):
    assert cli.main(["--help"]) == 0
    out = capsys.readouterr().out
    points: dict[str, EntryPoint] = cli._commands()
    assert {"check", "convert", "demo", "index", "inspect", "merge", "mix", "validate"} <= set(points)
    for name in points:
        assert f"\n    {name} " in out


@pytest.mark.parametrize("command", sorted(cli._commands()))
def test_each_command_has_help(command, capsys):
    assert cli.main([command, "--help"]) == 0
    assert f"usage: wdsmix {command}" in capsys.readouterr().out


def test_an_unknown_option_is_told_by_its_own_command(capsys):
    assert cli.main(["gc", "url", "--older-then", "3"]) == 2
    err = capsys.readouterr().err
    assert "usage: wdsmix gc" in err
    assert "unrecognized arguments: --older-then 3 (do you mean --older-than?); see `wdsmix gc --help`" in err


def test_help_wraps_paragraphs_and_keeps_examples(monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "80")
    assert cli.main(["push", "--help"]) == 0
    assert max(map(len, capsys.readouterr().out.splitlines())) < 80
    assert cli.main(["mix", "--help"]) == 0
    assert "  wdsmix mix init sets/lift sets/chunks       draft" in capsys.readouterr().out

"""``wdsmix convert FAMILY SRC OUT``: makes a shard set of a source."""

from __future__ import annotations

import argparse
import sys

from wdsmix.converters.families import right_family_named
from wdsmix.converters.options import add_convert_options, add_families, add_mapping_options, add_paths, open_source
from wdsmix.converters.preview import add_preview

from wdsmix.errors import ConfigError
from wdsmix.texts import printable

__all__ = ["HELP", "configure", "run"]

HELP = """Convert a source into a shard set.

A run that was ended in any way goes on where it stopped when the same command is given again; with other arguments it
is refused (exit 3). The bytes of a set depend on the source, the arguments and the library versions only, not on
--workers, --part or interruptions. Exit code 1 tells that a whole file of the source was unreadable, that more episodes
were bad than --max-dropped allows (the set is finished all the same), or that nothing could be converted; single bad
episodes are dropped with their reason (--on-bad drop) and listed in manifest.json.
"""


def configure(parser: argparse.ArgumentParser) -> None:
    """Adds one subcommand a family."""
    for sub, family in add_families(parser, lambda _, family: (family.HELP.strip().splitlines()[0], family.HELP)):
        add_paths(sub)
        family.configure(sub)
        add_mapping_options(sub)
        add_convert_options(sub, split_by=getattr(family, "SPLIT_BY", "episode"))
        add_preview(sub.add_argument_group("report"), beside=True)


def run(args: argparse.Namespace) -> int:
    """Converts; 1 if a file of the source was unreadable, or too many episodes were bad."""
    from wdsmix.converters import run as runner
    from wdsmix.converters import summary
    from wdsmix.converters.options import convert_options
    from wdsmix.converters.preview import preview_path, preview_set

    with right_family_named(args):
        source = open_source(args)  # first: a family that can't be imported has no options
    preview = preview_path(args.preview, args.out)
    if preview is not None and args.part[1] != 1:
        raise ConfigError(
            "a part is no set", where="--preview", hint="after `wdsmix merge`: `wdsmix inspect SET --sheet PNG`"
        )
    try:
        with right_family_named(args):
            outcome = runner.run(source, args.out, convert_options(args), quiet=args.quiet)
    except KeyboardInterrupt:
        sys.stderr.write("wdsmix: stopped; finished shards are kept. To go on, run the same command again.\n")
        raise
    for note in outcome.notes:
        sys.stderr.write(f"wdsmix: note: {printable(note)}\n")
    if not args.quiet:
        summary.show(outcome)
    if preview is not None and outcome.manifest is not None:
        preview_set(outcome.folder, preview)
        sys.stderr.write(f"wdsmix: preview: {printable(str(preview))}\n")
    if outcome.manifest is None:
        return 0
    said = [
        summary.unreadable_files(outcome.dropped),
        summary.too_many_dropped(outcome.dropped, outcome.manifest.counts.episodes, args.max_dropped),
    ]
    for text in filter(None, said):
        sys.stderr.write(f"wdsmix: warning: {printable(text)}\n")
    return int(any(said))

"""``wdsmix inspect``: what a shard set holds."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from wdsmix.texts import counted

if TYPE_CHECKING:
    from rich.console import Console

    from wdsmix.shards.reader import ShardSet

__all__ = ["HELP", "configure", "run"]

HELP = """Show what a shard set holds: counts, cameras, vectors with statistics, tasks, lengths, drops, version.

Statistics are over the train split. A dimension without spread is marked constant.
Reads the small files, and of the tars the headers of up to 256 frames; `wdsmix validate` checks them.
"""


def configure(parser: argparse.ArgumentParser) -> None:
    """Adds the options."""
    parser.add_argument("set", metavar="SET", help="folder or URL of the shard set")
    parser.add_argument("--json", action="store_true", help="print everything as JSON")
    parser.add_argument("--top", type=int, default=20, metavar="N", help="tasks, dimensions and drops to show (20)")
    parser.add_argument("--sheet", metavar="FILE", help="write a contact sheet: .png, .jpg or .webp")
    parser.add_argument("--episodes", type=int, default=6, metavar="N", help="episodes on the sheet (6)")
    parser.add_argument("--frame", type=int, metavar="I", help="show one frame (0 to frames - 1, or from the end: -1)")
    parser.add_argument("--out", metavar="FILE", help="write the pictures of --frame side by side")


def run(args: argparse.Namespace) -> int:
    """Shows it."""
    import json
    import sys

    from wdsmix.tools.console import result_console

    from wdsmix.errors import ConfigError
    from wdsmix.shards.reader import ShardSet

    for option in ("top", "episodes"):
        if getattr(args, option) < 1:
            raise ConfigError("bad value", where=f"--{option}", expected="1 or more", found=getattr(args, option))
    if args.out and args.frame is None:
        raise ConfigError("needs --frame", where="--out")
    console = result_console()
    with ShardSet(args.set) as opened:
        if args.frame is not None:
            value: dict[str, Any] = _frame(opened, args.frame, args.out)
            text = json.dumps(value, indent=1, ensure_ascii=False)
            sys.stdout.write(text + "\n")
            return 0
        from wdsmix.report.summary import summarize

        summary = summarize(opened)
        if args.json:
            sys.stdout.write(json.dumps(summary, indent=1, ensure_ascii=False) + "\n")
        else:
            _show(summary, console, args.top)
        if args.sheet:
            from wdsmix.report.sheet import contact_sheet, write_picture

            write_picture(contact_sheet(opened, episodes=args.episodes), Path(args.sheet), "--sheet")
            sys.stderr.write(f"contact sheet: {args.sheet}\n")
    return 0


def _frame(opened: ShardSet, number: int, out: str | None) -> dict[str, Any]:
    from wdsmix.errors import ConfigError
    from wdsmix.report.sheet import frame_picture, write_picture

    if not -len(opened) <= number < len(opened):
        raise ConfigError("no such frame", where="--frame", expected=f"0 to {len(opened) - 1}", found=number)
    frame = opened.frame(number)
    if out:
        try:
            picture = frame_picture(frame)
        except ValueError as error:
            raise ConfigError(str(error), where="--out") from error
        write_picture(picture, Path(out), "--out")
    e, shard, row = opened.locate(number)
    source_file, source_episode = opened.index.source(e)
    return {
        "frame": number % len(opened),
        "shard": opened.manifest.shards[shard],
        "row": row,
        "key": frame.key,
        "episode": frame.episode,
        "frame_in_episode": frame.frame,
        "timestamp": frame.timestamp,
        "task": frame.task,
        "split": frame.split,
        "source_file": source_file,
        "source_episode": source_episode,
        "images": {slot: list(pixels.shape) for slot, pixels in frame.images.items()},
        "vectors": {name: rows.tolist() for name, rows in frame.vectors.items()},
        "extras": dict(frame.extras),
    }


# --- for people -------------------------------------------------------------------------------------------------------


def _show(summary: dict[str, Any], console: Console, top: int) -> None:
    from wdsmix.tools.console import plain

    s = summary
    facts = [s["kind"], s["embodiment"], f"{s['hz']:g} Hz"]
    if s["source_fps"] != s["hz"]:
        facts.append(f"of {s['source_fps']:g}")
    facts.append(s["licence"] or "licence unknown")
    console.print(f"[bold]{plain(s['name'])}[/]  {plain('  '.join(fact for fact in facts if fact))}")
    console.print(f"version {s['digest'][:12]}  {plain(s['converter'])}  {plain(s['path'])}")
    counts, shards = s["counts"], s["shards"]
    console.print(
        f"{counted(counts['frames'], 'frame')}, {counted(counts['episodes'], 'episode')}, "
        f"{_size(s['bytes']['total'])}, "
        f"{_size(s['bytes_per_frame'])} a frame, {counted(counts['shards'], 'shard')} of "
        f"{_span(shards['frames_min'], shards['frames_max'])} frames"
    )
    for split, part in s["splits"].items():
        console.print(
            f"  {plain(split)}: {counted(part['frames'], 'frame')}, {counted(part['episodes'], 'episode')}, "
            f"{counted(part['shards'], 'shard')}"
        )
    _show_cameras(s, console)
    for name, vector in s["vectors"].items():
        _show_vector(name, vector, counts["frames"], console, top)
    _show_tasks(s["tasks"], console, top)
    _show_lengths(s["episodes"], console)
    for drop in s["dropped"][:top]:
        console.print(
            f"[yellow]dropped[/] {drop['count']:,} ({drop['kind']}): {plain(drop['reason'])}, "
            f"such as {plain(drop['example'])}"
        )
    if len(s["dropped"]) > top:
        console.print(f"  and {len(s['dropped']) - top} more reasons")
    for warning in s["warnings"]:
        console.print(f"[yellow]![/] {plain(warning)}")


def _table(*columns: tuple[str, bool]) -> Any:
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 1, 0, 0))
    for title, right in columns:
        # Numbers keep their width; what is cut on a narrow terminal is text.
        table.add_column(
            title, justify="right" if right else "left", no_wrap=True, min_width=8 if right and title else None
        )
    return table


def _show_cameras(summary: dict[str, Any], console: Console) -> None:
    from wdsmix.tools.console import plain

    if not summary["cameras"]:
        return
    table = _table(
        ("camera", False), ("key", False), ("size", False), ("encoding", False), ("frames", True), ("mean", True)
    )
    for slot, camera in summary["cameras"].items():
        sizes = ", ".join(f"{w}x{h}" for w, h in camera["sizes"][:2]) + (" ..." if len(camera["sizes"]) > 2 else "")
        share = "" if camera["share"] == 1 else f" ({100 * camera['share']:.0f} %)"
        mean = "" if camera["mean_bytes"] is None else _size(camera["mean_bytes"])
        kind = "" if camera["kind"] == "rgb" else f" {camera['kind']}"
        table.add_row(
            plain(slot),
            plain(camera["key"]),
            sizes,
            plain(camera["encoding"] + kind),
            f"{camera['frames']:,}{share}",
            mean,
        )
    console.print()
    console.print(table)


def _show_vector(name: str, vector: dict[str, Any], frames: int, console: Console, top: int) -> None:
    from wdsmix.tools.console import plain

    share = "" if vector["frames"] == frames else f", in {vector['frames']:,} of {frames:,} frames"
    console.print(f"\n[bold]{plain(name)}[/] [{vector['width']}]{share}")
    dims = vector["dims"]
    if not vector["train_frames"]:
        console.print("  no statistics: no train frame has it")
        return
    keys = ("mean", "std", "min", "q01", "q99", "max")
    labels = [_label(dim) for dim in dims]
    named = [("name", False)] if any(labels) else []
    table = _table(("", True), *named, *((key, True) for key in keys), ("", False))
    for dim, label in list(zip(dims, labels, strict=True))[:top]:
        constant = "[yellow]constant[/]" if dim["constant"] else ""
        cells = [plain(label)] if named else []
        table.add_row(str(dim["dim"]), *cells, *(f"{dim[key]:.3g}" for key in keys), constant)
    console.print(table)
    if len(dims) > top:
        constant = sum(dim["constant"] for dim in dims)
        console.print(f"  and {len(dims) - top} more dimensions (--top); {constant} of all are constant")


def _label(dim: dict[str, Any]) -> str:
    kind = "" if dim["kind"] in ("", "unknown", "absolute") else dim["kind"]
    return " ".join(part for part in (dim["name"], dim["unit"] and f"[{dim['unit']}]", kind) if part)


def _show_tasks(tasks: list[dict[str, Any]], console: Console, top: int) -> None:
    from wdsmix.tools.console import plain

    table = _table((f"tasks ({len(tasks):,})", False), ("frames", True), ("episodes", True))
    for task in tasks[:top]:
        table.add_row(plain(task["task"] or "(none)"), f"{task['frames']:,}", f"{task['episodes']:,}")
    console.print()
    console.print(table)
    if len(tasks) > top:
        console.print(f"  and {len(tasks) - top:,} more (--top)")


def _show_lengths(episodes: dict[str, Any], console: Console) -> None:
    if not episodes["count"]:
        return
    console.print(
        f"\n[bold]episode lengths[/]  {_span(episodes['frames_min'], episodes['frames_max'])} frames, median "
        f"{episodes['frames_median']:g}, mean {episodes['frames_mean']:.1f}; {_time(episodes['seconds'])} in all"
    )
    most = max(entry["episodes"] for entry in episodes["histogram"])
    full, sliver = ("█", "▏") if console.encoding.startswith("utf") else ("#", "|")
    for entry in episodes["histogram"]:
        span = _span(entry["from"], entry["to"], "-")
        bar = full * round(40 * entry["episodes"] / most) or (sliver if entry["episodes"] else "")
        console.print(f"  {span:>13} {bar} {entry['episodes']:,}")


def _size(number: float) -> str:
    for unit in ("B", "kB", "MB", "GB"):
        if number < 1000:
            return f"{number:.0f} {unit}" if unit == "B" else f"{number:.3g} {unit}"
        number /= 1000
    return f"{number:.3g} TB"


def _span(low: int, high: int, to: str = " to ") -> str:
    return f"{low:,}" if low == high else f"{low:,}{to}{high:,}"


def _time(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.1f} s"
    return f"{seconds / 60:.1f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"

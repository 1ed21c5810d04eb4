"""Which file an episode's rows and videos should be in: by the templates, else by the usual names anywhere."""

from __future__ import annotations

from wdsmix.converters.lerobot.info import Info
from wdsmix.converters.lerobot.tables import EpisodeMeta
from wdsmix.converters.lerobot.tree import Tree, filled

__all__ = ["Locator"]


class Locator:
    """Finds files of a dataset. Not for workers: it knows all names.

    Args:
        tree: The files.
        info: Holds the templates, which real sets get wrong: all variables are filled in, whatever the version.
    """

    def __init__(self, tree: Tree, info: Info) -> None:
        self._names = tree.names()
        self._info = info
        top = info.data_path.split("/")[0]
        self._tops = {"data"} if "{" in top else {top, "data"}
        self.data_files = sorted(
            n for n in self._names if n.endswith(".parquet") and n.split("/")[0] in self._tops and "/" in n
        )
        """All parquet files below the data folder."""
        self._by_base: dict[str, list[str]] = {}
        for name in sorted(self._names):
            self._by_base.setdefault(name.rsplit("/", 1)[-1], []).append(name)

    def _variables(self, meta: EpisodeMeta, chunk: int | None, file: int | None) -> dict[str, int | str]:
        own = meta.index // max(1, self._info.chunks_size)
        return {
            "episode_index": meta.index,
            "episode_chunk": own,
            "chunk_index": own if chunk is None else chunk,
            "file_index": meta.index if file is None else file,
        }

    def data(self, meta: EpisodeMeta) -> str | None:
        """The data file that the metadata name for an episode."""
        name = self.data_name(meta)
        if name in self._names:
            return name
        same = self._by_base.get(f"episode_{meta.index:06d}.parquet", ())
        known = {n for n in same if n.split("/")[0] in self._tops}
        return min(known, default=None)

    def data_name(self, meta: EpisodeMeta) -> str | None:
        """The name that the template gives to the data file, there or not."""
        return filled(self._info.data_path, self._variables(meta, meta.chunk, meta.file))

    def video(self, key: str, meta: EpisodeMeta) -> str | None:
        """The video of a camera in which an episode is; None where no such file is there."""
        span = meta.spans.get(key)
        chunk, file = (None, None) if span is None else (span.chunk, span.file)
        name = self.video_name(key, meta)
        if name in self._names:
            return name
        if span is None:
            bases = [f"episode_{meta.index:06d}.mp4"]
        else:
            bases = [f"file-{file:03d}.mp4", f"file_{file:03d}.mp4"]
        for base in bases:
            found = [name for name in self._by_base.get(base, ()) if key in name.split("/")[:-1]]
            if span is not None and len(found) > 1:
                found = [name for name in found if f"chunk-{chunk:03d}" in name.split("/")]
            if found:
                return found[0]
        return None

    def video_name(self, key: str, meta: EpisodeMeta) -> str | None:
        """The name that the template gives to a video, there or not."""
        span = meta.spans.get(key)
        chunk, file = (None, None) if span is None else (span.chunk, span.file)
        return filled(self._info.video_path, {**self._variables(meta, chunk, file), "video_key": key})

"""A dataset on the hub: metadata first, then each file when it is needed, deleted again on request.

A thin layer over huggingface_hub (extra ``hub``), which honours HF_ENDPOINT, HF_TOKEN and HF_HUB_OFFLINE, resumes
broken downloads and keeps two processes from fetching a file at once. The revision is resolved to a commit once; all
files are of that commit.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from wdsmix.errors import ConfigError, DataError, StorageError, WdsmixError

__all__ = ["HubTree"]

_T = TypeVar("_T")
_VERSION = re.compile(r"v\d+(\.\d+)*")
_TRANSIENT = frozenset({408, 429, 500, 502, 503, 504})
_PAUSES = (1.0, 2.0, 4.0, 8.0, 16.0)
"""s before each further try."""
_LONGEST_WAIT = 300.0
"""s; of what the hub may ask for."""
_COMMIT = re.compile(r"[0-9a-f]{40}")


def _load() -> Any:
    try:
        import huggingface_hub
        import huggingface_hub.constants
        import huggingface_hub.utils
    except ImportError as error:
        raise ConfigError("the hub needs huggingface_hub", hint="pip install 'wdsmix[hub]'") from error
    return huggingface_hub


class _BusyError(Exception):
    """The hub asks to come back later, or stumbles."""

    def __init__(self, status: int, wait: float) -> None:
        super().__init__(f"HTTP {status}")
        self.wait = wait


def _busy(error: BaseException | None) -> _BusyError | None:
    """What of an error, or of what caused it, another try can cure."""
    for _ in range(4):
        response = getattr(error, "response", None)
        status = getattr(response, "status_code", None)
        if status in _TRANSIENT:
            headers = getattr(response, "headers", None)
            try:
                wait = float((headers.get("Retry-After") if headers is not None else None) or 0)
            except (AttributeError, ValueError):
                wait = 0.0
            return _BusyError(status, wait)
        error = error.__cause__ or error.__context__ if error is not None else None
    return None


def _bulky(name: str) -> bool:
    """Whether a file is one of those that fill a disk."""
    return name.endswith((".mp4", ".parquet")) and not name.startswith("meta/")


class HubTree:
    """A dataset repository (a `wdsmix.converters.lerobot.tree.Tree`). Pickles.

    Args:
        repo: ``ORGANISATION/NAME``.
        revision: Branch, tag or commit; None: main. A version tag (``v2.1``) that is missing falls back to main.
        folder: Where files are put under their own names; None: the hub's cache.
        cache_dir: The cache; None: the usual one.
        evict: Delete videos, and data files that hold pictures, after use.

    Raises:
        ConfigError: huggingface_hub is missing, or there is no such repository or revision.
        StorageError: the hub can't be reached or refuses.
    """

    remote = True

    def __init__(
        self,
        repo: str,
        revision: str | None = None,
        *,
        folder: Path | None = None,
        cache_dir: Path | None = None,
        evict: bool = False,
    ) -> None:
        _load()
        self._repo = repo
        self._asked = revision or "main"
        self._folder = folder
        self._cache = cache_dir
        self._evict = evict
        self._warnings: list[str] = []
        self._listing: dict[str, tuple[int, str]] = {}
        """Name -> bytes, and sha256 where the hub tells it."""
        self._here: dict[str, Path] = {}
        self._held: dict[str, int] = {}
        self._offline = False
        self._commit = self._resolve()

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "_here": {}, "_held": {}}

    @property
    def name(self) -> str:
        """The repository's name without its owner."""
        return self._repo.rsplit("/", 1)[-1]

    @property
    def path(self) -> Path | None:
        """The folder that receives the files, if it is not the cache."""
        return self._folder

    @property
    def commit(self) -> str:
        """The commit all files are of."""
        return self._commit

    def _api(self) -> Any:
        return _load().HfApi(endpoint=os.environ.get("HF_ENDPOINT") or None)

    def _where(self) -> dict[str, Any]:
        if self._folder is not None:
            return {"local_dir": self._folder}
        return {"cache_dir": self._cache}

    def _resolve(self) -> str:
        errors = _load().utils
        api = self._api()
        try:
            try:
                info = self._asking(lambda: api.repo_info(self._repo, repo_type="dataset", revision=self._asked))
            except errors.RevisionNotFoundError:
                if not _VERSION.fullmatch(self._asked):
                    raise
                self._warnings.append(f"the repository has no tag {self._asked}; main is taken")
                info = self._asking(lambda: api.repo_info(self._repo, repo_type="dataset", revision="main"))
        except errors.RevisionNotFoundError as error:
            raise ConfigError("no such revision", path=self._repo, where="--revision", found=self._asked) from error
        except errors.RepositoryNotFoundError as error:
            raise ConfigError(
                "no such dataset repository, or it is private",
                where="--repo-id",
                found=self._repo,
                hint="HF_TOKEN gives access to private ones",
            ) from error
        except errors.OfflineModeIsEnabled:
            return self._from_disk()
        commit = str(info.sha)
        self._remember(commit)
        entries = self._asking(
            lambda: list(api.list_repo_tree(self._repo, repo_type="dataset", revision=commit, recursive=True))
        )
        for entry in entries:
            if hasattr(entry, "size") and not {"..", ""} & set(entry.path.split("/")):
                lfs = getattr(entry, "lfs", None)
                self._listing[entry.path] = (int(entry.size), str(lfs.sha256) if lfs is not None else "")
        return commit

    def _cached(self) -> Path:
        """The repository's folder in the cache."""
        return Path(self._cache or _load().constants.HF_HUB_CACHE) / f"datasets--{self._repo.replace('/', '--')}"

    def _remember(self, commit: str) -> None:
        """Notes in the cache, in its own way, which commit the revision is, for when there is no network."""
        if self._folder is not None or _COMMIT.fullmatch(self._asked):
            return
        path = self._cached() / "refs" / self._asked
        if {"..", ""} & set(self._asked.split("/")) or (path.is_file() and path.read_text() == commit):
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(commit)

    def _from_disk(self) -> str:
        """Offline: what an earlier run fetched."""
        self._offline = True
        root = self._folder
        if root is None:
            noted = self._cached() / "refs" / self._asked
            commit = noted.read_text().strip() if noted.is_file() else self._asked
            root = self._cached() / "snapshots" / commit
            if not _COMMIT.fullmatch(commit) or not root.is_dir():
                raise StorageError(
                    "HF_HUB_OFFLINE is set and the cache does not hold this revision",
                    path=self._repo,
                    found=self._asked,
                )
        for path in sorted(root.rglob("*")):
            name = path.relative_to(root).as_posix()
            if path.is_file() and not name.startswith("."):
                self._listing[name] = (path.stat().st_size, "")
        self._root = root
        found = root.name if _COMMIT.fullmatch(root.name) else self._asked
        self._warnings.append("HF_HUB_OFFLINE is set: only what was fetched before is there")
        return found

    def _asking(self, ask: Callable[[], _T]) -> _T:
        """Calls the hub; what it answers with becomes an error of ours, unless the caller must know it.

        A hub that is busy or stumbles is asked again after a while.
        """
        for pause in (*_PAUSES, None):
            try:
                return self._asked_once(ask)
            except _BusyError as error:
                if pause is None:
                    raise StorageError(
                        f"the hub is busy: {error}", path=self._repo, hint="run the same command again later to resume"
                    ) from error
                time.sleep(max(pause, min(error.wait, _LONGEST_WAIT)))
        raise RuntimeError("unreachable")  # pragma: no cover

    def _asked_once(self, ask: Callable[[], _T]) -> _T:
        errors = _load().utils
        passed = (errors.RevisionNotFoundError, errors.OfflineModeIsEnabled)
        try:
            return ask()
        except passed:
            raise
        except errors.GatedRepoError as error:
            raise StorageError(
                "access to the repository has to be granted",
                path=self._repo,
                hint="ask for it on its page, set HF_TOKEN",
            ) from error
        except errors.RepositoryNotFoundError:
            raise
        except errors.EntryNotFoundError as error:
            if isinstance(error, errors.LocalEntryNotFoundError):
                if (busy := _busy(error)) is not None:
                    raise busy from error
                raise StorageError("the hub can't be reached", path=self._repo) from error
            raise DataError("the repository has no such file", path=self._repo, found=str(error)[:200]) from error
        except errors.HfHubHTTPError as error:
            if (busy := _busy(error)) is not None:
                raise busy from error
            raise StorageError(f"the hub refuses: {str(error)[:300]}", path=self._repo) from error
        except WdsmixError:
            raise
        except Exception as error:  # the HTTP library below is another one in each major version
            if isinstance(error, (OSError, MemoryError)) and getattr(error, "errno", None):
                raise
            raise StorageError(f"the hub can't be reached: {type(error).__name__}: {error}", path=self._repo) from error

    def names(self) -> Mapping[str, int]:
        """Name -> bytes of all files of the commit."""
        return {name: size for name, (size, _) in self._listing.items()}

    def open_path(self, name: str) -> Path:
        """The file, fetched where it is not here yet, and checked against size and sha256.

        Raises:
            DataError: the repository has no such file, or what came is not it.
            StorageError: it can't be fetched.
        """
        if self._offline:
            return Path(self._root, name)
        if self._evict and _bulky(name) and name not in self._held:
            self._held[name] = self._lock(name)
        path = self._here.get(name)
        if path is None or not path.exists():
            path = self._here[name] = self._fetched(name)
        return path

    def _fetched(self, name: str) -> Path:
        hub = _load()
        if name not in self._listing:
            raise DataError("the repository has no such file", path=name)
        if self._folder is not None:
            before = (self._folder / name).exists()
        else:
            known = hub.try_to_load_from_cache(
                self._repo, name, cache_dir=self._cache, revision=self._commit, repo_type="dataset"
            )
            before = isinstance(known, str)
        got = self._asking(
            lambda: hub.hf_hub_download(
                self._repo,
                name,
                repo_type="dataset",
                revision=self._commit,
                endpoint=os.environ.get("HF_ENDPOINT") or None,
                **self._where(),
            )
        )
        path = Path(got)
        if not before:
            self._check(name, path)
        return path

    def _check(self, name: str, path: Path) -> None:
        size, sha256 = self._listing[name]
        found = path.stat().st_size
        if found != size:
            self._delete(path)
            raise StorageError("download is not whole", path=name, expected=f"{size} bytes", found=f"{found}")
        if sha256:
            with path.open("rb") as file:
                digest = hashlib.sha256()
                while block := file.read(1 << 20):
                    digest.update(block)
            if digest.hexdigest() != sha256:
                self._delete(path)
                raise StorageError("download is damaged", path=name, expected=sha256, found=digest.hexdigest())

    def _lock_folder(self) -> Path:
        if self._folder is not None:
            return self._folder / ".cache" / "wdsmix"
        return Path(self._cache or _load().constants.HF_HUB_CACHE) / ".wdsmix"

    def _lock(self, name: str, *, alone: bool = False) -> int:
        """Opens and locks the lock file of a file: shared while it is in use, alone while it is deleted."""
        folder = self._lock_folder()
        folder.mkdir(parents=True, exist_ok=True)
        key = hashlib.sha256(f"{self._repo}\0{self._commit}\0{name}".encode()).hexdigest()[:32]
        handle = os.open(folder / f"{key}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB if alone else fcntl.LOCK_SH)
        except BaseException:
            os.close(handle)
            raise
        return handle

    @contextmanager
    def _alone(self, name: str) -> Iterator[bool]:
        try:
            handle = self._lock(name, alone=True)
        except OSError:
            yield False
            return
        try:
            yield True
        finally:
            os.close(handle)

    def release(self, name: str, *, keep: bool = False) -> None:
        """Lets go of a file; deletes it if that was asked for and no other process is at it."""
        handle = self._held.pop(name, None)
        if handle is None:
            return
        os.close(handle)
        path = self._here.pop(name, None)
        if keep or path is None:
            return
        with self._alone(name) as alone:
            if alone:
                self._delete(path)

    def _delete(self, path: Path) -> None:
        if path.is_symlink():  # the cache: a link to the content
            path.resolve().unlink(missing_ok=True)
        path.unlink(missing_ok=True)

    def fingerprint(self) -> str:
        """sha256 over repository, commit, names and sizes."""
        total = hashlib.sha256(f"{self._repo}\0{self._commit}".encode())
        for name, (size, sha256) in sorted(self._listing.items()):
            total.update(f"\0{name}\0{size}\0{sha256}".encode())
        return total.hexdigest()

    def facts(self) -> Mapping[str, object]:
        """Repository, revision and commit."""
        return {"repo_id": self._repo, "revision": self._asked, "commit": self._commit}

    def warnings(self) -> list[str]:
        """What was not as asked for."""
        return list(self._warnings)

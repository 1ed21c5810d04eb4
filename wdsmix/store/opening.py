"""From a URL to a store."""

from __future__ import annotations

import re
from pathlib import Path, PurePath, PurePosixPath
from urllib.parse import unquote, urlsplit

from wdsmix.errors import ConfigError
from wdsmix.store.base import Store
from wdsmix.store.retry import StoreOptions

__all__ = ["SCHEMES", "UrlPath", "is_url", "open_store", "refuse_half_urls"]

SCHEMES = ("file", "s3", "gs", "az", "http", "https")
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")

_HALF = re.compile(rf"({'|'.join(SCHEMES)}):(?!//)")


class UrlPath(PurePosixPath):
    """A URL that is put together as a path is."""

    def __str__(self) -> str:
        text = super().__str__()
        return text.replace(":/", ":///" if text.startswith("file:") else "://", 1)


def is_url(text: str | PurePath) -> bool:
    """Whether a text names a store by URL; all else is a path."""
    return isinstance(text, UrlPath) or (isinstance(text, str) and _SCHEME.match(text) is not None)


def refuse_half_urls(text: str) -> None:
    """Refuses ``s3:bucket/x`` and ``s3:/bucket/x``, which would be paths.

    Raises:
        ConfigError: it is one, and no such file is there.
    """
    found = _HALF.match(text)
    if found is not None and not Path(text).exists():
        raise ConfigError("neither a path nor a URL", where=text, expected=f"{found[1]}://...")


def open_store(url: str | PurePath, options: StoreOptions | None = None) -> Store:
    """The store of a URL or folder. No request is made.

    Args:
        url: ``s3://bucket/prefix``, ``gs://bucket/prefix``, ``az://container/prefix``, ``http(s)://host/path``,
            ``file:///folder`` or a path.
        options: How patient to be; None: as the environment says.

    Raises:
        ConfigError: not such a URL, a URL with a password or a query in it, or an extra is not installed.
    """
    from wdsmix.store.local import LocalStore

    if not is_url(url):
        refuse_half_urls(str(url))
        return LocalStore(str(Path(url).absolute()), options)
    text = str(url)
    scheme = text.partition("://")[0].lower()
    if scheme not in SCHEMES:
        raise ConfigError("unknown kind of URL", where=f"{scheme}://", expected=", ".join(f"{s}://" for s in SCHEMES))
    try:
        parts = urlsplit(text)
        port = parts.port if scheme in ("http", "https") else None
    except ValueError:
        raise ConfigError("not a URL", where=f"{scheme}://...") from None
    if "@" in parts.netloc or "?" in text or "#" in text:
        raise ConfigError(
            "the URL holds a user, password, query or fragment",
            where=f"{scheme}://...",
            hint="credentials come from the environment and the usual configuration files only",
        )
    if scheme == "file":
        if parts.netloc not in ("", "localhost"):
            raise ConfigError("a file URL names no host", where=text, expected="file:///folder")
        return LocalStore(unquote(parts.path), options)
    if not parts.netloc or (scheme in ("http", "https") and not parts.hostname) or port == 0:
        raise ConfigError("the URL names no bucket or host", where=text)
    if any(part in ("..", ".") for part in parts.path.split("/")):
        raise ConfigError("the URL has . or .. in it", where=text)
    clean = re.sub(r"/+$", "", re.sub(r"(?<!:)/{2,}", "/", f"{scheme}://{text.partition('://')[2]}"))
    if scheme == "s3":
        from wdsmix.store.s3 import S3Store

        return S3Store(clean, options)
    if scheme in ("gs", "az"):
        from wdsmix.store.obstores import ObstoreStore

        return ObstoreStore(clean, options)
    from wdsmix.store.web import WebStore

    return WebStore(clean, options)

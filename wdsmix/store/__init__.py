"""Object stores: one small interface over folders, ``s3://``, ``gs://``, ``az://`` and (to read) ``http(s)://``.

A *store* is a URL prefix; a *key* is a name below it. All requests go through the retries of the store, which count
tries without progress; every read is pinned to the version (ETag) that it began with and checked for its length.
"""

from wdsmix.store.base import (
    MissingObjectError,
    NotSupportedError,
    ObjectInfo,
    PreconditionError,
    Store,
    TransientError,
)
from wdsmix.store.opening import is_url, open_store
from wdsmix.store.reader import ObjectReader
from wdsmix.store.retry import Retries, StoreOptions

__all__ = [
    "MissingObjectError",
    "NotSupportedError",
    "ObjectInfo",
    "ObjectReader",
    "PreconditionError",
    "Retries",
    "Store",
    "StoreOptions",
    "TransientError",
    "is_url",
    "open_store",
]

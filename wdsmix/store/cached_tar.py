"""One tar of a set in the cache: a map of its bytes, which are asked for before they are read."""

from __future__ import annotations

from time import monotonic
from typing import TYPE_CHECKING

from wdsmix.store.opening import UrlPath
from wdsmix.store.table import CHUNK, DONE, REGION

if TYPE_CHECKING:
    from wdsmix.store.cached import CachedSet

__all__ = ["CachedTar"]


class CachedTar:
    """One tar of a set in the cache.

    Attributes:
        data: uint8 [bytes of the tar], a view that can't be written to; zeros where nothing was fetched.
    """

    def __init__(self, owner: CachedSet, k: int) -> None:
        self._owner, self._k = owner, k
        table = owner.table
        self.data = owner.map(k)
        self._have = table.have[table.first_chunk[k] : table.first_chunk[k + 1]].data
        self._region = table.first_region[k]

    @property
    def path(self) -> UrlPath:
        """Its URL."""
        return UrlPath(self._owner.store.where(f"{self._owner.shards[self._k]}.tar"))

    def touch(self, start: int, stop: int) -> None:
        """Returns once bytes ``start`` to ``stop`` are there; they stay for some seconds at least.

        Raises:
            ConflictError: the tar was replaced.
            StorageError: the store can't be reached or refuses.
        """
        if stop <= start:
            return
        owner, base = self._owner, self._region
        regions = range(base + (start >> REGION), base + (stop - 1 >> REGION) + 1)
        if monotonic() >= owner.until:
            owner.renew_generation()
        for region in regions:
            if owner.keeps[region] != owner.generation:
                owner.keep(region)
        first, last = start >> CHUNK, (stop - 1 >> CHUNK) + 1
        owner.counts.asked += 1
        have = self._have[first:last].tobytes()
        if DONE in have:  # such are given up sooner
            for region in regions:
                owner.keep(region)
            have = self._have[first:last].tobytes()
        if 0 in have:
            owner.counts.waited += 1
            owner.obtain(self._k, first, last)

    def promise(self, start: int, stop: int) -> None:
        """See `CachedSet.promise`."""
        if stop > start:
            self._owner.promise(self._k, start, stop)

    def withdraw(self, start: int, stop: int) -> None:
        """See `CachedSet.withdraw`."""
        if stop > start:
            self._owner.withdraw(self._k, start, stop)

    def holds(self, start: int, stop: int) -> bool:
        """Whether all bytes ``start`` to ``stop`` are there; some may be given up the next moment."""
        return stop <= start or 0 not in self._have[start >> CHUNK : (stop - 1 >> CHUNK) + 1].tobytes()

    def prefetch(self, start: int, stop: int) -> bool:
        """See `CachedSet.prefetch`."""
        return stop <= start or self._owner.prefetch(self._k, start, stop)

    def finished(self, start: int, stop: int) -> None:
        """See `CachedSet.finished`."""
        if stop > start:
            self._owner.finished(self._k, start, stop)

    def renew(self, start: int, stop: int, crc32c: int) -> bool:
        """See `CachedSet.renew`."""
        return self._owner.renew(self._k, start, stop, crc32c)

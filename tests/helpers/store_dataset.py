"""A dataset whose items are read from stores, for DataLoader workers of every start method."""

from __future__ import annotations

import os

from torch.utils.data import Dataset

from wdsmix.errors import WdsmixError
from wdsmix.store import Store


class StoreDataset(Dataset):
    """Item k is what store k says: the bytes of ``key``, or the error."""

    def __init__(self, stores: list[Store], key: str, environment: dict[str, str]) -> None:
        self.stores, self.key, self.environment = stores, key, environment

    def __len__(self) -> int:
        return len(self.stores)

    def __getitem__(self, k: int) -> bytes | str:
        os.environ.update(self.environment)  # a fork server may have started under another one
        try:
            return self.stores[k].read(self.key)[0]
        except WdsmixError as error:
            return f"{type(error).__name__}: {error}"

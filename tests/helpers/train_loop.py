"""A training process to be killed: prints the cursor of each batch; run as a script, or `train` in a forked child.

Arguments: mixture.yaml, number of workers, start method, state ("" for none), how many batches ("" for endless).
"""

from __future__ import annotations

import json
import sys
import time
from typing import IO

from torch.utils.data import DataLoader

from wdsmix import MixtureDataset


def train(path: str, workers: int, method: str, state: str, out: IO[str]) -> None:
    dataset = MixtureDataset(path, 4)
    if state:
        dataset.load_state_dict(json.loads(state))
    context = method if workers else None
    held = []
    for batch in DataLoader(dataset, batch_size=None, num_workers=workers, multiprocessing_context=context):
        held = [*held[-3:], batch]  # as a prefetcher to a device does
        rows = zip(*(batch[k].tolist() for k in ("source_id", "episode", "frame")), strict=True)
        line = {"step": batch["step"], "rows": list(rows), "cursor": batch["cursor"]}
        out.write(json.dumps(line) + "\n")
        out.flush()
        time.sleep(0.005)


if __name__ == "__main__":
    train(sys.argv[1], int(sys.argv[2]), sys.argv[3], sys.argv[4], sys.stdout)

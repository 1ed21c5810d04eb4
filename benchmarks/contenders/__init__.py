"""One module a contender: ``write(store, folder)`` makes its data, ``batches(contender, folder)`` yields batches.

A batch is a mapping with images uint8 [B, cameras, H, W, 3], state and action float32 [B, 32], state_mask and
action_mask bool [B, 32], task (B strings), source and row int64 [B] (row in the neutral store). ``view`` in a module
brings a batch of another shape to this one; it is only called to check.
"""

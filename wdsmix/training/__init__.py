"""Training policies on the batches of a mixture: precision, reference policies, trainer, checkpoints."""

"""Commands over shard sets and mixtures."""

"""Converters: one package or module per source family; `base` holds the protocol, `run` runs one."""

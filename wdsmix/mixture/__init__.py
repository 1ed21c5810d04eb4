"""The weighted mixture: configuration, order of samples, windows, padding, normalisation, loader."""

"""The shard set on disk: writer, reader, tar and frame tables."""

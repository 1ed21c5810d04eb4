"""What a shard set holds, for people: summary and contact sheet."""

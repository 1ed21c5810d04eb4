"""Measures push, fetch and streaming from object storage."""

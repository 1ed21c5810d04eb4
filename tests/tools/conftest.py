"""Servers for the commands that reach stores."""

from __future__ import annotations

from helpers.store_fixtures import bucket, moto, proxy, rados, s3, server  # noqa: F401

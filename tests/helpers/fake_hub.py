"""A hub of one dataset repository, in this process: the few routes that huggingface_hub needs."""

from __future__ import annotations

import hashlib
import json
import re
import threading
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urlsplit

COMMIT = "a1b2c3d4" * 5


class FakeHub:
    """Serves a folder as the commit that ``revisions`` name; counts what is fetched."""

    def __init__(self, repo: str, folder: Path, *, revisions: tuple[str, ...] = ("main",), page: int = 5) -> None:
        self.repo = repo
        self.files = {p.relative_to(folder).as_posix(): p for p in sorted(folder.rglob("*")) if p.is_file()}
        self.revisions = {*revisions, COMMIT}
        self.page = page
        self.fetched: Counter[str] = Counter()
        self.damaged: set[str] = set()
        self.gated = False
        self.busy: dict[str, list[int]] = {}
        """Part of a path -> statuses that the next requests for it get instead."""
        hub = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *args: object) -> None:
                pass

            def do_HEAD(self) -> None:
                hub.answer(self, body=False)

            def do_GET(self) -> None:
                hub.answer(self, body=True)

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.endpoint = f"http://127.0.0.1:{self.server.server_address[1]}"
        self.thread = threading.Thread(target=self.server.serve_forever, daemon=True)

    def __enter__(self) -> FakeHub:
        self.thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()

    def answer(self, request: BaseHTTPRequestHandler, *, body: bool) -> None:
        parts = urlsplit(request.path)
        path = unquote(parts.path)
        for part, statuses in self.busy.items():
            if part in path and statuses:
                return self._error(request, statuses.pop(0), "Busy")
        if self.gated:
            return self._error(request, 403, "GatedRepo")
        if match := re.fullmatch(rf"/api/datasets/{self.repo}/revision/(.+)", path):
            if match[1] not in self.revisions:
                return self._error(request, 404, "RevisionNotFound")
            return self._json(request, {"id": self.repo, "sha": COMMIT, "siblings": [], "private": False, "tags": []})
        if re.fullmatch(rf"/api/datasets/{self.repo}/tree/{COMMIT}/?", path):
            names = sorted(self.files)
            first = int(dict(pair.split("=") for pair in parts.query.split("&") if "=" in pair).get("cursor", 0))
            headers = {}
            if first + self.page < len(names):
                query = f"recursive=true&cursor={first + self.page}"
                headers["Link"] = f'<{self.endpoint}{path}?{query}>; rel="next"'
            return self._json(request, [self._entry(name) for name in names[first : first + self.page]], headers)
        if match := re.fullmatch(rf"/datasets/{self.repo}/resolve/{COMMIT}/(.+)", path):
            if match[1] not in self.files:
                return self._error(request, 404, "EntryNotFound")
            return self._file(request, match[1], body)
        return self._error(request, 404, "RepoNotFound")

    def _entry(self, name: str) -> dict[str, object]:
        data = self.files[name].read_bytes()
        entry: dict[str, object] = {"type": "file", "path": name, "size": len(data), "oid": _git(data)}
        if name.endswith((".mp4", ".parquet")):
            entry["lfs"] = {"oid": hashlib.sha256(data).hexdigest(), "size": len(data), "pointerSize": 130}
        return entry

    def _file(self, request: BaseHTTPRequestHandler, name: str, body: bool) -> None:
        data = self.files[name].read_bytes()
        etag = hashlib.sha256(data).hexdigest() if name.endswith((".mp4", ".parquet")) else _git(data)
        if name in self.damaged:
            data = data[:-1] + bytes([data[-1] ^ 1])
        if body:
            self.fetched[name] += 1
        request.send_response(200)
        request.send_header("ETag", f'"{etag}"')
        request.send_header("X-Repo-Commit", COMMIT)
        request.send_header("Content-Length", str(len(data)))
        request.send_header("Accept-Ranges", "bytes")
        request.end_headers()
        if body:
            request.wfile.write(data)

    def _json(self, request: BaseHTTPRequestHandler, value: object, headers: dict[str, str] | None = None) -> None:
        data = json.dumps(value).encode()
        request.send_response(200)
        request.send_header("Content-Type", "application/json")
        request.send_header("Content-Length", str(len(data)))
        for key, text in (headers or {}).items():
            request.send_header(key, text)
        request.end_headers()
        request.wfile.write(data)

    def _error(self, request: BaseHTTPRequestHandler, code: int, name: str) -> None:
        request.send_response(code)
        request.send_header("X-Error-Code", name)
        request.send_header("X-Error-Message", name)
        request.send_header("Content-Length", "0")
        request.end_headers()


def _git(data: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()

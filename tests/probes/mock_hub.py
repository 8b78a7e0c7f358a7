"""A hub on this machine that answers as the real one does: models by name, one commit each, and its refusals."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

COMMIT = "0123456789abcdef0123456789abcdef01234567"
ROOT = Path(__file__).resolve().parents[2]


class MockHub(ThreadingHTTPServer):
    """``models``: files of every repository by its name; ``gated``: names of some that need a licence.

    ``cut``: names of files whose content is cut off after half of it; ``asked``: what was asked for.
    """

    daemon_threads = True

    def __init__(self, models: dict[str, dict[str, bytes]]) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.models = models
        self.gated: set[str] = set()
        self.cut: set[str] = set()
        self.asked: list[str] = []

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def environment(self, home: Path, **more: str) -> dict[str, str]:
        """Of a program that takes this for its hub, with an empty cache below ``home``."""
        own = {"HF_ENDPOINT": self.address, "HF_HOME": str(home), "no_proxy": "*", "HF_HUB_OFFLINE": "0"}
        own |= {"HF_HUB_DISABLE_XET": "1", "HF_HUB_DISABLE_TELEMETRY": "1", "OMP_NUM_THREADS": "1"}
        return (
            {name: value for name, value in os.environ.items() if name not in ("HF_TOKEN", "HF_HUB_CACHE")} | own | more
        )

    def run(self, home: Path, *arguments: Any, **more: str) -> subprocess.CompletedProcess[str]:
        """What ``python ARGUMENTS`` gives with this hub."""
        return subprocess.run(
            [sys.executable, *map(str, arguments)], cwd=ROOT, env=self.environment(home, **more), text=True,
            capture_output=True, timeout=300, check=False,
        )  # fmt: skip


@contextmanager
def mock_hub(models: dict[str, dict[str, bytes]]) -> Iterator[MockHub]:
    """A running hub."""
    with MockHub(models) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


class _Handler(BaseHTTPRequestHandler):
    server: MockHub
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        self.server.asked.append(f"{self.command} {path}")
        parts = path.removeprefix("/api/models").strip("/").split("/")
        name, rest = "/".join(parts[:2]), parts[2:]
        files = self.server.models.get(name)
        if files is None:
            return self.answer(401, code="RepoNotFound")
        if len(rest) > 1 and rest[1] not in (COMMIT, "main"):
            return self.answer(404, code="RevisionNotFound")
        if rest[:1] in ([], ["revision"]):
            return self.answer(200, json.dumps({"id": name, "sha": COMMIT, "siblings": []}).encode())
        if rest[0] == "tree":
            entries = [
                {"type": "file", "path": file, "size": len(data), "oid": hashlib.sha1(data).hexdigest()}
                for file, data in files.items()
            ]
            return self.answer(200, json.dumps(entries).encode())
        if name in self.server.gated:
            return self.answer(403, code="GatedRepo")
        return self.answer(200, files["/".join(rest[2:])], cut=rest[-1] in self.server.cut)

    do_HEAD = do_GET

    def answer(self, status: int, data: bytes = b"", code: str | None = None, cut: bool = False) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.send_header("Content-Type", "application/json")
        self.send_header("ETag", f'"{hashlib.sha1(data).hexdigest()}"')
        self.send_header("X-Repo-Commit", COMMIT)
        if code is not None:
            self.send_header("X-Error-Code", code)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(data[: len(data) // 2] if cut else data)
            self.close_connection = self.close_connection or cut

    def log_message(self, *arguments: Any) -> None:
        """No log: requests would fill the output of the tests."""

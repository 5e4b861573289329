"""A stand-in of a model hub on loopback: repositories in memory, behind the hub's HTTP interface.

It knows what huggingface_hub of 0.36 and of 2 ask for: repositories, commits with large files,
trees and downloads. A token decides what its owner may do.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from typing import Any
from urllib.parse import unquote

import pytest
from huggingface_hub import constants, file_download

from tests.online import forget_sessions
from tests.quiet_server import QuietServer

WRITER, READER = "hf_writer_token", "hf_reader_token"
LARGE = (".safetensors", ".onnx")
"""Files that go over Git LFS."""


@dataclass
class Repository:
    """Files by name, and how often something was committed."""

    private: bool = False
    files: dict[str, bytes] = field(default_factory=dict)
    commits: int = 0

    @property
    def sha(self) -> str:
        return hashlib.sha1(str(self.commits).encode()).hexdigest()


@dataclass
class Hub:
    """The repositories, and what was asked."""

    url: str = ""
    repositories: dict[str, Repository] = field(default_factory=dict)
    large: dict[str, bytes] = field(default_factory=dict)
    requests: list[str] = field(default_factory=list)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    hub: Hub

    def log_message(self, *ignored: object) -> None:
        """Print nothing."""

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        path = self._begin()
        if (token := self._token()) not in (None, WRITER, READER):
            self._refuse(401, "Invalid credentials in Authorization header")
        elif match := re.fullmatch(r"/([^/]+/[^/]+)/resolve/([^/]+)/(.+)", path):
            self._file(match[1], match[3], token)
        elif match := re.fullmatch(r"/api/models/([^/]+/[^/]+)(/revision/[^/]+)?", path):
            if repository := self._found(match[1], token):
                siblings = [{"rfilename": name} for name in sorted(repository.files)]
                about = {"sha": repository.sha, "private": repository.private}
                self._send({"id": match[1], "siblings": siblings, "tags": [], **about})
        elif match := re.fullmatch(r"/api/models/([^/]+/[^/]+)/tree/[^/]+", path):
            if repository := self._found(match[1], token):
                self._send(
                    [
                        {"type": "file", "path": name, "size": len(content), "oid": "0" * 40}
                        for name, content in sorted(repository.files.items())
                    ]
                )
        else:
            self._refuse(404, f"no {path}")

    def do_PUT(self) -> None:
        path = self._begin()
        content = self._body()
        self.hub.large[path.rpartition("/")[2]] = content
        self._send({})

    def do_POST(self) -> None:
        path, body = self._begin(), self._body()
        if path == "/api/validate-yaml":
            self._send({"errors": [], "warnings": []})
        elif (token := self._token()) not in (WRITER, READER):
            self._refuse(401, "Invalid credentials in Authorization header")
        elif token == READER:
            self._refuse(403, "You don't have the rights to write here.")
        elif path == "/api/repos/create":
            asked = json.loads(body)
            name = f"{asked['organization']}/{asked['name']}"
            private = bool(asked.get("private")) or asked.get("visibility") == "private"
            self.hub.repositories[name] = Repository(private)
            self._send({"url": f"{self.hub.url}/{name}", "name": name})
        elif match := re.fullmatch(r"/api/models/(.+)/preupload/[^/]+", path):
            modes = [
                {
                    "path": each["path"],
                    "uploadMode": "lfs" if each["path"].endswith(LARGE) else "regular",
                    "shouldIgnore": False,
                }
                for each in json.loads(body)["files"]
            ]
            self._send({"files": modes})
        elif path.endswith(".git/info/lfs/objects/batch"):
            upload = f"{self.hub.url}/large"
            self._send(
                {
                    "transfer": "basic",
                    "objects": [
                        {**each, "actions": {"upload": {"href": f"{upload}/{each['oid']}"}}}
                        for each in json.loads(body)["objects"]
                    ],
                }
            )
        elif match := re.fullmatch(r"/api/models/(.+)/commit/[^/]+", path):
            self._commit(match[1], [json.loads(line) for line in body.splitlines()])
        else:
            self._refuse(404, f"no {path}")

    def _commit(self, name: str, lines: list[dict[str, Any]]) -> None:
        repository = self.hub.repositories[name]
        for line in lines:
            value = line["value"]
            if line["key"] == "file":
                repository.files[value["path"]] = base64.b64decode(value["content"])
            elif line["key"] == "lfsFile":
                repository.files[value["path"]] = self.hub.large[value["oid"]]
            elif line["key"] == "deletedFile":
                del repository.files[value["path"]]
        repository.commits += 1
        url = f"{self.hub.url}/{name}/commit/{repository.sha}"
        self._send({"commitUrl": url, "commitOid": repository.sha, "success": True})

    def _file(self, name: str, path: str, token: str | None) -> None:
        if not (repository := self._found(name, token)):
            return
        if path not in repository.files:
            self._refuse(404, "Entry not found", "EntryNotFound")
            return
        content = repository.files[path]
        self.send_response(200)
        self.send_header("ETag", f'"{hashlib.sha256(content).hexdigest()}"')
        self.send_header("X-Repo-Commit", repository.sha)
        self._end(content)

    def _found(self, name: str, token: str | None) -> Repository | None:
        repository = self.hub.repositories.get(name)
        if repository is None or (repository.private and token is None):
            self._refuse(404, "Repository not found", "RepoNotFound")
            return None
        return repository

    def _begin(self) -> str:
        self.hub.requests.append(f"{self.command} {self.path}")
        return unquote(self.path.partition("?")[0])

    def _body(self) -> bytes:
        if "chunked" in self.headers.get("Transfer-Encoding", ""):
            parts = []
            while size := int(self.rfile.readline(), 16):
                parts.append(self.rfile.read(size))
                self.rfile.readline()
            self.rfile.readline()
            return b"".join(parts)
        return self.rfile.read(int(self.headers.get("Content-Length", 0)))

    def _token(self) -> str | None:
        _, _, token = self.headers.get("Authorization", "").partition("Bearer ")
        return token or None

    def _refuse(self, status: int, message: str, code: str = "") -> None:
        self.send_response(status)
        self.send_header("X-Error-Message", message)
        if code:
            self.send_header("X-Error-Code", code)
        self._end(json.dumps({"error": message}).encode())

    def _send(self, value: Any) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self._end(json.dumps(value).encode())

    def _end(self, content: bytes) -> None:
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)


@contextmanager
def stand_in_hub(patch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """Serve an empty hub, and let huggingface_hub ask it, as HF_ENDPOINT would."""
    hub = Hub()
    handler = type("Handler", (_Handler,), {"hub": hub})
    server = QuietServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    hub.url = f"http://127.0.0.1:{server.server_port}"
    patch.setattr(constants, "HF_HUB_OFFLINE", False)
    patch.setattr(constants, "ENDPOINT", hub.url)
    resolve = f"{hub.url}/{{repo_id}}/resolve/{{revision}}/{{filename}}"
    for module in (constants, file_download):
        patch.setattr(module, "HUGGINGFACE_CO_URL_TEMPLATE", resolve, raising=False)
    patch.setattr(constants, "HF_HUB_DISABLE_XET", True)  # its library sends past this interface
    forget_sessions()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        patch.undo()
        forget_sessions()

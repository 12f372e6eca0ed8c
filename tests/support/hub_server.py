"""A server with the part of the Hugging Face hub's HTTP interface that an upload uses.

Repositories are kept in memory. Files above `LFS_BYTES` go through Git LFS, as on the hub.
"""

import base64
import hashlib
import json
import threading
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Self

TOKEN = "hf_test"
LFS_BYTES = 4096


@dataclass
class Repository:
    """A repository: branch -> path -> content. `commits`: messages."""

    kind: str
    private: bool
    branches: dict[str, dict[str, bytes]] = field(default_factory=lambda: {"main": {}})
    commits: list[str] = field(default_factory=list)


class HubServer:
    """A context manager that serves on a free port of this machine."""

    def __init__(self) -> None:
        self.repositories: dict[str, Repository] = {}
        #: Objects of Git LFS by their SHA-256.
        self.objects: dict[str, bytes] = {}
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}"

    def environment(self, token: str = TOKEN) -> dict[str, str]:
        """Return the variables with which huggingface_hub uses this server."""
        return {"HF_ENDPOINT": self.address, "HF_TOKEN": token, "HF_HUB_DISABLE_XET": "1"}

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(timeout=10)


def _handler(hub: HubServer) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, format: str, *args: Any) -> None:
            return

        def do_POST(self) -> None:
            body = self._body()
            if self.headers.get("Authorization") != f"Bearer {TOKEN}":
                self._answer({"error": "Invalid credentials in Authorization header"}, 401)
            elif self.path == "/api/repos/create":
                self._create(json.loads(body))
            elif self.path == "/api/validate-yaml":
                self._answer({"errors": [], "warnings": []})
            elif self.path.endswith("/info/lfs/objects/batch"):
                self._batch(json.loads(body))
            else:
                self._change(self.path.split("/"), body)

        def do_PUT(self) -> None:
            content = self._body()
            name = self.path.removeprefix("/lfs/")
            assert hashlib.sha256(content).hexdigest() == name
            hub.objects[name] = content
            self._answer({})

        def _create(self, request: dict[str, Any]) -> None:
            name = f"{request['organization']}/{request['name']}"
            known = name in hub.repositories
            is_private = request.get("private") or request.get("visibility") == "private"
            new = Repository(request.get("type", "model"), bool(is_private))
            hub.repositories.setdefault(name, new)
            self._answer({"url": f"{hub.address}/{name}", "name": name}, 409 if known else 200)

        def _batch(self, request: dict[str, Any]) -> None:
            objects = [
                {
                    "oid": entry["oid"],
                    "size": entry["size"],
                    "actions": {"upload": {"href": f"{hub.address}/lfs/{entry['oid']}"}},
                }
                for entry in request["objects"]
            ]
            self._answer({"transfer": "basic", "objects": objects})

        def _change(self, parts: list[str], body: bytes) -> None:
            # /api/models/acme/sums/commit/main
            _, _, kind, owner, name, action, branch = parts
            repository = hub.repositories[f"{owner}/{name}"]
            assert kind == f"{repository.kind}s"
            if action == "branch":
                repository.branches.setdefault(branch, {})
                self._answer({})
            elif action == "preupload":
                files = [
                    {
                        "path": file["path"],
                        "uploadMode": "lfs" if file["size"] > LFS_BYTES else "regular",
                        "shouldIgnore": False,
                        "oid": None,
                    }
                    for file in json.loads(body)["files"]
                ]
                self._answer({"files": files})
            else:
                self._commit(f"{owner}/{name}", branch, [json.loads(line) for line in body.splitlines()])

        def _commit(self, name: str, branch: str, lines: list[dict[str, Any]]) -> None:
            repository = hub.repositories[name]
            for line in lines:
                value = line["value"]
                if line["key"] == "header":
                    repository.commits.append(value["summary"])
                elif line["key"] == "file":
                    repository.branches[branch][value["path"]] = base64.b64decode(value["content"])
                elif line["key"] == "lfsFile":
                    repository.branches[branch][value["path"]] = hub.objects[value["oid"]]
            commit = hashlib.sha1(repr(lines).encode(), usedforsecurity=False).hexdigest()
            address = f"{hub.address}/{name}/commit/{commit}"
            self._answer({"success": True, "commitUrl": address, "commitOid": commit, "hookOutput": ""})

        def _body(self) -> bytes:
            return self.rfile.read(int(self.headers.get("Content-Length", 0)))

        def _answer(self, document: Any, code: int = 200) -> None:
            content = json.dumps(document).encode()
            self.send_response(code)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

    return Handler

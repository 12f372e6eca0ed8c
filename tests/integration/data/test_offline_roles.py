"""Only the preparation makes requests to the hub: processes with the environments of their pods."""

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from support.rendering.cluster import Cluster
from support.rendering.jobs import sft

_PROGRAM = """
from kubealign.spec.sections.models import Model
from kubealign_services.data.errors import DataError
from kubealign_services.data.models.model_folders import find_model_folder
model = Model.model_validate({"huggingFace": {"repo": "acme/base", "revision": "abc"}})
try:
    find_model_folder(model, "spec.policy.model", {})
except DataError as error:
    print(error)
"""


class _Hub(ThreadingHTTPServer):
    """A hub without repositories, which records the requests."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _NotFound)
        self.requests: list[str] = []


class _NotFound(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        assert isinstance(self.server, _Hub)
        self.server.requests.append(self.path)
        self.send_error(404)

    do_HEAD = do_GET

    def log_message(self, format: str, *args: object) -> None:
        """Write no log."""


@pytest.fixture
def hub() -> Iterator[_Hub]:
    with _Hub() as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.mark.parametrize(("process", "downloads"), [("prepare", True), ("trainer-0", False)])
def test_only_the_preparation_asks_the_hub(tmp_path: Path, hub: _Hub, process: str, downloads: bool) -> None:
    cluster = Cluster(sft(policy={"model": {"huggingFace": {"repo": "acme/base"}}}))
    cluster.step()
    cluster.serve()
    pods = dict(cluster.pods)
    cluster.end(cluster.name("prepare"), 0)
    cluster.step()
    pods |= cluster.pods
    [container] = pods[cluster.name(process)]["spec"]["containers"]
    variables = {entry["name"]: entry["value"] for entry in container["env"] if "value" in entry}
    result = subprocess.run(
        [sys.executable, "-c", _PROGRAM],
        env={
            **{name: value for name, value in os.environ.items() if name != "HF_HUB_OFFLINE"},
            **variables,
            "HF_HOME": str(tmp_path),
            "HF_ENDPOINT": f"http://127.0.0.1:{hub.server_address[1]}",
        },
        timeout=100,
        check=True,
        capture_output=True,
        text=True,
    )
    assert result.stdout.startswith("spec.policy.model.huggingFace: acme/base at abc cannot be fetched")
    assert bool(hub.requests) is downloads

"""Transfer of a result folder through a stream."""

import asyncio
import hashlib
import io
import json
import os
import signal
import subprocess
import sys
import tarfile
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import pytest

from kubealign.client.errors import NotPossible, Unavailable
from kubealign.client.records import JobRecord
from kubealign.client.results.reader_pod import ResultPodSettings, pod_manifest, send_command, sender_source
from kubealign.client.results.reader_pod_program import send
from kubealign.client.results.stream import receive_folder
from kubealign.kube.api import KubernetesApi
from kubealign.spec.status import ResultLocation

RESULT = ResultLocation.model_validate({"claimName": "runs", "path": "x/one-1/result"})
JOB = JobRecord({"metadata": {"name": "one", "namespace": "team", "uid": "u-1"}})
SUCCESS = json.dumps({"status": "Success"}).encode()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    manifest = tmp_path / "sent"
    (manifest / "below").mkdir(parents=True)
    (manifest / "config.json").write_text("{}")
    (manifest / "below" / "weights").write_bytes(os.urandom(3 << 20))
    return manifest


@dataclass
class Wire:
    """WebSocket channels of a pod: the messages of one command run."""

    messages: list[bytes]
    asked: list[str] = field(default_factory=list)

    @asynccontextmanager
    async def open_websocket(self, path: str, query: str) -> AsyncIterator["Wire"]:
        self.asked += [path, query]
        yield self

    async def receive(self, timeout: float) -> Any:
        from aiohttp import WSMessage, WSMsgType

        if not self.messages:
            return WSMessage(WSMsgType.CLOSED, None, None)  # type: ignore[call-arg]
        return WSMessage(WSMsgType.BINARY, self.messages.pop(0), None)  # type: ignore[call-arg]


def wire(sent: bytes, stderr: bytes, end: bytes = SUCCESS) -> Wire:
    chunks = [sent[at : at + 32_000] for at in range(0, len(sent), 32_000)]
    return Wire([b"\1" + chunk for chunk in chunks] + [b"\2" + stderr, b"\3" + end])


def archive(folder: Path) -> tuple[bytes, bytes]:
    out = io.BytesIO()
    summary = send(str(folder), out)
    return out.getvalue(), json.dumps(summary).encode() + b"\n"


async def received(wire: Wire, into: Path) -> None:
    await asyncio.to_thread(into.mkdir)
    await asyncio.wait_for(receive_folder(cast(KubernetesApi, wire), "/pod", ["send"], into), 30)


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


async def test_folder_is_transferred(folder: Path, tmp_path: Path) -> None:
    await received(wire(*archive(folder)), tmp_path / "got")
    assert contents(tmp_path / "got") == contents(folder)


@pytest.mark.parametrize(
    ("spoil", "kind", "words"),
    [
        (lambda sent, summary: (sent[:-10_000], summary, SUCCESS), Unavailable, "as it was sent"),
        (lambda sent, summary: (b"x" + sent[1:], summary, SUCCESS), Unavailable, "as it was sent"),
        (lambda sent, summary: (sent, b"", SUCCESS), Unavailable, "as it was sent"),
        (lambda sent, summary: (sent, summary, b""), Unavailable, "before the result was complete"),
        (
            lambda sent, summary: (
                b"",
                b"Traceback\nFileNotFoundError: /volumes/x\n",
                b'{"status": "Failure"}',
            ),
            NotPossible,
            "FileNotFoundError: /volumes/x",
        ),
    ],
)
async def test_incomplete_transfer_is_an_error(
    folder: Path, tmp_path: Path, spoil: Callable[..., Any], kind: type[Exception], words: str
) -> None:
    with pytest.raises(kind, match=words):
        await received(wire(*spoil(*archive(folder))), tmp_path / "got")


def _link(kind: bytes, target: str) -> tarfile.TarInfo:
    member = tarfile.TarInfo("model.safetensors")
    member.type, member.linkname = kind, target
    return member


@pytest.mark.parametrize(
    "member",
    [
        tarfile.TarInfo("../escaped"),
        _link(tarfile.SYMTYPE, "/etc/hostname"),
        # Within the folder: a result has no links at all.
        _link(tarfile.SYMTYPE, "config.json"),
        _link(tarfile.LNKTYPE, "config.json"),
        _link(tarfile.FIFOTYPE, ""),
    ],
    ids=["outside", "absolute-link", "link", "hard-link", "pipe"],
)
async def test_archive_has_only_files_and_folders_within_the_folder(
    tmp_path: Path, member: tarfile.TarInfo
) -> None:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as evil:
        evil.addfile(tarfile.TarInfo("config.json"))
        evil.addfile(member)
    sent = out.getvalue()
    summary = {"sha256": hashlib.sha256(sent).hexdigest(), "bytes": len(sent)}
    with pytest.raises(NotPossible, match="cannot be unpacked"):
        await received(wire(sent, json.dumps(summary).encode()), tmp_path / "got")
    assert not (tmp_path / "escaped").exists()
    assert not (tmp_path / "got" / "model.safetensors").is_symlink()


async def test_unwritable_folder_is_an_error_without_a_hang(folder: Path, tmp_path: Path) -> None:
    sent, summary = archive(folder)
    with pytest.raises(NotPossible, match="cannot be unpacked"):
        await receive_folder(
            cast(KubernetesApi, wire(sent, summary)), "/pod", ["send"], tmp_path / "sent" / "config.json"
        )


def test_sender_runs_from_source_and_holder_exits_on_sigterm(folder: Path) -> None:
    run = [sys.executable, "-I", "-c", sender_source()]
    done = subprocess.run([*run, "send", str(folder)], capture_output=True, timeout=60, check=True)
    summary = json.loads(done.stderr)
    assert summary == {"sha256": hashlib.sha256(done.stdout).hexdigest(), "bytes": len(done.stdout)}
    gone = subprocess.run([*run, "send", "/nowhere"], capture_output=True, timeout=60, check=False)
    assert gone.returncode == 1
    assert gone.stderr.decode().splitlines()[-1].endswith("'/nowhere'")

    holder = subprocess.Popen([*run, "hold"])
    try:
        with pytest.raises(subprocess.TimeoutExpired):
            holder.wait(1)
        holder.send_signal(signal.SIGTERM)
        assert holder.wait(30) == 0
    finally:
        holder.kill()
        holder.wait()


def driver(**changes: Any) -> dict[str, Any]:
    main = {
        "name": "main",
        "image": "registry/jobs:1",
        "imagePullPolicy": "Never",
        "command": ["/opt/python", "-m", "something"],
        "env": [{"name": "SECRET", "value": "x"}],
        "volumeMounts": [{"name": "kubealign-credentials", "mountPath": "/etc"}],
    }
    return {
        "metadata": {"labels": {"kubealign.dev/process": "driver", "kubealign.dev/job": "one"}},
        "spec": {
            "containers": [main, {"name": "sidecar", "image": "other"}],
            "securityContext": {
                "runAsNonRoot": True,
                "runAsUser": 7,
                "seccompProfile": {"type": "RuntimeDefault"},
            },
            "tolerations": [{"key": "gpu"}],
            "volumes": [{"name": "kubealign-credentials", "secret": {"secretName": "one-credentials"}}],
            **changes,
        },
    }


def test_pod_resembles_job_pods_but_is_not_selected_as_one() -> None:
    manifest = pod_manifest(JOB, RESULT, [driver()], ResultPodSettings())
    [main] = manifest["spec"]["containers"]
    assert main["image"] == "registry/jobs:1" and main["imagePullPolicy"] == "Never"
    assert manifest["spec"]["securityContext"]["runAsUser"] == 7
    assert manifest["spec"]["tolerations"] == [{"key": "gpu"}]
    assert main["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    assert "one-credentials" not in json.dumps(manifest) and "SECRET" not in json.dumps(manifest)
    assert not {"kubealign.dev/job", "kubealign.dev/job-uid"} & set(manifest["metadata"]["labels"])
    [owner] = manifest["metadata"]["ownerReferences"]
    assert owner["uid"] == "u-1" and owner["controller"] is False
    assert main["volumeMounts"] == [{"name": "result", "mountPath": "/volumes/runs", "readOnly": True}]
    command = send_command(manifest, RESULT)
    assert (command[0], *command[-2:]) == ("/opt/python", "send", "/volumes/runs/x/one-1/result")


def test_the_image_of_the_status_is_used_without_a_job_pod() -> None:
    job = JobRecord({**JOB.resource, "status": {"image": "registry/jobs:2"}})
    assert pod_manifest(job, RESULT, [], ResultPodSettings())["spec"]["containers"][0]["image"] == (
        "registry/jobs:2"
    )
    other = pod_manifest(job, RESULT, [], ResultPodSettings("python:3"))
    assert other["spec"]["containers"][0]["image"] == "python:3"


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("", {"runAsUser": 65532, "runAsGroup": 65532, "fsGroup": 65532}),
        ("1000", {"runAsUser": 1000, "runAsGroup": 1000, "fsGroup": 1000}),
        ("namespace", {}),
    ],
)
def test_user_without_a_job_pod(
    value: str, expected: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KUBEALIGN_RESULT_IMAGE", "python:3")
    monkeypatch.setenv("KUBEALIGN_RESULT_USER", value)
    context = pod_manifest(JOB, RESULT, [], ResultPodSettings.from_environment())["spec"]["securityContext"]
    assert {
        name: context[name] for name in context if name in ("runAsUser", "runAsGroup", "fsGroup")
    } == expected
    assert context["runAsNonRoot"] is True


@pytest.mark.parametrize("value", ["0", "-1", "root", "2147483648"])
def test_user_must_be_a_number_or_the_namespace(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBEALIGN_RESULT_USER", value)
    with pytest.raises(NotPossible, match=f"KUBEALIGN_RESULT_USER is '{value}'; allowed are"):
        ResultPodSettings.from_environment()


def test_image_is_required_without_a_job_pod() -> None:
    with pytest.raises(NotPossible, match="KUBEALIGN_RESULT_IMAGE"):
        pod_manifest(JOB, RESULT, [], ResultPodSettings())
    manifest = pod_manifest(JOB, RESULT, [], ResultPodSettings("python:3"))
    assert manifest["spec"]["containers"][0]["image"] == "python:3"
    assert manifest["spec"]["securityContext"]["runAsNonRoot"] is True

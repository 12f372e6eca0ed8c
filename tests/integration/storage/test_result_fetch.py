"""Results of jobs in a cluster, fetched from their copy in a real S3 server."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest
from kubernetes.aio.client import Configuration

from kubealign.client.errors import Unavailable
from kubealign.client.records import JobRecord
from kubealign.client.results.fetch import fetch_result
from kubealign.client.results.reader_pod import ResultPodSettings
from kubealign.client.results.storage_copy import download_copy
from kubealign.kube.api import KubernetesApi
from kubealign.kube.connections import Connections
from kubealign.object_storage.bucket import Bucket
from kubealign.object_storage.folders import publish_folder
from kubealign.object_storage.location import StorageLocation
from support.bad_specs import whole_job
from support.s3_server import FaultyStorageProxy, S3Server

pytestmark = pytest.mark.timeout(120)


@pytest.fixture
async def api() -> AsyncIterator[KubernetesApi]:
    """An API whose server does not exist: a pod that reads the volume cannot be made."""
    async with KubernetesApi(Connections(Configuration(host="http://127.0.0.1:1")), "team") as client:
        yield client


def record(location: StorageLocation | None) -> JobRecord:
    resource = whole_job("sft", {} if location is None else {"spec.checkpoint": {"uri": str(location)}})
    resource["metadata"] |= {"namespace": "team", "uid": "6f1f7d0e-0000"}
    resource["status"] = {"phase": "Succeeded", "result": {"claimName": "runs", "path": "sft/result"}}
    return JobRecord(resource)


async def publish(location: StorageLocation, tmp_path: Path, names: Sequence[str]) -> None:
    for name in names:
        (tmp_path / "config.json").write_text(name)
        await publish_folder(Bucket(location), f"results/{name}", {"config.json": tmp_path / "config.json"})


async def test_the_newest_result_is_fetched_without_a_pod(
    proxy: FaultyStorageProxy, location: StorageLocation, api: KubernetesApi, tmp_path: Path
) -> None:
    await publish(location, tmp_path, ["step-00000009-fence-1", "step-00000004-fence-2"])
    incomplete = Bucket(location)
    await incomplete.put("results/step-00000004-fence-3/config.json", b"incomplete")
    into = await fetch_result(api, record(location), [], tmp_path / "into", ResultPodSettings())
    assert into == tmp_path / "into"
    assert {path.name: path.read_text() for path in into.iterdir()} == {
        "config.json": "step-00000004-fence-2"
    }


@pytest.mark.parametrize("cause", ["no address", "no result", "wrong credentials", "damaged"])
async def test_the_volume_is_read_where_the_copy_cannot_be(
    cause: str,
    proxy: FaultyStorageProxy,
    location: StorageLocation,
    s3: S3Server,
    api: KubernetesApi,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    job = record(None if cause == "no address" else location)
    if cause != "no result":
        await publish(location, tmp_path, ["step-00000004-fence-2"])
    if cause == "damaged":
        [stored] = s3.objects.joinpath(location.path).rglob("config.json")
        stored.write_text("damaged")
    if cause == "wrong credentials":
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong")
    partial = tmp_path / "partial"
    await asyncio.to_thread(partial.mkdir)
    assert not await asyncio.wait_for(download_copy(job, partial), 60)
    assert list(partial.iterdir()) == []
    with pytest.raises(Unavailable):
        await fetch_result(api, job, [], tmp_path / "into", ResultPodSettings(image="python"))
    assert not (tmp_path / "into").exists()

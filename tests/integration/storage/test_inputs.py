"""Models and rows that a job names by their address, downloaded from a real S3 server."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from kubealign.object_storage.bucket import Bucket
from kubealign.object_storage.errors import StorageUnavailable
from kubealign.object_storage.folders import publish_folder
from kubealign.object_storage.location import StorageLocation
from kubealign.spec.job import AlignmentJob
from kubealign_services.data.errors import DataError
from kubealign_services.data.sources.downloads import download_inputs, remove_downloaded_rows
from kubealign_services.data.sources.source_files import source_files
from support.bad_specs import whole_job
from support.s3_server import Fault, FaultyStorageProxy, S3Server

pytestmark = pytest.mark.timeout(120)

_MODEL = "spec.policy.model"
_SOURCE = "spec.data.demonstrations.source"


@pytest.fixture
def bucket(proxy: FaultyStorageProxy, location: StorageLocation) -> Bucket:
    return Bucket(location)


def make_job(**inputs: Any) -> AlignmentJob:
    """Return a job with the model and the source of these names."""
    fields = {"model": _MODEL, "source": _SOURCE}
    return AlignmentJob.model_validate(
        whole_job("sft", {fields[name]: {"uri": uri} for name, uri in inputs.items()})
    )


async def publish(bucket: Bucket, folder: str, tmp_path: Path, **files: str) -> None:
    paths = {name.replace("_", "."): tmp_path / name for name in files}
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    await publish_folder(bucket, folder, paths)


def files(folder: Path) -> dict[str, str]:
    return {
        path.relative_to(folder).as_posix(): path.read_text() for path in folder.rglob("*") if path.is_file()
    }


def download(job: AlignmentJob, run_dir: Path, uri: str) -> dict[str, str]:
    return files(download_inputs(job, run_dir)[uri])


async def _put(bucket: Bucket, **objects: str) -> None:
    for name, text in objects.items():
        await bucket.put(name.replace("__", "/").replace("_", "."), text.encode())


async def test_a_published_model_is_verified_and_downloaded_once(
    proxy: FaultyStorageProxy, bucket: Bucket, s3: S3Server, tmp_path: Path
) -> None:
    await publish(bucket, "base", tmp_path, config_json="{}", model_safetensors="weights")
    uri = f"{bucket.location}/base"
    job, run_dir = make_job(model=uri), tmp_path / "run"
    expected = {"config.json": "{}", "model.safetensors": "weights"}
    assert await asyncio.to_thread(download, job, run_dir, uri) == expected
    requests = len(proxy.requests)
    assert await asyncio.to_thread(download, job, run_dir, uri) == expected
    assert len(proxy.requests) == requests

    stored = s3.objects.joinpath(*uri.split("/")[3:], "model.safetensors")
    stored.write_text("weight")
    with pytest.raises(
        DataError, match=rf"{_MODEL}\.uri: {uri}/model\.safetensors has 6 bytes, the manifest"
    ):
        await asyncio.to_thread(download_inputs, job, tmp_path / "other")
    assert list((tmp_path / "other" / "downloads").iterdir()) == []


async def test_the_address_of_a_job_is_its_newest_result(bucket: Bucket, tmp_path: Path) -> None:
    for name in ("step-00000002-fence-1", "step-00000001-fence-2"):
        await publish(bucket, f"results/{name}", tmp_path, config_json=name)
    uri = str(bucket.location)
    assert await asyncio.to_thread(download, make_job(model=uri), tmp_path / "run", uri) == {
        "config.json": "step-00000001-fence-2"
    }


async def test_a_folder_of_others_is_a_model_without_its_pickles(bucket: Bucket, tmp_path: Path) -> None:
    await _put(
        bucket, config_json="{}", model_safetensors="weights", pytorch_bin="pickle", onnx__model_json="no"
    )
    uri = str(bucket.location)
    assert await asyncio.to_thread(download, make_job(model=uri), tmp_path / "run", uri) == {
        "config.json": "{}",
        "model.safetensors": "weights",
    }


async def test_rows_are_an_object_or_a_glob(bucket: Bucket, tmp_path: Path) -> None:
    # An object below a name that matches.
    await _put(bucket, a__3_jsonl__x_jsonl="6")
    await _put(bucket, a__1_jsonl="1", a__2_jsonl="2", b__1_jsonl="3", a__x_txt="4", a__deep__1_jsonl="5")
    run_dir, pattern = tmp_path / "run", f"{bucket.location}/*/*.jsonl"
    single = f"{bucket.location}/a/2.jsonl"
    job = make_job(source=pattern)
    assert await asyncio.to_thread(download, job, run_dir, pattern) == {
        "a/1.jsonl": "1",
        "a/2.jsonl": "2",
        "b/1.jsonl": "3",
    }
    source = job.spec.data.value.source
    assert source is not None
    named = source_files(source, _SOURCE, download_inputs_of(run_dir, pattern))
    assert [path.read_text() for path in named] == ["1", "2", "3"]
    assert set(named.values()) == {f"{_SOURCE}.uri"}
    assert await asyncio.to_thread(download, make_job(source=single), run_dir, single) == {"2.jsonl": "2"}
    remove_downloaded_rows(job, run_dir)
    assert len(list((run_dir / "downloads").iterdir())) == 1


def download_inputs_of(run_dir: Path, uri: str) -> dict[str, Path]:
    [folder] = (run_dir / "downloads").iterdir()
    return {uri: folder}


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ({"source": "missing.jsonl"}, rf"{_SOURCE}\.uri: .*/missing\.jsonl could not be read: NoSuchKey"),
        ({"source": "*.jsonl"}, rf"{_SOURCE}\.uri: no object matches s3://.*/\*\.jsonl"),
        ({"model": "base"}, rf"{_MODEL}\.uri: s3://.*/base has no objects such as \*\.safetensors"),
    ],
)
async def test_a_missing_object_is_named(
    inputs: dict[str, str], message: str, bucket: Bucket, tmp_path: Path
) -> None:
    job = make_job(**{name: f"{bucket.location}/{path}" for name, path in inputs.items()})
    with pytest.raises(DataError, match=message):
        await asyncio.to_thread(download_inputs, job, tmp_path)


async def test_a_store_that_is_down_is_no_error_of_the_job(
    proxy: FaultyStorageProxy, bucket: Bucket, tmp_path: Path
) -> None:
    proxy.faults = lambda request: Fault.REFUSE
    with pytest.raises(StorageUnavailable, match="could not be"):
        await asyncio.to_thread(download_inputs, make_job(model=f"{bucket.location}/base"), tmp_path)

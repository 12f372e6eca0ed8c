"""Folders in a real S3 server: complete or absent, under faults of the network and of the store."""

import asyncio
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path

import pytest

from kubealign.object_storage import bucket as bucket_module
from kubealign.object_storage.bucket import Bucket
from kubealign.object_storage.errors import (
    ObjectCorrupted,
    ObjectExists,
    ObjectMissing,
    StorageRefused,
    StorageUnavailable,
)
from kubealign.object_storage.folders import (
    MANIFEST_NAME,
    FolderFile,
    delete_folder,
    download_folder,
    publish_folder,
)
from kubealign.object_storage.location import StorageLocation
from support.s3_server import Fault, FaultyStorageProxy, S3Request, S3Server

pytestmark = pytest.mark.timeout(120)

#: Two parts of a multipart upload.
_LARGE_BYTES = 18 << 20


@pytest.fixture
def bucket(proxy: FaultyStorageProxy, location: StorageLocation) -> Bucket:
    return Bucket(location)


@pytest.fixture
def files(tmp_path: Path) -> dict[str, Path]:
    """A folder with a file that is uploaded in parts, one in a subfolder and an empty one."""
    source = tmp_path / "source"
    (source / "trainer").mkdir(parents=True)
    (source / "weights").write_bytes(os.urandom(_LARGE_BYTES))
    (source / "trainer" / "rank-0").write_bytes(b"shard")
    (source / "empty").touch()
    return {path.relative_to(source).as_posix(): path for path in source.rglob("*") if path.is_file()}


def contents(folder: Path) -> dict[str, bytes]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()
    }


def first(
    count: int, fault: Fault, matches: Callable[[S3Request], bool]
) -> Callable[[S3Request], Fault | None]:
    """Inject the fault into the first requests that match."""
    hits: list[int] = []

    def faults(request: S3Request) -> Fault | None:
        if not matches(request) or len(hits) >= count:
            return None
        hits.append(request.number)
        return fault

    return faults


def is_part(request: S3Request) -> bool:
    return "partNumber=" in request.target


async def check_download(bucket: Bucket, files: dict[str, Path], into: Path) -> None:
    await asyncio.to_thread(into.mkdir)
    await download_folder(bucket, "folder", into)
    assert contents(into) == {name: path.read_bytes() for name, path in files.items()}


async def test_a_folder_comes_back_as_it_was(
    bucket: Bucket, files: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Not a divisor of the file's size.
    monkeypatch.setattr(bucket_module, "_RANGE_BYTES", 5 << 20)
    published = await publish_folder(bucket, "folder", files, {"step": "3"})
    assert published.size_bytes == _LARGE_BYTES + len(b"shard")
    await check_download(bucket, files, tmp_path / "into")
    assert await bucket.list_folders("") == ["folder"]
    await delete_folder(bucket, "folder")
    assert [entry async for entry in bucket.list_objects()] == []


@pytest.mark.parametrize("fault", [Fault.SLOW_DOWN, Fault.CUT, Fault.REFUSE])
async def test_a_fault_of_a_multipart_upload_is_retried(
    fault: Fault, proxy: FaultyStorageProxy, bucket: Bucket, files: dict[str, Path], tmp_path: Path
) -> None:
    proxy.faults = first(2, fault, is_part)
    await publish_folder(bucket, "folder", files)
    assert len(proxy.injected) == 2
    await check_download(bucket, files, tmp_path / "into")


async def test_a_download_that_breaks_is_repeated(
    proxy: FaultyStorageProxy, bucket: Bucket, files: dict[str, Path], tmp_path: Path
) -> None:
    await publish_folder(bucket, "folder", files)
    proxy.faults = first(2, Fault.CUT_ANSWER, lambda request: "weights" in request.target)
    await check_download(bucket, files, tmp_path / "into")
    proxy.faults = lambda request: Fault.CUT_ANSWER if "weights" in request.target else None
    with pytest.raises(StorageUnavailable, match="folder/weights could not be read"):
        await download_folder(bucket, "folder", tmp_path / "into")


@pytest.mark.parametrize("call", ["put", "get"])
async def test_a_server_that_never_answers_is_given_up(
    call: str, proxy: FaultyStorageProxy, location: StorageLocation, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bucket_module, "_REQUEST_TIMEOUT", timedelta(milliseconds=200))
    impatient = Bucket(location)
    proxy.faults = lambda request: Fault.HANG
    with pytest.raises(StorageUnavailable, match=rf"{location}/a could not be"):
        await asyncio.wait_for(impatient.put("a", b"") if call == "put" else impatient.get("a"), 60)


async def test_nothing_is_visible_of_an_upload_that_fails_and_the_next_one_goes_on(
    proxy: FaultyStorageProxy, bucket: Bucket, files: dict[str, Path], tmp_path: Path
) -> None:
    proxy.faults = lambda request: Fault.CUT if is_part(request) else None
    uploaded: dict[str, FolderFile] = {}
    with pytest.raises(StorageUnavailable, match=rf"{bucket.location}/folder/weights could not be uploaded"):
        await publish_folder(bucket, "folder", files, uploaded=uploaded)
    with pytest.raises(ObjectMissing, match=MANIFEST_NAME):
        await download_folder(bucket, "folder", tmp_path)
    proxy.faults = lambda request: None
    before = len(proxy.requests)
    await publish_folder(bucket, "folder", files, uploaded=uploaded)
    repeated = [request for request in proxy.requests[before:] if "rank-0" in request.target]
    assert "trainer/rank-0" in uploaded and repeated == []
    await check_download(bucket, files, tmp_path / "into")


async def test_a_manifest_is_created_once(
    proxy: FaultyStorageProxy, bucket: Bucket, files: dict[str, Path], tmp_path: Path
) -> None:
    small = {name: path for name, path in files.items() if name != "weights"}
    proxy.faults = first(1, Fault.LOSE_ANSWER, lambda request: MANIFEST_NAME in request.target)
    await publish_folder(bucket, "folder", small)
    assert len(proxy.injected) == 1
    # The same content again is no error, other content is.
    await publish_folder(bucket, "folder", small)
    (tmp_path / "other").write_text("other")
    with pytest.raises(
        ObjectExists, match=f"folder/{MANIFEST_NAME} could not be written: PreconditionFailed"
    ):
        await publish_folder(bucket, "folder", {"other": tmp_path / "other"})
    await check_download(bucket, small, tmp_path / "into")


async def test_a_refused_publication_leaves_no_manifest(bucket: Bucket, files: dict[str, Path]) -> None:
    async def refuse() -> None:
        raise RuntimeError("replaced")

    small = {"empty": files["empty"]}
    with pytest.raises(RuntimeError, match="replaced"):
        await publish_folder(bucket, "folder", small, before_manifest=refuse)
    assert [entry.name async for entry in bucket.list_objects()] == ["folder/empty"]


@pytest.mark.parametrize("damage", ["truncated", "changed", "missing"])
async def test_a_damaged_object_is_refused_by_name(
    damage: str, s3: S3Server, bucket: Bucket, files: dict[str, Path], tmp_path: Path
) -> None:
    small = {name: path for name, path in files.items() if name != "weights"}
    await publish_folder(bucket, "folder", small)
    stored = s3.objects / bucket.location.path / "folder" / "trainer" / "rank-0"
    match damage:
        case "truncated":
            stored.write_bytes(b"sha")
            message = "rank-0 has 3 bytes, the manifest says 5"
        case "changed":
            stored.write_bytes(b"shart")
            message = "rank-0 has the SHA-256"
        case _:
            stored.unlink()
            message = "rank-0 could not be read: NoSuchKey .* the manifest names it"
    with pytest.raises(ObjectCorrupted, match=message):
        await download_folder(bucket, "folder", tmp_path)


async def test_a_manifest_cannot_name_a_file_outside_the_folder(bucket: Bucket, tmp_path: Path) -> None:
    manifest = '{"files": [{"name": "../outside", "size_bytes": 1, "sha256": "%s"}]}' % ("0" * 64)
    await bucket.put(f"folder/{MANIFEST_NAME}", manifest.encode())
    with pytest.raises(ObjectCorrupted, match="must be a path inside the folder"):
        await download_folder(bucket, "folder", tmp_path)


async def test_an_object_that_is_replaced_between_two_parts_is_refused(
    proxy: FaultyStorageProxy,
    bucket: Bucket,
    location: StorageLocation,
    s3: S3Server,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(bucket_module, "_RANGE_BYTES", 4)
    await bucket.put("rows.jsonl", b"old rows")
    await bucket.download("rows.jsonl", tmp_path / "rows")
    assert await asyncio.to_thread((tmp_path / "rows").read_bytes) == b"old rows"
    monkeypatch.setenv("AWS_ENDPOINT_URL", s3.environment()["AWS_ENDPOINT_URL"])
    direct = Bucket(location)
    gets: list[S3Request] = []

    def replace_before_second_part(request: S3Request) -> Fault | None:
        gets.append(request)
        if len(gets) == 3:  # the object, then two parts
            with ThreadPoolExecutor() as threads:
                threads.submit(asyncio.run, direct.put("rows.jsonl", b"new rows")).result(60)
        return None

    proxy.faults = replace_before_second_part
    with pytest.raises(
        ObjectCorrupted, match=r"rows\.jsonl has been replaced while it was read \(from version"
    ):
        await bucket.download("rows.jsonl", tmp_path / "rows")


async def test_an_object_that_is_replaced_while_it_is_read_is_refused(bucket: Bucket, tmp_path: Path) -> None:
    await bucket.put("rows.jsonl", b"old")
    [entry] = [entry async for entry in bucket.list_objects()]
    assert (entry.name, entry.size_bytes) == ("rows.jsonl", 3)
    await bucket.download("rows.jsonl", tmp_path / "rows", entry.e_tag)
    await bucket.put("rows.jsonl", b"new")
    with pytest.raises(ObjectCorrupted, match=r"rows\.jsonl has been replaced while it was read"):
        await bucket.download("rows.jsonl", tmp_path / "rows", entry.e_tag)


async def test_wrong_credentials_and_buckets_are_refused_and_named(
    proxy: FaultyStorageProxy, location: StorageLocation, s3: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    missing = Bucket(StorageLocation("s3", "no-such-bucket", "jobs"))
    with pytest.raises(
        StorageRefused, match=r"s3://no-such-bucket/jobs/a could not be written: NoSuchBucket"
    ):
        await missing.put("a", b"")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong")
    refused = Bucket(location)
    with pytest.raises(StorageRefused, match=rf"{location}/a could not be written: SignatureDoesNotMatch"):
        await refused.put("a", b"")
    with pytest.raises(StorageRefused, match=rf"{location} could not be listed: SignatureDoesNotMatch"):
        await refused.list_folders("")


def test_a_setting_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AZURE_STORAGE_ACCOUNT_NAME", raising=False)
    with pytest.raises(StorageRefused, match=r"az://container/jobs cannot be opened: .*Account must be"):
        Bucket(StorageLocation.parse("az://container/jobs"))


async def test_a_file_that_is_gone_is_an_error_of_the_file(bucket: Bucket, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="gone"):
        await bucket.upload("gone", tmp_path / "gone", 0)

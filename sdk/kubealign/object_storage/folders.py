"""Folders in object storage that are complete or absent: objects first, the manifest with checksums last.

Object storage has no rename. A folder without its manifest does not exist for a reader, and the manifest is
created once, so that a reader sees all of a folder or nothing, and never a mixture of two uploads.
"""

import asyncio
import hashlib
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from kubealign.object_storage.bucket import Bucket
from kubealign.object_storage.errors import ObjectCorrupted, ObjectExists, ObjectMissing
from kubealign.object_storage.relative_name import RelativeName

#: Object that makes a folder valid.
MANIFEST_NAME = "kubealign-manifest.json"
_CONCURRENT_FILES = 4
_HASH_CHUNK_BYTES = 4 << 20


class FolderFile(BaseModel):
    """One file. name: path within the folder, with slashes. sha256: hexadecimal."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: RelativeName
    size_bytes: int = Field(ge=0)
    sha256: str = Field(pattern="^[0-9a-f]{64}$")


class FolderManifest(BaseModel):
    """Files of a published folder. labels: the publisher's description of the folder."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    format: Literal[1] = 1
    labels: dict[str, str] = {}
    files: list[FolderFile]

    @property
    def size_bytes(self) -> int:
        """Size of all files."""
        return sum(file.size_bytes for file in self.files)


async def _accept() -> None:
    return


async def publish_folder(
    bucket: Bucket,
    folder: str,
    files: Mapping[str, Path],
    labels: Mapping[str, str] | None = None,
    uploaded: dict[str, FolderFile] | None = None,
    before_manifest: Callable[[], Awaitable[None]] = _accept,
) -> FolderManifest:
    """Upload files and publish them as a folder. Publishing the same content again is no error.

    Args:
        files: Name within the folder -> file on this machine.
        uploaded: Files that an earlier call with the same files has uploaded already; completed by this one.
        before_manifest: Called once all files are uploaded; if it raises, nothing is published.

    Raises:
        ObjectExists: A folder with other content has been published under this name.
        StorageUnavailable, StorageRefused: The upload failed; a reader sees nothing of it.
        FileNotFoundError: A file is gone.
    """
    done = {} if uploaded is None else uploaded
    slots = asyncio.Semaphore(_CONCURRENT_FILES)

    async def upload(name: str, path: Path) -> None:
        if name in done:
            return
        async with slots:
            file = await asyncio.to_thread(_describe, name, path)
            await bucket.upload(f"{folder}/{name}", path, file.size_bytes)
            done[name] = file

    await run_all([upload(name, path) for name, path in files.items()])
    manifest = FolderManifest(labels=dict(labels or {}), files=[done[name] for name in sorted(files)])
    await before_manifest()
    name = f"{folder}/{MANIFEST_NAME}"
    try:
        await bucket.put(name, manifest.model_dump_json(indent=1).encode(), mode="create")
    except ObjectExists:
        # The answer to an earlier attempt may have been lost.
        if await read_manifest(bucket, folder) != manifest:
            raise
    return manifest


async def read_manifest(bucket: Bucket, folder: str) -> FolderManifest:
    """Return the manifest of a published folder.

    Raises:
        ObjectMissing: The folder is not published, or not completely.
        ObjectCorrupted: The manifest cannot be read.
    """
    name = f"{folder}/{MANIFEST_NAME}" if folder else MANIFEST_NAME
    data = await bucket.get(name)
    try:
        return FolderManifest.model_validate_json(data)
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(str(part) for part in first["loc"]) or "the object"
        raise ObjectCorrupted(f"{bucket.uri(name)} is no manifest ({field}: {first['msg']})") from error


async def download_folder(bucket: Bucket, folder: str, into: Path) -> FolderManifest:
    """Download a published folder into an existing, empty one, and verify size and checksum of each file.

    Raises:
        ObjectMissing: The folder is not published, or has been deleted meanwhile.
        ObjectCorrupted: A file is not the published one; names the object.
        StorageUnavailable, StorageRefused: The storage does not answer, or refuses.
    """
    manifest = await read_manifest(bucket, folder)
    slots = asyncio.Semaphore(_CONCURRENT_FILES)

    async def download(file: FolderFile) -> None:
        async with slots:
            name = f"{folder}/{file.name}" if folder else file.name
            path = into / file.name
            path.parent.mkdir(parents=True, exist_ok=True)
            try:
                digest = await bucket.download(name, path)
            except ObjectMissing as error:
                raise ObjectCorrupted(f"{error}; the manifest names it") from error
            size = path.stat().st_size
            if size != file.size_bytes:
                raise ObjectCorrupted(
                    f"{bucket.uri(name)} has {size} bytes, the manifest says {file.size_bytes}"
                )
            if digest != file.sha256:
                raise ObjectCorrupted(
                    f"{bucket.uri(name)} has the SHA-256 {digest}, the manifest says {file.sha256}"
                )

    await run_all([download(file) for file in manifest.files])
    return manifest


async def delete_folder(bucket: Bucket, folder: str) -> None:
    """Delete a folder, its manifest first: a reader never sees a part of it."""
    await bucket.delete(f"{folder}/{MANIFEST_NAME}")
    names = [entry.name async for entry in bucket.list_objects(folder)]
    await bucket.delete(*names)


async def run_all(calls: list[Coroutine[Any, Any, None]]) -> None:
    """Run calls concurrently. The first error cancels the others and is raised."""
    try:
        async with asyncio.TaskGroup() as group:
            for call in calls:
                group.create_task(call)
    except ExceptionGroup as errors:
        raise errors.exceptions[0] from None


def _describe(name: str, path: Path) -> FolderFile:
    digest = hashlib.sha256()
    size = 0
    with path.open("rb") as file:
        while chunk := file.read(_HASH_CHUNK_BYTES):
            digest.update(chunk)
            size += len(chunk)
    return FolderFile(name=name, size_bytes=size, sha256=digest.hexdigest())

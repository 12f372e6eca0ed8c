"""Objects below a prefix of a bucket.

Endpoint, region and credentials come from the environment alone (AWS_*, GOOGLE_*, AZURE_*), so that a Secret
or a workload identity provides them. Each request has a timeout and is retried a few times; the caller
decides on longer waits.
"""

import asyncio
import errno
import hashlib
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import obstore
from obstore.exceptions import BaseError, PreconditionError
from obstore.store import from_url

from kubealign.object_storage.errors import (
    ObjectCorrupted,
    ObjectMissing,
    StorageRefused,
    storage_error,
)
from kubealign.object_storage.location import StorageLocation

if TYPE_CHECKING:
    from obstore import GetOptions, GetResult
    from obstore.store import ClientConfig, ObjectStore, RetryConfig

#: Part of a multipart upload. S3 allows 10,000 parts: larger objects have larger parts.
_PART_BYTES = 16 << 20
_MAX_PARTS = 9_000
_CONCURRENT_PARTS = 4
#: Longest body of a download: at half a megabyte a second it arrives within the timeout of its request.
_RANGE_BYTES = 64 << 20
_DOWNLOAD_CHUNK_BYTES = 4 << 20
_REQUEST_TIMEOUT = timedelta(seconds=120)
_CONNECT_TIMEOUT = timedelta(seconds=10)
_TRUE = ("1", "true", "yes", "on", "y")


@dataclass(frozen=True)
class StoredObject:
    """An object. name: relative to the bucket's prefix. e_tag: version of its content; None: unknown."""

    name: str
    size_bytes: int
    e_tag: str | None


class Bucket:
    """Objects below an address, each with a name relative to it.

    Raises StorageRefused where the environment lacks a setting without which no request can be sent.
    """

    def __init__(self, location: StorageLocation) -> None:
        self.location = location
        client: ClientConfig = {"timeout": _REQUEST_TIMEOUT, "connect_timeout": _CONNECT_TIMEOUT}
        # Options of the client replace those of the environment.
        if os.environ.get("AWS_ALLOW_HTTP", "").lower() in _TRUE:
            client["allow_http"] = True
        retry: RetryConfig = {
            "max_retries": 4,
            "retry_timeout": timedelta(seconds=300),
            "backoff": {
                "init_backoff": timedelta(milliseconds=200),
                "max_backoff": timedelta(seconds=5),
                "base": 2,
            },
        }
        try:
            self._store: ObjectStore = from_url(str(location), client_options=client, retry_config=retry)
        except (BaseError, ValueError) as error:
            raise StorageRefused(str(storage_error(error, "cannot be opened", str(location)))) from None

    def uri(self, name: str) -> str:
        """Return the address of an object."""
        return str(self.location.join(name))

    async def put(self, name: str, data: bytes, mode: Literal["create", "overwrite"] = "overwrite") -> None:
        """Write a small object. Raises ObjectExists in the mode create where it exists."""
        async with self._errors(name, "could not be written"):
            await obstore.put_async(self._store, name, data, mode=mode, use_multipart=False)

    async def upload(self, name: str, path: Path, size_bytes: int) -> None:
        """Upload a file; a large one in parts. Raises FileNotFoundError if the file is gone."""
        part = max(_PART_BYTES, -(-size_bytes // _MAX_PARTS))
        try:
            async with self._errors(name, "could not be uploaded"):
                await obstore.put_async(
                    self._store, name, path, chunk_size=part, max_concurrency=_CONCURRENT_PARTS
                )
        except ObjectMissing as error:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path)) from error

    async def get(self, name: str) -> bytes:
        """Return the content of a small object. Raises ObjectMissing."""
        async with self._errors(name, "could not be read"):
            response = await obstore.get_async(self._store, name)
            return bytes(await response.bytes_async())

    async def download(self, name: str, path: Path, e_tag: str | None = None) -> str:
        """Download an object into a file, durably, and return its SHA-256 in hexadecimal.

        A broken connection is continued at its position, a few times.

        Args:
            e_tag: Version that is expected; None: any.

        Raises ObjectCorrupted for another version. The file is incomplete after an error.
        """
        digest = hashlib.sha256()
        async with self._errors(name, "could not be read"):
            response = await obstore.get_async(self._store, name)
            size, version = response.meta["size"], response.meta["e_tag"]
            if e_tag is not None and version != e_tag:
                raise self._replaced(name, f"version {version}, not {e_tag}")
            with path.open("wb") as file:
                if size <= _RANGE_BYTES:
                    await _write_all(response, file.fileno(), digest)
                else:
                    await self._download_ranges(name, size, version, file.fileno(), digest)
                await asyncio.to_thread(os.fsync, file.fileno())
        return digest.hexdigest()

    async def list_objects(self, prefix: str = "") -> AsyncIterator[StoredObject]:
        """Yield all objects below a folder; empty: below the address."""
        async with self._errors(prefix, "could not be listed"):
            async for batch in obstore.list(self._store, prefix=prefix or None):
                for entry in batch:
                    yield StoredObject(entry["path"], entry["size"], entry["e_tag"])

    async def list_folders(self, folder: str) -> list[str]:
        """Return the names of the folders directly below a folder, sorted."""
        async with self._errors(folder, "could not be listed"):
            listing = await obstore.list_with_delimiter_async(self._store, prefix=folder)
        return sorted(prefix.rstrip("/").rpartition("/")[2] for prefix in listing["common_prefixes"])

    async def delete(self, *names: str) -> None:
        """Delete objects. Objects that do not exist are no error."""
        if names:
            async with self._errors(names[0], "could not be deleted"):
                await obstore.delete_async(self._store, list(names))

    async def _download_ranges(
        self, name: str, size: int, version: str | None, descriptor: int, digest: "hashlib._Hash"
    ) -> None:
        """Download a large object in parts, as the timeout of a request includes its body."""
        for start in range(0, size, _RANGE_BYTES):
            options: GetOptions = {"range": (start, min(size, start + _RANGE_BYTES))}
            if version is not None:
                options["if_match"] = version
            try:
                response = await obstore.get_async(self._store, name, options=options)
            except PreconditionError as error:
                raise self._replaced(name, f"from version {version}") from error
            await _write_all(response, descriptor, digest)

    def _replaced(self, name: str, detail: str) -> ObjectCorrupted:
        return ObjectCorrupted(f"{self.uri(name)} has been replaced while it was read ({detail})")

    @asynccontextmanager
    async def _errors(self, name: str, action: str) -> AsyncIterator[None]:
        """Raise the errors of obstore as StorageErrors, without their own text: it may hold a signature."""
        try:
            yield
        except (BaseError, FileNotFoundError, ValueError) as error:
            raise storage_error(error, action, self.uri(name)) from None


async def _write_all(response: "GetResult", descriptor: int, digest: "hashlib._Hash") -> None:
    """Append the body of an answer to a file."""
    async for chunk in response.stream(min_chunk_size=_DOWNLOAD_CHUNK_BYTES):
        await asyncio.to_thread(_write, descriptor, memoryview(chunk), digest)


def _write(descriptor: int, data: memoryview, digest: "hashlib._Hash") -> None:
    digest.update(data)
    while data:
        data = data[os.write(descriptor, data) :]

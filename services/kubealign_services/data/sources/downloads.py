"""Downloads of the models and rows that a job names by their address in object storage.

An address is downloaded once for each run directory, and each folder appears completely or not at all: a
preparation that is repeated reads what an earlier one has downloaded.
"""

import asyncio
import hashlib
import logging
import shutil
from collections.abc import Awaitable, Callable, Iterator
from fnmatch import fnmatchcase
from pathlib import Path

from kubealign.object_storage.bucket import Bucket, StoredObject
from kubealign.object_storage.errors import (
    ObjectCorrupted,
    ObjectMissing,
    StorageError,
    StorageUnavailable,
)
from kubealign.object_storage.folders import download_folder, run_all
from kubealign.object_storage.location import StorageLocation
from kubealign.object_storage.results import newest_result
from kubealign.spec.dependencies import named_models, named_sources
from kubealign.spec.job import AlignmentJob
from kubealign.spec.paths import format_path
from kubealign_services.checkpoints.draft_folders import make_draft
from kubealign_services.data.errors import DataError

#: Folder of the downloads in the run directory.
DOWNLOADS_FOLDER = "downloads"
_DRAFT_PREFIX = ".downloading-"
#: Files of a model. No *.bin files: these are pickles.
MODEL_FILES = ("*.safetensors", "*.json", "*.jinja", "*.txt", "*.model")
_CONCURRENT_FILES = 4

log = logging.getLogger(__name__)

_Download = Callable[[StorageLocation, Path], Awaitable[None]]


def download_inputs(job: AlignmentJob, run_dir: Path) -> dict[str, Path]:
    """Download all models and rows with an address, and return address -> folder with the files.

    Raises:
        DataError: An object is missing or damaged, or the storage refuses; names the field.
        StorageUnavailable: The storage does not answer.
        OSError: The run directory cannot be written.
    """
    folders: dict[str, Path] = {}
    for field, uri, download in _addresses(job):
        if uri in folders:
            continue
        folders[uri] = _folder(run_dir, uri)
        if folders[uri].exists():
            continue
        try:
            asyncio.run(_download_once(StorageLocation.parse(uri), folders[uri], download))
        except StorageUnavailable:
            raise
        except StorageError as error:
            raise DataError(f"{field}: {error}") from error
        log.info("downloaded", extra={"uri": uri, "field": field})
    return folders


def remove_downloaded_rows(job: AlignmentJob, run_dir: Path) -> None:
    """Delete the downloaded rows of a job once they are prepared. Streamed rows are read during training."""
    models = {model.uri for _, model in named_models(job)}
    for _, source in named_sources(job):
        if source.uri is not None and source.uri not in models:
            shutil.rmtree(_folder(run_dir, source.uri), ignore_errors=True)


def _folder(run_dir: Path, uri: str) -> Path:
    """Return the folder with what is downloaded from an address."""
    return run_dir / DOWNLOADS_FOLDER / hashlib.sha256(uri.encode()).hexdigest()[:16]


def _addresses(job: AlignmentJob) -> Iterator[tuple[str, str, _Download]]:
    """Yield (field, address, how its files are downloaded)."""
    for path, model in named_models(job):
        if model.uri is not None:
            yield f"{format_path(path)}.uri", model.uri, _download_model
    for path, source in named_sources(job):
        if source.uri is not None:
            yield f"{format_path(path)}.uri", source.uri, _download_rows


async def _download_once(location: StorageLocation, folder: Path, download: _Download) -> None:
    draft = await asyncio.to_thread(make_draft, folder.parent, _DRAFT_PREFIX)
    try:
        await download(location, draft)
        await asyncio.to_thread(draft.rename, folder)
    finally:
        await asyncio.to_thread(shutil.rmtree, draft, ignore_errors=True)


async def _download_model(location: StorageLocation, into: Path) -> None:
    """Download a published folder, the newest result of a job's address, or the files of any other folder.

    The files of a published folder are verified by its manifest, others by their size and version.
    """
    bucket = Bucket(location)
    result = await newest_result(bucket)
    try:
        await download_folder(bucket, result or "", into)
    except ObjectMissing:
        objects = [entry async for entry in bucket.list_objects() if _is_model_file(entry.name)]
        if not objects:
            raise ObjectMissing(
                f"{location} has no objects such as {', '.join(MODEL_FILES)} directly below it"
            ) from None
        await _download_objects(bucket, objects, into)


async def _download_rows(location: StorageLocation, into: Path) -> None:
    """Download an object, or all objects that match a glob."""
    segments = location.path.split("/")
    fixed = next((index for index, part in enumerate(segments) if "*" in part), len(segments) - 1)
    bucket = Bucket(StorageLocation(location.scheme, location.bucket, "/".join(segments[:fixed])))
    pattern = segments[fixed:]
    if not any("*" in part for part in pattern):
        await bucket.download(pattern[0], into / pattern[0])
        return
    objects = [entry async for entry in bucket.list_objects() if _matches(entry.name, pattern)]
    if not objects:
        raise ObjectMissing(f"no object matches {location}")
    await _download_objects(bucket, objects, into)


async def _download_objects(bucket: Bucket, objects: list[StoredObject], into: Path) -> None:
    slots = asyncio.Semaphore(_CONCURRENT_FILES)

    async def download(entry: StoredObject) -> None:
        path = into / entry.name
        path.parent.mkdir(parents=True, exist_ok=True)
        async with slots:
            await bucket.download(entry.name, path, entry.e_tag)
        size = path.stat().st_size
        if size != entry.size_bytes:
            raise ObjectCorrupted(
                f"{bucket.uri(entry.name)} has {size} bytes, the bucket lists {entry.size_bytes}"
            )

    await run_all([download(entry) for entry in objects])


def _is_model_file(name: str) -> bool:
    return "/" not in name and any(fnmatchcase(name, pattern) for pattern in MODEL_FILES)


def _matches(name: str, pattern: list[str]) -> bool:
    parts = name.split("/")
    return len(parts) == len(pattern) and all(map(fnmatchcase, parts, pattern))

"""Download of a job's result from its copy in object storage."""

import asyncio
import logging
import shutil
from pathlib import Path

from kubealign.client.records import JobRecord

log = logging.getLogger(__name__)


async def download_copy(job: JobRecord, into: Path) -> bool:
    """Download the copy of the job's result into an empty folder and verify it.

    Return False, with the reason in the log, if the job has no copy or this machine cannot read it: the
    folder is then still empty, and the result is read from its volume.
    """
    checkpoint = (job.resource.get("spec") or {}).get("checkpoint") or {}
    uri = checkpoint.get("uri")
    if not uri:
        return False
    try:
        # obstore is an optional dependency of the client.
        from kubealign.object_storage.bucket import Bucket
    except ImportError:
        log.info("the copy at %s is not read: install kubealign[storage]", uri)
        return False
    from kubealign.object_storage.errors import StorageError
    from kubealign.object_storage.folders import download_folder
    from kubealign.object_storage.location import StorageLocation
    from kubealign.object_storage.results import newest_result

    try:
        bucket = Bucket(StorageLocation.parse(uri))
        folder = await newest_result(bucket)
        if folder is None:
            log.info("%s has no complete result", uri)
            return False
        await download_folder(bucket, folder, into)
    except (StorageError, ValueError) as error:
        log.warning("the copy of the result cannot be read, its volume is: %s", error)
        await asyncio.to_thread(_empty, into)
        return False
    return True


def _empty(folder: Path) -> None:
    """Delete what a download that failed has left."""
    for path in folder.iterdir():
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()

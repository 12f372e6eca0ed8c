"""Downloads a job's result from object storage or its volume to a folder of this machine."""

import asyncio
import os
import shutil
import tempfile
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager, suppress
from pathlib import Path
from typing import Any

from kubealign.client.backends.cluster.documents import check_runs_here
from kubealign.client.backends.cluster.processes import has_started, process_state
from kubealign.client.errors import KubealignError, NotPossible, Unavailable
from kubealign.client.records import JobRecord
from kubealign.client.results.reader_pod import RESULT_LABEL, ResultPodSettings, pod_manifest, send_command
from kubealign.client.results.storage_copy import download_copy
from kubealign.client.results.stream import receive_folder
from kubealign.kube.api import Json, KubernetesApi
from kubealign.kube.errors import ObjectNotFound
from kubealign.kube.resources import PODS
from kubealign.kube.watch import list_all, watch_changes
from kubealign.labels import FIELD_MANAGER
from kubealign.spec.status import JobPhase, ResultLocation

#: Folder with volumes that are also mounted on this machine, each below the name of its claim.
_CLAIMS_VARIABLE = "KUBEALIGN_CLAIMS_DIR"
_CACHE_VARIABLE = "KUBEALIGN_CACHE_DIR"
#: Includes the time to pull the image on a node that has never run the job.
_START_TIMEOUT_SECONDS = 600.0


async def fetch_result(
    api: KubernetesApi,
    job: JobRecord,
    pods: Sequence[Mapping[str, Any]],
    into: Path | None,
    fallback: ResultPodSettings,
) -> Path:
    """Return the folder with the result, downloading it if necessary.

    The copy in object storage comes first, where the job has one that this machine can read; it needs no pod.

    Raises NotPossible if the job has no result, `into` is in use, or the volume cannot be read.
    """
    result = _job_result(job)
    existing = await asyncio.to_thread(_find_existing, job, result, into)
    if existing is not None:
        return existing
    target = _target(job, into)
    partial = await asyncio.to_thread(_make_partial_folder, target)
    try:
        if not await download_copy(job, partial):
            check_runs_here(
                job,
                f"read its result from the claim {result.claim_name} there, folder {result.path}; jobs with "
                "spec.checkpoint.uri have a copy that can be read from here",
            )
            async with _running_pod(api, pod_manifest(job, result, pods, fallback)) as pod:
                metadata = pod["metadata"]
                path = PODS.object_path(metadata["namespace"], metadata["name"])
                await receive_folder(api, path, send_command(pod, result), partial)
        await asyncio.to_thread(_move_into_place, partial, target)
    finally:
        await asyncio.to_thread(shutil.rmtree, partial, ignore_errors=True)
    return target


def _find_existing(job: JobRecord, result: ResultLocation, into: Path | None) -> Path | None:
    """Return the folder if the result is readable without a download."""
    mounted = _mounted_path(result)
    if mounted is not None:
        return mounted
    target = _target(job, into)
    if into is None and target.is_dir():
        # The folder name contains the job's uid, and the folder is only moved into place when complete.
        return target
    if not is_free(target):
        raise NotPossible(f"{target} exists already: name a folder that is new or empty")
    return None


def _target(job: JobRecord, into: Path | None) -> Path:
    return _cache_path(job) if into is None else into.expanduser().absolute()


def is_free(target: Path) -> bool:
    """Return True if a folder for a result is new or empty."""
    return not target.exists() or (target.is_dir() and not any(target.iterdir()))


def _make_partial_folder(target: Path) -> Path:
    """Create a temporary folder on the target's file system."""
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        return Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
    except OSError as error:
        raise NotPossible(f"{target.parent} is not writable: {error}") from error


def _move_into_place(partial: Path, target: Path) -> None:
    partial.chmod(0o755)
    try:
        partial.rename(target)
    except OSError as error:
        raise NotPossible(f"{target} is in use in the meantime: name another folder ({error})") from error


def _job_result(job: JobRecord) -> ResultLocation:
    if job.status.result is not None:
        return job.status.result
    if job.phase is JobPhase.FAILED:
        raise NotPossible(
            f"job {job.ref} has no result: it failed: {job.status.message or 'no reason was reported'}"
        )
    reason = f": {job.status.message}" if job.status.message else ""
    raise NotPossible(
        f"job {job.ref} has no result yet, it is {job.phase or JobPhase.PENDING}{reason}. Wait until it has "
        "succeeded"
    )


def _mounted_path(result: ResultLocation) -> Path | None:
    claims_dir = os.environ.get(_CLAIMS_VARIABLE)
    if not claims_dir:
        return None
    path = Path(claims_dir) / result.claim_name / result.path.lstrip("/")
    return path if path.is_dir() else None


def _cache_path(job: JobRecord) -> Path:
    default_dir = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "kubealign"
    folder = Path(os.environ.get(_CACHE_VARIABLE) or default_dir)
    return (folder / "results" / f"{job.namespace}-{job.name}-{job.uid[:8]}").absolute()


@asynccontextmanager
async def _running_pod(api: KubernetesApi, pod_document: Json) -> AsyncIterator[Json]:
    """Create the pod, yield it once it runs, and delete it at the end in any case."""
    metadata = pod_document["metadata"]
    collection = PODS.collection_path(metadata["namespace"])
    await _delete_leftover_pods(api, collection, metadata["labels"][RESULT_LABEL])
    created = await api.create(collection, pod_document, {"fieldManager": FIELD_MANAGER})
    try:
        yield await _wait_until_started(api, collection, created)
    finally:
        # Shielded from cancellation: nothing else deletes the pod before the job is deleted.
        await asyncio.shield(_delete_pod(api, created))


async def _delete_leftover_pods(api: KubernetesApi, collection: str, uid: str) -> None:
    """Delete pods of downloads that were killed."""
    pods, _ = await list_all(api, collection, {"labelSelector": f"{RESULT_LABEL}={uid}"})
    for pod in pods:
        if (pod.get("status") or {}).get("phase") in ("Succeeded", "Failed"):
            with suppress(KubealignError):
                await _delete_pod(api, pod)


async def _delete_pod(api: KubernetesApi, pod: Json) -> None:
    metadata = pod["metadata"]
    with suppress(ObjectNotFound):
        options = {"preconditions": {"uid": metadata["uid"]}}
        await api.delete(PODS.object_path(metadata["namespace"], metadata["name"]), options)


async def _wait_until_started(api: KubernetesApi, collection: str, created: Json) -> Json:
    name, pod = created["metadata"]["name"], created
    query = {"fieldSelector": f"metadata.name={name}"}
    try:
        async with (
            asyncio.timeout(_START_TIMEOUT_SECONDS),
            aclosing(watch_changes(api, collection, query)) as pod_changes,
        ):
            async for change in pod_changes:
                pod = change.item
                if change.is_deleted or (pod.get("status") or {}).get("phase") in ("Succeeded", "Failed"):
                    reason = (
                        "it was deleted"
                        if change.is_deleted
                        else process_state(pod, finished=True, suspended=False)[1]
                    )
                    raise NotPossible(f"the pod {name}, which reads the result, ended at once: {reason}")
                if has_started(pod):
                    return pod
    except TimeoutError as error:
        reason = process_state(pod, finished=False, suspended=False)[1]
        raise Unavailable(
            f"waited {_START_TIMEOUT_SECONDS:g} s for the pod {name}, which reads the result: {reason}"
        ) from error
    raise AssertionError("a watch does not end by itself")

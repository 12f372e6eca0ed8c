"""Downloads a job's result from its volume to a folder of this machine."""

import asyncio
import os
import shutil
import tempfile
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager, suppress
from pathlib import Path
from typing import Any

from kubealign.client.cluster_processes import begun, state_of
from kubealign.client.errors import KubealignError, NotPossible, Unavailable
from kubealign.client.kubernetes_api import Json, KubernetesApi
from kubealign.client.kubernetes_changes import changes, list_all
from kubealign.client.kubernetes_failures import ObjectMissing
from kubealign.client.kubernetes_resources import PODS
from kubealign.client.records import JobRecord
from kubealign.client.result_pod import RESULT_LABEL, ResultPod, manifest, sends
from kubealign.client.result_stream import receive
from kubealign.labels import FIELD_MANAGER
from kubealign.spec.status import JobPhase, Result

#: Folder with volumes that are also mounted on this machine, each below the name of its claim.
_CLAIMS = "KUBEALIGN_CLAIMS_DIR"
_CACHE = "KUBEALIGN_CACHE_DIR"
#: Includes the time to pull the image on a node that has never run the job.
_START_SECONDS = 600.0


async def fetched(
    api: KubernetesApi,
    job: JobRecord,
    pods: Sequence[Mapping[str, Any]],
    into: Path | None,
    fallback: ResultPod,
) -> Path:
    """Return the folder with the result, downloading it if necessary.

    Raises NotPossible if the job has no result, `into` is in use, or the volume cannot be read.
    """
    result = _result(job)
    existing = await asyncio.to_thread(_there, job, result, into)
    if existing is not None:
        return existing
    target = _target(job, into)
    partial = await asyncio.to_thread(_beside, target)
    try:
        async with _running(api, manifest(job, result, pods, fallback)) as pod:
            metadata = pod["metadata"]
            path = PODS.named(metadata["namespace"], metadata["name"])
            await receive(api, path, sends(pod, result), partial)
        await asyncio.to_thread(_keep, partial, target)
    finally:
        await asyncio.to_thread(shutil.rmtree, partial, ignore_errors=True)
    return target


def _there(job: JobRecord, result: Result, into: Path | None) -> Path | None:
    """Return the folder if the result is readable without a download."""
    mounted = _mounted(result)
    if mounted is not None:
        return mounted
    target = _target(job, into)
    if into is None and target.is_dir():
        # The folder name contains the job's uid, and the folder is only moved into place when complete.
        return target
    _check_free(target)
    return None


def _target(job: JobRecord, into: Path | None) -> Path:
    return _cached(job) if into is None else into.expanduser().absolute()


def _check_free(target: Path) -> None:
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise NotPossible(f"{target} exists already: name a folder that is new or empty")


def _beside(target: Path) -> Path:
    """Create a temporary folder on the target's file system."""
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        return Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
    except OSError as error:
        raise NotPossible(f"{target.parent} is not writable: {error}") from error


def _keep(partial: Path, target: Path) -> None:
    partial.chmod(0o755)
    try:
        partial.rename(target)
    except OSError as error:
        raise NotPossible(f"{target} is in use in the meantime: name another folder ({error})") from error


def _result(job: JobRecord) -> Result:
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


def _mounted(result: Result) -> Path | None:
    claims_dir = os.environ.get(_CLAIMS)
    if not claims_dir:
        return None
    path = Path(claims_dir) / result.claim_name / result.path.lstrip("/")
    return path if path.is_dir() else None


def _cached(job: JobRecord) -> Path:
    default_dir = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "kubealign"
    folder = Path(os.environ.get(_CACHE) or default_dir)
    return (folder / "results" / f"{job.namespace}-{job.name}-{job.uid[:8]}").absolute()


@asynccontextmanager
async def _running(api: KubernetesApi, pod_document: Json) -> AsyncIterator[Json]:
    """Create the pod, yield it once it runs, and delete it at the end in any case."""
    metadata = pod_document["metadata"]
    collection = PODS.collection(metadata["namespace"])
    await _sweep(api, collection, metadata["labels"][RESULT_LABEL])
    created = await api.create(collection, pod_document, {"fieldManager": FIELD_MANAGER})
    try:
        yield await _started(api, collection, created)
    finally:
        # Shielded from cancellation: nothing else deletes the pod before the job is deleted.
        await asyncio.shield(_delete(api, created))


async def _sweep(api: KubernetesApi, collection: str, uid: str) -> None:
    """Delete pods of downloads that were killed."""
    pods, _ = await list_all(api, collection, {"labelSelector": f"{RESULT_LABEL}={uid}"})
    for pod in pods:
        if (pod.get("status") or {}).get("phase") in ("Succeeded", "Failed"):
            with suppress(KubealignError):
                await _delete(api, pod)


async def _delete(api: KubernetesApi, pod: Json) -> None:
    metadata = pod["metadata"]
    with suppress(ObjectMissing):
        options = {"preconditions": {"uid": metadata["uid"]}}
        await api.delete(PODS.named(metadata["namespace"], metadata["name"]), options)


async def _started(api: KubernetesApi, collection: str, created: Json) -> Json:
    name, pod = created["metadata"]["name"], created
    query = {"fieldSelector": f"metadata.name={name}"}
    try:
        async with asyncio.timeout(_START_SECONDS), aclosing(changes(api, collection, query)) as pod_changes:
            async for change in pod_changes:
                pod = change.item
                if change.gone or (pod.get("status") or {}).get("phase") in ("Succeeded", "Failed"):
                    reason = "it was deleted" if change.gone else state_of(pod, over=True, held=False)[1]
                    raise NotPossible(f"the pod {name}, which reads the result, ended at once: {reason}")
                if begun(pod):
                    return pod
    except TimeoutError as error:
        reason = state_of(pod, over=False, held=False)[1]
        raise Unavailable(
            f"waited {_START_SECONDS:g} s for the pod {name}, which reads the result: {reason}"
        ) from error
    raise AssertionError("a watch does not end by itself")

"""PersistentVolumeClaims that a job's pods mount, and their mount paths."""

from collections.abc import Iterable
from pathlib import PurePosixPath

from kubealign.pod import VOLUMES
from kubealign.spec.data import VolumeFile
from kubealign.spec.job import AlignmentJob
from kubealign.spec.models import VolumeModel
from kubealign.spec.status import Dependency
from kubealign_operator.render import names
from kubealign_operator.render.parts import parts


def claims(job: AlignmentJob, dependencies: Iterable[Dependency]) -> dict[str, bool]:
    """Return the claim names, sorted, mapped to True when the job writes to them."""
    read = {part.claim_name for _, part in parts(job.spec, VolumeModel)}
    read |= {part.claim_name for _, part in parts(job.spec, VolumeFile)}
    read |= {dependency.claim_name for dependency in dependencies}
    volume = job.spec.checkpoint.volume
    written = set() if volume is None else {volume.claim_name}
    return {name: name in written for name in sorted(read | written)}


def mounted(claim_name: str, path: str) -> PurePosixPath:
    """Return the path of a claim's folder inside the containers. The path stays within the claim."""
    return PurePosixPath(VOLUMES, claim_name, path.lstrip("/"))


def run_folder(job: AlignmentJob, uid: str) -> tuple[str, str]:
    """Return (claim, folder within it) of the run directory.

    Raises:
        LookupError: The job has no volume.
    """
    volume = job.spec.checkpoint.volume
    if volume is None:
        raise LookupError(f"{job.name} names no checkpoint.volume")
    return volume.claim_name, str(PurePosixPath(volume.path.lstrip("/"), names.run_folder(job.name, uid)))


def result_folder(job: AlignmentJob, uid: str) -> tuple[str, str]:
    """Return (claim, folder within it) of the result.

    Raises:
        LookupError: The job has no volume.
    """
    claim_name, path = run_folder(job, uid)
    return claim_name, str(PurePosixPath(path, "result"))

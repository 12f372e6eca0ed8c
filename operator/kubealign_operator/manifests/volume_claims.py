"""PersistentVolumeClaims that a job's pods mount, and their mount paths."""

from collections.abc import Iterable
from pathlib import PurePosixPath

from kubealign.labels import PREBUILT_WORKLOAD_LABEL
from kubealign.pod_contract import VOLUMES_FOLDER
from kubealign.spec.job import AlignmentJob
from kubealign.spec.sections.data import VolumeFileSource
from kubealign.spec.sections.models import VolumeModel
from kubealign.spec.status import ResultLocation
from kubealign_operator import names
from kubealign_operator.kube_views.spec_search import spec_parts


def volume_claims(job: AlignmentJob, locations: Iterable[ResultLocation]) -> dict[str, bool]:
    """Return the claim names, sorted, mapped to True when the job writes to them.

    Args:
        locations: Folders of other jobs that the job reads.
    """
    read = {part.claim_name for _, part in spec_parts(job.spec, VolumeModel)}
    read |= {part.claim_name for _, part in spec_parts(job.spec, VolumeFileSource)}
    read |= {location.claim_name for location in locations}
    volume = job.spec.checkpoint.volume
    written = set() if volume is None else {volume.claim_name}
    return {name: name in written for name in sorted(read | written)}


def mount_path(claim_name: str, path: str) -> PurePosixPath:
    """Return the path of a claim's folder inside the containers. The path stays within the claim."""
    return PurePosixPath(VOLUMES_FOLDER, claim_name, path.lstrip("/"))


def run_directory(job: AlignmentJob, uid: str) -> tuple[str, str]:
    """Return (claim, folder within it) of the run directory.

    Raises:
        LookupError: The job has no volume.
    """
    volume = job.spec.checkpoint.volume
    if volume is None:
        raise LookupError(f"{job.name} names no checkpoint.volume")
    prebuilt = job.metadata.labels.get(PREBUILT_WORKLOAD_LABEL, "")
    has_copies = job.spec.checkpoint.uri is not None
    folder = names.run_directory(job.name, uid, prebuilt, has_copies=has_copies)
    return volume.claim_name, run_path(volume.path, folder)


def run_path(volume_path: str, folder: str) -> str:
    """Return the path of a run directory within the claim.

    Args:
        volume_path: checkpoint.volume.path of the job.
        folder: Name of the run directory.
    """
    return str(PurePosixPath(volume_path.lstrip("/"), folder))

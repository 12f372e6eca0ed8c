"""Which PersistentVolumeClaims a job's pods see, and where."""

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
    """Name -> whether it is written to; in the order of the names."""
    read = {part.claim_name for _, part in parts(job.spec, VolumeModel)}
    read |= {part.claim_name for _, part in parts(job.spec, VolumeFile)}
    read |= {dependency.claim_name for dependency in dependencies}
    volume = job.spec.checkpoint.volume
    written = set() if volume is None else {volume.claim_name}
    return {name: name in written for name in sorted(read | written)}


def mounted(claim_name: str, path: str) -> PurePosixPath:
    """The folder of a claim as the job's processes see it. A path stays within the claim."""
    return PurePosixPath(VOLUMES, claim_name, path.lstrip("/"))


def run_folder(job: AlignmentJob, uid: str) -> tuple[str, str]:
    """(claim, folder within it) of the commits and the result. Raises LookupError without a volume."""
    volume = job.spec.checkpoint.volume
    if volume is None:
        raise LookupError(f"{job.name} names no checkpoint.volume")
    return volume.claim_name, str(PurePosixPath(volume.path.lstrip("/"), names.run_folder(job.name, uid)))


def result_folder(job: AlignmentJob, uid: str) -> tuple[str, str]:
    """(claim, folder within it) of the result. Raises LookupError without a volume."""
    claim_name, path = run_folder(job, uid)
    return claim_name, str(PurePosixPath(path, "result"))

"""Layout of a run in object storage.

    job.json                            the job that owns the address
    fences/3.json                       the run directory of the driver with this fence
    checkpoints/step-00000020-fence-3/  a published folder: checkpoint/ and the small files of the run, run/
    results/step-00000100-fence-3/      a published folder: the trained model

All names of a driver have its fence, so that a driver never overwrites what another one has published. A
fence is claimed once, by conditional creation: two run directories that continue the same checkpoint have
the same next number, and only one of them gets it.
"""

from collections.abc import Callable, Container, Mapping
from contextlib import suppress
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from kubealign.object_storage.bucket import Bucket
from kubealign.object_storage.errors import ObjectCorrupted, ObjectExists, ObjectMissing
from kubealign.object_storage.folders import (
    FolderFile,
    FolderManifest,
    delete_folder,
    download_folder,
    publish_folder,
    read_manifest,
)
from kubealign.object_storage.results import RESULTS_FOLDER
from kubealign.spec.job import AlignmentJob
from kubealign_services.checkpoints.fence import StaleFence
from kubealign_services.checkpoints.retention_policy import RetentionPolicy
from kubealign_services.checkpoints.store import CheckpointName

JOB_OBJECT = "job.json"
CHECKPOINTS = "checkpoints"
RESULTS = RESULTS_FOLDER
_FENCES = "fences"
_SCORE_LABEL = "score"


class AddressTaken(Exception):
    """The address belongs to another job, or another run directory has continued the job there."""


class RemoteClaim(BaseModel):
    """Claim of a fence. run: identifier of the run directory whose driver has the fence."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    fence: int = Field(ge=1)
    run: str


class RemoteRun:
    """A run below an address. Every call raises StorageUnavailable and StorageRefused."""

    def __init__(self, bucket: Bucket) -> None:
        self._bucket = bucket

    @property
    def uri(self) -> str:
        """Address of the run."""
        return str(self._bucket.location)

    async def read_owner(self, job: AlignmentJob) -> AlignmentJob:
        """Return the job that owns the address: `job` itself if it had no owner before.

        Raises ObjectCorrupted if the owner cannot be read.
        """
        document = job.model_dump_json(by_alias=True, indent=1).encode()
        try:
            await self._bucket.put(JOB_OBJECT, document, mode="create")
        except ObjectExists:
            document = await self._bucket.get(JOB_OBJECT)
        try:
            return AlignmentJob.model_validate_json(document)
        except ValidationError as error:
            raise ObjectCorrupted(
                f"{self._bucket.uri(JOB_OBJECT)} was written by another version of kubealign, or is damaged"
            ) from error

    async def latest_claim(self) -> RemoteClaim | None:
        """Return the claim of the highest fence; None before the first. Raises ObjectCorrupted."""
        names = [entry.name async for entry in self._bucket.list_objects(_FENCES)]
        numbers = [int(stem) for name in names if (stem := Path(name).stem).isdecimal()]
        if not numbers:
            return None
        name = _claim_name(max(numbers))
        try:
            return RemoteClaim.model_validate_json(await self._bucket.get(name))
        except ValidationError as error:
            raise ObjectCorrupted(f"{self._bucket.uri(name)} is no claim of a fence: {error}") from error

    async def claim(self, fence: int, run: str) -> None:
        """Claim a fence for a run directory. Repeating one's own claim is no error.

        Raises:
            StaleFence: Another driver of the run directory has a higher fence.
            AddressTaken: A driver of another run directory has this fence, or a higher one.
        """
        claim = RemoteClaim(fence=fence, run=run)
        await self.check_claim(claim)
        try:
            await self._bucket.put(_claim_name(fence), claim.model_dump_json().encode(), mode="create")
        except ObjectExists:
            await self.check_claim(claim)

    async def check_claim(self, claim: RemoteClaim) -> None:
        """Raise StaleFence or AddressTaken if another driver has this fence, or a higher one."""
        latest = await self.latest_claim()
        if latest is None or latest.fence < claim.fence or latest == claim:
            return
        if latest.run == claim.run:
            raise StaleFence(
                f"fence {claim.fence} has been replaced by {latest.fence}: another driver writes {self.uri}"
            )
        raise AddressTaken(
            f"another run directory has continued the job at {self.uri}, with fence {latest.fence} after "
            f"{claim.fence}: this one stops"
        )

    async def is_published(self, folder: str) -> bool:
        """Return True if a folder such as checkpoints/NAME is complete."""
        try:
            await read_manifest(self._bucket, folder)
        except ObjectMissing:
            return False
        return True

    async def publish(
        self,
        folder: str,
        files: Mapping[str, Path],
        labels: Mapping[str, str],
        current_claim: Callable[[], RemoteClaim],
        uploaded: dict[str, FolderFile],
    ) -> FolderManifest:
        """Publish a folder. See `publish_folder`.

        Args:
            current_claim: Returns the driver's claim, which may change during the upload.

        Raises StaleFence or AddressTaken if another driver has taken over; nothing is published then.
        """
        return await publish_folder(
            self._bucket, folder, files, labels, uploaded, lambda: self.check_claim(current_claim())
        )

    async def published(self, kind: str) -> list[CheckpointName]:
        """Return the names of the complete folders of a kind, in the order of their fences, then steps.

        A driver with a higher fence has taken over from those with lower ones: its folders are newer, also
        those of lower steps.

        Args:
            kind: CHECKPOINTS or RESULTS.
        """
        return list(await self._published_labels(kind))

    async def _published_labels(self, kind: str) -> dict[CheckpointName, dict[str, str]]:
        labels = {}
        for name in await self._names(kind):
            with suppress(ObjectMissing):
                manifest = await read_manifest(self._bucket, f"{kind}/{name.text}")
                labels[name] = manifest.labels
        return labels

    async def download(self, folder: str, into: Path) -> FolderManifest:
        """Download a published folder into an empty one. See `download_folder`."""
        return await download_folder(self._bucket, folder, into)

    async def remove_old(
        self, kind: str, retention: RetentionPolicy, claim: RemoteClaim, pinned: Container[int] = ()
    ) -> None:
        """Delete the folders of a kind that the policy does not keep, and those that drivers up to this one
        have left incomplete. Folders of higher fences stay.

        Must not be called while this driver uploads to a folder of the kind. Raises StaleFence, AddressTaken.

        Args:
            pinned: Steps whose complete folders stay.
        """
        await self.check_claim(claim)
        scores = {name: _score(labels) for name, labels in (await self._published_labels(kind)).items()}
        remaining = retention.retained(scores, lambda name: name.step)
        remaining |= {name for name in scores if name.step in pinned}
        for name in await self._names(kind):
            if name not in remaining and name.fence <= claim.fence:
                await delete_folder(self._bucket, f"{kind}/{name.text}")

    async def _names(self, kind: str) -> list[CheckpointName]:
        names = (CheckpointName.parse(text) for text in await self._bucket.list_folders(kind))
        return sorted(
            (name for name in names if name is not None),
            key=lambda name: name.age,
        )


def score_labels(score: float | None) -> dict[str, str]:
    """Return the labels of a checkpoint with this score (see RetentionPolicy), for `remove_old`."""
    return {} if score is None else {_SCORE_LABEL: repr(score)}


def _score(labels: Mapping[str, str]) -> float | None:
    text = labels.get(_SCORE_LABEL)
    return None if text is None else float(text)


def _claim_name(fence: int) -> str:
    return f"{_FENCES}/{fence}.json"

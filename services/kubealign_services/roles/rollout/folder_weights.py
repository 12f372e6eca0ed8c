"""Weights of a rollout worker in a job without a trainer: those of one folder after the other."""

import asyncio
from collections.abc import Mapping
from pathlib import Path

from kubealign.spec.job import AlignmentJob
from kubealign.spec.sections.rollout import InFlightPolicy
from kubealign.v1 import batch_pb2
from kubealign_services.data.prepared import PreparedJob
from kubealign_services.data.prepared_files import checkpoint_role
from kubealign_services.generation.contract import Generator
from kubealign_services.roles.rollout.weights import BASE_VERSION, FixedWeights, read_folder_weights
from kubealign_services.runtime.rpc.errors import OutOfOrder


def version_folders(job: AlignmentJob, prepared: PreparedJob) -> dict[int, Path]:
    """Return version -> folder of all weights of a job without a trainer.

    An evaluation may have several, whose versions are the steps of their metrics.
    """
    evaluate = job.spec.algorithm.evaluate
    if evaluate is None:
        return {BASE_VERSION: prepared.model_folder("policy")}
    checkpoints = {step: prepared.model_folder(checkpoint_role(step)) for step in evaluate.steps[1:]}
    return {evaluate.step: prepared.model_folder("policy"), **checkpoints}


class FolderWeights(FixedWeights):
    """Weights that the engine reads from the folder of the version that is requested.

    Requests for another version wait until the sequences in progress have ended, since a sample must have
    one version, and the driver requests one version at a time.

    Args:
        folders: Version -> Hugging Face folder.
    """

    def __init__(self, generator: Generator, folders: Mapping[int, Path]) -> None:
        super().__init__()
        self._generator = generator
        self._folders = folders
        self._version = min(folders)
        self._load_lock = asyncio.Lock()
        self.current = batch_pb2.WeightsId(version=self._version)

    async def load(self) -> None:
        """Load the current version into the engine. Raises EngineLost, OSError."""
        async with self._load_lock:
            await self._load(self._version)

    async def wait_for_version(self, fence: int, version: int, timeout: float) -> None:
        """Wait until the engine has exactly this version.

        Raises:
            StaleFence: A newer fence is known.
            OutOfOrder: There is no folder of this version.
            Quarantined, EngineLost: The engine has lost its weights.
            TimeoutError: They are still being loaded.
            OSError: They cannot be read.
        """
        self._check_request(fence)
        if version not in self._folders:
            raise OutOfOrder(f"version {version} is requested, but nothing is trained in this job")
        if version != self._version:
            switch = asyncio.create_task(self._switch(version))
            # The waiting requests get the error. The load goes on when one of them expires.
            switch.add_done_callback(lambda done: done.cancelled() or done.exception())
            await asyncio.wait_for(asyncio.shield(switch), timeout)
        self.current = batch_pb2.WeightsId(fence=self._fence, version=version)

    async def _switch(self, version: int) -> None:
        async with self._load_lock:
            if version != self._version:
                self.current = None
                await self._load(version)
                self._version = version

    async def _load(self, version: int) -> None:
        async with self._generator.paused(InFlightPolicy.DRAIN):
            await self._generator.refit(read_folder_weights(self._folders[version]), version)

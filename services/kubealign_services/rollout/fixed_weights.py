"""Weights that stay as they are: those of the policy's folder, in a job that trains nothing."""

from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM

from kubealign.v1 import batch_pb2, refit_pb2
from kubealign_services.rpc.errors import OutOfOrder, StaleFence

#: The version of weights that nobody has trained.
VERSION = 0


class FixedWeights:
    """WorkerWeights of an engine that has taken its folder's weights: they are there, always, for the newest
    fence that was seen."""

    cause = ""
    quarantined = False
    last: refit_pb2.RefitAcknowledgement | None = None

    def __init__(self) -> None:
        self.current: batch_pb2.WeightsId | None = batch_pb2.WeightsId(version=VERSION)
        self._fence = 0

    async def wait_for(self, fence: int, version: int, timeout: float) -> None:
        """Return at once. Raises StaleFence; OutOfOrder for a version that nobody will make."""
        if fence < self._fence:
            raise StaleFence(f"fence {fence} has been replaced by {self._fence}")
        if version > VERSION:
            raise OutOfOrder(f"version {version} is asked for, and nothing is trained in this job")
        self._fence = fence
        self.current = batch_pb2.WeightsId(fence=fence, version=VERSION)

    async def released(self) -> None:
        return None


def folder_weights(folder: Path) -> Iterator[tuple[str, Tensor]]:
    """(name, tensor) of all weights of a Hugging Face folder, tied ones once. Raises OSError where it has
    none."""
    # By the model's own loading, which knows the names of every version and layout of the files.
    model = AutoModelForCausalLM.from_pretrained(folder, local_files_only=True, dtype="auto")
    seen: set[int] = set()
    for name, weight in model.state_dict(keep_vars=True).items():
        # Tied weights are one, under several names.
        if id(weight) not in seen:
            seen.add(id(weight))
            yield name, weight.detach() if isinstance(weight, torch.nn.Parameter) else weight

"""Weights of a rollout worker: the protocol, and fixed weights for a job that trains nothing."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, PreTrainedModel

from kubealign.spec.sections.training import Trainer
from kubealign.v1 import batch_pb2, refit_pb2
from kubealign_services.checkpoints.fence import StaleFence
from kubealign_services.data.models.checkpoint_layout import has_converted_layout, to_checkpoint_layout
from kubealign_services.generation.contract import EngineLost
from kubealign_services.runtime.model_cache import local_copy
from kubealign_services.runtime.process.failures import PermanentFailure
from kubealign_services.runtime.rpc.errors import OutOfOrder
from kubealign_services.training.adapters.quantization import (
    QuantizationNotInstalled,
    check_quantization_installed,
    round_weight,
    select_quantized_layers,
)
from kubealign_services.training.torch_backend.precision import compute_dtype
from kubealign_services.weights.receive.refit_worker import Quarantined

#: Version of untrained weights.
BASE_VERSION = 0


class WorkerWeights(Protocol):
    """Weights that a rollout worker generates with, from refits or from a folder.

    quarantine_reason: error of the last refit; empty: none.
    """

    quarantine_reason: str

    @property
    def current(self) -> batch_pb2.WeightsId | None:
        """Verified weights of the engine; None before the first and during a change."""

    @property
    def last_ack(self) -> refit_pb2.RefitAcknowledgement | None:
        """Acknowledgement of the last refit."""

    @property
    def quarantined(self) -> bool:
        """True after a failed refit until one succeeds."""

    async def wait_for_version(self, fence: int, version: int, timeout: float) -> None:
        """Wait until the engine has these weights or later ones of the same fence.

        Raises StaleFence, Quarantined, TimeoutError.
        """

    async def wait_until_released(self) -> None:
        """Wait until the worker is not quarantined."""


class FixedWeights:
    """Weights of an engine that has loaded its folder, valid for the newest fence.

    They are unavailable only while an engine that lost them loads them again.
    """

    last_ack: refit_pb2.RefitAcknowledgement | None = None

    def __init__(self) -> None:
        self.quarantine_reason = ""
        self._loaded = asyncio.Event()
        self._loaded.set()
        self.current: batch_pb2.WeightsId | None = batch_pb2.WeightsId(version=BASE_VERSION)
        self._fence = 0

    @property
    def quarantined(self) -> bool:
        """True while the engine has lost its weights."""
        return bool(self.quarantine_reason)

    async def reload_after_loss(
        self, wait_for_loss: Callable[[], Awaitable[str]], load: Callable[[], Awaitable[None]]
    ) -> None:
        """Reload the weights, forever, each time that the engine has lost them."""
        while True:
            self.quarantine_reason = await wait_for_loss()
            self._loaded.clear()
            try:
                await load()
            except EngineLost as error:
                # Reported like the first loss.
                self.quarantine_reason = str(error)
            else:
                self.quarantine_reason = ""
                self._loaded.set()

    async def wait_for_version(self, fence: int, version: int, timeout: float) -> None:
        """Return at once if the weights fit.

        Raises:
            StaleFence: A newer fence is known.
            OutOfOrder: Nobody will produce this version.
            Quarantined: The engine has lost its weights.
        """
        self._check_request(fence)
        if version > BASE_VERSION:
            raise OutOfOrder(f"version {version} is requested, but nothing is trained in this job")
        self.current = batch_pb2.WeightsId(fence=fence, version=BASE_VERSION)

    def _check_request(self, fence: int) -> None:
        """Take over a newer fence. Raises StaleFence for an older one, Quarantined without weights."""
        if self.quarantined:
            raise Quarantined(f"this worker is quarantined: {self.quarantine_reason}")
        if fence < self._fence:
            raise StaleFence(f"fence {fence} has been replaced by {self._fence}")
        self._fence = fence

    async def wait_until_released(self) -> None:
        """Wait until the weights are loaded."""
        await self._loaded.wait()


def check_base_libraries(trainer: Trainer) -> None:
    """Raise PermanentFailure when the library that quantises an adapter's base is missing."""
    try:
        check_quantization_installed(None if trainer.lora is None else trainer.lora.quantization)
    except QuantizationNotInstalled as error:
        raise PermanentFailure(f"spec.trainer.{error}") from error


def read_folder_weights(folder: Path, trainer: Trainer | None = None) -> Iterator[tuple[str, Tensor]]:
    """Yield (name in the checkpoint, tensor) of all weights of a Hugging Face folder, tied ones once.

    Raises OSError if the folder has none.

    Args:
        trainer: Spec of a trainer that adapts these weights. Where it quantises them, the weights are
            the quantised ones, as it computes with them.
    """
    # Use the model's own loader, which knows every version and layout of the files.
    model = AutoModelForCausalLM.from_pretrained(local_copy(folder), local_files_only=True, dtype="auto")
    weights = _module_weights(model, trainer)
    # A model that stacks its experts has other names than its checkpoint.
    converted = has_converted_layout(model)
    yield from to_checkpoint_layout(model, dict(weights)).items() if converted else weights


def _module_weights(model: PreTrainedModel, trainer: Trainer | None) -> Iterator[tuple[str, Tensor]]:
    """Yield (name in the model, tensor) of all weights, tied ones once, as the trainer computes with them."""
    quantization = None if trainer is None or trainer.lora is None else trainer.lora.quantization
    rounded: set[str] = set()
    if quantization is not None:
        rounded = {f"{name}.weight" for name in select_quantized_layers(model)}
    seen: set[int] = set()
    for name, weight in model.state_dict(keep_vars=True).items():
        # Tied weights are one tensor under several names.
        if id(weight) in seen:
            continue
        seen.add(id(weight))
        if trainer is not None and quantization is not None and name in rounded:
            dtype = compute_dtype(trainer.backend.value.precision)
            yield name, round_weight(weight, quantization, dtype)
        else:
            yield name, weight.detach() if isinstance(weight, torch.nn.Parameter) else weight

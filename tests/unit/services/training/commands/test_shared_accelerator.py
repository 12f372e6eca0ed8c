"""A trainer that shares its accelerator: its commands hold the lock, and offloading does not affect
results.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kubealign.spec.sections.precision import Precision
from kubealign.spec.sections.training import AdamW, Backend, Lora, Optimizer, TorchBackendSpec, Trainer
from kubealign_services.algorithms.contract import Objective
from kubealign_services.batch.packed import Batch
from kubealign_services.runtime.offload.accelerator_lock import AcceleratorLock
from kubealign_services.runtime.offload.host_offloader import HostOffloader
from kubealign_services.training.commands.shared_accelerator import (
    TRAINING,
    SharedAccelerator,
    TrainingTenant,
)
from kubealign_services.training.contract import Head, TrainingBackend, UpdatePlan
from kubealign_services.training.torch_backend import backend as backend_module
from kubealign_services.training.torch_backend import frozen_model as frozen_module
from kubealign_services.training.torch_backend.backend import TorchTrainingBackend
from kubealign_services.training.torch_backend.frozen_model import FrozenTorchModel
from kubealign_services.training.torch_backend.model.loading import load_model
from kubealign_services.training.torch_backend.model.packed_model import PackedModel

pytestmark = pytest.mark.timeout(120)
LOGPROBS = frozenset({"logprobs"})
OTHER = "generation"


class OtherTenant:
    """The other tenant."""

    def offload(self) -> None: ...

    def reload(self) -> None: ...


@pytest.fixture
def moved(monkeypatch: pytest.MonkeyPatch) -> None:
    """Treat the CPU's memory as an accelerator's, so that tensors are really offloaded."""

    def loaded(*arguments: Any) -> PackedModel:
        model = load_model(*arguments)
        for parameter in model.parameters():
            # A copy: mapped file pages cannot be freed.
            parameter.data = parameter.data.clone()
        return model

    for module in (backend_module, frozen_module):
        monkeypatch.setattr(module, "make_offloader", HostOffloader)
        monkeypatch.setattr(module, "load_model", loaded)


def shared() -> tuple[AcceleratorLock, SharedAccelerator]:
    tenant = TrainingTenant()
    lock = AcceleratorLock({TRAINING: tenant, OTHER: OtherTenant()}, timeout=5.0)
    return lock, SharedAccelerator(lock, tenant)


def nothing(lock: AcceleratorLock | None = None) -> None:
    """Leave the accelerator alone."""


@pytest.mark.parametrize(
    ("precision", "lora"),
    [(Precision.BFLOAT16, None), (Precision.FLOAT32, Lora(rank=2))],
    ids=["sharded", "lora"],
)
@pytest.mark.usefixtures("moved")
def test_offloading_between_commands_does_not_affect_training(
    precision: Precision,
    lora: Lora | None,
    llama: Path,
    make_batch: Callable[..., Batch],
    objective: Objective,
    tmp_path: Path,
) -> None:
    spec = Trainer(
        backend=Backend(torch=TorchBackendSpec(precision=precision)),
        lora=lora,
        optimizer=Optimizer(adam_w=AdamW(learning_rate=1e-6)),
    )

    def create() -> TrainingBackend:
        return TorchTrainingBackend.create(llama, Head.LANGUAGE_MODEL, spec, total_updates=4)

    def trained(folder: Path, between: Callable[[], None], created: TorchTrainingBackend) -> list[Any]:
        folder.mkdir()
        actual: list[Any] = []
        for step in range(2):
            between()
            actual.append(created.train_step(make_batch(5, 9, 3), objective, UpdatePlan(1, 2, seed=step)))
            between()
            actual.append(created.forward(make_batch(4, 6), LOGPROBS)["logprobs"].tolist())
            between()
        created.save(folder)
        between()
        created.load(folder)
        between()
        actual.append(created.forward(make_batch(4, 6), LOGPROBS)["logprobs"].tolist())
        return actual

    lock, accelerator = shared()

    def between() -> None:
        with lock.hold(OTHER, "samples"):
            # AdamW's step counts are excluded: they are not on the accelerator.
            large = [tensor for tensor in created._resident_tensors() if tensor.numel() > 1]
            assert sum(tensor.untyped_storage().nbytes() for tensor in large) == 0
        with accelerator.hold("what follows"):
            assert lock.resident == TRAINING

    plain = create()
    assert isinstance(plain, TorchTrainingBackend)
    expected = trained(tmp_path / "plain", nothing, plain)
    with accelerator.hold("Load"):
        created = accelerator.wrap_create(create)()
    assert isinstance(created, TorchTrainingBackend)
    assert trained(tmp_path / "shared", between, created) == expected


@pytest.mark.usefixtures("moved")
def test_a_frozen_model_is_copied_once_and_offloaded_between_calls(
    llama: Path, make_batch: Callable[..., Batch]
) -> None:
    model = FrozenTorchModel.load(llama, Head.LANGUAGE_MODEL, Precision.FLOAT32, 64)
    expected = model.forward(make_batch(5, 9), LOGPROBS)["logprobs"]
    copies = []
    for _ in range(3):
        model.offload()
        assert sum(tensor.untyped_storage().nbytes() for tensor in model._resident_tensors()) == 0
        swap = model._offloader
        assert isinstance(swap, HostOffloader)
        copies.append([copy.data_ptr() for copy in swap._copies])
        assert model.forward(make_batch(5, 9), LOGPROBS)["logprobs"].equal(expected)
    assert copies[0] == copies[1] == copies[2]


def test_commands_hold_the_lock_except_describe() -> None:
    lock, accelerator = shared()
    seen: dict[str, str | None] = {}

    def command(name: str) -> Callable[[bytes], bytes]:
        def run(payload: bytes) -> bytes:
            seen[name] = lock.holder
            return payload + name.encode()

        return run

    handlers = accelerator.wrap_handlers({name: command(name) for name in ("Describe", "TrainStep", "Load")})
    lock.acquire(OTHER, "samples")
    assert handlers["Describe"](b"a ") == b"a Describe"
    lock.release(OTHER)
    assert handlers["TrainStep"](b"b ") == b"b TrainStep"
    handlers["Load"](b"")
    assert seen == {"Describe": OTHER, "TrainStep": TRAINING, "Load": TRAINING}
    assert lock.holder is None


def test_a_backend_without_offloading_is_refused_by_name() -> None:
    class Heavy:
        """Without offload and reload."""

    _, accelerator = shared()
    make: Any = accelerator.wrap_create(Heavy)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"Heavy cannot be offloaded: set trainer\.backend\.torch"):
        make()

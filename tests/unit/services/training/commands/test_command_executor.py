"""Commands to one trained model: fences, exactly-once steps, and the reported state after a crash."""

# mypy: disable-error-code="no-untyped-call"
from collections.abc import Callable
from pathlib import Path

import pytest
from torch import Tensor

from kubealign.spec.sections.training import AdamW, Optimizer, Trainer
from kubealign.v1 import training_pb2
from kubealign_services.algorithms.contract import Objective
from kubealign_services.batch.codec import CorruptBatch, encode
from kubealign_services.batch.packed import Batch
from kubealign_services.checkpoints.fence import StaleFence
from kubealign_services.runtime.rpc.errors import OutOfOrder
from kubealign_services.training.commands.command_executor import StepPlan, TrainingCore
from kubealign_services.training.contract import Head
from kubealign_services.training.torch_backend.backend import TorchTrainingBackend


@pytest.fixture
def core(llama: Path, objective: Objective) -> TrainingCore:
    def create() -> TorchTrainingBackend:
        spec = Trainer(optimizer=Optimizer(adam_w=AdamW(learning_rate=1e-6)))
        return TorchTrainingBackend.create(llama, Head.LANGUAGE_MODEL, spec, total_updates=8)

    return TrainingCore(create, objective, StepPlan(1, None), seed=1, role="trainer", world_size=1)


@pytest.fixture
def batch(make_batch: Callable[..., Batch]) -> Batch:
    return make_batch(5, 9, 3)


def load(
    core: TrainingCore, fence: int = 1, directory: str = "", step: int = 0
) -> training_pb2.TrainingState:
    return core.load(
        training_pb2.LoadRequest(
            fence=fence, directory=directory, step=step, driver_state=f"state {step}".encode()
        )
    )


def step(batch: Batch, number: int, fence: int = 1, update: bool = True) -> training_pb2.TrainStepRequest:
    return training_pb2.TrainStepRequest(
        fence=fence, step=number, batch=encode(batch), update=update, driver_state=f"state {number}".encode()
    )


def weights(core: TrainingCore) -> list[Tensor]:
    return [tensor.clone() for _, tensor in core.backend.snapshot()]


def same(one: list[Tensor], other: list[Tensor]) -> bool:
    return all(bool((a == b).all()) for a, b in zip(one, other, strict=True))


def test_a_restarted_model_reports_missing_weights_and_refuses_commands(
    core: TrainingCore, batch: Batch
) -> None:
    assert not core.describe(training_pb2.DescribeRequest(fence=3)).loaded
    with pytest.raises(OutOfOrder, match="trainer has no weights"):
        core.train_step(step(batch, 1, fence=3))


def test_a_repeated_step_runs_once(core: TrainingCore, batch: Batch) -> None:
    load(core)
    reply = core.train_step(step(batch, 1))
    after = weights(core)
    assert core.train_step(step(batch, 1)) == reply
    assert same(weights(core), after)
    state = core.describe(training_pb2.DescribeRequest(fence=2))
    assert (state.step, state.driver_state, state.loaded) == (1, b"state 1", True)


def test_only_the_next_step_is_accepted(core: TrainingCore, batch: Batch) -> None:
    load(core)
    with pytest.raises(OutOfOrder, match="step 2 was requested of a trainer that is at step 0: the next"):
        core.train_step(step(batch, 2))


def test_a_replaced_driver_is_refused(core: TrainingCore, batch: Batch) -> None:
    load(core, fence=2)
    before = weights(core)
    for command in (
        lambda: core.train_step(step(batch, 1, fence=1)),
        lambda: load(core, fence=1),
        lambda: core.save(training_pb2.SaveRequest(fence=1, step=0, directory="/nowhere")),
        lambda: core.forward(training_pb2.ForwardRequest(fence=1, batch=encode(batch), outputs=["logprobs"])),
        lambda: core.describe(training_pb2.DescribeRequest(fence=1)),
    ):
        with pytest.raises(StaleFence, match="fence 1 has been replaced by 2"):
            command()
    assert same(weights(core), before)


def test_describe_fences_off_the_previous_driver(core: TrainingCore, batch: Batch) -> None:
    load(core, fence=1)
    core.describe(training_pb2.DescribeRequest(fence=2))
    with pytest.raises(StaleFence):
        core.train_step(step(batch, 1, fence=1))


def test_a_new_driver_does_not_get_a_stored_reply(core: TrainingCore, batch: Batch) -> None:
    load(core, fence=1)
    core.train_step(step(batch, 1, fence=1))
    with pytest.raises(OutOfOrder):
        core.train_step(step(batch, 1, fence=2))


def test_a_step_without_update_counts_and_changes_nothing(core: TrainingCore, batch: Batch) -> None:
    load(core)
    before = weights(core)
    assert dict(core.train_step(step(batch, 1, update=False)).metrics.values) == {}
    assert same(weights(core), before)
    assert core.describe(training_pb2.DescribeRequest(fence=1)).step == 1


def test_a_rollback_restores_the_checkpoints_weights(
    core: TrainingCore, batch: Batch, tmp_path: Path
) -> None:
    load(core)
    core.train_step(step(batch, 1))
    committed = weights(core)
    core.save(training_pb2.SaveRequest(fence=1, step=1, directory=str(tmp_path)))
    core.train_step(step(batch, 2))
    assert not same(weights(core), committed)
    state = load(core, fence=2, directory=str(tmp_path), step=1)
    assert (state.step, state.driver_state) == (1, b"state 1")
    assert same(weights(core), committed)


def test_only_the_current_step_can_be_saved(core: TrainingCore, tmp_path: Path) -> None:
    load(core)
    with pytest.raises(OutOfOrder, match="step 3 cannot be saved: the trainer is at step 0"):
        core.save(training_pb2.SaveRequest(fence=1, step=3, directory=str(tmp_path)))


def test_a_batch_altered_in_transit_is_refused(core: TrainingCore, batch: Batch) -> None:
    load(core)
    request = step(batch, 1)
    request.batch.columns = request.batch.columns[:-1] + b"\x7f"
    with pytest.raises(CorruptBatch):
        core.train_step(request)
    assert core.describe(training_pb2.DescribeRequest(fence=1)).step == 0

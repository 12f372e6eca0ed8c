"""Forward passes cached for the update: the same step with fewer passes, and only for identical inputs."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

from kubealign.spec.sections.training import AdamW, Backend, Optimizer, TorchBackendSpec, Trainer
from kubealign.v1 import training_pb2
from kubealign_services.algorithms.contract import Objective
from kubealign_services.batch.codec import encode
from kubealign_services.batch.packed import Batch, concatenate
from kubealign_services.batch.temperatures import set_temperatures
from kubealign_services.training.commands.command_executor import StepPlan, TrainingCore
from kubealign_services.training.contract import Head, UpdatePlan
from kubealign_services.training.torch_backend.backend import TorchTrainingBackend
from kubealign_services.training.torch_backend.passes.forward_cache import ForwardCache

LOGPROBS = frozenset({"logprobs"})
LENGTHS = (5, 9, 1, 12, 7, 7, 3, 16)  # 60 tokens
ONE = UpdatePlan(1, len(LENGTHS), seed=3)


def backend(folder: Path, microbatch_tokens: int = 64, **fields: bool) -> TorchTrainingBackend:
    trainer = Trainer(
        backend=Backend(torch=TorchBackendSpec(microbatch_tokens=microbatch_tokens, **fields)),
        optimizer=Optimizer(adam_w=AdamW(learning_rate=3e-3)),
    )
    return TorchTrainingBackend.create(folder, Head.LANGUAGE_MODEL, trainer, total_updates=8)


def weights(of: TorchTrainingBackend) -> torch.Tensor:
    return torch.cat([each.detach().flatten() for each in of.model.parameters()])


@contextmanager
def counted(of: TorchTrainingBackend) -> Iterator[list[int]]:
    """Yield the token count of each forward pass of the trunk."""
    seen: list[int] = []
    hook = of.model.backbone.base_model.register_forward_pre_hook(
        lambda _, arguments, named: seen.append(named["input_ids"].shape[1]), with_kwargs=True
    )
    yield seen
    hook.remove()


def masked(batch: Batch) -> Batch:
    """Mark every second token as a response token."""
    batch.token_columns["loss_mask"] = (torch.arange(len(batch.tokens)) % 2).to(torch.uint8)
    return batch


@pytest.fixture
def batch(make_batch: Callable[..., Batch]) -> Batch:
    return masked(make_batch(*LENGTHS))


@pytest.mark.parametrize("parts", [[range(8)], [range(4), range(4, 8)], [range(3, 5)]], ids=str)
def test_the_update_is_unchanged_with_fewer_passes(
    llama: Path, batch: Batch, objective: Objective, parts: list[range]
) -> None:
    reference, keeping = backend(llama), backend(llama)
    for each in (reference, keeping):
        each.model.double()
    expected = reference.train_step(batch, objective, ONE)
    with counted(keeping) as passes:
        for part in parts:
            some = batch.select(part)
            column = keeping.forward_and_cache(some, LOGPROBS, objective)["logprobs"]
            assert not column.requires_grad
            assert torch.equal(column, keeping.forward(some, LOGPROBS)["logprobs"])
        passes.clear()
        actual = keeping.train_step(batch, objective, ONE)
    known = {index for part in parts for index in part}
    left = sum(length for index, length in enumerate(LENGTHS) if index not in known)
    assert sum(passes) == left
    torch.testing.assert_close(weights(keeping), weights(reference), rtol=0, atol=1e-12)
    assert actual == pytest.approx(expected, rel=1e-9)


def test_activation_recomputation_works_with_a_cached_pass(
    llama: Path, batch: Batch, objective: Objective
) -> None:
    plain, keeping = backend(llama), backend(llama, gradient_checkpointing=True)
    plain.train_step(batch, objective, ONE)
    keeping.forward_and_cache(batch, LOGPROBS, objective)
    calls: list[int] = []
    layers = keeping.model.backbone.get_submodule("model.layers")
    for number, layer in enumerate(layers.children()):
        inside = layer.get_submodule("input_layernorm")  # a layer's own hooks are called once
        inside.register_forward_pre_hook(lambda *_, number=number: calls.append(number))
    keeping.train_step(batch, objective, ONE)
    assert sorted(calls) == [0, 1]  # once more per layer, in the backward pass
    torch.testing.assert_close(weights(keeping), weights(plain), rtol=0, atol=1e-6)


def changed_token(batch: Batch) -> None:
    batch.tokens[7] = (batch.tokens[7] + 1) % 41


def changed_mask(batch: Batch) -> None:
    batch.token_columns["loss_mask"][7] = 1 - batch.token_columns["loss_mask"][7]


def changed_temperature(batch: Batch) -> None:
    batch.scalars["temperature"] = 0.5


def changed_temperature_of_one(batch: Batch) -> None:
    set_temperatures(batch, [1.0] * (len(batch) - 1) + [0.5])


def renamed(batch: Batch) -> None:
    batch.sample_ids[1] = "another"


CHANGES = [changed_token, changed_mask, changed_temperature, changed_temperature_of_one, renamed]


@pytest.mark.parametrize("change", CHANGES)
def test_a_pass_with_other_inputs_is_not_used(
    llama: Path, batch: Batch, objective: Objective, change: Callable[[Batch], None]
) -> None:
    keeping, plain = backend(llama), backend(llama)
    keeping.forward_and_cache(batch, LOGPROBS, objective)
    change(batch)
    with counted(keeping) as passes:
        keeping.train_step(batch, objective, ONE)
    assert sum(passes) == len(batch.tokens)
    plain.train_step(batch, objective, ONE)
    assert torch.equal(weights(keeping), weights(plain))


def test_a_pass_over_sequences_of_one_temperature_is_used_in_a_batch_of_several(
    llama: Path, batch: Batch, objective: Objective
) -> None:
    """The passes' batches have the scalar, the update's has the column."""
    keeping, plain = backend(llama), backend(llama)
    for each in (keeping, plain):
        each.model.double()
    set_temperatures(batch, [0.5] * 4 + [1.5] * 4)
    for part, temperature in ((range(4), 0.5), (range(4, 8), 1.5)):
        some = batch.select(part)
        set_temperatures(some, [temperature] * 4)
        keeping.forward_and_cache(some, LOGPROBS, objective)
    with counted(keeping) as passes:
        keeping.train_step(batch, objective, ONE)
    assert not passes
    plain.train_step(batch, objective, ONE)
    torch.testing.assert_close(weights(keeping), weights(plain), rtol=0, atol=1e-12)


@pytest.mark.parametrize("after", ["update", "load", "rest"])
def test_the_cache_is_cleared_with_the_weights_or_their_memory(
    llama: Path, batch: Batch, objective: Objective, tmp_path: Path, after: str
) -> None:
    keeping = backend(llama)
    keeping.save(tmp_path)
    if after == "update":
        keeping.forward_and_cache(batch, LOGPROBS, objective)
        keeping.train_step(batch, objective, UpdatePlan(2, len(batch), seed=3))
        plain = backend(llama)
        plain.train_step(batch, objective, UpdatePlan(2, len(batch), seed=3))
        # The second epoch has other weights and runs its own pass.
        torch.testing.assert_close(weights(keeping), weights(plain), rtol=0, atol=1e-6)
    else:
        keeping.forward_and_cache(batch, LOGPROBS, objective)
        keeping.load(tmp_path) if after == "load" else keeping.offload()
    with counted(keeping) as passes:
        keeping.train_step(batch, objective, ONE)
    assert sum(passes) == len(batch.tokens)


def test_the_cache_holds_at_most_one_microbatch(
    llama: Path, make_batch: Callable[..., Batch], objective: Objective
) -> None:
    """60 tokens fit into 64; 12 more do not, and then nothing is cached until the update is done."""
    batch, more = masked(make_batch(*LENGTHS)), masked(make_batch(6, 6, seed=1))
    more.sample_ids = ["t0", "t1"]
    both = concatenate([batch, more])
    keeping = backend(llama)
    for part in (batch, more):
        keeping.forward_and_cache(part, LOGPROBS, objective)
    with counted(keeping) as passes:
        keeping.train_step(both, objective, UpdatePlan(1, len(both), seed=3))
        assert sum(passes) == 72
        keeping.forward_and_cache(batch, LOGPROBS, objective)
        passes.clear()
        keeping.train_step(batch, objective, ONE)
        assert sum(passes) == 0


@pytest.mark.parametrize(
    ("learned", "plan", "computed"),
    [
        (True, StepPlan(1, None), 0),
        (False, StepPlan(1, None), 60),
        (True, StepPlan(2, None), 120),
        (True, StepPlan(1, 4), 60),
    ],
    ids=["kept", "not learned of", "two epochs", "minibatches"],
)
def test_passes_are_cached_only_for_steps_of_one_update(
    llama: Path, batch: Batch, objective: Objective, learned: bool, plan: StepPlan, computed: int
) -> None:
    keeping = backend(llama)
    core = TrainingCore(lambda: keeping, objective, plan, seed=1, role="trainer", world_size=1)
    core.load(training_pb2.LoadRequest(fence=1))
    core.forward(
        training_pb2.ForwardRequest(fence=1, batch=encode(batch), outputs=["logprobs"], learned=learned)
    )
    with counted(keeping) as passes:
        core.train_step(training_pb2.TrainStepRequest(fence=1, step=1, batch=encode(batch), update=True))
    assert sum(passes) == computed


@pytest.mark.parametrize("asked", ["twice", "of a name that two have"])
def test_no_sequence_is_trained_on_twice(
    llama: Path, make_batch: Callable[..., Batch], objective: Objective, asked: str
) -> None:
    batch = masked(make_batch(7, 9, 4))
    if asked == "of a name that two have":
        batch = batch.select([0, 1, 1, 2])
    keeping, plain = backend(llama), backend(llama)
    for _ in range(2 if asked == "twice" else 1):
        keeping.forward_and_cache(batch, LOGPROBS, objective)
    for each in (keeping, plain):
        each.train_step(batch, objective, UpdatePlan(1, len(batch), seed=3))
    torch.testing.assert_close(weights(keeping), weights(plain), rtol=0, atol=1e-6)


def test_pairs_are_not_split(batch: Batch, objective: Objective) -> None:
    objective.unit = 2
    cached = ForwardCache(100)
    cached.add(batch, {"logprobs": torch.zeros(len(batch.tokens))})
    assert list(cached.pop_matching(batch, objective)) == []

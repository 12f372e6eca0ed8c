"""Training in fp16: compared with a loop around torch's GradScaler, with overflows, and across a restart."""

# mypy: disable-error-code="no-untyped-call"
import json
import math
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

from kubealign.spec.sections.precision import Precision
from kubealign.spec.sections.training import AdamW, Backend, Lora, Optimizer, TorchBackendSpec, Trainer
from kubealign_services.algorithms.contract import LossTerms, ModelOutputs, Objective
from kubealign_services.batch.packed import Batch
from kubealign_services.training.contract import Head, NonFiniteLoss, UpdatePlan
from kubealign_services.training.torch_backend.backend import TorchTrainingBackend
from kubealign_services.training.torch_backend.loss_scaling import (
    GROWTH_INTERVAL,
    INITIAL_SCALE,
    MINIMUM_SCALE,
    LossScaler,
    LossScaleState,
)
from kubealign_services.training.torch_backend.model.loading import load_model
from kubealign_services.training.torch_backend.model.packed_model import PackedTokens
from kubealign_services.training.torch_backend.packing.microbatches import minibatches

LENGTHS = (5, 9, 12, 7, 7, 16)
RATE, EPSILON, CLIP = 3e-3, 1e-3, 0.5
#: With these batches a loss times this scale overflows in fp16, and one times half of it does not.
OVERFLOWING_SCALE = 2.0**18


def make(
    folder: Path, precision: Precision = Precision.FLOAT16, lora: Lora | None = None, tokens: int = 1
) -> TorchTrainingBackend:
    """Create a backend; by default each microbatch is one sequence."""
    spec = Trainer(
        backend=Backend(torch=TorchBackendSpec(microbatch_tokens=tokens, precision=precision)),
        optimizer=Optimizer(
            adam_w=AdamW(learning_rate=RATE, weight_decay=0.1, epsilon=EPSILON), gradient_clip_norm=CLIP
        ),
        lora=lora,
    )
    return TorchTrainingBackend.create(folder, Head.LANGUAGE_MODEL, spec, total_updates=100)


def scaler_of(backend: TorchTrainingBackend) -> LossScaler:
    assert backend.loss_scaler is not None
    return backend.loss_scaler


def copy_weights(backend: TorchTrainingBackend) -> dict[str, Tensor]:
    """Return copies of the fp32 masters."""
    return {
        name: parameter.full_tensor().detach().clone()  # type: ignore[attr-defined]
        for name, parameter in backend.model.named_parameters()
    }


class SlowLoop:
    """fp32 masters and a plain fp16 copy of them, one sequence at a time, with torch's GradScaler.

    The copy is the backend's model without FSDP2: transformers' own attention rounds differently in fp16.
    """

    def __init__(self, folder: Path, scale: float) -> None:
        self.masters = load_model(folder, Head.LANGUAGE_MODEL)
        self._half = load_model(folder, Head.LANGUAGE_MODEL, torch.float16).train()
        groups = [
            {"params": [p for p in self.masters.parameters() if p.dim() > 1], "weight_decay": 0.1},
            {"params": [p for p in self.masters.parameters() if p.dim() == 1], "weight_decay": 0.0},
        ]
        self._adamw = torch.optim.AdamW(groups, lr=RATE, betas=(0.9, 0.95), eps=EPSILON)
        self.scaler = torch.amp.GradScaler("cpu", init_scale=scale)

    def update(self, minibatch: Batch) -> tuple[float, float]:
        """Return the loss and the norm of the unscaled gradient."""
        pairs = list(zip(self.masters.parameters(), self._half.parameters(), strict=True))
        with torch.no_grad():
            for master, half in pairs:
                half.copy_(master)
                master.grad = torch.zeros_like(master)
        predicted = sum(length - 1 for length in minibatch.lengths.tolist())
        total = 0.0
        for index in range(len(minibatch)):
            packed = PackedTokens.from_batch(minibatch.select([index]), torch.device("cpu"))
            loss = -self._half(packed, frozenset({"logprobs"}))["logprobs"].double().sum() / predicted
            self._half.zero_grad()
            self.scaler.scale(loss).backward()
            for master, half in pairs:
                assert master.grad is not None
                master.grad += half.grad.float()
            total += loss.item()
        self.scaler.unscale_(self._adamw)
        norm = float(torch.nn.utils.clip_grad_norm_(self.masters.parameters(), CLIP))
        self.scaler.step(self._adamw)
        self.scaler.update()
        return total, norm


@pytest.mark.parametrize(("scale", "skipped"), [(2.0**12, 0), (2.0**18, 3)])
def test_equals_a_loop_around_torchs_grad_scaler(
    scale: float, skipped: int, llama: Path, make_batch: Callable[..., Batch], objective: Objective
) -> None:
    trained, slow = make(llama), SlowLoop(llama, scale)
    scaler_of(trained).load(LossScaleState(scale))
    for step in range(3):
        batch = make_batch(*LENGTHS, seed=step)
        metrics = trained.train_step(batch, objective, UpdatePlan(1, 3, seed=step))
        expected = [slow.update(part) for part in minibatches(batch, 1, 1, 3, seed=step)]
        norms = [norm for _, norm in expected if math.isfinite(norm)]
        assert metrics["loss"] == pytest.approx(sum(loss for loss, _ in expected) / 2, rel=1e-6)
        assert metrics["skipped_updates"] == 2 - len(norms)
        if norms:
            assert metrics["gradient_norm"] == pytest.approx(sum(norms) / len(norms), rel=1e-5)
        else:
            assert "gradient_norm" not in metrics
        assert metrics["loss_scale"] == slow.scaler.get_scale()
    assert trained.updates == 6 - skipped
    for name, weight in copy_weights(trained).items():
        expected_weight = slow.masters.get_parameter(name).detach()
        torch.testing.assert_close(weight, expected_weight, atol=1e-6, rtol=0, msg=name)


def test_one_overflow_skips_one_step_and_halves_the_scale(
    llama: Path, make_batch: Callable[..., Batch], objective: Objective
) -> None:
    trained, batch = make(llama, tokens=64), make_batch(*LENGTHS)
    scaler_of(trained).load(LossScaleState(OVERFLOWING_SCALE, growth_tracker=5))
    before, plan = copy_weights(trained), UpdatePlan(1, 6, seed=0)
    skipped = trained.train_step(batch, objective, plan)
    assert (skipped["skipped_updates"], skipped["loss_scale"]) == (1, OVERFLOWING_SCALE / 2)
    assert skipped["loss"] > 0 and "gradient_norm" not in skipped and skipped["learning_rate"] == RATE
    assert trained.updates == 0
    assert all(torch.equal(weight, before[name]) for name, weight in copy_weights(trained).items())
    assert all(parameter.grad is None for parameter in trained.model.parameters())
    # The next update is that of a run which began with half the scale.
    again = trained.train_step(batch, objective, plan)
    fresh = make(llama, tokens=64)
    scaler_of(fresh).load(LossScaleState(OVERFLOWING_SCALE / 2))
    assert again == fresh.train_step(batch, objective, plan)
    assert again["skipped_updates"] == 0 and trained.updates == 1
    assert scaler_of(trained).state() == LossScaleState(OVERFLOWING_SCALE / 2, growth_tracker=1)


def test_loss_and_norm_are_those_of_the_unscaled_loss(
    llama: Path, make_batch: Callable[..., Batch], objective: Objective
) -> None:
    trained, full, batch = make(llama), make(llama, Precision.FLOAT32), make_batch(*LENGTHS)
    scaler_of(trained).load(LossScaleState(2.0**10))
    plan = UpdatePlan(1, 6, seed=0)
    actual, expected = (each.train_step(batch, objective, plan) for each in (trained, full))
    assert actual["loss"] == pytest.approx(expected["loss"], rel=1e-3)
    assert actual["gradient_norm"] == pytest.approx(expected["gradient_norm"], rel=1e-2)
    assert trained.evaluate(batch, objective)["loss"] == pytest.approx(
        full.evaluate(batch, objective)["loss"], rel=1e-2
    )


class Damaged:
    """The objective with its loss changed, or with a gradient that is not finite at any scale."""

    outputs = frozenset({"logprobs"})
    unit = 1

    def __init__(
        self, objective: Objective, loss_factor: float = 1.0, is_nan_in_backward: bool = False
    ) -> None:
        self._objective = objective
        self._loss_factor = loss_factor
        self._is_nan_in_backward = is_nan_in_backward

    def prepare(self, minibatch: Batch) -> None:
        self._objective.prepare(minibatch)

    def loss(self, outputs: ModelOutputs, microbatch: Batch) -> LossTerms:
        assert outputs.logprobs is not None
        if self._is_nan_in_backward and outputs.logprobs.requires_grad:
            outputs.logprobs.register_hook(lambda gradient: gradient * float("nan"))
        return LossTerms(self._objective.loss(outputs, microbatch).loss * self._loss_factor)


def test_a_loss_that_is_not_finite_fails_and_changes_nothing(
    llama: Path, make_batch: Callable[..., Batch], objective: Objective
) -> None:
    trained, batch, plan = make(llama, tokens=64), make_batch(4, 5), UpdatePlan(1, 2, seed=0)
    before, state = copy_weights(trained), scaler_of(trained).state()
    for factor in ("nan", "inf"):
        with pytest.raises(NonFiniteLoss, match=f"optimiser step 1 the loss is {factor}"):
            trained.train_step(batch, Damaged(objective, float(factor)), plan)
    assert scaler_of(trained).state() == state
    assert all(torch.equal(weight, before[name]) for name, weight in copy_weights(trained).items())
    # Training continues as if the failed step had not been requested.
    assert trained.train_step(batch, objective, plan) == make(llama, tokens=64).train_step(
        batch, objective, plan
    )


def test_overflow_below_the_minimum_scale_fails(
    llama: Path, make_batch: Callable[..., Batch], objective: Objective
) -> None:
    trained, batch, plan = make(llama, tokens=64), make_batch(4, 5), UpdatePlan(1, 2, seed=0)
    before = copy_weights(trained)
    scaler_of(trained).load(LossScaleState(4 * MINIMUM_SCALE))
    damaged = Damaged(objective, is_nan_in_backward=True)
    for scale in (2, 1):
        metrics = trained.train_step(batch, damaged, plan)
        assert (metrics["loss_scale"], metrics["skipped_updates"]) == (scale * MINIMUM_SCALE, 1)
    with pytest.raises(
        NonFiniteLoss, match=r"step 1 the gradient .* loss scale of 6\.10352e-05, the minimum"
    ):
        trained.train_step(batch, damaged, plan)
    assert all(torch.equal(weight, before[name]) for name, weight in copy_weights(trained).items())


@pytest.mark.parametrize("lora", [None, Lora(rank=2)], ids=["all weights", "lora"])
def test_a_resumed_run_equals_an_uninterrupted_one(
    lora: Lora | None, llama: Path, tmp_path: Path, make_batch: Callable[..., Batch], objective: Objective
) -> None:
    """The scale halves before the checkpoint and doubles after it."""

    def steps(backend: TorchTrainingBackend, numbers: range) -> list[dict[str, float]]:
        batches = (make_batch(*LENGTHS, seed=number) for number in numbers)
        return [
            backend.train_step(batch, objective, UpdatePlan(1, 3, seed=number))
            for number, batch in zip(numbers, batches, strict=True)
        ]

    straight = make(llama, lora=lora, tokens=64)
    scaler_of(straight).load(LossScaleState(2.0**24))
    first = steps(straight, range(3))
    assert sum(metrics["skipped_updates"] for metrics in first) > 0
    saved = scaler_of(straight).state()
    scaler_of(straight).load(LossScaleState(saved.scale / 2, GROWTH_INTERVAL - 3))
    straight.save(tmp_path)
    rest = steps(straight, range(3, 6))
    assert rest[-1]["loss_scale"] != saved.scale / 2

    resumed = make(llama, lora=lora, tokens=64)
    resumed.load(tmp_path)
    assert scaler_of(resumed).state() == LossScaleState(saved.scale / 2, GROWTH_INTERVAL - 3)
    assert steps(resumed, range(3, 6)) == rest
    expected = copy_weights(straight)
    assert all(torch.equal(weight, expected[name]) for name, weight in copy_weights(resumed).items())
    assert scaler_of(resumed).state() == scaler_of(straight).state()


def test_checkpoints_of_another_precision(
    llama: Path, tmp_path: Path, make_batch: Callable[..., Batch], objective: Objective
) -> None:
    """The checkpoint of another precision has no scale, and a model in another precision reads none."""
    half, full = make(llama), make(llama, Precision.BFLOAT16)
    full.save(tmp_path)
    description = tmp_path / "shard-00000-of-00001.json"
    assert "loss_scale" not in json.loads(description.read_text())
    scaler_of(half).load(LossScaleState(8.0, 3))
    half.load(tmp_path)
    assert scaler_of(half).state() == LossScaleState(INITIAL_SCALE, 0)
    half.save(tmp_path)
    assert json.loads(description.read_text())["loss_scale"] == {"scale": INITIAL_SCALE, "growth_tracker": 0}
    full.load(tmp_path)
    assert full.loss_scaler is None
    plan = UpdatePlan(1, 6, seed=0)
    assert "loss_scale" not in full.train_step(make_batch(*LENGTHS), objective, plan)


def test_weights_leave_the_trainer_in_fp16(llama: Path) -> None:
    trained = make(llama)
    assert {parameter.dtype for parameter in trained.model.parameters()} == {torch.float32}
    assert {tensor.dtype for _, tensor in trained.snapshot()} == {torch.float16}
    assert {piece.dtype or piece.tensor.dtype for piece in trained.slices()} == {torch.float16}


def test_the_scale_grows_after_a_run_of_steps_without_overflow() -> None:
    weight = torch.nn.Parameter(torch.ones(2))
    optimizer = torch.optim.SGD([weight], lr=0.0)
    scaler = LossScaler(torch.device("cpu"), LossScaleState(2.0**3, GROWTH_INTERVAL - 2))
    scales = []
    for _ in range(3):
        weight.grad = torch.full((2,), 4.0)
        assert not scaler.unscale(optimizer)
        assert weight.grad.tolist() == [4.0 / (scales[-1] if scales else 8.0)] * 2
        scales.append(scaler.scale)
    assert scales == [8.0, 16.0, 16.0]

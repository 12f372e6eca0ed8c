"""Updates: compared with a plain torch loop, for any split, and with a loss that is not finite."""

# mypy: disable-error-code="no-untyped-call"
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM

from kubealign.spec.sections.precision import Precision
from kubealign.spec.sections.training import (
    AdamW,
    Backend,
    LearningRateSchedule,
    LinearSchedule,
    Optimizer,
    TorchBackendSpec,
    Trainer,
)
from kubealign_services.algorithms.contract import LossTerms, ModelOutputs, Objective
from kubealign_services.batch.packed import Batch
from kubealign_services.batch.temperatures import set_temperatures
from kubealign_services.training.contract import Head, NonFiniteLoss, UpdatePlan
from kubealign_services.training.torch_backend.backend import TorchTrainingBackend
from kubealign_services.training.torch_backend.packing.microbatches import minibatches

LENGTHS = (5, 9, 1, 12, 7, 7, 3, 16)


def spec(microbatch_tokens: int = 32, **torch_fields: Any) -> Trainer:
    return Trainer(
        backend=Backend(torch=TorchBackendSpec(microbatch_tokens=microbatch_tokens, **torch_fields)),
        optimizer=Optimizer(
            adam_w=AdamW(learning_rate=3e-3, weight_decay=0.1),
            schedule=LearningRateSchedule(linear=LinearSchedule(warmup_steps=2, decay_fraction=0.5)),
            gradient_clip_norm=0.5,
        ),
    )


def backend(folder: Path, trainer: Trainer, head: Head = Head.LANGUAGE_MODEL) -> TorchTrainingBackend:
    return TorchTrainingBackend.create(folder, head, trainer, total_updates=8)


def weights(of: TorchTrainingBackend) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in of.model.named_parameters()}


def test_equals_a_padded_loop_of_plain_torch(
    llama: Path, make_batch: Callable[..., Batch], objective: Objective
) -> None:
    batch = make_batch(*LENGTHS)
    trained = backend(llama, spec())
    actual = [trained.train_step(batch, objective, UpdatePlan(2, 4, seed=step)) for step in range(2)]

    model = AutoModelForCausalLM.from_pretrained(llama)
    matrices = [p for p in model.parameters() if p.dim() == 2]
    vectors = [p for p in model.parameters() if p.dim() == 1]
    adamw = torch.optim.AdamW(
        [{"params": matrices, "weight_decay": 0.1}, {"params": vectors, "weight_decay": 0.0}],
        betas=(0.9, 0.95),
    )
    # 8 steps: warm-up 1/2, 2/2; then 6, of which the last 3 fall to 0 in thirds.
    rates = [3e-3 * share for share in (0.5, 1, 1, 1, 1, 2 / 3, 1 / 3, 0)]
    losses: list[float] = []
    norms: list[float] = []
    for step in range(2):
        for part in minibatches(batch, 1, 2, 4, seed=step):
            rows = part.tokens.long().split(part.lengths.tolist())
            padded = torch.nn.utils.rnn.pad_sequence(list(rows), batch_first=True, padding_value=0)
            mask = torch.arange(padded.shape[1])[None] < part.lengths[:, None]
            logits = model(padded, attention_mask=mask.long()).logits[:, :-1]
            logprobs = logits.log_softmax(-1).gather(-1, padded[:, 1:, None])[..., 0]
            loss = -logprobs[mask[:, 1:]].mean()
            adamw.zero_grad()
            loss.backward()
            norms.append(float(torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)))
            for group in adamw.param_groups:
                group["lr"] = rates[len(losses)]
            adamw.step()
            losses.append(loss.item())

    for step, metrics in enumerate(actual):
        mine = slice(4 * step, 4 * step + 4)
        assert metrics["loss"] == pytest.approx(sum(losses[mine]) / 4, abs=1e-5)
        assert metrics["gradient_norm"] == pytest.approx(sum(norms[mine]) / 4, rel=1e-4)
        assert metrics["learning_rate"] == pytest.approx(rates[4 * step + 3])
        # 60 tokens of 8 sequences: 52 predicted, in 2 minibatches of each epoch: 26 a minibatch. The longest
        # is 16.
        assert metrics["tokens"] == 26 and metrics["longest"] == 16
    assert trained.updates == 8
    for (name, after), expected in zip(trained.snapshot(), model.parameters(), strict=True):
        torch.testing.assert_close(after, expected.detach(), atol=2e-5, rtol=1e-4, msg=name)


@pytest.mark.parametrize("precision", [torch.float64, torch.float32])
def test_the_gradient_does_not_depend_on_the_split(
    precision: torch.dtype, llama: Path, make_batch: Callable[..., Batch], objective: Objective
) -> None:
    batch = make_batch(*LENGTHS)

    def gradient(microbatch_tokens: int, checkpointing: bool = False) -> dict[str, Tensor]:
        created = backend(llama, spec(microbatch_tokens, gradient_checkpointing=checkpointing))
        created.model.to(precision)
        stored: dict[str, Tensor] = {}

        def keep(name: str, tensor: Tensor) -> None:
            def copy(parameter: Tensor) -> None:
                assert parameter.grad is not None
                stored[name] = parameter.grad.clone()

            tensor.register_post_accumulate_grad_hook(copy)

        for name, parameter in created.model.named_parameters():
            keep(name, parameter)
        created.train_step(batch, objective, UpdatePlan(1, 8, seed=0))
        return stored

    full = gradient(1000)
    for other in (gradient(1), gradient(20), gradient(1000, checkpointing=True)):
        for name, expected in full.items():
            torch.testing.assert_close(other[name], expected, atol=1e-6, rtol=0, msg=name)


def test_a_loss_that_is_not_finite_changes_nothing(
    llama: Path, make_batch: Callable[..., Batch], objective: Objective
) -> None:
    class Broken:
        outputs = objective.outputs
        unit = objective.unit
        prepare = staticmethod(objective.prepare)

        def loss(self, outputs: ModelOutputs, microbatch: Batch) -> LossTerms:
            return LossTerms(objective.loss(outputs, microbatch).loss * torch.tensor(float("nan")))

    created = backend(llama, spec())
    batch = make_batch(4, 5)
    before = weights(created)
    with pytest.raises(NonFiniteLoss, match=r"optimiser step 1 the loss is nan"):
        created.train_step(batch, Broken(), UpdatePlan(1, 2, seed=0))
    assert created.updates == 0
    assert all(torch.equal(tensor, before[name]) for name, tensor in created.model.named_parameters())
    assert all(parameter.grad is None for parameter in created.model.parameters())
    # Training continues as if the failed step had not been requested.
    after = created.train_step(batch, objective, UpdatePlan(1, 2, seed=0))
    assert after == backend(llama, spec()).train_step(make_batch(4, 5), objective, UpdatePlan(1, 2, seed=0))


def test_evaluate_and_forward_agree_and_change_nothing(
    llama: Path, make_batch: Callable[..., Batch], objective: Objective
) -> None:
    created = backend(llama, spec())
    batch = make_batch(*LENGTHS)
    before = weights(created)
    logprobs = created.forward(batch, frozenset({"logprobs"}))["logprobs"]
    assert logprobs.dtype is torch.float32 and logprobs.shape == batch.tokens.shape
    metrics = created.evaluate(batch, objective)
    assert metrics["loss"] == pytest.approx(-float(logprobs.double().sum()) / 52, abs=1e-6)
    assert metrics["tokens"] == 52 and metrics["longest"] == 16
    assert all(torch.equal(tensor, before[name]) for name, tensor in created.model.named_parameters())


def test_bf16_arithmetic_keeps_fp32_weights(
    llama: Path, make_batch: Callable[..., Batch], objective: Objective
) -> None:
    batch = make_batch(*LENGTHS)
    half = backend(llama, spec(precision=Precision.BFLOAT16))
    full = backend(llama, spec())
    first = half.train_step(batch, objective, UpdatePlan(1, 4, seed=0))
    expected = full.train_step(batch, objective, UpdatePlan(1, 4, seed=0))
    assert first["loss"] == pytest.approx(expected["loss"], rel=2e-2) and first["loss"] != expected["loss"]
    assert first["gradient_norm"] == pytest.approx(expected["gradient_norm"], rel=0.1)
    assert {parameter.dtype for parameter in half.model.parameters()} == {torch.float32}
    assert {tensor.dtype for _, tensor in half.snapshot()} == {torch.bfloat16}
    actual = half.forward(batch, frozenset({"logprobs"}))["logprobs"]
    torch.testing.assert_close(
        actual, full.forward(batch, frozenset({"logprobs"}))["logprobs"], atol=0.2, rtol=0
    )
    assert math.isfinite(half.train_step(batch, objective, UpdatePlan(1, 4, seed=1))["loss"])


class ScoresToOne:
    """The mean squared distance of every token's score from 1. The language-model head gets no gradient."""

    outputs = frozenset({"values"})
    unit = 1

    def prepare(self, minibatch: Batch) -> None:
        minibatch.scalars["tokens"] = float(len(minibatch.tokens))

    def loss(self, outputs: ModelOutputs, microbatch: Batch) -> LossTerms:
        assert outputs.values is not None
        return LossTerms(((outputs.values - 1) ** 2).sum() / microbatch.scalars["tokens"])


@pytest.mark.parametrize("precision", list(Precision))
@pytest.mark.parametrize("head", [Head.VALUE, Head.SCORE])
def test_scalar_heads_are_trained(
    head: Head, precision: Precision, llama: Path, tmp_path: Path, make_batch: Callable[..., Batch]
) -> None:
    created = backend(llama, spec(precision=precision), head)
    losses = [
        created.train_step(make_batch(*LENGTHS), ScoresToOne(), UpdatePlan(1, 8, seed=step))["loss"]
        for step in range(6)
    ]
    if head is Head.VALUE:
        assert losses[0] == pytest.approx(1.0)  # a head of zeros is at distance 1 everywhere
    assert losses[-1] < 0.9 * losses[0]
    # A weight without a gradient has no moments and is restored all the same.
    created.save(tmp_path)
    again = backend(llama, spec(precision=precision), head)
    again.load(tmp_path)
    step = UpdatePlan(1, 8, seed=6)
    assert again.train_step(make_batch(*LENGTHS), ScoresToOne(), step) == created.train_step(
        make_batch(*LENGTHS), ScoresToOne(), step
    )


def test_errors_name_what_is_wrong_with_a_batch(llama: Path, make_batch: Callable[..., Batch]) -> None:
    created = backend(llama, spec())
    outside = make_batch(4)
    outside.tokens[2] = 41
    with pytest.raises(ValueError, match="token 41; the model's vocabulary has 41"):
        created.forward(outside, frozenset({"logprobs"}))
    with pytest.raises(ValueError, match="a sequence of 65 tokens; the model has 64 positions"):
        created.forward(make_batch(65), frozenset({"logprobs"}))
    with pytest.raises(ValueError, match=r"\['values'\] were asked for; a language_model model gives"):
        created.forward(make_batch(3), frozenset({"values"}))
    cold = make_batch(3)
    cold.scalars["temperature"] = 0.0
    with pytest.raises(ValueError, match="temperature is 0"):
        created.forward(cold, frozenset({"logprobs"}))
    partly_cold = make_batch(3, 4)
    set_temperatures(partly_cold, [0.7, 0.0])
    with pytest.raises(ValueError, match="temperature is 0"):
        created.forward(partly_cold, frozenset({"logprobs"}))


def test_each_sequence_has_its_own_temperature(
    llama: Path, make_batch: Callable[..., Batch], objective: Objective
) -> None:
    """One pack of all sequences gives what one pack for each of them gives, and torch's own softmax."""
    batch = make_batch(*LENGTHS)
    temperatures = [0.5, 1.0, 1.5, 0.7, 0.7, 2.0, 3.0, 0.25]
    set_temperatures(batch, temperatures)
    together, alone = backend(llama, spec(64)), backend(llama, spec(1))
    for each in (together, alone):
        each.model.double()
    outputs = frozenset({"logprobs", "entropy"})
    columns = together.forward(batch, outputs)
    for name, column in alone.forward(batch, outputs).items():
        torch.testing.assert_close(columns[name], column, rtol=0, atol=1e-6)
    model = AutoModelForCausalLM.from_pretrained(llama).double()
    for index, temperature in enumerate(temperatures):
        start, end = batch.cu_seqlens[index : index + 2].tolist()
        tokens = batch.tokens[start:end].long()
        with torch.no_grad():
            log_p = torch.log_softmax(model(tokens[None]).logits[0] / temperature, -1)
        expected = log_p[:-1].gather(-1, tokens[1:, None])[:, 0]
        torch.testing.assert_close(columns["logprobs"][start + 1 : end].double(), expected, rtol=0, atol=1e-6)
    plan = UpdatePlan(1, len(LENGTHS), seed=3)
    assert together.train_step(batch, objective, plan)["loss"] == pytest.approx(
        alone.train_step(batch, objective, plan)["loss"], rel=1e-9
    )
    for name, tensor in weights(together).items():
        torch.testing.assert_close(tensor, weights(alone)[name], rtol=0, atol=1e-9)

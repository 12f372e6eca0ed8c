"""The load-balancing loss of the routers: transformers' own loss and its gradient, whatever the split."""

# mypy: disable-error-code="no-untyped-call"
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import AutoModelForCausalLM

from kubealign.spec.algorithms import SFTSpec
from kubealign.spec.sections.training import AdamW, Backend, Optimizer, TorchBackendSpec, Trainer
from kubealign_services.algorithms.offline.sft import CrossEntropyObjective, SFTAlgorithm
from kubealign_services.batch.packed import Batch, pack
from kubealign_services.training.commands.rank_group import CommandGroup, Handlers
from kubealign_services.training.contract import Head, UpdatePlan
from kubealign_services.training.expert_routing import ROUTING
from kubealign_services.training.torch_backend.backend import TorchTrainingBackend
from kubealign_services.training.torch_backend.passes.balanced_passes import LARGEST_LOAD, LOSS
from kubealign_services.training.torch_backend.passes.microbatch_passes import RankContext, run_objective
from support.model_families import FAMILIES, ModelFamily
from support.second_rank import two_ranks

pytestmark = pytest.mark.timeout(240)

COEFFICIENT = 0.3
LOGPROBS = frozenset({"logprobs"})
CPU = torch.device("cpu")
MODELS = {"qwen3_moe": {"num_experts": 8}, "mixtral": {"num_local_experts": 8}}
#: (prompt, response) lengths; the first two have one prompt, whose tokens a pack computes once.
LENGTHS = ((5, 9), (5, 3), (2, 17), (6, 1), (3, 8))


def tiny(name: str, **fields: Any) -> ModelFamily:
    family = FAMILIES[name]
    return replace(family, fields=family.fields | MODELS.get(name, {}) | fields)


def demonstrations() -> Batch:
    generator = torch.Generator().manual_seed(3)
    rows = [torch.randint(0, 256, (sum(each),), generator=generator).tolist() for each in LENGTHS]
    rows[1][:5] = rows[0][:5]
    batch = pack(rows, [str(i) for i in range(len(rows))])
    mask = [[0] * prompt + [1] * response for prompt, response in LENGTHS]
    batch.token_columns["loss_mask"] = torch.tensor([each for row in mask for each in row], dtype=torch.uint8)
    return batch


def transformers_loss(folder: Path, batch: Batch) -> tuple[Tensor, Tensor, Any]:
    """Return the cross-entropy, the auxiliary loss and the model, in float64, of one padded pass."""
    make: Callable[..., Any] = AutoModelForCausalLM.from_pretrained
    model = make(folder, dtype=torch.float64, attn_implementation="eager", local_files_only=True)
    model.set_experts_implementation("eager")
    lengths = batch.lengths.tolist()
    tokens, mask = (
        torch.nn.utils.rnn.pad_sequence(list(column.long().split(lengths)), batch_first=True)
        for column in (batch.tokens, batch.token("loss_mask"))
    )
    attention = torch.arange(max(lengths)) < batch.lengths[:, None]
    output = model(tokens, attention_mask=attention, output_router_logits=True, use_cache=False)
    logprobs = output.logits[:, :-1].log_softmax(-1).gather(-1, tokens[:, 1:, None])[..., 0]
    counted = mask[:, 1:].bool()
    return -logprobs[counted].mean(), output.aux_loss, model


def backend_of(folder: Path, checkpointing: bool = False, **fields: Any) -> TorchTrainingBackend:
    torch_spec = TorchBackendSpec(gradient_checkpointing=checkpointing, **fields)
    spec = Trainer(backend=Backend(torch=torch_spec), optimizer=Optimizer(adam_w=AdamW(learning_rate=1e-2)))
    return TorchTrainingBackend.create(folder, Head.LANGUAGE_MODEL, spec, 20)


@pytest.mark.parametrize("tokens", [64, 20, 8])
@pytest.mark.parametrize("checkpointing", [False, True], ids=["stored", "recomputed"])
@pytest.mark.parametrize("name", MODELS)
def test_loss_and_gradient_are_those_of_transformers(
    name: str, checkpointing: bool, tokens: int, tmp_path: Path
) -> None:
    folder, batch = tiny(name).save(tmp_path / "model"), demonstrations()
    entropy, auxiliary, expected = transformers_loss(folder, batch)
    (entropy + COEFFICIENT * auxiliary).backward()

    model = backend_of(folder, checkpointing).model.double().train()
    model.backbone.set_experts_implementation("eager")
    objective = CrossEntropyObjective(COEFFICIENT)
    objective.prepare(batch)
    metrics = run_objective(model, batch, objective, RankContext(0, 1, CPU, tokens), loss_scale=4.0)
    assert metrics.sums["sft/loss"] == pytest.approx(float(entropy.detach()), abs=1e-6)
    assert metrics.sums[LOSS] == pytest.approx(float(auxiliary.detach()), abs=1e-6)
    assert metrics.loss == pytest.approx(float((entropy + COEFFICIENT * auxiliary).detach()), abs=1e-6)
    assert 1 < metrics.maxima[LARGEST_LOAD] < 4
    actual = {key: weight.grad / 4 for key, weight in model.backbone.named_parameters()}
    for key, weight in expected.named_parameters():
        # transformers computes the balance, and the routers' softmax, in float32.
        torch.testing.assert_close(actual[key], weight.grad, atol=5e-6, rtol=1e-5, msg=lambda m, k=key: k + m)
    # The balance reaches the routers: without it their gradient is another one.
    model.zero_grad()
    run_objective(model, batch, CrossEntropyObjective(), RankContext(0, 1, CPU, tokens))
    router = "model.layers.0.mlp.gate.weight"
    assert (model.backbone.get_parameter(router).grad - actual[router]).abs().max() > 1e-3


def test_the_config_states_the_default(tmp_path: Path) -> None:
    stated = tiny("mixtral", output_router_logits=True, router_aux_loss_coef=COEFFICIENT)
    folder, batch = stated.save(tmp_path / "stated"), demonstrations()
    plan = UpdatePlan(1, len(batch), seed=1)

    def trained(folder: Path, coefficient: float | None) -> dict[str, float]:
        objective = SFTAlgorithm(SFTSpec(router_loss_coefficient=coefficient)).policy_objective()
        return backend_of(folder).train_step(batch, objective, plan)

    explicit, implicit, none = (trained(folder, each) for each in (COEFFICIENT, None, 0.0))
    assert implicit == explicit
    assert implicit["loss"] == pytest.approx(implicit["sft/loss"] + COEFFICIENT * implicit[LOSS])
    assert LOSS not in none and none["loss"] == none["sft/loss"]
    silent = tiny("mixtral", router_aux_loss_coef=COEFFICIENT).save(tmp_path / "silent")
    assert LOSS not in trained(silent, None)
    # A loss of validation rows is that of the demonstrations alone.
    evaluated = backend_of(folder).evaluate(batch, CrossEntropyObjective(COEFFICIENT))
    assert LOSS not in evaluated and evaluated["loss"] == evaluated["sft/loss"]

    dense = tiny("llama").save(tmp_path / "dense")
    assert LOSS not in trained(dense, None)
    with pytest.raises(
        ValueError, match=r"routerLossCoefficient is 0\.3; a model of type llama has no routers"
    ):
        trained(dense, COEFFICIENT)


def test_the_loss_balances_the_experts(tmp_path: Path) -> None:
    """Routers that prefer one expert spread the tokens within a few updates."""
    folder, batch = tiny("mixtral").save(tmp_path / "model"), demonstrations()
    loads = {}
    for coefficient in (0.0, 10.0):
        backend = backend_of(folder)
        plan = UpdatePlan(1, len(batch), seed=1)
        for _ in range(15):
            backend.train_step(batch, CrossEntropyObjective(coefficient), plan)
        loads[coefficient] = backend.train_step(batch, CrossEntropyObjective(1e-9), plan)[LARGEST_LOAD]
    assert loads[10.0] < 1.4 and loads[10.0] < 0.8 * loads[0.0], loads


def drawn_experts(tokens: int) -> Tensor:
    """Return two random experts for each token in each of two layers, as a column."""
    scores = torch.rand(tokens, 2, 8, generator=torch.Generator().manual_seed(9))
    return scores.topk(2).indices.to(torch.uint8)


def commands(folder: Path, rank: int, world_size: int, context: int = 1) -> Handlers:
    torch_spec = TorchBackendSpec(
        microbatch_tokens=20 // context, gradient_checkpointing=True, context_parallel=context
    )
    spec = Trainer(
        ranks=world_size,
        backend=Backend(torch=torch_spec),
        optimizer=Optimizer(adam_w=AdamW(learning_rate=1e-2), gradient_clip_norm=1.0),
    )
    backends: list[TorchTrainingBackend] = []

    def create(_: bytes) -> bytes:
        backends[:] = [
            TorchTrainingBackend.create(
                folder, Head.LANGUAGE_MODEL, spec, 9, rank=rank, world_size=world_size
            )
        ]
        return b""

    def step(payload: bytes) -> bytes:
        batch = demonstrations().select(json.loads(payload))
        objective = CrossEntropyObjective(COEFFICIENT)
        metrics = backends[0].train_step(batch, objective, UpdatePlan(1, len(batch), seed=1))
        return json.dumps(metrics).encode()

    def ask(path: bytes) -> bytes:
        weights, batch = dict(backends[0].snapshot()), demonstrations()
        weights["own"] = backends[0].forward(batch, LOGPROBS)["logprobs"]
        batch.token_columns[ROUTING] = drawn_experts(len(batch.tokens))
        weights["replayed"] = backends[0].forward(batch, LOGPROBS)["logprobs"]
        if rank == 0:
            save_file(weights, path.decode())
        return b""

    return {"Create": create, "Step": step, "Ask": ask}


def results(group: CommandGroup, handlers: Handlers, file: Path) -> tuple[list[dict[str, float]], Any]:
    group.run("Create", b"", handlers)
    # Several passes a rank; one a rank; and a rank without a sequence.
    steps = [[0, 1, 2, 3, 4], [1, 4], [3]]
    metrics = [json.loads(group.run("Step", json.dumps(each).encode(), handlers)) for each in steps]
    group.run("Ask", str(file).encode(), handlers)
    return metrics, load_file(file)


@pytest.mark.parametrize("context", [1, 2], ids=["own sequences", "shared tokens"])
def test_two_ranks_balance_and_replay_as_one(context: int, tmp_path: Path) -> None:
    folder = tiny("qwen3_moe").save(tmp_path / "model")
    with two_ranks(commands, folder, context) as (group, handlers):
        metrics, weights = results(group, handlers, tmp_path / "two")
    with CommandGroup(0, 1, None, 60) as group:
        expected, expected_weights = results(group, commands(folder, 0, 1), tmp_path / "one")
    for one, two in zip(expected, metrics, strict=True):
        assert two == pytest.approx(one, rel=1e-4) and two[LOSS] > 1
    assert (weights["replayed"] - weights["own"]).abs().max() > 0.05
    for name in ("own", "replayed"):
        torch.testing.assert_close(weights.pop(name), expected_weights.pop(name), atol=1e-3, rtol=1e-3)
    for name, weight in expected_weights.items():
        # AdamW's first steps follow the signs of gradients, also of those that are rounding errors.
        assert (weights[name] - weight).norm() < 1e-3 * weight.norm(), name

"""Routing replay: the engine's record of experts, and the trainer's passes with it, against a computation
token by token.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from kubealign.spec.model_types import ROUTER_TYPES
from kubealign.spec.sections.engines import TorchEngineSpec
from kubealign.spec.sections.precision import Precision
from kubealign.spec.sections.rollout import InFlightPolicy
from kubealign.spec.sections.training import AdamW, Backend, Lora, Optimizer, TorchBackendSpec, Trainer
from kubealign_services.algorithms.offline.sft import CrossEntropyObjective
from kubealign_services.batch.packed import Batch, pack
from kubealign_services.data.tokenization.tokenizers import load_tokenizer
from kubealign_services.generation.contract import GeneratedSample, GenerationRequest, SamplingParameters
from kubealign_services.generation.torch_engine.engine import TorchRolloutEngine
from kubealign_services.roles.rollout.workflow.episode import Episode
from kubealign_services.training.contract import Head, UpdatePlan
from kubealign_services.training.expert_routing import ROUTING, find_routers, routing_column
from kubealign_services.training.torch_backend.backend import TorchTrainingBackend
from kubealign_services.training.torch_backend.model.loading import load_model
from kubealign_services.training.torch_backend.model.packed_model import PackedModel
from support.model_families import FAMILIES, ModelFamily, other_model
from support.slow_experts import SlowExperts

LOGPROBS = frozenset({"logprobs"})
CPU = torch.device("cpu")
EXPERTS = 16
#: Qwen's published models normalise the gate weights, as Mixtral always does; the tiny model does not.
MODELS = {
    "qwen3_moe": {"num_experts": EXPERTS},
    "qwen3_moe-normalised": {"num_experts": EXPERTS, "norm_topk_prob": True},
    "mixtral": {"num_local_experts": EXPERTS},
}
PROMPT = list(range(30, 67))
RESPONSE = 24
#: Bytes of a page of the tiny models: 16 tokens, 2 layers, keys and values of 32 numbers.
PAGE_BYTES = 16 * 2 * 2 * 32 * 4


def tiny(name: str, **fields: Any) -> ModelFamily:
    family = FAMILIES[name.partition("-")[0]]
    return replace(family, fields=family.fields | MODELS[name] | fields)


def drawn_experts(generator: torch.Generator, length: int) -> Tensor:
    """Return random distinct experts of each token, int64 [2 layers, length, 2]."""
    scores = torch.rand(2, length, EXPERTS, generator=generator)
    return scores.topk(2).indices


def drawn_batch() -> tuple[Batch, list[Tensor]]:
    """Return sequences with drawn experts, and the experts of each, -1 at its last token.

    The first three have one prompt; the third recorded other experts for it.
    """
    generator = torch.Generator().manual_seed(5)
    responses = [torch.randint(0, 256, (length,), generator=generator).tolist() for length in (9, 4, 6, 7)]
    prompts = [[3, 1, 4, 1, 5], [3, 1, 4, 1, 5], [3, 1, 4, 1, 5], [9, 2]]
    batch = pack([p + r for p, r in zip(prompts, responses, strict=True)], list("abcd"))
    experts = [drawn_experts(generator, int(length)) for length in batch.lengths]
    experts[1][:, :5] = experts[0][:, :5]
    for each in experts:
        each[:, -1] = -1
    batch.token_columns["loss_mask"] = torch.cat(
        [
            torch.tensor([0] * len(p) + [1] * len(r), dtype=torch.uint8)
            for p, r in zip(prompts, responses, strict=True)
        ]
    )
    recorded = [each[:, :-1].transpose(0, 1).to(torch.uint8).numpy() for each in experts]
    batch.token_columns[ROUTING] = torch.cat([routing_column(each, len(each) + 1) for each in recorded])
    return batch, experts


def exact_model(folder: Path) -> PackedModel:
    """Return the trainer's model in float64."""
    model = load_model(folder, Head.LANGUAGE_MODEL).double()
    # The fast experts have no float64.
    model.backbone.set_experts_implementation("eager")
    model.prepare_routers()
    return model


def replayed(model: PackedModel, batch: Batch) -> Tensor:
    """Return the log-probabilities of the batch's tokens, in one pack, 0 at the prompts."""
    columns: dict[str, Tensor] = model(model.pack(batch, CPU), LOGPROBS)
    return columns["logprobs"]


def slow_logprobs(slow: SlowExperts, batch: Batch, experts: Sequence[Tensor | None]) -> Tensor:
    """Return the same by the slow computation."""
    sequences = [each.tolist() for each in batch.tokens.split(batch.lengths.tolist())]
    columns = [
        torch.cat([torch.zeros(1, dtype=torch.float64), slow.logprobs(sequence, given)])
        for sequence, given in zip(sequences, experts, strict=True)
    ]
    return torch.cat(columns) * batch.token("loss_mask")


def gradients(model: Any) -> dict[str, Tensor]:
    return {name: weight.grad for name, weight in model.named_parameters() if weight.grad is not None}


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("checkpointing", [False, True], ids=["stored", "recomputed"])
def test_given_experts_give_the_slow_computation_and_its_gradient(
    name: str, checkpointing: bool, tmp_path: Path
) -> None:
    folder = tiny(name).save(tmp_path / "model")
    batch, experts = drawn_batch()
    slow, model = SlowExperts(folder), exact_model(folder)
    packed = model.pack(batch, CPU)
    # The second sequence shares the prompt of the first; the third, with other experts, does not.
    assert packed.tokens.shape[1] == len(batch.tokens) - 5

    expected = slow_logprobs(slow, batch, experts)
    expected.sum().backward()  # type: ignore[no-untyped-call]
    if checkpointing:
        enable: Any = model.backbone.activation_checkpointing_enable
        enable(activation_checkpointing_kwargs={"use_reentrant": False})
        model.train()
    actual = replayed(model, batch)
    torch.testing.assert_close(actual, expected, atol=1e-6, rtol=0)
    own = replayed(model, _without_record(batch))
    assert (own - expected).abs().max() > 0.05, "the drawn experts change nothing"

    actual.sum().backward()  # type: ignore[no-untyped-call]
    mine = gradients(model.backbone)
    for weight, gradient in gradients(slow.model).items():
        # transformers' routers, unlike the slow one, have a softmax in float32.
        torch.testing.assert_close(mine[weight], gradient, atol=5e-6, rtol=1e-5)
        assert not weight.endswith("gate.weight") or gradient.abs().max() > 1e-4


@pytest.mark.parametrize("name", MODELS)
def test_the_backend_replays_in_every_pass(name: str, tmp_path: Path) -> None:
    """Float32, with the fast experts, one sequence to a pack; tokens without a record are routed."""
    folder = tiny(name).save(tmp_path / "model")
    batch, experts = drawn_batch()
    column = batch.token_columns[ROUTING]
    column[:4] = 255
    experts[0][:, :4] = -1
    spec = Trainer(backend=Backend(torch=TorchBackendSpec(microbatch_tokens=12)))
    backend = TorchTrainingBackend.create(folder, Head.LANGUAGE_MODEL, spec, 1)
    with torch.no_grad():
        expected = slow_logprobs(SlowExperts(folder), batch, experts)
    actual = backend.forward(batch, LOGPROBS)["logprobs"].double()
    torch.testing.assert_close(actual * batch.token("loss_mask"), expected, atol=1e-5, rtol=0)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda column: column[:, :1], r"\[43, 1, 2\]; the model has 2 layers with 16 experts"),
        (lambda column: column[:, :, :1], r"2 for a token: torch.uint8 \[43, 2, 2\]"),
        (lambda column: column.to(torch.int16), "is torch.int16"),
        (lambda column: column.clamp(max=16), "names expert 16; the model has 16"),
        (lambda column: torch.where(torch.tensor([[True], [False]]), column, 255), "in some layers only"),
    ],
)
def test_a_record_of_another_model_is_refused(change: Any, message: str, tmp_path: Path) -> None:
    backend = TorchTrainingBackend.create(
        tiny("mixtral").save(tmp_path / "model"), Head.LANGUAGE_MODEL, Trainer(), 1
    )
    batch, _ = drawn_batch()
    batch.token_columns[ROUTING] = change(batch.token_columns[ROUTING])
    with pytest.raises(ValueError, match=message):
        backend.forward(batch, LOGPROBS)


def test_the_reference_and_the_critic_ignore_the_record(tmp_path: Path) -> None:
    folder = tiny("mixtral").save(tmp_path / "model")
    batch, _ = drawn_batch()
    adapted = TorchTrainingBackend.create(folder, Head.LANGUAGE_MODEL, Trainer(lora=Lora(rank=2)), 1)
    expected = adapted.forward(_without_record(batch), LOGPROBS)["logprobs"]
    assert torch.equal(adapted.base_forward(batch, LOGPROBS)["logprobs"], expected)
    assert (adapted.forward(batch, LOGPROBS)["logprobs"] - expected).abs().max() > 0.05
    critic = TorchTrainingBackend.create(folder, Head.VALUE, Trainer(), 1)
    torch.nn.init.ones_(critic.model.score.weight)  # type: ignore[union-attr]
    outputs = frozenset({"values"})
    record, plain = (critic.forward(each, outputs)["values"] for each in (batch, _without_record(batch)))
    torch.testing.assert_close(record, plain)


def test_a_cached_pass_with_other_experts_is_not_used(tmp_path: Path) -> None:
    folder, objective = tiny("mixtral").save(tmp_path / "model"), CrossEntropyObjective()
    batch, _ = drawn_batch()
    other = replace(batch, token_columns=dict(batch.token_columns))
    column = batch.token_columns[ROUTING]
    other.token_columns[ROUTING] = torch.where(column == 255, column, (column + 1) % EXPERTS)
    losses, spec = [], Trainer(optimizer=Optimizer(adam_w=AdamW(learning_rate=1e-3)))
    for cached in (None, batch, other):
        backend = TorchTrainingBackend.create(folder, Head.LANGUAGE_MODEL, spec, 1)
        if cached is not None:
            backend.forward_and_cache(cached, LOGPROBS, objective)
        losses.append(backend.train_step(batch, objective, UpdatePlan(1, len(batch), seed=1))["loss"])
    assert losses[1:] == pytest.approx([losses[0]] * 2, abs=1e-6)


def _without_record(batch: Batch) -> Batch:
    columns = {name: column for name, column in batch.token_columns.items() if name != ROUTING}
    return replace(batch, token_columns=columns)


def recording_engine(folder: Path, **fields: Any) -> TorchRolloutEngine:
    spec = TorchEngineSpec(**{"max_sequences": 8, "prefill_tokens": 16} | fields)
    return TorchRolloutEngine.create(folder, spec, records_routing=True)


def run_all(engine: TorchRolloutEngine, steps: int = 1000) -> list[GeneratedSample]:
    samples: list[GeneratedSample] = []
    for _ in range(steps):
        if not (engine.load().running or engine.load().waiting):
            return sorted(samples, key=lambda sample: (sample.request_id, sample.sample))
        samples += engine.step()
    raise AssertionError(f"not idle after {steps} steps")


def request(name: str, prompt: list[int], seeds: Sequence[int], tokens: int = RESPONSE) -> GenerationRequest:
    sampling = SamplingParameters(max_tokens=tokens, min_tokens=tokens)
    return GenerationRequest(name, tuple(prompt), tuple(seeds), sampling)


def chosen_by(slow: SlowExperts, sequence: list[int]) -> Tensor:
    """Return the experts of all tokens but the last, [tokens - 1, layers, k], sorted: the order of a token's
    experts means nothing.
    """
    with torch.no_grad():
        slow.logprobs(sequence)
    return slow.chosen.transpose(0, 1)[:-1].sort(-1).values


def recorded(sample: GeneratedSample) -> Tensor:
    assert sample.routing is not None
    return torch.from_numpy(sample.routing.astype("int64")).sort(-1).values


@pytest.mark.parametrize("pages", [None, 7], ids=["roomy", "preempted"])
@pytest.mark.parametrize("name", ["qwen3_moe", "mixtral"])
def test_the_engine_records_what_it_chose(name: str, pages: int | None, tmp_path: Path) -> None:
    """Prompts in chunks, shared by samples, read from the prefix cache, and recomputed after a preemption."""
    folder = tiny(name).save(tmp_path / "model")
    cache = None if pages is None else pages * PAGE_BYTES / 2**30
    engine, slow = recording_engine(folder, cache_gib=cache), SlowExperts(folder)
    engine.refit(load_file(folder / "model.safetensors").items(), 1)
    samples = []
    for prompts in ({"a": PROMPT, "b": [7, 8, 9]}, {"c": [*PROMPT, 200, 201], "d": PROMPT[:20]}):
        for index, (each, prompt) in enumerate(prompts.items()):
            engine.add(request(each, prompt, [10 * index + seed for seed in range(3)]))
        samples += [(prompts[sample.request_id], sample) for sample in run_all(engine)]
    load = engine.load()
    assert len(samples) == 12 and load.reused_tokens > 0
    assert (load.preemptions > 0) == (pages is not None)
    for prompt, sample in samples:
        expected = chosen_by(slow, prompt + sample.tokens)
        assert torch.equal(recorded(sample), expected), (sample.request_id, sample.sample)


@pytest.mark.parametrize("policy", [InFlightPolicy.INTERRUPT, InFlightPolicy.CONTINUE])
def test_a_refit_changes_no_earlier_record(policy: InFlightPolicy, tmp_path: Path) -> None:
    first, second = (tiny("mixtral").save(tmp_path / str(seed), seed=seed) for seed in (7, 8))
    engine = recording_engine(first)
    engine.refit(load_file(first / "model.safetensors").items(), 1)
    engine.add(request("a", PROMPT, [1, 2]))
    # Three steps of the prompt's chunks, of which the last generates a token, and seven more tokens.
    for _ in range(10):
        assert engine.step() == []
    engine.refit(load_file(second / "model.safetensors").items(), 2, policy)
    before, after = SlowExperts(first), SlowExperts(second)
    for sample in run_all(engine):
        sequence = PROMPT + sample.tokens
        assert sample.versions == [1] * 8 + [2] * 16
        # The newest token at the refit had not been computed.
        old = len(PROMPT) + 7
        assert torch.equal(recorded(sample)[:old], chosen_by(before, sequence)[:old])
        assert len(recorded(sample)) == len(sequence) - 1
        if policy is InFlightPolicy.INTERRUPT:
            # All keys and values were computed anew.
            assert torch.equal(recorded(sample)[old:], chosen_by(after, sequence)[old:])
            assert not torch.equal(chosen_by(after, sequence)[:old], recorded(sample)[:old])


def test_turns_extend_the_record(tmp_path: Path) -> None:
    folder = tiny("mixtral").save(tmp_path / "model")
    engine, slow = recording_engine(folder), SlowExperts(folder)
    engine.refit(load_file(folder / "model.safetensors").items(), 1)

    async def generate(request: GenerationRequest) -> GeneratedSample:
        engine.add(request)
        (sample,) = run_all(engine)
        return sample

    tokenizer = load_tokenizer(folder, "test")
    episode = Episode("", {}, request("a", PROMPT, [3], 40), tokenizer, generate)

    async def play() -> None:
        await episode.generate(max_tokens=9)
        assert episode.put("what?")
        await episode.generate(max_tokens=7)
        assert episode.put("so")

    asyncio.run(play())
    transcript = episode.transcript
    assert transcript.routing is not None and transcript.loss_mask == [1] * 9 + [0] * 5 + [1] * 7 + [0] * 2
    # The last turn's last token and the text after it have not been computed.
    known = len(PROMPT) + 9 + 5 + 7 - 1
    expected = chosen_by(slow, PROMPT + transcript.tokens)[:known]
    assert torch.equal(torch.from_numpy(transcript.routing.astype("int64")).sort(-1).values, expected)


def mismatch(backend: TorchTrainingBackend, batch: Batch) -> tuple[float, float]:
    """Return the mean and the largest difference of the engine's and the trainer's log-probabilities."""
    logprobs = backend.forward(batch, LOGPROBS)["logprobs"]
    gap = (logprobs - batch.token("engine_logprobs"))[batch.token("loss_mask").bool()].abs()
    return float(gap.mean()), float(gap.max())


def own_choices(backend: TorchTrainingBackend, batch: Batch) -> Tensor:
    """Return the experts that the trainer chooses, sorted: [tokens, layers, k]."""
    chosen: list[Tensor] = []
    modules = [each for each in backend.model.modules() if type(each).__name__.endswith("TopKRouter")]
    hooks = [each.register_forward_hook(lambda _, __, output: chosen.append(output[2])) for each in modules]
    with torch.no_grad():
        backend.model(backend.model.pack(_without_record(batch), CPU), LOGPROBS)
    for hook in hooks:
        hook.remove()
    return torch.stack(chosen, 1).sort(-1).values


@pytest.mark.parametrize("name", ["qwen3_moe-normalised", "mixtral"])
def test_replay_lowers_the_mismatch_in_bf16(name: str, tmp_path: Path) -> None:
    """Engine and trainer round at other steps, so that a few tokens go to other experts."""
    folder = tiny(name, num_hidden_layers=4).save(tmp_path / "model")
    precision = Precision.BFLOAT16
    spec = Trainer(backend=Backend(torch=TorchBackendSpec(precision=precision)))
    backend = TorchTrainingBackend.create(folder, Head.LANGUAGE_MODEL, spec, 1)
    engine = recording_engine(folder, max_sequences=16, precision=precision)
    engine.refit(((each, tensor.clone()) for each, tensor in backend.snapshot()), 1)
    # Prompts of one token, so that no prompt is shared and the pack is the batch.
    for token in range(16):
        engine.add(request(f"{token:02}", [token], [token], 60))
    samples = run_all(engine)
    batch = pack([[int(each.request_id), *each.tokens] for each in samples], [s.request_id for s in samples])
    first = batch.positions == 0
    batch.token_columns["loss_mask"] = (~first).to(torch.uint8)
    batch.token_columns["engine_logprobs"] = torch.cat(
        [torch.tensor([0.0, *each.engine_logprobs]) for each in samples]
    )
    without = mismatch(backend, batch)
    columns = [routing_column(each.routing, 61) for each in samples if each.routing is not None]
    batch.token_columns[ROUTING] = torch.cat(columns)
    with_replay = mismatch(backend, batch)

    is_last = torch.cat([first[1:], torch.tensor([True])])
    engines = batch.token_columns[ROUTING].long().sort(-1).values
    differs = (own_choices(backend, batch) != engines).flatten(1).any(1)[~is_last]
    share = float(differs.float().mean())
    print(f"{name}: {share:.1%} of tokens differ; mean and max {without}, with replay {with_replay}")
    assert share > 0.01
    assert with_replay[0] < 0.7 * without[0] and with_replay[1] < 0.5 * without[1]


@pytest.mark.parametrize("model_type", sorted({*ROUTER_TYPES, "llama", "phimoe", "minimax_m2"}))
def test_the_types_of_the_spec_are_those_that_can_be_replayed(model_type: str, tmp_path: Path) -> None:
    family = FAMILIES.get(model_type) or other_model(model_type)
    folder = family.save(tmp_path / "model")
    if model_type in ROUTER_TYPES:
        model = load_model(folder, Head.LANGUAGE_MODEL)
        shape = find_routers(model.backbone)[1]
        assert (shape.layers, shape.experts, shape.top_k) == (2, 4, 2)
        model.prepare_routers()
        assert model.routing_replay is not None
        recording_engine(folder)
    else:
        with pytest.raises(ValueError, match=r"rollout\.routingReplay: .* set it to false"):
            recording_engine(folder)

"""Contract tests of every rollout engine: a class that a test module subclasses, with a fixture `subject` of
its own. The expected results come from the torch engine in this process, and log-probabilities from
transformers.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from torch import Tensor
from transformers import AutoModelForCausalLM, LlamaConfig, PreTrainedTokenizerFast

from kubealign.spec.sections import engines as engine_spec
from kubealign.spec.sections.rollout import InFlightPolicy
from kubealign_services.generation.contract import (
    EngineLost,
    GeneratedSample,
    GenerationRequest,
    Generator,
    RequestRefused,
    SamplingParameters,
)
from kubealign_services.generation.torch_engine.engine import TorchRolloutEngine

#: Samples that a subject's engine runs at once.
CAPACITY = 8
CONTEXT = 96
SECONDS = 60
#: Attempts to have requests in flight: if the end of the short group arrives late, no request is left.
TRIALS = 5
VOCABULARY = 258

Samples = dict[tuple[str, int], GeneratedSample]


@dataclass
class Subject:
    """The engine under test.

    generator: over an engine for the model of `folder`, with CAPACITY sequences, float32; its `run` is
    running.
    """

    generator: Generator
    folder: Path


def write_model(folder: Path) -> Path:
    """Write a tiny Llama's configuration, with a tokenizer of the 256 bytes, an end token and a padding
    token.
    """
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    raw = Tokenizer(models.BPE({piece: i for i, piece in enumerate(alphabet)}, []))
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    raw.decoder = decoders.ByteLevel()
    make: Callable[..., PreTrainedTokenizerFast] = PreTrainedTokenizerFast
    end, padding = AddedToken("<end>", special=True), AddedToken("<pad>", special=True)
    make(tokenizer_object=raw, eos_token=end, pad_token=padding).save_pretrained(folder)
    configuration().save_pretrained(folder)
    return folder


def configuration() -> LlamaConfig:
    return LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=CONTEXT,
        # Wide, so that the likeliest tokens are far apart.
        initializer_range=0.25,
        bos_token_id=None,
        eos_token_id=256,
        pad_token_id=257,
    )


def model(version: int) -> Any:
    """Return the plain transformers model of a weight version."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(version)
        make: Callable[..., Any] = AutoModelForCausalLM.from_config
        return make(configuration(), attn_implementation="eager").eval()


def weights(version: int) -> dict[str, Tensor]:
    return {name: weight.detach() for name, weight in model(version).named_parameters()}


def adapter(seed: int) -> dict[str, Tensor]:
    """Return an adapter of rank 2 for the query projections of both layers."""
    random = torch.Generator().manual_seed(seed)
    tensors = {}
    for layer in range(2):
        name = f"model.layers.{layer}.self_attn.q_proj"
        tensors[f"{name}.lora_A.weight"] = torch.randn(2, 32, generator=random)
        tensors[f"{name}.lora_B.weight"] = torch.randn(32, 2, generator=random)
    return tensors


def torch_engine(folder: Path, version: int) -> TorchRolloutEngine:
    """Return a torch engine in this process."""
    engine = TorchRolloutEngine.create(folder, engine_spec.TorchEngineSpec(max_sequences=CAPACITY))
    engine.refit(weights(version).items(), version)
    return engine


def stepped(engine: TorchRolloutEngine, *requests: GenerationRequest) -> Samples:
    """Return the engine's samples for the requests."""
    for request in requests:
        engine.add(request)
    samples: Samples = {}
    while engine.load().running or engine.load().waiting:
        for sample in engine.step():
            samples[sample.request_id, sample.sample] = sample
    return samples


async def generated(generator: Generator, *requests: GenerationRequest) -> Samples:
    """Return the generator's samples for concurrent requests."""

    async def one(request: GenerationRequest) -> list[GeneratedSample]:
        return [sample async for sample in generator.generate(request)]

    async with asyncio.timeout(SECONDS):
        groups = await asyncio.gather(*map(one, requests))
    return {(sample.request_id, sample.sample): sample for group in groups for sample in group}


async def refitted(subject: Subject, version: int) -> None:
    async with asyncio.timeout(SECONDS), subject.generator.paused(InFlightPolicy.DRAIN):
        await subject.generator.refit(weights(version).items(), version)


def check_same(got: Samples, expected: Samples) -> None:
    """Compare token by token; log-probabilities within float32 rounding for other batches."""
    assert got.keys() == expected.keys()
    for name, sample in got.items():
        true = expected[name]
        assert (sample.tokens, sample.finish, sample.text) == (true.tokens, true.finish, true.text)
        assert sample.versions == true.versions
        assert sample.behaviour_logprobs == pytest.approx(true.behaviour_logprobs, abs=1e-4)
        assert sample.engine_logprobs == pytest.approx(true.engine_logprobs, abs=1e-4)


def group(name: str, *seeds: int, prompt: tuple[int, ...] = (1, 2, 3), **sampling: Any) -> GenerationRequest:
    return GenerationRequest(name, prompt, seeds, SamplingParameters(**{"max_tokens": 12, **sampling}))


class Flight:
    """Groups in flight, as a context manager: the block begins once each running group has generated a few
    tokens.
    """

    def __init__(self, generator: Generator, requests: list[GenerationRequest]) -> None:
        self._generator, self._requests = generator, requests
        self._tasks: list[asyncio.Task[list[GeneratedSample]]] = []
        self._begun = asyncio.Event()

    @staticmethod
    def requests() -> list[GenerationRequest]:
        """Return more samples than CAPACITY. The first ends soon, which shows that the others are running."""
        long = {"max_tokens": 70}
        return [
            group("short", 1, max_tokens=6),
            group("likeliest", 2, 3, temperature=0.0, prompt=(4, 5), **long),
            *(group(f"long {i}", i, 10 + i, 20 + i, prompt=tuple(range(i, 20 + i)), **long) for i in (1, 2)),
            group("waits", 5, 6, **long),
        ]

    async def __aenter__(self) -> "Flight":
        self._tasks = [asyncio.create_task(self._one(request)) for request in self._requests]
        await self._begun.wait()
        return self

    async def landed(self) -> Samples:
        groups = await asyncio.gather(*self._tasks)
        return {(sample.request_id, sample.sample): sample for part in groups for sample in part}

    async def __aexit__(self, *error: object) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _one(self, request: GenerationRequest) -> list[GeneratedSample]:
        received = []
        async with aclosing(self._generator.generate(request)) as samples:
            async for sample in samples:
                received.append(sample)
                self._begun.set()
        return received


def plain_logprobs(
    version: int, prompt: Sequence[int], tokens: Sequence[int], cache: Any = None
) -> list[float]:
    """Return transformers' log-probabilities of the tokens after the prompt.

    Args:
        cache: Cache of the text before the prompt.
    """
    ids = torch.tensor([[*prompt, *tokens]])
    with torch.no_grad():
        logits = model(version)(ids, past_key_values=cache).logits[0].double()
    chosen = torch.log_softmax(logits[len(prompt) - 1 : -1], -1)
    logprobs: list[float] = chosen.gather(1, torch.tensor(tokens)[:, None])[:, 0].tolist()
    return logprobs


def check_mixed(sample: GeneratedSample, request: GenerationRequest, in_flight: InFlightPolicy) -> None:
    """Check a sample generated by version 1 and then version 2.

    Interrupt: as if version 2 had computed all tokens of version 1. Continue: over the keys and values of
    version 1.
    """
    old = sample.versions.count(1)
    assert sample.versions == [1] * old + [2] * (len(sample.tokens) - old)
    prompt, first, rest = list(request.prompt_tokens), sample.tokens[:old], sample.tokens[old:]
    expected = plain_logprobs(1, prompt, first)
    if in_flight is InFlightPolicy.INTERRUPT:
        expected += plain_logprobs(2, prompt + first, rest)
    else:
        with torch.no_grad():
            # The newest token is not in the cache: it goes in with the pass that makes the next one.
            cached = model(1)(torch.tensor([prompt + first[:-1]]), use_cache=True).past_key_values
        expected += plain_logprobs(2, first[-1:], rest, cached)
    if request.sampling.temperature == 1:
        assert sample.behaviour_logprobs == pytest.approx(expected, abs=1e-4)
    assert sample.engine_logprobs == pytest.approx(expected, abs=1e-4)
    if request.sampling.temperature == 0 and in_flight is InFlightPolicy.INTERRUPT:
        with torch.no_grad():
            likeliest = model(2)(torch.tensor([prompt + sample.tokens])).logits[0, len(prompt) + old - 1 : -1]
        assert rest == likeliest.argmax(-1).tolist()


MANY_KINDS = [
    group("sampled", 11, 12, 2**64 - 1),
    group("greedy", 1, temperature=0.0),
    group("cold", 1, 2, temperature=0.7, prompt=(9, 8, 7, 6)),
    group("narrow", 1, 2, top_k=4, top_p=0.6),
    group("stops at text", *range(8), stop=("a", "0", "e", "\N{LATIN SMALL LETTER E WITH ACUTE}")),
    group("stops at ids", *range(8), stop_token_ids=tuple(range(0, 256, 4))),
    group("not before", *range(4), min_tokens=6, stop_token_ids=tuple(range(0, 256, 2))),
    group("one", 5, max_tokens=1),
]


class EngineContract:
    """Tests that all leave the subject idle, with valid weights."""

    @pytest.fixture(autouse=True)
    def one_thread(self) -> Iterator[None]:
        """Use one thread: models this small only get slower with more."""
        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        yield
        torch.set_num_threads(threads)

    async def test_samples_equal_the_torch_engine(self, subject: Subject) -> None:
        await refitted(subject, 1)
        expected = stepped(torch_engine(subject.folder, 1), *MANY_KINDS)
        assert {sample.finish for sample in expected.values()} == {"stop", "length"}
        check_same(await generated(subject.generator, *MANY_KINDS), expected)

    async def test_impossible_requests_are_refused(self, subject: Subject) -> None:
        await refitted(subject, 1)
        for request, why in (
            (group("empty", 1, prompt=()), "prompt_tokens is empty"),
            (group("foreign", 1, prompt=(1, VOCABULARY)), f"prompt_tokens holds {VOCABULARY}"),
            (group("long", 1, max_tokens=CONTEXT), f"more than the model's context of {CONTEXT}"),
            (group("cold", 1, temperature=-1.0), "temperature is -1"),
        ):
            with pytest.raises(RequestRefused, match=why):
                await generated(subject.generator, request)
        with pytest.raises(RequestRefused, match="tokens"):
            await subject.generator.continuation_logprobs([1], [[VOCABULARY]])
        await self.idle(subject)

    async def test_leaving_early_frees_the_slots(self, subject: Subject) -> None:
        """Fills all slots; the next group, with the same id, could not start before they are free."""
        await refitted(subject, 1)
        generator = subject.generator
        many = group("left", *range(CAPACITY), max_tokens=1)
        long = group("left", *range(CAPACITY), max_tokens=80, min_tokens=80)
        mixed = GenerationRequest("mixed", (1, 2), (1, 2), SamplingParameters(12))

        async def leave(samples: AsyncGenerator[GeneratedSample]) -> None:
            async with aclosing(samples):
                await anext(samples)

        for _ in range(3):
            waiting = asyncio.create_task(leave(generator.generate(long)))
            await asyncio.sleep(0.05)
            waiting.cancel()
            await asyncio.gather(waiting, return_exceptions=True)
            check_same(
                await generated(generator, many, mixed),
                stepped(torch_engine(subject.folder, 1), many, mixed),
            )
        assert generator.in_flight == 0
        await self.idle(subject)

    async def test_duplicate_request_id_is_refused(self, subject: Subject) -> None:
        await refitted(subject, 1)
        first = asyncio.create_task(generated(subject.generator, group("twin", 1, 2)))
        await asyncio.sleep(0)
        with pytest.raises(RequestRefused, match="twin"):
            await generated(subject.generator, group("twin", 3))
        assert len(await first) == 2

    async def test_a_refit_under_load_loses_nothing(self, subject: Subject) -> None:
        await refitted(subject, 1)
        generator = subject.generator
        before = [group(f"before {i}", i, 100 + i) for i in range(10)]
        after = [group(f"after {i}", i, 100 + i) for i in range(10)]
        first = asyncio.create_task(generated(generator, *before))
        await asyncio.sleep(0.02)
        async with asyncio.timeout(SECONDS), generator.paused(InFlightPolicy.DRAIN):
            second = asyncio.create_task(generated(generator, *after))
            await asyncio.sleep(0.02)
            await generator.refit(weights(2).items(), 2)
        check_same(await first, stepped(torch_engine(subject.folder, 1), *before))
        check_same(await second, stepped(torch_engine(subject.folder, 2), *after))

    @pytest.mark.parametrize("in_flight", [InFlightPolicy.INTERRUPT, InFlightPolicy.CONTINUE])
    async def test_running_requests_survive_a_refit(
        self, subject: Subject, in_flight: InFlightPolicy
    ) -> None:
        """Nothing is lost; each token records its weight version and has that version's log-probability."""
        before, later = Flight.requests(), [group(f"later {i}", i) for i in range(2)]
        made_by: dict[tuple[str, int], list[int]] = {}
        for _ in range(TRIALS):
            await refitted(subject, 1)
            async with asyncio.timeout(SECONDS), Flight(subject.generator, before) as flight:
                async with subject.generator.paused(in_flight):
                    second = asyncio.create_task(generated(subject.generator, *later))
                    await subject.generator.refit(weights(2).items(), 2, in_flight)
                    canary = await subject.generator.sequence_logprobs([5, 6, 7])
                samples = await flight.landed() | await second
            assert canary == pytest.approx(plain_logprobs(2, [5], [6, 7]), abs=1e-4)
            made_by = {name: sorted(set(sample.versions)) for name, sample in samples.items()}
            if [1, 2] in made_by.values():
                break
        assert [1, 2] in made_by.values()
        for version in (1, 2):
            unmixed = {name for name, versions in made_by.items() if versions == [version]}
            true = stepped(torch_engine(subject.folder, version), *before, *later)
            check_same(
                {name: samples[name] for name in unmixed},
                {name: true[name] for name in unmixed},
            )
        assert {name for name in samples if name[0].startswith("later")} <= unmixed
        for name, sample in samples.items():
            if made_by[name] == [1, 2]:
                request = next(each for each in before if each.request_id == name[0])
                check_mixed(sample, request, in_flight)

    async def test_paused_requests_resume_unchanged(self, subject: Subject) -> None:
        """Without new weights, also after an error, the tokens equal those of an engine that was never
        paused.
        """
        await refitted(subject, 1)
        requests = Flight.requests()
        async with asyncio.timeout(SECONDS), Flight(subject.generator, requests) as flight:
            for in_flight in (InFlightPolicy.INTERRUPT, InFlightPolicy.CONTINUE):
                with pytest.raises(ZeroDivisionError):
                    async with subject.generator.paused(in_flight):
                        raise ZeroDivisionError
            samples = await flight.landed()
        check_same(samples, stepped(torch_engine(subject.folder, 1), *requests))

    async def test_failed_refit_generates_no_token(self, subject: Subject) -> None:
        """Requests in flight end with an error and can be retried elsewhere; the next refit restores the
        engine.
        """
        requests = Flight.requests()
        why = ""
        for _ in range(TRIALS):
            await refitted(subject, 1)
            async with asyncio.timeout(SECONDS), Flight(subject.generator, requests) as flight:
                with pytest.raises(ZeroDivisionError):
                    async with subject.generator.paused(InFlightPolicy.INTERRUPT):
                        await subject.generator.refit(weights(3).items(), 3, InFlightPolicy.INTERRUPT)
                        raise ZeroDivisionError
                try:
                    await flight.landed()
                except EngineLost as lost:
                    why = str(lost)
                    break
        assert "a refit came to nothing under it: ZeroDivisionError" in why
        await refitted(subject, 1)
        check_same(
            await generated(subject.generator, *requests),
            stepped(torch_engine(subject.folder, 1), *requests),
        )
        await self.idle(subject)

    async def test_an_adapter_is_merged_into_the_last_refit(self, subject: Subject) -> None:
        await refitted(subject, 1)
        engine = torch_engine(subject.folder, 1)
        tokens = [5, 6, 7, 8]
        async with asyncio.timeout(SECONDS), subject.generator.paused(InFlightPolicy.DRAIN):
            plain = await subject.generator.sequence_logprobs(tokens)
            for seed in (3, 4):
                await subject.generator.adapt(adapter(seed).items(), 0.5, 2 + seed)
            adapted = await subject.generator.sequence_logprobs(tokens)
        engine.adapt(adapter(4).items(), 0.5, 6)
        assert adapted == pytest.approx(engine.sequence_logprobs(tokens), abs=1e-5)
        assert adapted != pytest.approx(plain, abs=0.05)
        check_same(await generated(subject.generator, MANY_KINDS[0]), stepped(engine, MANY_KINDS[0]))

    async def test_invalid_weights_are_refused_by_name(self, subject: Subject) -> None:
        good = weights(1)
        for bad, why in (
            ({name: weight for name, weight in good.items() if name != "lm_head.weight"}, "lm_head.weight"),
            (good | {"lm_head.weight": torch.zeros(3, 3)}, "lm_head.weight"),
            (good | {"model.surplus": torch.zeros(3)}, "model.surplus"),
        ):
            async with asyncio.timeout(SECONDS), subject.generator.paused(InFlightPolicy.DRAIN):
                with pytest.raises(ValueError, match=why):
                    await subject.generator.refit(bad.items(), 7)
        await refitted(subject, 1)
        check_same(
            await generated(subject.generator, MANY_KINDS[0]),
            stepped(torch_engine(subject.folder, 1), MANY_KINDS[0]),
        )

    async def test_logprobs_equal_transformers(self, subject: Subject) -> None:
        """Log-probabilities of the canary and of given continuations, while other requests run."""
        await refitted(subject, 2)
        tokens = [7, 200, 31, 4, 4, 90]
        with torch.no_grad():
            logits = model(2)(torch.tensor([tokens])).logits[0].double()
        true = torch.log_softmax(logits[:-1], -1).gather(1, torch.tensor(tokens)[1:, None])[:, 0].tolist()
        async with asyncio.timeout(SECONDS):
            async with subject.generator.paused(InFlightPolicy.DRAIN):
                canary = await subject.generator.sequence_logprobs(tokens)
            running = asyncio.create_task(generated(subject.generator, MANY_KINDS[0]))
            given, version = await subject.generator.continuation_logprobs(tokens[:2], [tokens[2:], [31]])
            await running
        assert canary == pytest.approx(true, abs=1e-4)
        assert given[0] == pytest.approx(true[1:], abs=1e-4)
        assert given[1] == pytest.approx(true[1:2], abs=1e-4)
        assert version == 2

    async def test_two_hundred_concurrent_streams(self, subject: Subject) -> None:
        await refitted(subject, 1)
        requests = [group(str(i), i, prompt=(i % 250, 1 + i % 7), max_tokens=3 + i % 9) for i in range(200)]
        check_same(
            await generated(subject.generator, *requests),
            stepped(torch_engine(subject.folder, 1), *requests),
        )
        await self.idle(subject)

    async def idle(self, subject: Subject) -> None:
        """Wait until the load reports an idle engine."""
        async with asyncio.timeout(SECONDS):
            while subject.generator.load.running or subject.generator.load.waiting:  # noqa: ASYNC110
                await asyncio.sleep(0.02)
        assert subject.generator.in_flight == 0

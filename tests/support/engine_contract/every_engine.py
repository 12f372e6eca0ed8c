"""Contract tests of every rollout engine: a class that a test module subclasses, with a fixture `subject` of
its own. The expected log-probabilities are those of transformers in float64.
"""

import asyncio
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import aclosing
from typing import ClassVar

import pytest
import torch

from kubealign.spec.sections.rollout import InFlightPolicy
from kubealign_services.generation.contract import (
    GeneratedSample,
    GenerationRequest,
    RequestRefused,
    SamplingParameters,
)
from support.engine_contract.generation import (
    CAPACITY,
    GREEDY,
    MANY_KINDS,
    SECONDS,
    Samples,
    Subject,
    check_same,
    generated,
    group,
    refitted,
    stepped,
    torch_engine,
)
from support.engine_contract.oracle import check_sample, exact_logits
from support.engine_contract.tiny_model import CONTEXT, VOCABULARY, adapter, model, weights


class EngineContract:
    """Tests that all leave the subject idle, with valid weights."""

    #: Requests whose tokens are those of the torch engine.
    equal_to_the_torch_engine: ClassVar[Sequence[GenerationRequest]] = (GREEDY,)
    #: Requests of all kinds that the engine serves.
    kinds: ClassVar[Sequence[GenerationRequest]] = MANY_KINDS
    #: Context of the subject's model.
    context: ClassVar[int] = CONTEXT

    @pytest.fixture(autouse=True)
    def one_thread(self) -> Iterator[None]:
        """Use one thread: models this small only get slower with more."""
        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        yield
        torch.set_num_threads(threads)

    def check(self, subject: Subject, got: Samples, version: int, *requests: GenerationRequest) -> None:
        """Check that there is each sample of the requests, as the weights of the version give it."""
        assert got.keys() == {
            (request.request_id, index) for request in requests for index in range(len(request.seeds))
        }
        named = {request.request_id: request for request in requests}
        for (name, _), sample in got.items():
            check_sample(sample, named[name], version, subject.folder)

    async def test_samples_agree_with_the_weights(self, subject: Subject) -> None:
        for version in (1, 2):
            await refitted(subject, version)
            samples = await generated(subject.generator, *self.kinds)
            assert {sample.finish for sample in samples.values()} == {"stop", "length"}
            self.check(subject, samples, version, *self.kinds)

    async def test_greedy_tokens_equal_the_torch_engine(self, subject: Subject) -> None:
        await refitted(subject, 1)
        check_same(
            await generated(subject.generator, GREEDY), stepped(torch_engine(subject.folder, 1), GREEDY)
        )

    async def test_token_frequencies_follow_the_distribution(self, subject: Subject) -> None:
        """Chi-square of the first token of 600 samples; the bound is 4.5 standard deviations."""
        await refitted(subject, 1)
        request = group("frequencies", *range(600), max_tokens=1)
        samples = await generated(subject.generator, request)
        counts = torch.zeros(VOCABULARY, dtype=torch.float64)
        for sample in samples.values():
            counts[sample.tokens[0]] += 1
        expected = exact_logits(1, request.prompt_tokens, [0])[0].softmax(0) * len(samples)
        common = expected >= 10
        observed = torch.cat([counts[common], counts[~common].sum()[None]])
        means = torch.cat([expected[common], expected[~common].sum()[None]])
        freedom = len(means) - 1
        assert freedom >= 8
        chi_square = float(((observed - means) ** 2 / means).sum())
        # Wilson and Hilferty's approximation of a normal variable.
        variance = 2 / (9 * freedom)
        assert abs((chi_square / freedom) ** (1 / 3) - (1 - variance)) / variance**0.5 < 4.5

    async def test_a_seed_determines_the_tokens(self, subject: Subject) -> None:
        """Whatever other requests run at the same time."""
        await refitted(subject, 1)
        request, others = group("seeded", 3, 3, 4), [group(str(seed), seed) for seed in range(10, 14)]
        alone = await generated(subject.generator, request)
        in_company = await generated(subject.generator, request, *others)
        first, same, other = (alone["seeded", index].tokens for index in range(3))
        assert first == same != other
        for index in range(3):
            assert in_company["seeded", index].tokens == alone["seeded", index].tokens

    async def test_impossible_requests_are_refused(self, subject: Subject) -> None:
        await refitted(subject, 1)
        for request, why in (
            (group("empty", 1, prompt=()), "prompt_tokens is empty"),
            (group("foreign", 1, prompt=(1, VOCABULARY)), f"prompt_tokens holds {VOCABULARY}"),
            (group("long", 1, max_tokens=self.context), f"more than the model's context of {self.context}"),
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
            self.check(subject, await generated(generator, many, mixed), 1, many, mixed)
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
        self.check(subject, await first, 1, *before)
        self.check(subject, await second, 2, *after)

    async def test_a_known_prompt_is_computed_again_after_a_refit(self, subject: Subject) -> None:
        """The keys and values of a prompt that an engine keeps are those of the weights before."""
        request = group("known", 1, 2, prompt=tuple(range(64)))
        for version in (1, 2):
            await refitted(subject, version)
            for _ in range(2):
                samples = await generated(subject.generator, request)
                self.check(subject, samples, version, request)

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
        comparable = self.equal_to_the_torch_engine
        check_same(await generated(subject.generator, *comparable), stepped(engine, *comparable))

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
        self.check(subject, await generated(subject.generator, *MANY_KINDS[:2]), 1, *MANY_KINDS[:2])

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
        self.check(subject, await generated(subject.generator, *requests), 1, *requests)
        await self.idle(subject)

    async def idle(self, subject: Subject) -> None:
        """Wait until the load reports an idle engine."""
        async with asyncio.timeout(SECONDS):
            while subject.generator.load.running or subject.generator.load.waiting:  # noqa: ASYNC110
                await asyncio.sleep(0.02)
        assert subject.generator.in_flight == 0

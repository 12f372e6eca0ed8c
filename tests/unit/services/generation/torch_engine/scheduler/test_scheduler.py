"""The engine over a runner that checks its reads: each next token depends on all tokens before it, read
through the page tables, and on the weights that each was computed with. A page that is shared, copied,
kept or released wrongly gives another token.
"""

import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from torch import Tensor
from transformers import PreTrainedTokenizerFast

from kubealign.spec.sections import engines as engine_spec
from kubealign.spec.sections.rollout import InFlightPolicy
from kubealign_services.generation.contract import (
    FinishReason,
    GeneratedSample,
    GenerationRequest,
    SamplingParameters,
)
from kubealign_services.generation.stop_strings import StopStrings
from kubealign_services.generation.torch_engine.engine import TorchRolloutEngine
from kubealign_services.generation.torch_engine.kv_cache.page_manager import pages_for
from kubealign_services.generation.torch_engine.ragged_batch import PAGE_TOKENS, RaggedBatch
from kubealign_services.generation.torch_engine.sampling.philox import uniform_numbers
from kubealign_services.generation.torch_engine.sampling.sampler import SamplingInputs, sample

Numbers = list[int] | NDArray[np.int64]

VOCABULARY, END, CONTEXT = 272, 270, 160
ENDS = frozenset((END,))


# [997, vocabulary], far apart.
TABLE = torch.from_numpy(np.random.default_rng(3).normal(0, 4, (997, VOCABULARY)).astype(np.float32))
TABLE[:, END] += 3


def logits_after(tokens: Numbers, made_with: Numbers, version: int) -> Tensor:
    """Return logits [vocabulary] after the tokens, the weights that each was computed with, and the present
    weights.
    """
    return TABLE[zlib.crc32(np.concatenate((tokens, made_with, [version])).astype(np.int64).tobytes()) % 997]


class ReadingPasses:
    """A ModelRunner in which a slot of a page holds the token written to it, and the weight version."""

    context, vocabulary, device, page_bytes = CONTEXT, VOCABULARY, torch.device("cpu"), 1024

    def __init__(self) -> None:
        self.version = 0
        self.most_tokens = 0
        self._tokens = np.full((0, PAGE_TOKENS), -1, np.int64)
        self._versions = np.full((0, PAGE_TOKENS), -1, np.int64)

    @property
    def pages(self) -> int:
        return len(self._tokens)

    def reserve(self, pages: int) -> None:
        more = np.full((pages - len(self._tokens), PAGE_TOKENS), -1, np.int64)
        self._tokens = np.concatenate((self._tokens, more))
        self._versions = np.concatenate((self._versions, more))

    def forward(self, batch: RaggedBatch) -> Tensor:
        assert (batch.lengths[: batch.decoding_count] == 1).all() and (batch.lengths > 0).all()
        self.most_tokens = max(self.most_tokens, int(batch.lengths[batch.decoding_count :].sum()))
        rows = np.repeat(np.arange(len(batch.lengths)), batch.lengths)
        pages, places = batch.page_tables[rows, batch.positions // PAGE_TOKENS], batch.positions % PAGE_TOKENS
        assert len({*zip(pages.tolist(), places.tolist(), strict=True)}) == len(pages), "written twice"
        self._tokens[pages, places] = batch.tokens
        self._versions[pages, places] = self.version
        logits = []
        for index in batch.logit_indices.tolist():
            length = int(batch.positions[index]) + 1
            table = batch.page_tables[rows[index], : pages_for(length)]
            tokens = self._tokens[table].reshape(-1)[:length]
            versions = self._versions[table].reshape(-1)[:length]
            assert tokens[-1] == batch.tokens[index]
            logits.append(logits_after(tokens, versions, self.version))
        return torch.stack(logits) if logits else torch.zeros(0, VOCABULARY)

    def copy_pages(self, sources: list[int], targets: list[int]) -> None:
        assert not {*sources} & {*targets}
        self._tokens[targets] = self._tokens[sources]
        self._versions[targets] = self._versions[sources]

    def forward_sequence(self, tokens: list[int]) -> Tensor:
        raise NotImplementedError

    def load_weights(self, tensors: Iterable[tuple[str, Tensor]]) -> None:
        self.version = int(dict(tensors)["version"])

    def load_adapter(self, tensors: Iterable[tuple[str, Tensor]], scale: float) -> None:
        self.load_weights(tensors)

    def on_idle(self) -> None: ...


@dataclass(frozen=True)
class Arrival:
    step: int
    prompt: tuple[int, ...]
    seeds: tuple[int, ...]
    sampling: SamplingParameters
    aborted: int | None


SAMPLINGS = st.builds(
    lambda most, least, temperature, top_k, stop, ids: SamplingParameters(
        most, min(least, most), temperature, top_k, 1.0, stop, ids
    ),
    st.integers(1, 12) | st.integers(13, 40),
    st.sampled_from([0, 0, 3, 60, 60]),
    st.sampled_from([0.0, 1.0, 1.0, 3.0]),
    st.sampled_from([0, 0, 4]),
    st.sampled_from([(), (), ("<",), ("6", "é", "ab")]),
    st.sampled_from([(), (), tuple(range(0, 256, 16))]),
)
# Few distinct prefixes of zero to four pages, each with few continuations.
PROMPTS = st.builds(
    lambda stem, length, tail: tuple((stem * 50 + i * i) % 256 for i in range(length)) + tuple(tail),
    st.integers(1, 2),
    st.sampled_from([0, 5, 15, 16, 37, 63]),
    st.lists(st.integers(0, 2), min_size=1, max_size=4),
)
ARRIVALS = st.lists(
    st.builds(
        Arrival,
        st.integers(0, 30),
        PROMPTS,
        st.lists(st.integers(0, 2**64 - 1), min_size=1, max_size=6).map(tuple),
        SAMPLINGS,
        st.sampled_from([None] * 6 + [*range(5, 40, 6)]),
    ),
    min_size=1,
    max_size=8,
)
REFITS = st.dictionaries(st.integers(1, 40), st.sampled_from([*InFlightPolicy]), max_size=3)


def expected(
    prompt: tuple[int, ...],
    seed: int,
    sampling: SamplingParameters,
    got: GeneratedSample,
    continued: bool,
    decode: Any,
) -> tuple[list[int], FinishReason, str]:
    """Return the sample computed here, one token after another, with the weight versions recorded in `got`.

    Args:
        continued: Text computed with earlier weights is kept.
    """
    tokens: list[int] = []
    stops = StopStrings(decode, sampling.stop)
    ends = ENDS | set(sampling.stop_token_ids)
    for version in got.versions:
        text = [*prompt, *tokens]
        before = [version] * len(text)
        if continued and tokens:
            # A token's forward pass runs when the next token is drawn.
            before = [got.versions[0]] * len(prompt) + got.versions[1 : len(tokens) + 1]
        young = len(tokens) < sampling.min_tokens
        barred = torch.tensor(sorted(ends)) if young else torch.zeros(0, dtype=torch.int64)
        drawn = sample(
            logits_after(text, before, version)[None],
            SamplingInputs(
                temperature=torch.tensor([sampling.temperature]),
                top_k=torch.tensor([sampling.top_k]),
                top_p=torch.tensor([sampling.top_p], dtype=torch.float64),
                uniform=torch.from_numpy(
                    uniform_numbers(np.array([seed], np.uint64), np.array([len(tokens)], np.uint64))
                ),
                has_truncation=sampling.top_k > 0,
                has_greedy=sampling.temperature == 0,
                forbidden=(torch.zeros_like(barred), barred) if young else None,
            ),
        )
        tokens.append(int(drawn.tokens))
        if tokens[-1] in ends:
            return tokens, FinishReason.STOP, decode(tokens[:-1])
        stopped_text = stops.push(tokens, may_stop=len(tokens) >= sampling.min_tokens)
        if stopped_text is not None:
            return tokens, FinishReason.STOP, stopped_text
        if len(tokens) == sampling.max_tokens:
            return tokens, FinishReason.LENGTH, decode(tokens)
    raise AssertionError(f"it ended too early: {tokens}")


@pytest.mark.slow
@settings(max_examples=15, deadline=None, derandomize=True)
@given(
    arrivals=ARRIVALS,
    refits=REFITS,
    max_sequences=st.integers(1, 9),
    prefill_tokens=st.integers(1, 80),
    spare_pages=st.sampled_from([0, 0, 1, 3, 8, 100]),
)
def test_samples_are_independent_of_the_batch(
    arrivals: list[Arrival],
    refits: dict[int, InFlightPolicy],
    max_sequences: int,
    prefill_tokens: int,
    spare_pages: int,
    tokenizer: PreTrainedTokenizerFast,
) -> None:
    """Groups arrive and are aborted while others run, in caches down to the smallest that holds each alone;
    the weights change. Each sample equals the one generated alone, and every page is released.
    """
    pages = spare_pages + max(pages_for(len(a.prompt) + a.sampling.max_tokens - 1) for a in arrivals)
    passes = ReadingPasses()
    spec = engine_spec.TorchEngineSpec(
        max_sequences=max_sequences, prefill_tokens=prefill_tokens, cache_gib=pages * 1024 / 2**30
    )
    engine = TorchRolloutEngine(passes, tokenizer, spec, ENDS)
    engine.refit([("version", torch.tensor(1))], 1)
    cache = engine._scheduler.cache
    finished: dict[tuple[str, int], GeneratedSample] = {}
    mixed = False
    # Each step generates a token of the oldest sequence or prefills a part of it.
    for now in range(20_000):
        for i, arrival in enumerate(arrivals):
            if arrival.step == now:
                engine.add(GenerationRequest(str(i), arrival.prompt, arrival.seeds, arrival.sampling))
            if arrival.aborted == now:
                engine.abort(str(i))
        kind = refits.get(now)
        if kind is not None and not (kind is InFlightPolicy.DRAIN and engine._scheduler.running):
            version = engine.version + 1
            mixed |= kind is InFlightPolicy.CONTINUE
            engine.refit([("version", torch.tensor(version))], version, kind)
        for each in engine.step():
            assert (each.request_id, each.sample) not in finished
            finished[each.request_id, each.sample] = each
        assert cache.used <= cache.limit == pages and passes.pages <= pages
        if now > 40 and not engine._scheduler:
            break
    else:
        raise AssertionError(f"not idle: {engine.load()}")
    assert passes.most_tokens <= prefill_tokens
    load = engine.load()
    assert (load.running, load.waiting, load.free_sequences, load.cache_used) == (0, 0, max_sequences, 0.0)
    assert not engine._unfinished
    cache.flush()
    assert cache._pool.free == cache.storage_pages and not cache._pool._reference_counts.any()
    for i, arrival in enumerate(arrivals):
        for j, seed in enumerate(arrival.seeds):
            got = finished.pop((str(i), j), None)
            if got is None:
                assert arrival.aborted is not None
                continue
            assert got.versions == sorted(got.versions)
            several = len(set(got.versions)) > 1
            if mixed and several and (load.preemptions or InFlightPolicy.INTERRUPT in refits.values()):
                continue
            same = expected(arrival.prompt, seed, arrival.sampling, got, mixed, engine._decode)
            assert (got.tokens, got.finish, got.text) == same
    assert not finished

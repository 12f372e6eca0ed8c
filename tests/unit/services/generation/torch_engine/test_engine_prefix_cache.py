"""Computation and reuse in the engine: shared prefixes, chunked prompts, preemption."""

from collections.abc import Callable
from copy import deepcopy
from itertools import pairwise
from typing import Any

import pytest
import torch

from kubealign.spec.sections import engines as engine_spec
from kubealign.spec.sections.rollout import InFlightPolicy
from kubealign_services.generation.contract import GenerationRequest, RequestRefused, SamplingParameters
from kubealign_services.generation.torch_engine.engine import TorchRolloutEngine

Run = Callable[..., Any]


def request(
    name: str,
    prompt: int | tuple[int, ...],
    *seeds: int,
    most: int = 6,
    least: int | None = None,
    **more: Any,
) -> GenerationRequest:
    """Return a request that generates exactly its maximum number of tokens.

    Args:
        prompt: Its tokens, or their number.
    """
    tokens = tuple(range(20, 20 + prompt)) if isinstance(prompt, int) else prompt
    sampling = SamplingParameters(most, min_tokens=most if least is None else least, **more)
    return GenerationRequest(name, tokens, seeds or (1,), sampling)


class Watched:
    """Records the input of an engine's passes: for each pass, the number of running rows and the chunks'
    tokens.
    """

    def __init__(self, engine: TorchRolloutEngine, monkeypatch: pytest.MonkeyPatch) -> None:
        self.passes: list[tuple[int, list[int]]] = []
        plain = engine._runner.forward

        def run(batch: Any) -> torch.Tensor:
            self.passes.append((batch.decoding_count, batch.lengths[batch.decoding_count :].tolist()))
            return plain(batch)

        monkeypatch.setattr(engine._runner, "forward", run)


def larger(zoo: Any, scale: float) -> list[tuple[str, torch.Tensor]]:
    return [(key, scale * weight.detach()) for key, weight in zoo.reference("llama-gqa").named_parameters()]


def tokens_of(samples: Any) -> dict[Any, list[int]]:
    return {key: sample.tokens for key, sample in samples.items()}


def test_a_groups_prompt_is_computed_once(zoo: Any, run_all: Run) -> None:
    """The group may also start gradually: ten samples through four rows."""
    engine = zoo.engine("llama-gqa", max_sequences=4)
    samples = run_all(engine, request("r", 17, *range(10)))
    assert len(samples) == 10
    assert (engine.load().prefilled_tokens, engine.load().reused_tokens) == (17, 0)


def test_several_prompts_are_one_pass(zoo: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = zoo.engine("llama-gqa")
    watched = Watched(engine, monkeypatch)
    for i, length in enumerate((3, 5, 4)):
        engine.add(request(str(i), (i, *range(1, length))))
    engine.step()
    engine.step()
    assert watched.passes == [(0, [3, 5, 4]), (3, [])]


def test_long_prompts_are_chunked_while_others_run(
    zoo: Any, run_all: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fifty tokens, twenty per pass; the running sequence takes one token of every pass, and the last ten
    leave room for the whole next prompt.
    """
    engine = zoo.engine("llama-gqa", prefill_tokens=20)
    watched = Watched(engine, monkeypatch)
    engine.add(request("runs", (1, 2), most=8))
    engine.step()
    long, short = request("long", 50, most=2), request("short", (3, 4, 5), most=2)
    engine.add(long)
    engine.add(short)
    generated = []
    for _ in range(4):
        generated.append(engine.load().generated_tokens)
        engine.step()
    assert watched.passes == [(0, [2]), (1, [20]), (1, [20]), (1, [10, 3]), (3, [])]
    assert generated == [1, 2, 3, 6]
    apart = run_all(zoo.engine("llama-gqa"), long)
    assert tokens_of(run_all(zoo.engine("llama-gqa", prefill_tokens=7), long)) == tokens_of(apart)


def test_shared_prefix_is_found_in_the_same_pass_and_later(
    zoo: Any, run_all: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """40 tokens share two full pages and end differently. The third request arrives after the first two have
    ended.
    """
    first, second, third = (
        request(name, (*range(20, 57), *end))
        for name, end in (("a", (1, 2, 3)), ("b", (4, 5, 6)), ("c", (7, 8, 9)))
    )
    engine = zoo.engine("llama-gqa")
    watched = Watched(engine, monkeypatch)
    together = run_all(engine, first, second)
    assert watched.passes[0] == (0, [40, 8])
    assert (engine.load().prefilled_tokens, engine.load().reused_tokens) == (48, 32)
    together |= run_all(engine, third)
    assert (engine.load().prefilled_tokens, engine.load().reused_tokens) == (56, 64)
    for each in (first, second, third):
        alone = tokens_of(run_all(zoo.engine("llama-gqa"), each))
        assert tokens_of(together)[each.request_id, 0] == alone[each.request_id, 0]


@pytest.mark.parametrize(("generated", "reused"), [(30, 32), (23, 32), (22, 16)])
def test_next_turn_reuses_the_previous_one(generated: int, reused: int, zoo: Any, run_all: Run) -> None:
    """10 tokens and the generated ones, the last of them never computed: 32 tokens make one full page."""
    engine = zoo.engine("llama-gqa")
    turn = request("one", 10, most=generated)
    answer = run_all(engine, turn)["one", 0].tokens
    follow = request("two", (*turn.prompt_tokens, *answer, 5, 6))
    again = run_all(engine, follow)
    assert engine.load().reused_tokens == reused
    assert engine.load().prefilled_tokens == 10 + 12 + generated - reused
    assert tokens_of(again) == tokens_of(run_all(zoo.engine("llama-gqa"), follow))


@pytest.mark.parametrize("kind", [*InFlightPolicy])
def test_refit_invalidates_the_cache(kind: InFlightPolicy, zoo: Any, run_all: Run) -> None:
    """The pages of a sample that continued are not found either: they belong to both versions."""
    engine = zoo.engine("llama-gqa")
    run_all(engine, request("a", 40))
    if kind is not InFlightPolicy.DRAIN:
        engine.add(request("b", 40, most=20))
        engine.step()
    reused = engine.load().reused_tokens
    weights = [
        (name, 1.1 * weight.detach()) for name, weight in zoo.reference("llama-gqa").named_parameters()
    ]
    engine.refit(weights, 2, kind)
    later = run_all(engine, request("c", 40))
    # The interrupted sample is recomputed before c, which reuses its pages.
    assert engine.load().reused_tokens - reused == (32 if kind is InFlightPolicy.INTERRUPT else 0)
    if kind is InFlightPolicy.CONTINUE:
        last = engine.load().reused_tokens
        both = (*range(20, 60), *later["b", 0].tokens, 1)
        run_all(engine, request("d", both))
        assert engine.load().reused_tokens == last + 32, "c's pages of the prompt, and none of b's"
    fresh = zoo.engine("llama-gqa")
    fresh.refit(weights, 2)
    assert later["c", 0].tokens == run_all(fresh, request("c", 40))["c", 0].tokens


def test_youngest_sample_is_preempted_and_recomputed(zoo: Any, run_all: Run) -> None:
    """Three samples of 16 + 40 tokens, four pages each in the end, in a cache of seven."""
    requests = [request(name, (i, *range(1, 16)), i, most=40) for i, name in enumerate("abc")]
    engine = zoo.engine("llama-gqa", pages=7)
    for each in requests:
        engine.add(each)
    order = []
    for _ in range(140):
        order += [sample.request_id for sample in engine.step()]
    assert order == ["a", "b", "c"], "the oldest is never stopped"
    load = engine.load()
    assert load.preemptions >= 2
    assert load.prefilled_tokens + load.reused_tokens > 3 * 16
    assert (load.cache_used, load.running, load.waiting) == (0.0, 0, 0)
    roomy = zoo.engine("llama-gqa")
    got, expected = (run_all(each, *requests) for each in (zoo.engine("llama-gqa", pages=7), roomy))
    assert tokens_of(got) == tokens_of(expected)
    for key, sample in got.items():
        assert sample.engine_logprobs == pytest.approx(expected[key].engine_logprobs, abs=1e-4)
        assert sample.behaviour_logprobs == pytest.approx(expected[key].behaviour_logprobs, abs=1e-4)
        assert sample.versions == [1] * 40
    assert roomy.load().preemptions == 0


def test_cache_for_one_sample_generates_a_group(zoo: Any, run_all: Run) -> None:
    """20 + 12 tokens need two pages, the whole cache."""
    group = request("r", 20, *range(5), most=12)
    engine = zoo.engine("llama-gqa", pages=2)
    samples = run_all(engine, group)
    assert tokens_of(samples) == tokens_of(run_all(zoo.engine("llama-gqa"), group))
    assert engine._runner.pages == 2


def test_request_larger_than_the_cache_is_refused(zoo: Any, run_all: Run) -> None:
    """20 + 14 - 1 tokens need three pages of 4,096 bytes; the last token needs no slot."""
    engine = zoo.engine("llama-gqa", pages=2)
    with pytest.raises(
        RequestRefused, match=r"request 'r': a prompt of 20 tokens and max_tokens 14 .*cacheGib"
    ):
        engine.add(request("r", 20, most=14))
    assert engine.load().waiting == 0
    assert len(run_all(engine, request("r", 20, most=13))["r", 0].tokens) == 13


def test_a_cache_of_no_page_is_an_error(zoo: Any) -> None:
    spec = engine_spec.TorchEngineSpec(cache_gib=1e-9)
    with pytest.raises(ValueError, match=r"rollout\.engine: cacheGib 1e-09 is 1 bytes, .* one page"):
        TorchRolloutEngine.create(zoo.folder("llama-gqa"), spec)


def test_storage_is_bounded_by_running_sequences(zoo: Any, run_all: Run) -> None:
    """Sixty samples of 20 tokens through an engine of four: each leaves a full unused page, and storage stays
    within the pages that are always kept, here sixteen.
    """
    engine = zoo.engine("llama-gqa", max_sequences=4)
    engine._scheduler.cache._min_spare_pages = 16
    run_all(engine, *(request(str(i), (i, 1, 2), i, 100 + i, most=17) for i in range(30)))
    assert engine._scheduler.cache.storage_pages <= 16
    assert engine._runner.pages == 32


def test_failed_pass_recomputes_running_sequences(
    zoo: Any, run_all: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    group = request("r", 20, 1, 2, most=12)
    engine = zoo.engine("llama-gqa")
    engine.add(group)
    engine.step()
    plain = engine._runner.forward
    for _ in range(2):
        monkeypatch.setattr(engine._runner, "forward", lambda batch: torch.zeros(0)[1])
        with pytest.raises(IndexError):
            engine.step()
        monkeypatch.setattr(engine._runner, "forward", plain)
        assert (engine.load().running, engine.load().waiting, engine.load().cache_used) == (0, 2, 0.0)
        engine.step()
    assert tokens_of(run_all(engine)) == tokens_of(run_all(zoo.engine("llama-gqa"), group))


def test_released_storage_is_not_read(zoo: Any, run_all: Run) -> None:
    """Another tenant of the accelerator may have overwritten it."""
    engine = zoo.engine("llama-gqa")
    before = run_all(engine, request("r", 40))
    engine._runner._cache.clear()
    assert tokens_of(run_all(engine, request("r", 40))) == tokens_of(before)
    assert engine.load().reused_tokens == 0
    engine.add(request("half", 40, most=12))
    engine.step()
    engine._runner._cache.clear()
    expected = run_all(zoo.engine("llama-gqa"), request("half", 40, most=12))
    assert tokens_of(run_all(engine)) == tokens_of(expected)


@pytest.mark.slow
@pytest.mark.parametrize("stop_index", [1, 2, 3, 4, 5, 8, 9])
def test_tokens_after_a_late_stop_string_are_dropped(
    stop_index: int,
    successor_engine: Callable[..., Any],
    byte_ids: Callable[[bytes], list[int]],
    run_all: Run,
) -> None:
    """Stop strings are searched at every fourth token: later tokens are removed from tokens, text and
    log-probabilities. q leads to w, and so on; the stop is the letter at `stop_index`.
    """
    word = b"qwertyuiop"
    ids = byte_ids(word)
    engine = successor_engine(dict(pairwise(ids)))
    sampling = SamplingParameters(9, temperature=0, stop=(chr(word[stop_index]),))
    sample = run_all(engine, GenerationRequest("r", (ids[0],), (0,), sampling))["r", 0]
    assert sample.tokens == ids[1 : stop_index + 1]
    assert (sample.finish, sample.text) == ("stop", word[1:stop_index].decode())
    assert len(sample.behaviour_logprobs) == len(sample.engine_logprobs) == len(sample.versions) == stop_index
    assert engine.load().generated_tokens == min(9, -(-stop_index // 4) * 4)


def test_continuing_samples_keep_their_cache(zoo: Any, run_all: Run) -> None:
    """Greedy, 20 tokens and 8 more with other weights: transformers does the same with its own cache, in
    which the first 27 tokens are of the old weights.
    """
    engine = zoo.engine("llama-gqa")
    old, new = zoo.reference("llama-gqa"), deepcopy(zoo.reference("llama-gqa"))
    with torch.no_grad():
        for weight in new.parameters():
            weight.mul_(1.2)
        ids = torch.arange(20, 40)[None]
        cache, expected = None, []
        for step in range(16):
            out = (old if step < 8 else new)(ids, past_key_values=cache, use_cache=True)
            cache, ids = out.past_key_values, out.logits[:, -1:].argmax(-1)
            expected.append(int(ids))
    engine.add(request("r", 20, most=16, least=0, temperature=0.0))
    for _ in range(8):
        assert engine.step() == []
    engine.refit(new.named_parameters(), 2, InFlightPolicy.CONTINUE)
    sample = run_all(engine)["r", 0]
    assert sample.tokens == expected
    assert sample.versions == [1] * 8 + [2] * 8


def test_failed_refit_recomputes_running_sequences(zoo: Any, run_all: Run) -> None:
    """Continue behaves like Interrupt after a failed refit, since the state of the weights is unknown."""
    weights = [
        (name, 1.2 * weight.detach()) for name, weight in zoo.reference("llama-gqa").named_parameters()
    ]
    results = []
    for kind in (InFlightPolicy.CONTINUE, InFlightPolicy.INTERRUPT):
        engine = zoo.engine("llama-gqa")
        engine.add(request("r", 20, 1, 2, most=16))
        for _ in range(5):
            engine.step()
        if kind is InFlightPolicy.CONTINUE:
            with pytest.raises(ValueError, match="did not come"):
                engine.refit(weights[:3], 2, kind)
            with pytest.raises(RuntimeError, match="refit it first"):
                engine.step()
            assert engine.load().waiting == 2
        engine.refit(weights, 3, kind)
        results.append(run_all(engine))
    assert tokens_of(results[0]) == tokens_of(results[1])
    assert results[0]["r", 1].versions == [1] * 5 + [3] * 11

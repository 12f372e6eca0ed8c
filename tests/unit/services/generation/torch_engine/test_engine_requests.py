"""Ends of responses, refused requests, and resources freed by abort."""

import math
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest

from kubealign_services.generation.contract import (
    FinishReason,
    GenerationRequest,
    RequestRefused,
    SamplingParameters,
)

Ids = Callable[[bytes], list[int]]
GREEDY = SamplingParameters(max_tokens=12, temperature=0)


def spelling(data: list[int]) -> dict[int, int]:
    """Return a map in which each token of a sequence without repetitions leads to the next."""
    return dict(pairwise(data))


def test_ends(successor_engine: Callable[..., Any], byte_ids: Ids, run_all: Callable[..., Any]) -> None:
    """q -> 1€.END<eos>: until the end of sequence, a stop string after a three-byte character, one over three
    tokens, a stop id, the maximum length.
    """
    word = byte_ids("q1€.END".encode())
    engine = successor_engine(spelling([*word, 270]))
    letters = word[1:]

    def request(name: str, **sampling: Any) -> GenerationRequest:
        return GenerationRequest(
            name, (word[0],), (0,), SamplingParameters(**{"max_tokens": 12, "temperature": 0, **sampling})
        )

    samples = run_all(
        engine,
        request("eos"),
        request("stop", stop=("€.",)),
        request("spanning", stop=("END",)),
        request("id", stop_token_ids=(letters[4],)),
        request("length", max_tokens=3),
        request("cut", max_tokens=4, stop=("END",)),
    )
    expected = {
        "eos": ([*letters, 270], FinishReason.STOP, "1€.END"),
        "stop": (letters[:5], FinishReason.STOP, "1"),
        "spanning": (letters, FinishReason.STOP, "1€."),
        "id": (letters[:5], FinishReason.STOP, "1€"),
        "length": (letters[:3], FinishReason.LENGTH, "1\ufffd"),
        "cut": (letters[:4], FinishReason.LENGTH, "1€"),
    }
    got = {name: (s.tokens, s.finish, s.text) for (name, _), s in samples.items()}
    assert got == expected
    assert all(s.versions == [1] * len(s.tokens) for s in samples.values())
    assert all(s.behaviour_logprobs == [0.0] * len(s.tokens) for s in samples.values())


@pytest.mark.parametrize(("min_tokens", "length", "text"), [(2, 3, "ba"), (3, 3, "ba"), (4, 5, "baba")])
def test_a_stop_string_waits_for_min_tokens(
    min_tokens: int,
    length: int,
    text: str,
    successor_engine: Callable[..., Any],
    byte_ids: Ids,
    run_all: Callable[..., Any],
) -> None:
    """a leads to b and b to a: the stop b is complete at the first, third and fifth token."""
    a, b = byte_ids(b"ab")
    engine = successor_engine({a: b, b: a})
    sampling = SamplingParameters(12, min_tokens=min_tokens, temperature=0, stop=("b",))
    sample = run_all(engine, GenerationRequest("r", (a,), (0,), sampling))["r", 0]
    assert (sample.tokens, sample.text) == ([b, a, b, a, b][:length], text)


def test_end_tokens_are_forbidden_until_min_tokens(
    successor_engine: Callable[..., Any], run_all: Callable[..., Any]
) -> None:
    """Every token leads to the end token, which comes after four others."""
    engine = successor_engine(dict.fromkeys(range(276), 270))
    sampling = SamplingParameters(12, min_tokens=4, temperature=0)
    sample = run_all(engine, GenerationRequest("r", (1,), (0,), sampling))["r", 0]
    assert [token == 270 for token in sample.tokens] == [False] * 4 + [True]


@pytest.mark.parametrize(
    ("prompt", "seeds", "sampling", "message"),
    [
        ((), (0,), GREEDY, "prompt_tokens is empty"),
        ((1,), (), GREEDY, "seeds is empty"),
        ((1, 276), (0,), GREEDY, "prompt_tokens holds 276; the vocabulary has 0 to 275"),
        ((-1,), (0,), GREEDY, "prompt_tokens holds -1"),
        (
            (1,) * 85,
            (0,),
            GREEDY,
            "a prompt of 85 tokens and max_tokens 12 make 97, more than the model's context of 96",
        ),
        ((1,), (0,), SamplingParameters(0), "max_tokens is 0"),
        (
            (1,),
            (0,),
            SamplingParameters(4, min_tokens=5),
            r"min_tokens is 5; it must be 0 to max_tokens \(4\)",
        ),
        ((1,), (0,), SamplingParameters(4, temperature=math.nan), "temperature is nan"),
        ((1,), (0,), SamplingParameters(4, temperature=-1.0), "temperature is -1.0"),
        ((1,), (0,), SamplingParameters(4, top_k=-1), "top_k is -1"),
        ((1,), (0,), SamplingParameters(4, top_p=0.0), "top_p is 0.0"),
        ((1,), (0,), SamplingParameters(4, stop=("",)), "stop holds an empty string"),
        ((1,), (0,), SamplingParameters(4, stop_token_ids=(999,)), "stop_token_ids holds 999"),
    ],
)
def test_impossible_requests_are_refused(
    prompt: tuple[int, ...], seeds: tuple[int, ...], sampling: SamplingParameters, message: str, zoo: Any
) -> None:
    engine = zoo.engine("llama-gqa")
    with pytest.raises(RequestRefused, match=f"request 'r': {message}"):
        engine.add(GenerationRequest("r", prompt, seeds, sampling))
    assert engine.load().waiting == 0


def test_the_whole_context_can_be_used(zoo: Any, run_all: Callable[..., Any]) -> None:
    engine = zoo.engine("gpt2")
    request = GenerationRequest("r", (1,) * 84, (0,), SamplingParameters(12, min_tokens=12))
    assert len(run_all(engine, request)["r", 0].tokens) == 12


def test_id_is_reserved_until_its_last_sample_ends(zoo: Any, run_all: Callable[..., Any]) -> None:
    engine = zoo.engine("llama-gqa", max_sequences=1)
    request = GenerationRequest("r", (1,), (0, 1), SamplingParameters(1))
    engine.add(request)
    engine.step()
    with pytest.raises(RequestRefused, match="already here"):
        engine.add(request)
    assert len(run_all(engine)) == 1
    assert len(run_all(engine, request)) == 2


def test_abort_frees_at_once_and_leaves_others_unchanged(zoo: Any, run_all: Callable[..., Any]) -> None:
    """One of three groups in four slots is aborted after it has started in part, with its prompt cached."""
    sampling = SamplingParameters(10, min_tokens=10)
    requests = [
        GenerationRequest(name, (i, 7, 9), (i, i + 10, i + 20), sampling) for i, name in enumerate("abc")
    ]
    expected = {key: s.tokens for key, s in run_all(zoo.engine("llama-gqa"), *requests).items()}
    engine = zoo.engine("llama-gqa", max_sequences=4)
    for request in requests:
        engine.add(request)
    engine.step()
    engine.step()
    assert (engine.load().running, engine.load().waiting) == (4, 5)
    engine.abort("b")
    engine.abort("never there")
    assert (engine.load().running, engine.load().waiting, engine.load().free_sequences) == (3, 3, 1)
    engine.step()
    engine.abort("a")
    assert engine.load().running == 1
    remaining = run_all(engine)
    assert {key: s.tokens for key, s in remaining.items()} == {
        k: v for k, v in expected.items() if k[0] == "c"
    }
    again = run_all(engine, requests[1])
    assert {key: s.tokens for key, s in again.items()} == {k: v for k, v in expected.items() if k[0] == "b"}


def test_idle_engine_returns_no_samples(zoo: Any) -> None:
    engine = zoo.engine("llama-gqa")
    assert engine.step() == []
    engine.add(GenerationRequest("r", (1,), (0,), SamplingParameters(4)))
    engine.abort("r")
    assert engine.step() == []

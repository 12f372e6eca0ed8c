"""Requests to `vllm serve`: its OpenAI-compatible API, and the endpoints of its development mode for weights.

The weights are loaded by kubealign's own extension of vLLM's workers. Of vLLM's ways, the endpoints of a
weight transfer (`/update_weights`) have no transport by files, and `reload_weights` reads complete
checkpoints only, so that an adapted matrix could not be loaded alone.
"""

import math
from pathlib import Path
from typing import Any

from kubealign_services.generation.contract import SamplingParameters
from kubealign_services.generation.external.contract import ExternalSample
from kubealign_services.generation.external.openai.access import ServerAccess
from kubealign_services.generation.external.openai.connection import ServerError
from kubealign_services.generation.external.openai.responses import (
    InvalidAnswer,
    check_end,
    check_logprob,
    check_logprobs,
    check_tokens,
    read_field,
)
from kubealign_services.generation.external.vllm.extension_names import SCORING_TEMPERATURE, WORKER_EXTENSION
from kubealign_services.generation.external.vllm.parameters import sampling_arguments
from kubealign_services.runtime.process.failures import PermanentFailure

COMPLETIONS_PATH = "/v1/completions"
_RESET_PATH = "/reset_prefix_cache"
#: Settings without which a server cannot be used.
NEEDED_SETTINGS = (
    f"Start it with VLLM_SERVER_DEV_MODE=1, --worker-extension-cls {WORKER_EXTENSION} and --logprobs-mode "
    "processed_logprobs"
)
#: Settings that a request leaves to the server otherwise, which may take them from the model's
#: generation_config.json.
_NEUTRAL = {"min_p": 0.0, "repetition_penalty": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0}
_PROBE_PROMPT = [0, 1]
_PROBE_TOKENS = [0, 1]
#: Most probable tokens of a temperature probe.
_PROBE_ENTRIES = 5


def completion_request(
    model: str, prompt: list[int], sampling: SamplingParameters, seed: int, ends: list[int]
) -> dict[str, Any]:
    """Build the JSON of a request for one response with its token ids and log-probabilities."""
    settings = sampling_arguments(sampling, seed, ends)
    # The API always makes the text.
    del settings["detokenize"]
    return {"model": model, "prompt": prompt, **settings, **_NEUTRAL, "return_token_ids": True}


def score_request(model: str, tokens: list[int], temperature: float) -> dict[str, Any]:
    """Build the JSON of a request for the log-probabilities of given tokens at a temperature.

    The last token is not part of the prompt, which would have no room for the one generated token in a
    sequence as long as the context; its log-probability is that of a possible next token.
    """
    return {
        "model": model,
        "prompt": tokens[:-1],
        "max_tokens": 1,
        "temperature": temperature,
        "top_k": 0,
        "top_p": 1.0,
        **_NEUTRAL,
        "ignore_eos": True,
        "stop_token_ids": [],
        "prompt_logprobs": 0,
        "vllm_xargs": {SCORING_TEMPERATURE: temperature},
        "logprobs": 0,
        "logprob_token_ids": [tokens[-1]],
        "return_tokens_as_token_ids": True,
    }


def probe_request(model: str) -> dict[str, Any]:
    """Build the JSON of a request whose answer shows the server's abilities.

    Only two tokens are allowed: their probabilities add up to 1 in the distribution that is sampled from,
    whatever the weights, and not in the full softmax.
    """
    sampling = SamplingParameters(max_tokens=1, temperature=2.0)
    return {
        **completion_request(model, _PROBE_PROMPT, sampling, 0, []),
        "allowed_token_ids": _PROBE_TOKENS,
        "logprob_token_ids": _PROBE_TOKENS,
        "return_tokens_as_token_ids": True,
    }


def temperature_probe(model: str, temperature: float) -> dict[str, Any]:
    """Build the JSON of a request whose answer shows at which temperature a prompt is scored."""
    return {
        **score_request(model, [*_PROBE_PROMPT, _PROBE_TOKENS[0]], temperature),
        "prompt_logprobs": _PROBE_ENTRIES,
    }


def scored_at_temperature(plain: Any, halved: Any) -> bool:
    """Return True if answers to temperature probes at 1 and 2 have differences of log-probabilities of which
    the second are half the first.

    Raises InvalidAnswer.
    """
    spread, half = (
        max(values) - min(values)
        for values in (
            [
                check_logprob(read_field(entry, "logprob"))
                for entry in read_field(answer, "choices", 0, "prompt_logprobs", 1).values()
            ]
            for answer in (plain, halved)
        )
    )
    return spread > 0 and abs(spread - 2 * half) < 0.1 * spread


def read_sample(answer: Any, vocabulary: int, most: int) -> ExternalSample:
    """Convert the answer to a `completion_request`. Raises InvalidAnswer."""
    tokens = check_tokens(read_field(answer, "choices", 0, "token_ids"), vocabulary, most)
    logprobs = read_field(answer, "choices", 0, "logprobs", "token_logprobs")
    sample = ExternalSample(tokens, check_logprobs(logprobs, len(tokens)))
    return check_end(sample, read_field(answer, "choices", 0, "finish_reason"), most)


def read_scores(answer: Any, tokens: list[int]) -> list[float]:
    """Return the log-probabilities of the answer to a `score_request`. Raises InvalidAnswer."""
    entries = read_field(answer, "choices", 0, "prompt_logprobs")
    if len(entries) != len(tokens) - 1:
        raise InvalidAnswer(
            f"{len(tokens) - 1} tokens of a prompt came with {len(entries)} log-probabilities"
        )
    scores = [
        read_field(entries, position, str(token), "logprob")
        for position, token in enumerate(tokens[:-1])
        if position > 0
    ]
    return check_logprobs([*scores, _next_logprob(answer, tokens[-1])], len(tokens) - 1)


def _next_logprob(answer: Any, token: int) -> Any:
    return read_field(answer, "choices", 0, "logprobs", "top_logprobs", 0, f"token_id:{token}")


def reports_sampled_distribution(answer: Any) -> bool:
    """Return True if the answer to a `probe_request` has log-probabilities of the distribution that was
    sampled from.
    """
    logprobs = [check_logprob(_next_logprob(answer, token)) for token in _PROBE_TOKENS]
    return abs(sum(map(math.exp, logprobs)) - 1) < 1e-2


class VllmServerClient:
    """An InferenceServerClient of `vllm serve`."""

    def __init__(self, access: ServerAccess) -> None:
        """Nothing is requested yet."""
        self._access = access
        self._connection = access.connection
        self._model = ""
        self.scores_at_any_temperature = False

    async def check(self, empty_file: Path) -> int:
        model = await self._access.served_model()
        self._model = str(model["id"])
        try:
            context = int(read_field(model, "max_model_len"))
            answer = await self._connection.request(COMPLETIONS_PATH, probe_request(self._model))
            read_sample(answer, self._access.vocabulary, 1)
            is_usable = reports_sampled_distribution(answer)
            plain, halved = [
                await self._connection.request(COMPLETIONS_PATH, temperature_probe(self._model, temperature))
                for temperature in (1.0, 2.0)
            ]
            self.scores_at_any_temperature = scored_at_temperature(plain, halved)
        except (InvalidAnswer, ServerError) as error:
            raise PermanentFailure(
                f"rollout.engine.openai.url: the server {self._connection.url} does not give token ids and "
                f"log-probabilities as vLLM does: {error}"
            ) from error
        if not is_usable:
            raise PermanentFailure(
                f"rollout.engine.openai.url: the server {self._connection.url} does not report "
                "log-probabilities of the distribution that it samples from (after temperature, topK, topP "
                f"and minTokens). {NEEDED_SETTINGS}"
            )
        try:
            await self.load_weights(empty_file)
            await self.read_mark()
        except (ServerError, InvalidAnswer) as error:
            raise PermanentFailure(
                f"rollout.engine.openai.url: the server {self._connection.url} cannot load the file "
                f"{empty_file} into its model: {error}. {NEEDED_SETTINGS}, with kubealign in its Python "
                "path. It must see the worker's files under the same path "
                "(rollout.engine.openai.weightFolder)"
            ) from error
        return context

    async def generate(
        self, request_id: str, prompt: list[int], sampling: SamplingParameters, seed: int, ends: list[int]
    ) -> ExternalSample:
        body = completion_request(self._model, prompt, sampling, seed, ends)
        answer = await self._access.generate(COMPLETIONS_PATH, body)
        return read_sample(answer, self._access.vocabulary, sampling.max_tokens)

    async def score(self, tokens: list[int], temperature: float) -> list[float]:
        request = score_request(self._model, tokens, temperature)
        return read_scores(await self._access.generate(COMPLETIONS_PATH, request), tokens)

    async def load_weights(self, file: Path) -> None:
        await self._connection.request(
            "/collective_rpc", {"method": "kubealign_load_weights", "args": [str(file)]}
        )

    async def drop_prefixes(self) -> None:
        await self._access.drop_prefixes(_RESET_PATH, self._reset_prefixes)

    async def _reset_prefixes(self) -> str | None:
        """It fails while blocks of the cache are in use."""
        answer = await self._connection.request(_RESET_PATH, {})
        return None if read_field(answer, "success") else "blocks are in use"

    async def write_mark(self, mark: str) -> None:
        await self._connection.request("/update_weight_version", {"new_version": mark})

    async def read_mark(self) -> str:
        return str(read_field(await self._connection.request("/weight_info"), "weight_version"))

"""Requests to SGLang's server: its own `/generate`, which gives token ids with their log-probabilities, and
its endpoints for weights.

Written by SGLang's documentation, for its version 0.5.
"""

import shutil
from http import HTTPStatus
from pathlib import Path
from typing import Any

from kubealign_services.generation.contract import RequestRefused, SamplingParameters
from kubealign_services.generation.external.contract import ExternalSample
from kubealign_services.generation.external.openai.access import ServerAccess
from kubealign_services.generation.external.openai.connection import ServerError
from kubealign_services.generation.external.openai.responses import (
    InvalidAnswer,
    check_end,
    check_logprobs,
    check_tokens,
    read_field,
)
from kubealign_services.generation.external.samples import is_truncated
from kubealign_services.runtime.process.failures import PermanentFailure

GENERATE_PATH = "/generate"
_FLUSH_PATH = "/flush_cache"
_PROBE_PROMPT = [0, 1]


def generate_request(
    prompt: list[int], sampling: SamplingParameters, seed: int, ends: list[int]
) -> dict[str, Any]:
    """Build the JSON of a request for one response with its token ids and log-probabilities.

    `ignore_eos` stays off, because it would switch the stop tokens off too. The seed counts on a server with
    deterministic inference only.
    """
    return {
        "input_ids": prompt,
        "sampling_params": {
            "max_new_tokens": sampling.max_tokens,
            "min_new_tokens": sampling.min_tokens,
            "temperature": sampling.temperature,
            "top_k": sampling.top_k or -1,
            "top_p": sampling.top_p,
            "min_p": 0.0,
            "repetition_penalty": 1.0,
            "presence_penalty": 0.0,
            "frequency_penalty": 0.0,
            "sampling_seed": seed & 0x7FFFFFFFFFFFFFFF,
            "stop": list(sampling.stop),
            "stop_token_ids": ends,
            "ignore_eos": False,
            "no_stop_trim": True,
            "skip_special_tokens": False,
        },
        "return_logprob": True,
    }


def score_request(tokens: list[int]) -> dict[str, Any]:
    """Build the JSON of a request for the log-probabilities of given tokens."""
    return {
        "input_ids": tokens,
        "sampling_params": {"max_new_tokens": 0, "temperature": 1.0},
        "return_logprob": True,
        "logprob_start_len": 0,
    }


def read_sample(answer: Any, vocabulary: int, most: int) -> ExternalSample:
    """Convert the answer to a `generate_request`. Raises InvalidAnswer."""
    tokens, logprobs = _split(read_field(answer, "meta_info", "output_token_logprobs"))
    checked = check_tokens(tokens, vocabulary, most)
    sample = ExternalSample(checked, check_logprobs(logprobs, len(checked)))
    return check_end(sample, read_field(answer, "meta_info", "finish_reason", "type"), most)


def read_scores(answer: Any, tokens: list[int]) -> list[float]:
    """Return the log-probabilities of the answer to a `score_request`. Raises InvalidAnswer."""
    scored, logprobs = _split(read_field(answer, "meta_info", "input_token_logprobs"))
    if scored != tokens:
        raise InvalidAnswer(f"the answer scores the tokens {scored}, not {tokens}")
    # The first token follows no token, so it has no log-probability.
    return check_logprobs(logprobs[1:], len(tokens) - 1)


def _split(entries: Any) -> tuple[list[Any], list[Any]]:
    """Return the token ids and the log-probabilities of entries [log-probability, id, text]."""
    if not isinstance(entries, list) or not all(
        isinstance(entry, list) and len(entry) >= 2 for entry in entries
    ):
        raise InvalidAnswer(f"{str(entries)[:200]} are not entries of a log-probability and a token id")
    return [entry[1] for entry in entries], [entry[0] for entry in entries]


class SglangServerClient:
    """An InferenceServerClient of SGLang's server."""

    scores_at_any_temperature = False

    def __init__(self, access: ServerAccess) -> None:
        """Nothing is requested yet."""
        self._access = access
        self._connection = access.connection

    async def check(self, empty_file: Path) -> int:
        """The file is not loaded: SGLang loads folders with weights only."""
        model = await self._access.served_model()
        try:
            context = int(read_field(model, "max_model_len"))
            await self.generate("probe", _PROBE_PROMPT, SamplingParameters(1, temperature=2.0), 0, [])
            await self.read_mark()
        except (InvalidAnswer, ServerError) as error:
            raise PermanentFailure(
                f"rollout.engine.openai.url: the server {self._connection.url} does not give token ids, "
                f"log-probabilities and the version of its weights as SGLang does: {error}"
            ) from error
        return context

    async def generate(
        self, request_id: str, prompt: list[int], sampling: SamplingParameters, seed: int, ends: list[int]
    ) -> ExternalSample:
        """Raises RequestRefused for sampling that changes the distribution after its log-probabilities."""
        if is_truncated(sampling):
            raise RequestRefused(
                f"request {request_id!r}: SGLang reports log-probabilities before topK, topP and minTokens "
                "are applied: set topK 0, topP 1 and minTokens 0, or rollout.engine.openai.server Vllm"
            )
        answer = await self._access.generate(GENERATE_PATH, generate_request(prompt, sampling, seed, ends))
        return read_sample(answer, self._access.vocabulary, sampling.max_tokens)

    async def score(self, tokens: list[int], temperature: float) -> list[float]:
        """Raises ValueError for a temperature other than 1."""
        if temperature != 1:
            raise ValueError(f"SGLang scores at temperature 1 only, not at {temperature}")
        return read_scores(await self._access.generate(GENERATE_PATH, score_request(tokens)), tokens)

    async def load_weights(self, file: Path) -> None:
        """Raises ServerError where the server cannot load them."""
        # It reads all files of a folder.
        folder = file.with_suffix("")
        folder.mkdir()
        try:
            (folder / "model.safetensors").hardlink_to(file)
            answer = await self._connection.request(
                "/update_weights_from_disk", {"model_path": str(folder), "load_format": "safetensors"}
            )
        finally:
            shutil.rmtree(folder)
        if not read_field(answer, "success"):
            raise ServerError("/update_weights_from_disk", HTTPStatus.OK, str(answer))

    async def drop_prefixes(self) -> None:
        await self._access.drop_prefixes(_FLUSH_PATH, self._flush)

    async def _flush(self) -> str | None:
        """It is refused while requests are running."""
        try:
            await self._connection.request(_FLUSH_PATH, {})
        except ServerError as refusal:
            if refusal.status != HTTPStatus.BAD_REQUEST:
                raise
            return refusal.reason
        return None

    async def write_mark(self, mark: str) -> None:
        await self._connection.request(
            "/update_weight_version", {"new_version": mark, "abort_all_requests": False}
        )

    async def read_mark(self) -> str:
        return str(read_field(await self._connection.request("/model_info"), "weight_version"))

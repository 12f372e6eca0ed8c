"""Validation of an inference server's answers. Pure.

Tokens and log-probabilities are trained on, so an answer is used only if it has one of each, in range.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from kubealign_services.generation.external.contract import ExternalSample
from kubealign_services.runtime.process.failures import PermanentFailure

#: Path of the list of served models.
MODELS_PATH = "/v1/models"
#: vLLM writes log-probabilities below this one, such as minus infinity, as this one.
LEAST_LOGPROB = -9999.0


class InvalidAnswer(ValueError):
    """An answer that cannot be trained on."""


def read_field(document: Any, *path: str | int) -> Any:
    """Return a value within the answer. Raises InvalidAnswer, with its path, where it is missing or null."""
    value = document
    for position, key in enumerate(path):
        if isinstance(key, str):
            value = value.get(key) if isinstance(value, Mapping) else None
        else:
            is_index = isinstance(value, Sequence) and not isinstance(value, str) and key < len(value)
            value = value[key] if is_index else None
        if value is None:
            raise InvalidAnswer(f"the answer has no {format_path(path[: position + 1])}")
    return value


def format_path(path: Sequence[str | int]) -> str:
    """Return a path such as choices[0].token_ids."""
    text = "".join(f"[{key}]" if isinstance(key, int) else f".{key}" for key in path)
    return text.removeprefix(".")


def check_tokens(values: Any, vocabulary: int, most: int) -> list[int]:
    """Return token ids.

    Raises InvalidAnswer unless they are 1 to `most` integers from 0 to below `vocabulary`.
    """
    if not isinstance(values, list) or not 1 <= len(values) <= most:
        count = len(values) if isinstance(values, list) else values
        raise InvalidAnswer(f"the answer has {count} token ids; {most} were asked for at most")
    for value in values:
        if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < vocabulary:
            raise InvalidAnswer(
                f"the answer holds the token {value!r}; the vocabulary has 0 to {vocabulary - 1}"
            )
    return list(values)


def check_logprobs(values: Any, count: int) -> list[float]:
    """Return log-probabilities; minus infinity where the server gives its least number.

    Raises InvalidAnswer unless there are `count` numbers that can be log-probabilities.
    """
    if not isinstance(values, list) or len(values) != count:
        given = len(values) if isinstance(values, list) else values
        raise InvalidAnswer(f"{count} tokens came with {given} log-probabilities")
    return [check_logprob(value) for value in values]


def check_logprob(value: Any) -> float:
    """Return one log-probability, as `check_logprobs` does. Rounding may leave it slightly above 0."""
    if not isinstance(value, int | float) or isinstance(value, bool) or math.isnan(value) or value > 1e-3:
        raise InvalidAnswer(f"{value!r} is not the log-probability of a token")
    return -math.inf if value <= LEAST_LOGPROB else float(value)


def check_end(sample: ExternalSample, reason: Any, most: int) -> ExternalSample:
    """Return a response if it has ended by itself or has its full length.

    Raises InvalidAnswer for one that was aborted or cut short.

    Args:
        reason: Reason that the server gives: stop, length, or another word.
        most: Largest number of tokens that was asked for.
    """
    if reason not in ("stop", "length"):
        raise InvalidAnswer(f"the response was not finished: its finish reason is {reason!r}")
    if reason == "length" and len(sample.tokens) < most:
        raise InvalidAnswer(
            f"the response was cut at {len(sample.tokens)} of {most} tokens by a limit of the server"
        )
    return sample


def select_model(listing: Any, name: str | None) -> Mapping[str, Any]:
    """Return the entry of the served model.

    Raises PermanentFailure for a name that is not served, and without a name where several are.

    Args:
        listing: Answer to a request to `MODELS_PATH`.
    """
    entries = {str(entry["id"]): entry for entry in read_field(listing, "data")}
    served = ", ".join(entries) or "none"
    if name is None and len(entries) != 1:
        raise PermanentFailure(
            f"rollout.engine.openai.model: the server has {len(entries)} models ({served}): name one"
        )
    if name is not None and name not in entries:
        raise PermanentFailure(
            f"rollout.engine.openai.model is {name!r}, which the server does not have; it has {served}"
        )
    entry: Mapping[str, Any] = entries[name or next(iter(entries))]
    return entry

"""Results of a reward function: one for each response. Pure."""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from kubealign_services.scoring.shortened_text import shorten

#: Most characters of an explanation; longer ones are cut.
MAX_EXPLANATION = 2000
#: Most metrics of one response.
MAX_METRICS = 64
#: Names that are metrics of every reward already, as reward/NAME/mean.
RESERVED_METRICS = frozenset({"mean", "std", "errors", "timeouts", "disagreement"})

_METRIC_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,62}")
_KEYS = ("reward", "metrics", "explanation", "steps")
#: Most steps of one response.
MAX_STEPS = 4096


class InvalidResult(ValueError):
    """A function returned something else than results."""


@dataclass(frozen=True)
class RewardResult:
    """Reward of one response, None where the function does not apply to it, with what the function reports
    about it: numbers by name, and a text for people.

    steps: Reward of each step of the response, in order; None: the function rewards no steps.
    """

    reward: float | None
    metrics: Mapping[str, float] = field(default_factory=dict)
    explanation: str = ""
    steps: tuple[float, ...] | None = None

    def to_json(self) -> float | dict[str, Any] | None:
        """Return the JSON value: the reward alone where there is no more, else an object."""
        if not self.metrics and not self.explanation and self.steps is None:
            return self.reward
        steps = {} if self.steps is None else {"steps": list(self.steps)}
        return {
            "reward": self.reward,
            "metrics": dict(self.metrics),
            "explanation": self.explanation,
        } | steps

    @classmethod
    def from_json(cls, value: float | dict[str, Any] | None) -> "RewardResult":
        """Return the result of a JSON value of `to_json`."""
        if not isinstance(value, dict):
            return cls(value)
        steps = value.get("steps")
        return cls(**value | {"steps": None if steps is None else tuple(steps)})


def check_results(returned: Any, count: int) -> list[RewardResult]:
    """Return the results that a function has returned for `count` responses.

    Each is a number, None, a RewardResult, or a mapping with the keys reward, metrics, explanation and steps,
    of which the last three may be missing. The reward may be missing where there are steps, and is their sum.

    Raises InvalidResult.
    """
    if hasattr(returned, "tolist"):
        returned = returned.tolist()
    if not isinstance(returned, list | tuple):
        raise InvalidResult(f"returned {describe_value(returned)}, not a list of {count} numbers")
    if len(returned) != count:
        raise InvalidResult(f"returned {len(returned)} rewards for {count} responses")
    return [_check_result(value, f"for response {index}") for index, value in enumerate(returned)]


def _check_result(value: Any, where: str) -> RewardResult:
    if isinstance(value, RewardResult):
        return replace(value, explanation=shorten(value.explanation, MAX_EXPLANATION))
    if not isinstance(value, Mapping):
        return RewardResult(None if value is None else _check_number(value, where))
    unknown = sorted(str(key) for key in value if key not in _KEYS)
    steps = _check_steps(value.get("steps"), where)
    if unknown or ("reward" not in value and steps is None):
        fault = f"the key {unknown[0]!r}" if unknown else "no key 'reward'"
        raise InvalidResult(
            f"returned an object with {fault} {where}; its keys are reward, and maybe metrics, explanation "
            "and steps"
        )
    reward = value["reward"] if steps is None or "reward" in value else math.fsum(steps)
    if reward is None and steps is not None:
        raise InvalidResult(f"returned steps, but the reward None {where}; leave out one of them")
    explanation = value.get("explanation") or ""
    if not isinstance(explanation, str):
        raise InvalidResult(f"returned the explanation {describe_value(explanation)} {where}, not a text")
    return RewardResult(
        None if reward is None else _check_number(reward, where),
        _check_metrics(value.get("metrics") or {}, where),
        shorten(explanation, MAX_EXPLANATION),
        steps,
    )


def _check_steps(steps: Any, where: str) -> tuple[float, ...] | None:
    if hasattr(steps, "tolist"):
        steps = steps.tolist()
    if steps is None:
        return None
    if not isinstance(steps, list | tuple):
        raise InvalidResult(f"returned the steps {describe_value(steps)} {where}, not a list of numbers")
    if len(steps) > MAX_STEPS:
        raise InvalidResult(f"returned {len(steps)} steps {where}; at most {MAX_STEPS} are allowed")
    return tuple(_check_number(value, f"for step {index} {where}") for index, value in enumerate(steps))


def _check_metrics(metrics: Any, where: str) -> dict[str, float]:
    if not isinstance(metrics, Mapping):
        raise InvalidResult(f"returned the metrics {describe_value(metrics)} {where}, not names with numbers")
    if len(metrics) > MAX_METRICS:
        raise InvalidResult(f"returned {len(metrics)} metrics {where}; at most {MAX_METRICS} are allowed")
    for name in metrics:
        if not isinstance(name, str) or not _METRIC_NAME.fullmatch(name) or name in RESERVED_METRICS:
            raise InvalidResult(
                f"returned a metric named {describe_value(name)} {where}; a name has letters, digits, '.', "
                f"'_' and '-', at most 63, and is none of {', '.join(sorted(RESERVED_METRICS))}"
            )
    return {name: _check_number(value, f"for metric {name} {where}") for name, value in metrics.items()}


def _check_number(value: Any, where: str) -> float:
    if hasattr(value, "item"):
        try:
            value = value.item()
        except (ValueError, RuntimeError) as error:
            raise InvalidResult(f"returned {describe_value(value)} {where}: not one number") from error
    if not isinstance(value, int | float):
        raise InvalidResult(f"returned {describe_value(value)} {where}, not a number or None")
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise InvalidResult(f"returned {number} {where}; a reward is a finite number")
    return number


def describe_value(value: Any) -> str:
    """Return the beginning of a value's representation, and its type."""
    shown = repr(value)
    return f"{shown if len(shown) <= 60 else shown[:57] + '...'} ({type(value).__name__})"

"""Environment protocol, and the values that environments exchange with a workflow."""

import math
from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias

from kubealign_services.scoring.functions.results import InvalidResult, check_results, describe_value

#: Chat message: {"role": ROLE, "content": TEXT}.
Message: TypeAlias = Mapping[str, str]


class CallFailed(Exception):
    """A call of a user's code failed. `permanent`: a retry cannot help."""

    def __init__(self, message: str, *, permanent: bool = False) -> None:
        super().__init__(message)
        self.permanent = permanent


class EnvironmentFailed(CallFailed):
    """An environment cannot be loaded, raised an error, exceeded a time limit or lost its process.

    The message names the environment and the call.
    """


@dataclass(frozen=True)
class Observation:
    """Text or chat messages for the policy; neither: nothing to show."""

    text: str = ""
    messages: Sequence[Message] = ()

    def __bool__(self) -> bool:
        return bool(self.text or self.messages)

    def plain_text(self) -> str:
        """Return the text, or the contents of the messages, one below the other."""
        return self.text or "\n".join(message["content"] for message in self.messages)


@dataclass(frozen=True)
class StepResult:
    """Effect of an action.

    reward: of this turn; the turns of an episode are added up. done: the episode has ended. truncated: the
    environment ended the episode at a limit of its own. metrics: numbers by name, reported with the reward;
    later turns replace earlier ones.
    """

    observation: Observation | str = ""
    reward: float = 0.0
    done: bool = False
    truncated: bool = False
    metrics: Mapping[str, float] = field(default_factory=dict)


class Environment(Protocol):
    """A task or game for one episode. An optional method `close()` is called at the end of the episode.

    Each method may be a coroutine function; others run in a thread of the episode's own.
    """

    def reset(
        self, seed: int, columns: dict[str, Any]
    ) -> Observation | str | Awaitable[Observation | str | None] | None:
        """Begin the episode and return the first observation.

        Args:
            seed: Seed that all responses to a prompt share: it must determine the task.
            columns: Columns of the row.
        """

    def step(self, action: str) -> StepResult | Awaitable[StepResult]:
        """Apply a turn of the policy."""


def observation_to_json(value: Observation | str | None) -> dict[str, Any]:
    """Return the JSON value of an observation. Raises InvalidResult for anything else."""
    if value is None or isinstance(value, str):
        return {"text": value or ""}
    if not isinstance(value, Observation):
        raise InvalidResult(f"returned {describe_value(value)}, not a text or an Observation")
    if not isinstance(value.text, str):
        raise InvalidResult(f"returned the text {describe_value(value.text)} in its observation")
    for message in value.messages:
        if not isinstance(message, Mapping) or not all(
            isinstance(message.get(key), str) for key in ("role", "content")
        ):
            raise InvalidResult(
                f"returned the message {describe_value(message)}; its role and content are text"
            )
    if value.text and value.messages:
        raise InvalidResult("returned an observation with a text and messages; it has one of them")
    return {"text": value.text, "messages": [dict(message) for message in value.messages]}


def observation_from_json(value: Mapping[str, Any]) -> Observation:
    """Return the observation of a JSON value of `observation_to_json`."""
    return Observation(value["text"], tuple(value.get("messages", ())))


def result_to_json(value: Any) -> dict[str, Any]:
    """Return the JSON value of a step's result.

    Raises InvalidResult for anything but a StepResult with a finite reward and finite metrics.
    """
    if not isinstance(value, StepResult):
        raise InvalidResult(f"returned {describe_value(value)}, not a StepResult")
    if value.reward is None or (isinstance(value.reward, float) and not math.isfinite(value.reward)):
        raise InvalidResult(f"returned the reward {value.reward}; a reward is a finite number")
    (checked,) = check_results([{"reward": value.reward, "metrics": value.metrics}], count=1)
    return {
        "observation": observation_to_json(value.observation),
        "reward": checked.reward,
        "done": bool(value.done),
        "truncated": bool(value.truncated),
        "metrics": dict(checked.metrics),
    }


def result_from_json(value: Mapping[str, Any]) -> StepResult:
    """Return the result of a JSON value of `result_to_json`."""
    observation = observation_from_json(value["observation"])
    return StepResult(observation, value["reward"], value["done"], value["truncated"], value["metrics"])

"""Environments of gymnasium with discrete actions, which a turn names."""

import re
from collections.abc import Mapping
from typing import Any

from kubealign.spec.workflows.environments import GymnasiumEnvironment
from kubealign_services.environments.adapters.packages import import_package
from kubealign_services.environments.contract import EnvironmentFailed, Observation, StepResult

_SEEDS = 2**31
# The text rendering of toy environments highlights the player by a colour.
_HIGHLIGHTED = re.compile(r"\x1b\[[0-9;]*m(.*?)\x1b\[0m")
_TEXT_RENDERING = "ansi"


class GymnasiumGame:
    """An environment made by `gymnasium.make`.

    An observation is what `render` returns where the parameters set render_mode "ansi", with highlighted text
    in brackets; else the environment's observation as text.
    """

    def __init__(self, spec: GymnasiumEnvironment, parameters: Mapping[str, Any]) -> None:
        """Make the environment.

        Raises EnvironmentFailed where its actions are not discrete, or their number is not that of the names.
        """
        gymnasium = import_package("gymnasium", "gymnasium")
        self._spec = spec
        self._environment = gymnasium.make(spec.id, **parameters)
        space = self._environment.action_space
        if not isinstance(space, gymnasium.spaces.Discrete):
            raise EnvironmentFailed(
                f"{spec.id} has the actions {space}; only environments with discrete actions can be played "
                "by text",
                permanent=True,
            )
        numbers = range(int(space.start), int(space.start) + int(space.n))
        if spec.actions and len(spec.actions) != len(numbers):
            raise EnvironmentFailed(
                f"{spec.id} has {len(numbers)} actions, and gymnasium.actions names {len(spec.actions)}",
                permanent=True,
            )
        self._names = spec.actions or [str(number) for number in numbers]
        self._numbers = {name.lower(): number for name, number in zip(self._names, numbers, strict=True)}
        # The longest name first, since one may begin with another.
        names = "|".join(re.escape(name) for name in sorted(self._names, key=len, reverse=True))
        self._pattern = re.compile(rf"(?<!\w)(?:{names})(?!\w)", re.IGNORECASE)

    def reset(self, seed: int, columns: dict[str, Any]) -> Observation:
        observation, _ = self._environment.reset(seed=seed % _SEEDS)
        return self._observe(observation)

    def step(self, action: str) -> StepResult:
        mentioned = self._pattern.findall(action)
        if not mentioned:
            return StepResult(
                f"That is no action. The actions are: {', '.join(self._names)}.",
                self._spec.invalid_action_reward,
                metrics={"invalid_action": 1.0},
            )
        observation, reward, terminated, truncated, _ = self._environment.step(
            self._numbers[mentioned[-1].lower()]
        )
        return StepResult(
            self._observe(observation),
            float(reward),
            done=bool(terminated),
            truncated=bool(truncated),
            metrics={"invalid_action": 0.0},
        )

    def close(self) -> None:
        self._environment.close()

    def _observe(self, observation: Any) -> Observation:
        if self._environment.render_mode == _TEXT_RENDERING:
            return Observation(_HIGHLIGHTED.sub(r"[\1]", str(self._environment.render())))
        return Observation(str(observation))

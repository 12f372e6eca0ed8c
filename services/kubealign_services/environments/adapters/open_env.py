"""Environments behind OpenEnv servers."""

import json
from collections.abc import Mapping
from typing import Any

from kubealign.spec.workflows.environments import OpenEnvEnvironment
from kubealign_services.environments.adapters.packages import import_package
from kubealign_services.environments.contract import EnvironmentFailed, Observation, StepResult

_SEEDS = 2**31


class OpenEnvSession:
    """A session of an OpenEnv server: a WebSocket of its own.

    An action is an object with the text of the turn in one field. The text of one field of the server's
    observation is shown to the policy.
    """

    def __init__(self, spec: OpenEnvEnvironment, parameters: Mapping[str, Any]) -> None:
        """Create the client; it connects with the reset. Raises EnvironmentFailed."""
        client = import_package("openenv.core.generic_client", "openenv").GenericEnvClient
        self._spec, self._parameters = spec, dict(parameters)
        self._client: Any = client(base_url=spec.url)

    async def reset(self, seed: int, columns: dict[str, Any]) -> Observation:
        result = await self._client.reset(**{"seed": seed % _SEEDS, **self._parameters})
        return self._observe(result.observation)

    async def step(self, action: str) -> StepResult:
        result = await self._client.step({self._spec.action_field: action})
        return StepResult(
            self._observe(result.observation), float(result.reward or 0.0), done=bool(result.done)
        )

    async def close(self) -> None:
        await self._client.close()

    def _observe(self, observation: Mapping[str, Any]) -> Observation:
        """Return the text of the observation's field; other values as JSON.

        Raises EnvironmentFailed where the observation has no such field.
        """
        name = self._spec.observation_field
        if name not in observation:
            raise EnvironmentFailed(
                f"openEnv.observationField: the observation has no field {name}; it has "
                f"{', '.join(sorted(observation)) or 'none'}",
                permanent=True,
            )
        value = observation[name]
        return Observation(value if isinstance(value, str) else json.dumps(value))

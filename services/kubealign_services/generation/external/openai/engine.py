"""An inference server, started by the user, as an `ExternalEngine`."""

import os
from collections.abc import Mapping
from http import HTTPStatus
from pathlib import Path

from kubealign.spec.sections.engines import WORKER_PLACEHOLDER, InferenceServer, OpenAIEngineSpec
from kubealign_services.generation.contract import RequestRefused, SamplingParameters
from kubealign_services.generation.external.contract import ExternalEngineDied, ExternalSample
from kubealign_services.generation.external.openai.access import ServerAccess
from kubealign_services.generation.external.openai.connection import (
    KEY_VARIABLE,
    ConnectionOptions,
    ServerConnection,
    ServerError,
)
from kubealign_services.generation.external.openai.contract import InferenceServerClient
from kubealign_services.generation.external.openai.sglang_server import SglangServerClient
from kubealign_services.generation.external.openai.vllm_server import VllmServerClient
from kubealign_services.generation.external.openai.weight_mark import WeightMark
from kubealign_services.generation.external.weight_files import WeightFiles

_REFUSING_STATUSES = frozenset(
    {HTTPStatus.BAD_REQUEST, HTTPStatus.REQUEST_ENTITY_TOO_LARGE, HTTPStatus.UNPROCESSABLE_ENTITY}
)


def server_url(spec: OpenAIEngineSpec, worker: int) -> str:
    """Return the URL of a worker's server."""
    return spec.url.replace(WORKER_PLACEHOLDER, str(worker))


class OpenAIExternalEngine:
    """An ExternalEngine over an inference server. Use `create`.

    The server is not ended with the engine, and keeps the last weights.
    """

    def __init__(self, connection: ServerConnection, spec: OpenAIEngineSpec, vocabulary: int) -> None:
        """Nothing is requested yet.

        Args:
            vocabulary: Number of token ids of the model.
        """
        self._connection = connection
        client = VllmServerClient if spec.server is InferenceServer.VLLM else SglangServerClient
        self._server: InferenceServerClient = client(
            ServerAccess(connection, spec.model, vocabulary, spec.start_timeout_seconds, self._check_weights)
        )
        self._mark = WeightMark(connection.url, self._server.write_mark, self._server.read_mark)
        #: Context of the server, in tokens.
        self.context = 0

    @classmethod
    async def create(
        cls,
        spec: OpenAIEngineSpec,
        worker: int,
        vocabulary: int,
        files: WeightFiles,
        variables: Mapping[str, str] = os.environ,
    ) -> "OpenAIExternalEngine":
        """Connect to a worker's server, once it answers, and check what it can do.

        Raises ExternalEngineDied where it does not answer in time, PermanentFailure where it lacks an
        ability.

        Args:
            worker: Number of the worker, from 0.
            files: Transfer weights to the server.
            variables: Environment with the server's key.
        """
        options = ConnectionOptions(spec.max_sequences, spec.request_timeout_seconds, spec.outage_seconds)
        key = variables.get(KEY_VARIABLE) or None
        connection = ServerConnection(server_url(spec, worker), key, options)
        engine = cls(connection, spec, vocabulary)
        empty_file: Path | None = None
        try:
            empty_file = files.write({})
            engine.context = await engine._server.check(empty_file)
        except ExternalEngineDied as error:
            await engine.close()
            raise ExternalEngineDied(
                f"{error} (rollout.engine.openai.url). In a cluster rollout.egress must allow it"
            ) from error
        except BaseException:
            await engine.close()
            raise
        finally:
            if empty_file is not None:
                empty_file.unlink()
        return engine

    async def _check_weights(self) -> None:
        await self._mark.check()

    async def generate(
        self, request_id: str, prompt: list[int], sampling: SamplingParameters, seed: int, ends: list[int]
    ) -> ExternalSample:
        """Raises RequestRefused, with the server's message, for a request that it refuses."""
        try:
            sample = await self._server.generate(request_id, prompt, sampling, seed, ends)
        except ServerError as error:
            if error.status in _REFUSING_STATUSES:
                raise RequestRefused(f"request {request_id!r}: {error}") from error
            raise
        await self._mark.confirm()
        return sample

    @property
    def scores_at_any_temperature(self) -> bool:
        return self._server.scores_at_any_temperature

    async def score(self, request_id: str, tokens: list[int], temperature: float = 1.0) -> list[float]:
        if len(tokens) < 2:
            return []
        try:
            scores = await self._server.score(tokens, temperature)
        except ServerError as error:
            if error.status in _REFUSING_STATUSES:
                raise RequestRefused(f"request {request_id!r}: {error}") from error
            raise
        await self._mark.confirm()
        return scores

    async def load_weights(self, file: Path) -> None:
        await self._mark.begin_update()
        await self._server.load_weights(file)

    async def finish_weight_update(self) -> None:
        await self._server.drop_prefixes()
        await self._mark.finish_update()

    async def release_memory(self) -> None:
        """Do nothing: the server's memory is not the worker's, and the spec has no `betweenPhases`."""

    async def resume_memory(self) -> None:
        """Do nothing, as `release_memory`."""

    async def close(self) -> None:
        """Close the connections; the server goes on."""
        await self._mark.close()
        await self._connection.close()

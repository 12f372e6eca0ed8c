"""Rewards of programs that a sandbox service runs: a verifier of programs with a server."""

import asyncio
from collections.abc import Sequence
from typing import Any

from kubealign.spec.sections.code_verifier import CodeVerifier
from kubealign_services.scoring.functions.batching import Outcome
from kubealign_services.scoring.functions.errors import RewardError, RewardRaised
from kubealign_services.scoring.functions.results import check_results
from kubealign_services.scoring.sandbox.programs import TestedProgram
from kubealign_services.scoring.sandbox_server.documents import (
    BadDocument,
    VerdictsDocument,
    parse_verdicts,
    program_document,
)
from kubealign_services.scoring.servers.contract import ServerSample
from kubealign_services.scoring.servers.endpoint import Endpoint, UnusableAnswer
from kubealign_services.scoring.verifiers.contract import UnusableRow, check_columns
from kubealign_services.scoring.verifiers.program_rows import ProgramRows, reward_of_verdicts


class ProgramReward:
    """A ServerReward of such a service. The tests of a row are checked before any request.

    Args:
        name: Description for errors, such as `reward tests: verifier code`.
        columns: Columns that each row must have.
    """

    def __init__(self, name: str, spec: CodeVerifier, columns: Sequence[str], endpoint: Endpoint) -> None:
        self._name = name
        self._spec = spec
        self._columns = columns
        self._rows = ProgramRows(spec)
        self._endpoint = endpoint

    async def outcomes(self, samples: Sequence[ServerSample]) -> list[Outcome]:
        return list(await asyncio.gather(*map(self._outcome, samples)))

    async def _outcome(self, sample: ServerSample) -> Outcome:
        try:
            check_columns(sample.columns, self._columns)
            program = self._rows.read(sample.response, sample.columns)
        except UnusableRow as error:
            return RewardRaised(f"{self._name}: {error}")
        if program is None or program.is_empty:
            return reward_of_verdicts(program, [], 0.0, self._spec.partial)
        try:
            answer = await self._run(program)
        except RewardError as error:
            return error
        result = reward_of_verdicts(program, answer.test_verdicts, answer.seconds, self._spec.partial)
        return check_results([result], 1)[0]

    async def _run(self, program: TestedProgram) -> VerdictsDocument:
        """Return the verdicts of the service. Raises RewardError."""

        def read(answer: Any) -> VerdictsDocument:
            try:
                return parse_verdicts(answer, len(program.tests))
            except BadDocument as error:
                raise UnusableAnswer(f"the answer is none of the contract: {error}") from error

        return await self._endpoint.post(program_document(program, self._spec), read)

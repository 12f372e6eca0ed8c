"""Responses of the job's initial policy to the held-out prompts, with which later responses are compared."""

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import overload

from kubealign_services.checkpoints.fence import Fence
from kubealign_services.data.prepared import PreparedRow, PreparedRows, row_index
from kubealign_services.roles.driver.errors import UnrecoverableError
from kubealign_services.roles.driver.fenced_files import replace_fenced
from kubealign_services.roles.driver.rollouts.collector import RolloutCollector
from kubealign_services.roles.driver.rollouts.group_buffer import GroupBuffer, GroupPlan
from kubealign_services.roles.driver.rollouts.prompt_source import ListPrompts
from kubealign_services.roles.driver.state import JobState
from kubealign_services.scoring.purposes import initial_policy_purpose

#: File with the responses in the folder of the measurements of the rows.
FILE = "initial-policy.jsonl"


class InitialPolicySampler:
    """Samples one response to each held-out prompt, without scores.

    Args:
        plan: Requests of one sample per prompt.
        ensure_published: Waits until the rollout workers have a version.
        set_name: Name of the validation set of the rows; None: they are those of validation.data.
    """

    def __init__(
        self,
        collector: RolloutCollector,
        rows: PreparedRows,
        plan: GroupPlan,
        ensure_published: Callable[[int], Awaitable[None]],
        set_name: str | None,
    ) -> None:
        self._collector = collector
        self._rows = rows
        self._plan = plan
        self._ensure_published = ensure_published
        self._set_name = set_name

    async def __call__(self, state: JobState) -> dict[int, str]:
        """Return row -> response with the weights of the state, without prompts that fail after all retries.

        Raises UnrecoverableError, ShutdownRequested, RefitFailed.
        """
        await self._ensure_published(state.version)
        prefix = "initial" if self._set_name is None else f"initial-{self._set_name}"
        supply = ListPrompts(self._rows, prefix)
        purpose = initial_policy_purpose(self._set_name)
        buffer = GroupBuffer(self._collector, supply, self._plan, purpose, ())
        try:
            groups = await buffer.take_batch(state.version)
        finally:
            buffer.close()
        return {row_index(group.group_id): group.rollouts[0].response for group in groups}


class InitialPolicyResponses:
    """Responses of the initial policy, sampled once in the life of a run and then read from its directory.

    Args:
        sample: Returns row -> response with the weights of a state.
        folder: Folder of the measurements of the rows.
        first_step: Step of the initial weights; None: the weights of the first measurement are the initial
            ones (evaluate).
    """

    def __init__(
        self,
        sample: Callable[[JobState], Awaitable[Mapping[int, str]]],
        folder: Path,
        fence: Fence,
        first_step: int | None,
    ) -> None:
        self._sample = sample
        self._path = folder / FILE
        self._fence = fence
        self._first_step = first_step
        self._responses: Mapping[int, str] | None = None

    def __getitem__(self, row: int) -> str | None:
        """Return the response to a row; None if its prompt failed. Only after `load`."""
        assert self._responses is not None
        return self._responses.get(row)

    async def load(self, state: JobState) -> None:
        """Read the responses, or sample and store them.

        Raises:
            UnrecoverableError: The file was altered, or it is missing after the first step.
            StaleFence: Another driver has taken over.
            ShutdownRequested: The driver was asked to stop; nothing is stored.
        """
        if self._responses is not None:
            return
        self._responses = await asyncio.to_thread(self._read)
        if self._responses is not None:
            return
        if self._first_step is not None and state.step > self._first_step:
            raise UnrecoverableError(
                f"{self._path} is missing, and the job has trained {state.step - self._first_step} steps "
                "since the responses in it were sampled: put it back, or start the job afresh"
            )
        responses = await self._sample(state)
        await asyncio.to_thread(self._write, responses)
        self._responses = responses

    def _read(self) -> dict[int, str] | None:
        if not self._path.exists():
            return None
        try:
            lines = [json.loads(line) for line in self._path.read_text().splitlines()]
            return {int(line["row"]): str(line["response"]) for line in lines}
        except (ValueError, TypeError, KeyError) as error:
            raise UnrecoverableError(
                f"{self._path} was altered: put it back, or start the job afresh"
            ) from error

    def _write(self, responses: Mapping[int, str]) -> None:
        lines = [
            json.dumps({"row": row, "response": response}, ensure_ascii=False)
            for row, response in sorted(responses.items())
        ]
        replace_fenced(self._fence, self._path, lines)


class RowsWithInitialPolicy(Sequence[PreparedRow]):
    """Held-out rows, each with the response of the initial policy in a column. Read after the responses are
    loaded.
    """

    def __init__(self, rows: Sequence[PreparedRow], column: str, responses: InitialPolicyResponses) -> None:
        self._rows = rows
        self._column = column
        self._responses = responses

    def __len__(self) -> int:
        return len(self._rows)

    @overload
    def __getitem__(self, index: int) -> PreparedRow: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[PreparedRow]: ...

    def __getitem__(self, index: int | slice) -> PreparedRow | Sequence[PreparedRow]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        row = self._rows[index]
        return replace(row, columns={**row.columns, self._column: self._responses[index]})

"""A round of thousands of prompts over a bus with the job's own retention limits, which discards the oldest
messages when it is full."""

from dataclasses import replace
from pathlib import Path

import pytest

from kubealign_services.data.tokenization.tokenizers import train_character_tokenizer
from kubealign_services.messaging.memory import MemoryBus
from support.rounds_in_process import Policy, rounds_job

pytestmark = pytest.mark.timeout(120)

PROMPTS = 3500
#: The columns of all prompts together exceed the 64 MiB that the stream of work items keeps.
COLUMN_BYTES = 20_000


class LossDetectingBus(MemoryBus):
    """Bus that fails where it would discard a message that no member of a consumer has settled."""

    def _remove(self, stream, sequence):  # type: ignore[no-untyped-def]
        if any(sequence in pending for pending in stream.consumers.values()):
            raise AssertionError(f"the bus has discarded unread message {sequence} of {stream.last}")
        super()._remove(stream, sequence)


async def test_a_round_that_exceeds_the_bus_loses_no_prompt(tmp_path: Path) -> None:
    policy = Policy(tmp_path, train_character_tokenizer(["ab", "cd"]), learning_rate=1e-2)
    column = {"note": "x" * COLUMN_BYTES}
    rows = [replace(policy.row(number, "ab", "c"), columns=column) for number in range(PROMPTS)]
    entry = {"spin": {"rounds": 1, "promptsPerRound": PROMPTS, "rowsPerStep": PROMPTS // 4}}
    async with rounds_job(
        tmp_path, policy, rows, entry, "demonstrations", max_tokens=2, bus_class=LossDetectingBus
    ) as job:
        (first,) = await job.learn(steps=1)
    assert first["round/rows"] == PROMPTS
    requested = [name.partition(":")[2] for name in policy.asked]
    assert len(requested) == len(set(requested)) == PROMPTS

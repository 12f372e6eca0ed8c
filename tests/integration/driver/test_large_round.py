"""A round of more prompts than the bus keeps messages, as 50,000 prompts are for a bus of 64 MiB."""

from pathlib import Path

import pytest

from kubealign_services.data.tokenization.tokenizers import train_character_tokenizer
from kubealign_services.messaging.memory import MemoryBus, _MemoryStream
from kubealign_services.messaging.retention_limits import Bounds
from kubealign_services.roles.driver.sources.iterative.round_files import RoundFiles
from support.rounds_in_process import Policy, rounds_job

pytestmark = pytest.mark.timeout(120)

PROMPTS = 2000
#: Messages that the bus keeps of each subject: two windows of the worker with 64 sequences.
STORED_MESSAGES = 256


class LossDetectingBus(MemoryBus):
    """Bus that fails instead of discarding a message that a consumer has not settled."""

    def _remove(self, stream: _MemoryStream, sequence: int) -> None:
        if any(sequence in pending for pending in stream.consumers.values()):
            raise AssertionError(
                f"the bus discards message {sequence} of {stream.last}, which nobody has read"
            )
        super()._remove(stream, sequence)


async def test_a_round_that_exceeds_the_bus_loses_no_prompt(tmp_path: Path) -> None:
    policy = Policy(tmp_path, train_character_tokenizer(["ab", "cd"]), learning_rate=1e-2)
    rows = [policy.row(number, "ab", "c") for number in range(PROMPTS)]
    subjects = ("work", "rollouts", "scores")
    bus = LossDetectingBus(bounds={subject: Bounds(STORED_MESSAGES, 64 << 20) for subject in subjects})
    entry = {"spin": {"rounds": 1, "promptsPerRound": PROMPTS, "rowsPerStep": PROMPTS // 4}}
    async with rounds_job(
        tmp_path, policy, rows, entry, "demonstrations", max_tokens=2, max_sequences=64, bus=bus
    ) as job:
        (first,) = await job.learn(steps=1)
    assert first["round/rows"] == PROMPTS
    (path,) = (tmp_path / "rounds").iterdir()
    prompts = RoundFiles(tmp_path).read(path.name, job.state.round.digest).header.prompts
    assert sorted(prompts) == sorted(f"0/{row}" for row in range(PROMPTS))
    assert {name.partition(":")[2] for name in policy.asked} == set(prompts)

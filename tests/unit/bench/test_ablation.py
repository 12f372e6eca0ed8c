"""The ablation: its jobs, and the static split of prompts between workers."""

from pathlib import Path
from typing import Any

import pytest
from tests.bench import jobs
from tests.bench.lines.ablation import _SWITCHES
from tests.bench.peers.replayed_rollout import ReplayedByPrompt, StaticShare
from tests.bench.workload import TINY

from kubealign.spec.job import AlignmentJob
from kubealign.v1 import rollout_pb2
from kubealign_services.generation.contract import GenerationRequest, SamplingParameters
from kubealign_services.messaging.memory import MemoryBus


@pytest.mark.parametrize("figure", _SWITCHES)
def test_the_jobs_are_valid_and_differ(tmp_path: Path, figure: str) -> None:
    workload = TINY.doing(method="ppo", prompts_per_step=16, samples_per_prompt=1, longest=48)
    plain, changed = (jobs.online(workload, tmp_path, "bench", 2) for _ in range(2))
    _, change = _SWITCHES[figure]
    change(changed["spec"])
    specs = [AlignmentJob.model_validate(document).spec for document in (plain, changed)]
    assert specs[0] != specs[1]


async def test_each_worker_takes_its_own_prompts() -> None:
    bus = MemoryBus()
    for number in range(8):
        item = rollout_pb2.WorkItem(fence=1, group_id=f"0/{number}", purpose="train")
        await bus.publish("work", item.SerializeToString(), str(number))
    for worker in (0, 1):
        connection: Any = bus.new_connection()
        share = StaticShare(connection, worker, workers=2)
        pulled = [each for _ in range(2) for each in await share.pull("work", "rollout", 4, 1.0)]
        groups = [rollout_pb2.WorkItem.FromString(each.data).group_id for each in pulled]
        assert groups == [f"0/{number}" for number in range(worker, 8, 2)]


async def test_a_sample_takes_as_long_as_its_prompt_says() -> None:
    finished = [(10 + number, 0.0) for number in range(6)]

    async def tokens(engine: ReplayedByPrompt, group: str) -> int:
        request = GenerationRequest(f"1:train:{group}:0", (3,), (1,), SamplingParameters(max_tokens=64))
        (sample,) = [sample async for sample in engine.generate(request)]
        return len(sample.tokens)

    for order in (["0/1", "0/4"], ["0/4", "0/7"]):
        engine = ReplayedByPrompt(finished)
        assert [await tokens(engine, group) for group in order] == [10 + int(each[2:]) % 6 for each in order]

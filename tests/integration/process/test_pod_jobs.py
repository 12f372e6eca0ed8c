"""Complete jobs whose processes start through the container entry point, from mounted files."""

import json
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import psutil
import pytest

from kubealign.local.processes.fork_server import ForkServer
from kubealign.local.processes.preload_modules import modules_to_preload
from kubealign.process_settings import ExitCode
from kubealign.spec.job import AlignmentJob
from support.pods import Container, JobPods
from support.tiny_jobs import online_job, sft_job

pytestmark = pytest.mark.timeout(300, method="signal")

PPO = {
    "ppo": {
        "promptsPerStep": 4,
        "samplesPerPrompt": 2,
        "minibatchSequences": 4,
        "kl": {"placement": "Loss", "fixed": {"coefficient": 0.02}},
    }
}
STEPS = 3
SFT_RESULT = {"model": {"job": {"name": "sft"}}}


class Cluster:
    """Two jobs, the second of which starts from the first one's result, and their shared volume."""

    def __init__(self, folder: Path) -> None:
        self.sft = AlignmentJob.model_validate(sft_job(folder, "sft"))
        ppo = online_job(folder, "ppo", PPO, maxSteps=STEPS, policy=SFT_RESULT, critic=SFT_RESULT)
        self.ppo = AlignmentJob.model_validate(ppo)
        self.folder = folder
        self.volume = folder / "volume"


@pytest.fixture
def cluster(tmp_path: Path) -> Cluster:
    return Cluster(tmp_path)


@pytest.fixture
async def fork_server(cluster: Cluster, tmp_path: Path) -> AsyncIterator[ForkServer]:
    """Pay for the imports once."""
    async with ForkServer(
        modules_to_preload([cluster.sft, cluster.ppo]), tmp_path / "fork-server.log"
    ) as running:
        yield running


async def test_jobs_in_containers(cluster: Cluster, fork_server: ForkServer) -> None:
    """Run both jobs. Each container has its own memory file system, so weights are streamed from the
    trainer's host name."""
    sft_run, ppo_run = cluster.volume / "sft-0a1b2c3d", cluster.volume / "ppo-4e5f6a7b"
    async with JobPods(fork_server, cluster.folder / "sft", cluster.sft, sft_run) as pods:
        assert await pods.prepare() == ExitCode.DONE
        # Only the pods can reach the volume, so they write the job's document.
        assert AlignmentJob.model_validate_json((sft_run / "job.json").read_text()) == cluster.sft
        await pods.start_workers()
        driver = await pods.drive()
        assert await driver.end(90) == ExitCode.DONE, driver.log
        assert await pods.stop() == {"trainer-0": ExitCode.STOPPED}
        assert driver.mounts.termination.read_text() == ""

    results = {"sft": sft_run / "result"}
    async with JobPods(fork_server, cluster.folder / "ppo", cluster.ppo, ppo_run, results) as pods:
        assert await pods.prepare() == ExitCode.DONE
        await pods.start_workers()
        driver = await pods.drive()
        assert await driver.answers("/livez")
        assert await driver.end(120) == ExitCode.DONE, driver.log
        assert set((await pods.stop()).values()) == {ExitCode.STOPPED}
        steps = [line for line in pods.metrics() if "seconds/step" in line]
    assert [line["step"] for line in steps] == list(range(1, STEPS + 1))
    assert {line["refit/stream_workers"] for line in steps} == {1.0}
    assert {line["refit/shared_memory_workers"] for line in steps} == {0.0}

    from transformers import AutoModelForCausalLM

    assert AutoModelForCausalLM.from_pretrained(ppo_run / "result").num_parameters() > 1000


async def test_four_ranks_share_two_pods(tmp_path: Path) -> None:
    """Train with two ranks in each pod; then lose one rank, which ends its whole pod with the cause."""
    trainer = {"ranks": 4, "processesPerPod": 2, "optimizer": {"adamW": {"learningRate": 1.0e-3}}}
    job = AlignmentJob.model_validate(sft_job(tmp_path, "sft", trainer=trainer))
    run = tmp_path / "volume" / "sft-0a1b2c3d"
    log = tmp_path / "fork-server.log"
    async with (
        ForkServer(modules_to_preload([job]), log) as fork_server,
        JobPods(fork_server, tmp_path / "sft", job, run) as pods,
    ):
        assert await pods.prepare() == ExitCode.DONE
        await pods.start_workers()
        assert set(pods.containers) == {"nats", "prepare", "trainer-0", "trainer-2"}
        second = pods.containers["trainer-2"]
        assert await second.answers("/livez")
        driver = await pods.drive()
        assert await driver.end(90) == ExitCode.DONE, driver.log
        pids = ranks_of(second)
        assert sorted(pids) == ["trainer-2", "trainer-3"]
        os.kill(pids["trainer-3"], signal.SIGKILL)
        assert await second.end(30) == 128 + signal.SIGKILL, second.log
        assert second.mounts.termination.read_text().startswith("trainer-3 was killed by SIGKILL")
        first = pods.containers["trainer-0"]
        lines = [json.loads(line) for line in first.log.splitlines() if line.startswith("{")]
        steps = [line for line in pods.metrics() if "seconds/step" in line]
    assert [line["step"] for line in steps] == [1, 2, 3, 4]
    assert {line["process"] for line in lines} == {"trainer-0", "trainer-1"}
    assert all("devices" in line for line in lines if line["message"] == "started")
    # The optimiser's learning rate is high enough to change the model in four steps.
    assert steps[-1]["sft/loss"] < steps[0]["sft/loss"]


def ranks_of(container: Container) -> dict[str, int]:
    """Return the process ids of the ranks of a running container, by name."""
    folder = str(container.mounts.runtime)
    pids = {}
    for process in psutil.Process(container.pid).children(recursive=True):
        settings = Path(process.cmdline()[-1])
        if str(settings.parent) == folder:
            pids[settings.stem] = process.pid
    return pids

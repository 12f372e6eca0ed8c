"""Runs a data generation job within one process: the driver's row maker over an in-memory bus, and a rollout
worker with a real engine, without further processes and RPC."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from torch import Tensor
from transformers import PreTrainedTokenizerBase

from kubealign.spec.job import AlignmentJob
from kubealign.spec.sections.engines import TorchEngineSpec as EngineSpec
from kubealign_services.data.prepared import PreparedJob, PreparedRow
from kubealign_services.generation.torch_engine.engine import TorchRolloutEngine
from kubealign_services.messaging.memory import MemoryBus
from kubealign_services.roles.driver.data_generation.builder import build_row_maker, rows_per_step
from kubealign_services.roles.driver.data_generation.loop import DataGenerationRun, make_rows
from kubealign_services.roles.driver.data_generation.row_file import RowFile
from kubealign_services.roles.driver.metrics.report import MetricsReport as StepReport
from kubealign_services.roles.driver.rollouts.collector import RolloutCollector
from kubealign_services.roles.rollout.generator import SteppedGenerator
from kubealign_services.roles.rollout.weights import BASE_VERSION, FixedWeights
from kubealign_services.roles.rollout.worker import RolloutWorker
from support.prepared_report import report

#: The tensors of a policy, by name.
Weights = Sequence[tuple[str, Tensor]]


def generate_job(entry: dict[str, Any], **spec: Any) -> AlignmentJob:
    """Return a data generation job with this algorithm entry. `spec` replaces other fields of the spec."""
    document = {
        "metadata": {"name": "making"},
        "spec": {
            "maxSteps": 1000,
            "algorithm": {"generate": entry},
            "policy": {"model": {"path": "/nowhere"}},
            "data": {"prompts": {"source": {"path": "/nowhere"}}},
        }
        | spec,
    }
    return AlignmentJob.model_validate(document)


async def made(
    run_dir: Path,
    job: AlignmentJob,
    model: Path,
    tokenizer: PreTrainedTokenizerBase,
    weights: Weights,
    prompts: Sequence[str],
    context: int | None = None,
) -> list[dict[str, Any]]:
    """Run the job on text prompts and return the generated rows, read from the result file. context: context
    length of the job's models; None: unbounded."""
    rows = [
        PreparedRow(
            row=number,
            prompt_tokens=tokenizer(prompt, add_special_tokens=False)["input_ids"],
            prompt_text=prompt,
        )
        for number, prompt in enumerate(prompts)
    ]
    engine = TorchRolloutEngine.create(model, EngineSpec())
    engine.refit(weights, BASE_VERSION)
    prepared = PreparedJob(run_dir, {"policy": model}, report(len(rows), context), rows, None)  # type: ignore[arg-type]
    async with (
        _worked(engine) as bus,
        RolloutCollector(bus, 1, asyncio.Event(), lambda text: None) as exchange,
    ):
        making = DataGenerationRun(
            maker=build_row_maker(job, prepared, exchange),
            file=RowFile(run_dir),
            report=StepReport(run_dir / "metrics.jsonl", 1, []),
            rows=len(rows),
            rows_per_step=rows_per_step(job),
            total_steps=job.spec.total_steps(len(rows)),
        )
        await make_rows(making)
    return [json.loads(line) for line in (run_dir / "result" / "data.jsonl").read_text().splitlines()]


@asynccontextmanager
async def _worked(engine: TorchRolloutEngine) -> AsyncIterator[MemoryBus]:
    """Yield a bus with a running rollout worker."""
    bus = MemoryBus()
    generator = SteppedGenerator(engine, _compute)
    worker = RolloutWorker("rollout-0", bus.new_connection(), generator, FixedWeights(), 128)
    async with asyncio.TaskGroup() as running:
        tasks = [running.create_task(generator.run()), running.create_task(worker.run())]
        yield bus
        for task in tasks:
            task.cancel()


async def _compute(function: Callable[..., Any], *args: Any) -> Any:
    return function(*args)

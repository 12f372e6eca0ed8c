"""Measures the memory of a real backend or engine.

`python -m support.measured_memory JOB PART TINY [RANK MEETING]` performs two steps of the job's trainer or
critic, or one batch of its rollout engine: first with the tiny model of the folder TINY, whose memory is
negligible, then with the job's model. Prints as JSON the resident bytes between the two and the peak
afterwards (the kernel's high-water mark, reset in between). All sequences have the maximum length of the
job.
"""

import gc
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import torch
import torch.distributed as dist

from kubealign.planning.workload import Workload, workload_of
from kubealign.spec.job import AlignmentJobSpec
from kubealign.spec.loading.loader import load_jobs
from kubealign.spec.sections.engines import TorchEngineSpec as EngineSpec
from kubealign_services.algorithms.contract import Objective
from kubealign_services.algorithms.factory import make_algorithm
from kubealign_services.batch.packed import Batch, pack
from kubealign_services.generation.contract import GenerationRequest, SamplingParameters
from kubealign_services.generation.torch_engine.engine import TorchRolloutEngine
from kubealign_services.roles.rollout.weights import read_folder_weights
from kubealign_services.training.contract import Head, UpdatePlan
from kubealign_services.training.torch_backend.backend import TorchTrainingBackend

#: Length of every prompt and of every response in tokens.
PROMPT, RESPONSE = 32, 224


def resident(name: str) -> int:
    """Return the bytes of a line of /proc/self/status."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(name):
            return int(line.split()[1]) * 1024
    raise LookupError(name)


def set_back() -> None:
    """Reset the high-water mark to the resident memory (proc_pid_clear_refs(5))."""
    Path("/proc/self/clear_refs").write_text("5")


def batch_of(spec: AlignmentJobSpec, work: Workload, step: int) -> Batch:
    """Return the sequences of one step, with every column that the objectives read."""
    generator = torch.Generator().manual_seed(step)
    tokens = torch.randint(3, 200, (work.sequences, work.sequence), generator=generator)
    batch = pack(tokens.tolist(), [str(i) for i in range(work.sequences)])
    length = len(batch.tokens)
    batch.token_columns["loss_mask"] = (batch.positions >= work.prompt).float()
    for name in ("advantages", "old_values", "returns"):
        batch.token_columns[name] = torch.randn(length, generator=generator)
    if spec.algorithm.value.updates_per_step > 1:
        batch.token_columns["old_logprobs"] = -torch.rand(length, generator=generator)
    return batch


def train(spec: AlignmentJobSpec, part: str, rank: int, folder: Path | None = None) -> None:
    algorithm, critic = make_algorithm(spec.algorithm), spec.effective_critic
    trainer, head = spec.effective_trainer, Head.LANGUAGE_MODEL
    objective: Objective | None = algorithm.policy_objective()
    model = spec.policy.model
    if part == "critic":
        assert critic is not None and critic.model is not None
        trainer, head, objective, model = critic, Head.VALUE, algorithm.value_objective(), critic.model
    assert objective is not None and model.path is not None
    backend = TorchTrainingBackend.create(
        folder or Path(model.path), head, trainer, total_updates=8, rank=rank, world_size=trainer.ranks
    )
    work = workload_of(spec, PROMPT, RESPONSE)
    plan = UpdatePlan(work.epochs, -(-work.sequences * work.epochs // work.updates), seed=1)
    for step in range(2):
        backend.train_step(batch_of(spec, work, step), objective, plan)


def generate(spec: AlignmentJobSpec, folder: Path | None = None) -> None:
    rollout, work = spec.effective_rollout, workload_of(spec, PROMPT, RESPONSE)
    assert rollout is not None
    engine_spec, sampling = rollout.engine.value, rollout.sampling
    assert isinstance(engine_spec, EngineSpec) and spec.policy.model.path is not None
    folder = folder or Path(spec.policy.model.path)
    engine = TorchRolloutEngine.create(folder, engine_spec)
    engine.refit(read_folder_weights(folder), 0)
    parameters = SamplingParameters(RESPONSE, RESPONSE, sampling.temperature, sampling.top_k, sampling.top_p)
    for request in requests(engine_spec.max_sequences, work.prompt, parameters):
        engine.add(request)
    # Generate to the maximum length, since cache pages are allocated as they are filled.
    while engine.load().waiting or engine.load().running:
        engine.step()


def requests(count: int, prompt: int, parameters: SamplingParameters) -> Iterator[GenerationRequest]:
    for index in range(count):
        tokens = tuple((index + j) % 200 + 3 for j in range(prompt))
        yield GenerationRequest(str(index), tokens, (index,), parameters)


def work(spec: AlignmentJobSpec, part: str, rank: int, folder: Path | None) -> None:
    if part == "rollout":
        generate(spec, folder)
    else:
        train(spec, part, rank, folder)


def main(argv: list[str]) -> None:
    torch.set_num_threads(1)
    job, part = load_jobs(Path(argv[1]))[0], argv[2]
    rank = int(argv[4]) if len(argv) > 4 else 0
    if len(argv) > 5:
        dist.init_process_group(
            "gloo", init_method=f"file://{argv[5]}", rank=rank, world_size=job.spec.trainer.ranks
        )
    # The same work on a tiny model loads everything that belongs to the process and not to the job's model.
    work(job.spec, part, rank, Path(argv[3]))
    gc.collect()
    before = resident("VmRSS")
    set_back()
    work(job.spec, part, rank, None)
    print(json.dumps({"before": before, "most": resident("VmHWM")}), flush=True)
    if dist.is_initialized():
        dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv)
    # Threads of libraries may outlive the interpreter.
    sys.stdout.flush()
    os._exit(0)

"""Runs the steps of a job in one process: `python -m tests.bench.peers.one_process FOLDER STEPS RESULT`.

The engine, the trainer's backend, the algorithm and the driver's batch assembly are called one after another:
no RPC, no bus, no other process. Samples have the seeds of a real job, so the results equal those of the job.
"""

import json
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from tests.bench import jobs
from tests.bench.peers.reward_file import reward
from tests.bench.workload import MODEL, Workload

from kubealign.spec.job import AlignmentJob
from kubealign.spec.sections.engines import TorchEngineSpec as EngineSpec
from kubealign.v1 import rollout_pb2, scoring_pb2
from kubealign_services.algorithms.factory import make_algorithm
from kubealign_services.batch.packed import Batch
from kubealign_services.data.tokenization.tokenizers import load_tokenizer
from kubealign_services.generation.contract import GenerationRequest
from kubealign_services.generation.torch_engine.engine import TorchRolloutEngine
from kubealign_services.roles.driver.rollouts.batch_assembly import SamplingInfo, assemble_batch
from kubealign_services.roles.driver.rollouts.group_tracker import RolloutGroup
from kubealign_services.roles.driver.rollouts.work_items import (
    derive_sample_seed,
    encode_scoring_context,
    to_sampling_proto,
)
from kubealign_services.roles.rollout.messages import split_into_parts, to_rollout
from kubealign_services.scoring.combination import combine_rewards
from kubealign_services.training.contract import Head, UpdatePlan
from kubealign_services.training.torch_backend.backend import TorchTrainingBackend


class OneProcess:
    """The parts of a job. `version`: version of the weights."""

    def __init__(self, workload: Workload, folder: Path, steps: int) -> None:
        job = AlignmentJob.model_validate(jobs.online(workload, folder, "one", steps))
        self.job, self.spec = job, job.spec.algorithm.value
        self.version, self.seconds = 0, dict[str, float]()
        self._workload, self._rows = workload, workload.rows(steps)
        self._reward = reward(folder)
        self._algorithm = make_algorithm(job.spec.algorithm)
        self._tokenizer = load_tokenizer(folder / MODEL, "policy")
        self._trainer = TorchTrainingBackend.create(
            folder / MODEL,
            Head.LANGUAGE_MODEL,
            job.spec.effective_trainer,
            total_updates=steps,
            seed=job.spec.seed,
        )
        self._engine = TorchRolloutEngine.create(folder / MODEL, EngineSpec(max_sequences=workload.sequences))
        self._learned: tuple[Batch, UpdatePlan] | None = None
        self._state: dict[str, float] = {}
        self._moments: dict[str, dict[str, float]] = {}

    def step(self) -> dict[str, float]:
        """Run one step. Return its metrics and its seconds by phase."""
        begun = time.perf_counter()
        self._engine.refit(self._trainer.snapshot(), self.version)
        refitted = time.perf_counter()
        groups = self._groups()
        sampling = self.job.spec.rollout.sampling
        sampled = SamplingInfo(sampling.temperature, sampling.max_tokens, 0)
        batch = assemble_batch(groups, ["even"], sampled, self.version, reference=None)
        figures = combine_rewards(batch, self.job.spec.rewards, self.version + 1, self._moments)
        generated = time.perf_counter()
        figures |= self._algorithm.advantages(batch, self._state)
        plan = UpdatePlan(self.spec.epochs_per_step, len(batch), self.job.spec.seed + self.version)
        self._learned = batch.select(range(len(batch))), plan
        trained = self._trainer.train_step(batch, self._algorithm.policy_objective(), plan)
        # The driver's name of the metric.
        figures["trainer/gradient_norm"] = trained["gradient_norm"]
        self.version += 1
        now = time.perf_counter()
        return figures | {
            "seconds/refit": refitted - begun,
            "seconds/generate": generated - begun,
            "seconds/train": now - generated,
            "seconds/step": now - begun,
        }

    def train_again(self) -> None:
        """Repeat the training of the last step. Raises RuntimeError before the first step."""
        if self._learned is None:
            raise RuntimeError("there was no step yet")
        batch, plan = self._learned
        self._trainer.train_step(batch.select(range(len(batch))), self._algorithm.policy_objective(), plan)

    def _groups(self) -> Sequence[RolloutGroup]:
        """Sample and score the prompts of the step."""
        workload, first = self._workload, self.version * self._workload.prompts_per_step
        groups: dict[str, RolloutGroup] = {}
        asked: dict[str, tuple[rollout_pb2.WorkItem, int]] = {}
        for row in range(first, first + workload.prompts_per_step):
            name, text = f"0/{row}", self._rows[row]["prompt"]
            count = workload.samples_per_prompt
            groups[name] = RolloutGroup(name, count, self.version, deadline=0.0, requested_at=0.0)
            item = rollout_pb2.WorkItem(
                group_id=name,
                prompt_tokens=self._tokenizer(text, add_special_tokens=False)["input_ids"],
                samples=count,
                seeds=[
                    derive_sample_seed(self.job.spec.seed, "train", name, 0, each) for each in range(count)
                ],
                sampling=to_sampling_proto(self.job.spec.rollout.sampling),
                columns=encode_scoring_context(text, {}),
                purpose="train",
            )
            for request, first_sample in self._requests(item, self._rows[row]["lengths"]):
                asked[request.request_id] = item, first_sample
                self._engine.add(request)
        missing = workload.sequences
        while missing:
            for sample in self._engine.step():
                item, first_sample = asked[sample.request_id]
                rollout = to_rollout(item, sample, "engine", first_sample)
                group = groups[item.group_id]
                group.rollouts[rollout.sample] = rollout
                value = self._reward([""], responses=[rollout.response])[0]
                score = scoring_pb2.Score(reward=value)
                group.scores[rollout.sample, rollout.sequence.digest, "even"] = score
                missing -= 1
        return list(groups.values())

    def _requests(
        self, item: rollout_pb2.WorkItem, lengths: Sequence[int]
    ) -> Iterator[tuple[GenerationRequest, int]]:
        """Yield the engine's requests of a group, each with the index of its first sample: one request, or
        one per sample if lengths differ."""
        for part in split_into_parts(item):
            if self._workload.longest is None:
                yield part.request, part.first_sample
                continue
            for sample, seed in enumerate(part.request.seeds):
                fixed = replace(part.request.sampling, min_tokens=lengths[sample], max_tokens=lengths[sample])
                name = f"{part.request.request_id}:{sample}"
                yield replace(part.request, request_id=name, seeds=(seed,), sampling=fixed), sample


def main(folder: Path, steps: int, result: Path) -> None:
    workload = Workload.read(folder)
    parts = OneProcess(workload, folder, steps)
    for step in range(steps):
        figures: dict[str, Any] = parts.step()
        line = {"step": step + 1, "time": time.time(), "batch/tokens": workload.tokens} | figures
        with result.open("a") as file:
            file.write(json.dumps(line) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]))

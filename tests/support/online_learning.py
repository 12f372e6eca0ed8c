"""Online learning within one process: the trainer's backend, the rollout engine, the algorithm and the
driver's batch assembly, without further processes, RPC and bus."""

import json
import random
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor

from kubealign.spec.algorithms import Algorithm as AlgorithmUnion
from kubealign.spec.sections.engines import TorchEngineSpec as EngineSpec
from kubealign.spec.sections.rewards import Reward, RewardFunction
from kubealign.spec.sections.rollout import SamplingSpec
from kubealign.spec.sections.training import Trainer
from kubealign.v1 import rollout_pb2, scoring_pb2
from kubealign_services.algorithms.contract import outputs_before_step
from kubealign_services.algorithms.factory import make_algorithm
from kubealign_services.batch.auxiliary_sequences import drop_auxiliary
from kubealign_services.batch.packed import Batch
from kubealign_services.data.models.model_builder import build_model
from kubealign_services.data.prepared import PreparedRow
from kubealign_services.data.teacher_prompts import TeacherPrompts
from kubealign_services.data.tokenization.tokenizers import train_character_tokenizer
from kubealign_services.generation.contract import RolloutEngine
from kubealign_services.generation.torch_engine.engine import TorchRolloutEngine
from kubealign_services.roles.driver.metrics.batch_metrics import measure_logprob_gap
from kubealign_services.roles.driver.rollouts.batch_assembly import SamplingInfo, assemble_batch
from kubealign_services.roles.driver.rollouts.dynamic_sampling import DynamicSamplingFilter
from kubealign_services.roles.driver.rollouts.group_tracker import RolloutGroup
from kubealign_services.roles.driver.rollouts.work_items import derive_sample_seed, to_sampling_proto
from kubealign_services.roles.rollout.messages import split_into_parts, to_rollout
from kubealign_services.roles.rollout.torch_generator import create_engine_with_reference
from kubealign_services.scoring.combination import combine_rewards
from kubealign_services.training.contract import Head, UpdatePlan
from kubealign_services.training.torch_backend.backend import TorchTrainingBackend
from kubealign_services.training.torch_backend.frozen_model import FrozenTorchModel

#: (prompt, response) -> reward.
Judge = Callable[[str, str], float]

_REWARD = Reward(name="task", function=RewardFunction(module="task:reward"))


@dataclass(frozen=True)
class Task:
    """Prompts, a reward function, and the model to train."""

    prompts: Sequence[str]
    reward: Judge
    architecture: dict[str, Any]
    max_tokens: int = 4
    learning_rate: float = 3.0e-3
    #: As in a job's spec: trainer, rollout.engine.torch.
    trainer: dict[str, Any] = field(default_factory=dict)
    engine: dict[str, Any] = field(default_factory=dict)
    #: Hinted prompts that the reference reads, one for each prompt; empty: the prompts themselves.
    teacher_prompts: Sequence[str] = ()


class OnlineLearner:
    """One job. `figures`: metrics of each step so far. `batch`: batch of the latest training step."""

    def __init__(
        self,
        folder: Path,
        task: Task,
        algorithm: dict[str, Any],
        seed: int = 1,
        reference: Path | None = None,
        policy: Path | None = None,
    ) -> None:
        """algorithm: as in a job's spec. reference: folder of a model; None: the policy's initial weights.
        policy: folder of the initial weights; None: random weights.
        """
        self.figures: list[dict[str, float]] = []
        self.batch: Batch | None = None
        union = AlgorithmUnion.model_validate(algorithm)
        self.spec = union.value
        self._algorithm = make_algorithm(union)
        self._task, self._seed = task, seed
        self.tokenizer = train_character_tokenizer(task.prompts)
        if policy is None:
            build_model(task.architecture, self.tokenizer, seed, folder / "model", "architecture")
        policy = policy or folder / "model"
        trainer = Trainer.model_validate(
            {"optimizer": {"adamW": {"learningRate": task.learning_rate}}} | task.trainer
        )
        self.trainer = TorchTrainingBackend.create(
            policy, Head.LANGUAGE_MODEL, trainer, total_updates=1000, seed=seed
        )
        self._critic = None
        if self._algorithm.needs_critic:
            self._critic = TorchTrainingBackend.create(
                policy, Head.VALUE, trainer, total_updates=1000, seed=seed
            )
        self._reference = None
        if self._algorithm.needs_reference:
            precision = trainer.backend.value.precision
            self._reference = FrozenTorchModel.load(reference or policy, Head.LANGUAGE_MODEL, precision, 8192)
        engine = EngineSpec.model_validate({"maxSequences": 256} | task.engine)
        self._engine: RolloutEngine
        if self.spec.reference_sample:
            self._engine = create_engine_with_reference(policy, reference or policy, engine)
        else:
            self._engine = TorchRolloutEngine.create(policy, engine)
        self._state: dict[str, float] = {}
        self._moments: dict[str, dict[str, float]] = {}
        self._order = self._prompts()
        self._waiting: deque[list[RolloutGroup]] = deque()
        dynamic = getattr(self.spec, "dynamic_sampling", None)
        most = 0 if dynamic is None else dynamic.max_refills * self.spec.prompts_per_step
        self._dynamic = DynamicSamplingFilter([_REWARD], most)

    @property
    def version(self) -> int:
        return len(self.figures)

    @property
    def _auxiliary_samples(self) -> int:
        return int(self.spec.greedy_baseline) + int(self.spec.reference_sample)

    def learn(self, steps: int) -> list[float]:
        """Run further steps. Return the mean reward of every step so far."""
        for _ in range(steps):
            self.figures.append(self._step())
        return [figures["reward/mean"] for figures in self.figures]

    def _step(self) -> dict[str, float]:
        self._engine.refit(self.trainer.snapshot(), self.version)
        # Groups sampled with older weights queue up to the maximum staleness of the algorithm.
        while len(self._waiting) <= min(self.spec.max_staleness, self.version):
            self._waiting.append(self._groups())
        groups = self._waiting.popleft()
        sampled = SamplingInfo(1.0, self._task.max_tokens, self._auxiliary_samples)
        batch = assemble_batch(groups, ["task"], sampled, self.version, reference=None)
        figures: dict[str, float] = {"data/uninformative_groups": float(self._dynamic.dropped)}
        rewards = [_REWARD] if self.spec.needs_rewards else []
        figures |= combine_rewards(batch, rewards, self.version + 1, self._moments)
        figures["task/mean"] = float(batch.sequence("reward.task").mean())
        if self._reference is not None:
            batch.token_columns["reference_logprobs"] = self._score_by_reference(self._reference, batch)
        if self._critic is not None:
            batch.token_columns["values"] = self._critic.forward(batch, frozenset({"values"}))["values"]
        names_before_step = outputs_before_step(self._algorithm)
        if names_before_step:
            outputs = self.trainer.forward(batch, frozenset(names_before_step))
            batch.token_columns |= {f"old_{name}": column for name, column in outputs.items()}
            figures |= measure_logprob_gap(batch)
        figures |= self._algorithm.advantages(batch, self._state)
        self.batch = batch = drop_auxiliary(batch)
        minibatch = self.spec.minibatch_sequences or len(batch)
        plan = UpdatePlan(self.spec.epochs_per_step, minibatch, self._seed + self.version)
        if self._critic is not None:
            objective = self._algorithm.value_objective()
            assert objective is not None
            figures |= self._critic.train_step(batch.select(range(len(batch))), objective, plan)
        return figures | self.trainer.train_step(batch, self._algorithm.policy_objective(), plan)

    def _score_by_reference(self, reference: FrozenTorchModel, batch: Batch) -> Tensor:
        names = frozenset({"logprobs"})
        if not self._task.teacher_prompts:
            return reference.forward(batch, names)["logprobs"]
        rows = [
            PreparedRow(row, self._encode(prompt), prompt, teacher_prompt_tokens=self._encode(hinted))
            for row, (prompt, hinted) in enumerate(
                zip(self._task.prompts, self._task.teacher_prompts, strict=True)
            )
        ]
        replaced = TeacherPrompts(rows).replace(batch)
        return replaced.restore(reference.forward(replaced.batch, names)["logprobs"])

    def _encode(self, text: str) -> list[int]:
        ids: list[int] = self.tokenizer(text, add_special_tokens=False)["input_ids"]
        return ids

    def _groups(self) -> list[RolloutGroup]:
        """Sample the groups of a step, replacing those that dynamic sampling drops."""
        self._dynamic.reset()
        groups: list[RolloutGroup] = []
        while len(groups) < self.spec.prompts_per_step:
            missing = self.spec.prompts_per_step - len(groups)
            names = [next(self._order) for _ in range(missing)]
            groups += [group for group in self._sampled(names) if not self._dynamic.should_drop(group)]
        return groups

    def _prompts(self) -> Iterator[str]:
        """Yield prompt names EPOCH/ROW, each epoch in its own random order."""
        epoch = 0
        while True:
            rows = list(range(len(self._task.prompts)))
            random.Random(self._seed * 1000 + epoch).shuffle(rows)
            yield from (f"{epoch}/{row}" for row in rows)
            epoch += 1

    def _sampled(self, names: Sequence[str]) -> list[RolloutGroup]:
        count = self.spec.samples_per_prompt + self._auxiliary_samples
        sampling = to_sampling_proto(SamplingSpec(max_tokens=self._task.max_tokens))
        groups: dict[str, RolloutGroup] = {}
        asked: dict[str, tuple[rollout_pb2.WorkItem, int]] = {}
        for name in names:
            prompt = self._task.prompts[int(name.partition("/")[2])]
            groups[name] = RolloutGroup(name, count, self.version, deadline=0.0, requested_at=0.0)
            item = rollout_pb2.WorkItem(
                group_id=name,
                prompt_tokens=self._encode(prompt),
                samples=count,
                seeds=[derive_sample_seed(self._seed, "train", name, 0, sample) for sample in range(count)],
                sampling=sampling,
                greedy_samples=int(self.spec.greedy_baseline),
                reference_samples=int(self.spec.reference_sample),
                columns=json.dumps({"prompt": prompt, "columns": {}}).encode(),
                purpose="train",
            )
            for part in split_into_parts(item):
                asked[part.request.request_id] = item, part.first_sample
                self._engine.add(part.request)
        missing = count * len(groups)
        while missing:
            for sample in self._engine.step():
                item, first = asked[sample.request_id]
                rollout = to_rollout(item, sample, "engine", first)
                self._keep(groups[item.group_id], rollout)
                missing -= 1
        return list(groups.values())

    def _keep(self, group: RolloutGroup, rollout: rollout_pb2.Rollout) -> None:
        group.rollouts[rollout.sample] = rollout
        prompt = json.loads(rollout.columns)["prompt"]
        score = scoring_pb2.Score(reward=self._task.reward(prompt, rollout.response))
        group.scores[rollout.sample, rollout.sequence.digest, "task"] = score

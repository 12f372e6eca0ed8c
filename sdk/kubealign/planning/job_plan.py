"""Plan of one job: every process that needs an accelerator, and its memory."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from kubealign.planning.machine import PROCESS_BYTES, Device, Machine
from kubealign.planning.memory.engine import engine_memory
from kubealign.planning.memory.frozen_model import REWARD_PASS_TOKENS, frozen_model_memory
from kubealign.planning.memory.optimizer_states import bytes_per_value
from kubealign.planning.memory.peak import MemoryPeak, ProcessRequirements
from kubealign.planning.memory.trainer import TrainedModel, offloaded_activations, trainer_memory
from kubealign.planning.model import parameter_counts
from kubealign.planning.model.shape import ModelShape
from kubealign.planning.model.shape_sources import ModelShapes
from kubealign.planning.model.trainer_layout import trainer_layout
from kubealign.planning.traffic import RoutingRecord, Traffic, estimate_routing_record, estimate_traffic
from kubealign.planning.weight_transfer import WeightTransferEstimate, estimate_weight_transfer
from kubealign.planning.workload import Workload, workload_of
from kubealign.role_specs import teacher_group
from kubealign.spec.algorithms import ResultKind
from kubealign.spec.job import AlignmentJob, AlignmentJobSpec, Reference, Teacher
from kubealign.spec.sections.rewards import RewardPlacement
from kubealign.spec.sections.rollout import ReferencePlacement


@dataclass(frozen=True)
class JobPlan:
    """Plan of one job.

    Attributes:
        requirements: Memory of each process group, in the order of the job's roles.
        traffic: Network traffic of trainer and critic, by group.
        refit: Cost of a weight transfer; None: the job has no weight transfer.
        record: Recorded experts of the rollouts; None: without rollout.routingReplay.
    """

    name: str
    requirements: tuple[ProcessRequirements, ...]
    traffic: dict[str, list[Traffic]]
    refit: WeightTransferEstimate | None
    work: Workload
    weights: int
    record: RoutingRecord | None = None

    @property
    def devices(self) -> int:
        """Accelerators of the whole job."""
        return sum(need.processes * need.devices for need in self.requirements)

    def fits(self, machine: Machine) -> bool:
        """Return True if every process fits in the machine's device memory."""
        return all(need.peak.total <= machine.memory for need in self.requirements)


def plan_job(
    job: AlignmentJob,
    shapes: ModelShapes,
    machine: Machine,
    prompt: int | None = None,
    response: int | None = None,
) -> JobPlan:
    """Plan a job.

    Args:
        prompt: See `workload_of`.
        response: See `workload_of`.

    Raises:
        PlanError: The size of a model is unknown, or the layout cannot divide a model.
    """
    spec = job.spec
    work = workload_of(spec, prompt, response)
    shape = shapes.shape_of(spec.policy.model, "policy", "spec.policy.model")
    planner = _JobPlanner(spec, shapes, machine, work, shape)
    policy = planner.policy()
    needs = tuple(planner.requirements())
    traffic_by_group: dict[str, list[Traffic]] = {}
    if spec.algorithm.value.trains:
        traffic_by_group["trainer"] = estimate_traffic(policy, machine)
    critic = planner.critic()
    if critic is not None:
        traffic_by_group["critic"] = estimate_traffic(critic, machine)
    workers = spec.effective_rollout.replicas if spec.effective_rollout is not None else 0
    refit = (
        estimate_weight_transfer(policy, workers, machine)
        if workers and spec.algorithm.value.trains
        else None
    )
    record = estimate_routing_record(shape, work) if spec.rollout.routing_replay else None
    return JobPlan(job.name, needs, traffic_by_group, refit, work, parameter_counts.total(shape), record)


@dataclass(frozen=True)
class _JobPlanner:
    spec: AlignmentJobSpec
    shapes: ModelShapes
    machine: Machine
    work: Workload
    shape: ModelShape

    def policy(self) -> TrainedModel:
        is_reward_model = self.spec.algorithm.value.makes is ResultKind.REWARD_MODEL
        return TrainedModel(
            self.shape, self.spec.trainer, self.work, self.machine.device, not is_reward_model
        )

    def critic(self) -> TrainedModel | None:
        critic = self.spec.effective_critic
        if critic is None or critic.model is None:
            return None
        shape = self.shapes.shape_of(critic.model, "critic", "spec.critic.model")
        return TrainedModel(shape, critic, self.work, self.machine.device, has_vocabulary=False)

    def requirements(self) -> Iterator[ProcessRequirements]:
        spec = self.spec
        if spec.algorithm.value.trains:
            yield self._trainer()
        critic = self.critic()
        if critic is not None:
            yield self._critic(critic)
        reference = spec.effective_reference
        if reference is not None and reference.placement is ReferencePlacement.OWN:
            yield self._scorer("reference", reference, self._reference())
        if spec.teacher is not None:
            yield self._teacher(spec.teacher, "teacher", "spec.teacher.model")
        for teacher in spec.teachers:
            path = f"spec.teachers[{teacher.name}].model"
            yield self._teacher(teacher, teacher_group(teacher.name), path)
        for reward in spec.rewards:
            if reward.models and reward.placement is RewardPlacement.OWN:
                yield self._reward(reward.name, len(reward.models))
        if spec.effective_rollout is not None:
            yield self._rollout()

    def _frozen_memory(
        self, shape: ModelShape, has_vocabulary: bool, count: int = 1, ranks: int = 1
    ) -> MemoryPeak:
        backend = self.spec.trainer.backend.value
        tokens = backend.microbatch_tokens if has_vocabulary else REWARD_PASS_TOKENS
        return frozen_model_memory(
            shape, backend.precision, tokens, self.machine.device, has_vocabulary, count, ranks
        )

    def _scorer(self, group: str, scorer: Reference | Teacher, shape: ModelShape) -> ProcessRequirements:
        memory = self._frozen_memory(shape, True, ranks=scorer.ranks)
        host = self._loading_memory(shape, scorer.ranks, has_vocabulary=True)
        return ProcessRequirements(group, scorer.replicas * scorer.ranks, 1, memory, host)

    def _loading_memory(self, shape: ModelShape, ranks: int, has_vocabulary: bool) -> dict[str, int]:
        """Return host memory of a rank of a sharded model: it loads the model whole before it shards it."""
        if ranks == 1 or self.machine.device is not Device.GPU:
            return {}
        return {
            "process": PROCESS_BYTES,
            "loading": self._frozen_memory(shape, has_vocabulary).parts["weights"],
        }

    def _reference(self) -> ModelShape:
        reference = self.spec.effective_reference
        assert reference is not None and reference.model is not None
        if reference.model == self.spec.policy.model:
            return self.shape
        return self.shapes.shape_of(reference.model, "reference", "spec.reference.model")

    def _trainer(self) -> ProcessRequirements:
        """Return the trainer's memory.

        A reference WithTrainer is offloaded to the host and reloaded beside the trainer's states.
        """
        model, reference = self.policy(), self.spec.effective_reference
        host = self._host_memory() | model.host_bytes | offloaded_activations(model)
        need = ProcessRequirements("trainer", model.trainer.ranks, 1, trainer_memory(model), host)
        if reference is not None and reference.placement is ReferencePlacement.WITH_TRAINER:
            need = self._add_idle_model(need, model, self._reference(), "reference", has_vocabulary=True)
        if self.spec.effective_rollout is not None:
            sent = estimate_weight_transfer(model, 1, self.machine).snapshot
            need = replace(need, host={**need.host, "snapshots": -(-sent // model.trainer.ranks)})
        return need

    def _critic(self, model: TrainedModel) -> ProcessRequirements:
        host = self._host_memory() | model.host_bytes | offloaded_activations(model)
        need = ProcessRequirements("critic", model.trainer.ranks, 1, trainer_memory(model), host)
        for reward in self.spec.rewards:
            if reward.placement is RewardPlacement.WITH_CRITIC and reward.model is not None:
                shape = self.shapes.shape_of(reward.model, reward.name, f"spec.rewards[{reward.name}].model")
                need = self._add_idle_model(need, model, shape, reward.name, has_vocabulary=False)
        return need

    def _add_idle_model(
        self,
        need: ProcessRequirements,
        model: TrainedModel,
        shape: ModelShape,
        name: str,
        has_vocabulary: bool,
    ) -> ProcessRequirements:
        """Add a model that is offloaded while idle.

        Megatron's ranks shard it like their own model; each rank of torch holds it unsharded.
        """
        division = trainer_layout(model.trainer)
        split = 1 if division.sharded else division.tensor * division.pipeline
        frozen_peak = self._frozen_memory(shape, has_vocabulary)
        weights = -(-frozen_peak.parts["weights"] // split)
        idle_parts = {part: need.peak.parts.get(part, 0) for part in ("process", "weights", "optimizer")}
        active_peak = MemoryPeak(
            f"forward pass of {name}",
            idle_parts | {name: weights, "activations": frozen_peak.parts["activations"] // division.tensor},
        )
        moment = active_peak if active_peak.total > need.peak.total else need.peak
        host = {**need.host, name: weights}
        if self.machine.device is Device.CPU and moment is need.peak:
            # On a CPU the idle model stays in the same memory.
            moment = MemoryPeak(moment.name, {**moment.parts, name: weights})
        return replace(need, peak=moment, host=host)

    def _teacher(self, teacher: Teacher, group: str, field: str) -> ProcessRequirements:
        shape = self.shapes.shape_of(teacher.model, group, field)
        return self._scorer(group, teacher, shape)

    def _reward(self, name: str, count: int) -> ProcessRequirements:
        reward = next(each for each in self.spec.rewards if each.name == name)
        shape = self.shapes.shape_of(reward.models[0], name, f"spec.rewards[{name}].model")
        return ProcessRequirements(
            f"reward-{name}",
            reward.replicas * reward.ranks,
            1,
            self._frozen_memory(shape, False, count, reward.ranks),
            self._host_memory() | self._loading_memory(shape, reward.ranks, has_vocabulary=False),
        )

    def _rollout(self) -> ProcessRequirements:
        rollout = self.spec.effective_rollout
        assert rollout is not None
        reference = self._reference() if self.spec.algorithm.value.reference_sample else None
        memory = engine_memory(
            self.shape, rollout.engine, rollout.sampling, self.work, self.machine, reference
        )
        notes = []
        if memory.sequences < memory.allowed:
            notes.append(
                f"of maxSequences {memory.allowed} the cache holds {memory.sequences} of "
                f"{self.work.sequence} tokens at once; the others wait"
            )
        sent = bytes_per_value(self.spec.trainer.backend.value.precision) * parameter_counts.total(self.shape)
        host = (
            {**self._host_memory(), "incoming weights": sent}
            if self.spec.algorithm.value.trains
            else self._host_memory()
        )
        return ProcessRequirements(
            "rollout", rollout.replicas, memory.devices, memory.peak, host, tuple(notes)
        )

    def _host_memory(self) -> dict[str, int]:
        return {"process": PROCESS_BYTES} if self.machine.device is Device.GPU else {}

"""Plan of one job: every process that needs an accelerator, and its memory."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from kubealign.plan import parameters
from kubealign.plan.division import division_of
from kubealign.plan.frozen import REWARD_TOKENS, frozen
from kubealign.plan.generated import generation
from kubealign.plan.handover import Handover, handover
from kubealign.plan.machine import PROCESS, Device, Machine
from kubealign.plan.models import Shapes
from kubealign.plan.parts import Moment, Need
from kubealign.plan.shape import ModelShape
from kubealign.plan.states import width
from kubealign.plan.traffic import Traffic, traffic
from kubealign.plan.trained import TrainedModel, trained
from kubealign.plan.work import Work, work_of
from kubealign.spec.algorithms import Makes
from kubealign.spec.job import AlignmentJob, AlignmentJobSpec
from kubealign.spec.rewards import RewardPlacement
from kubealign.spec.rollout import ReferencePlacement


@dataclass(frozen=True)
class JobPlan:
    """Plan of one job.

    Attributes:
        requirements: Memory of each process group, in the order of the job's roles.
        traffic: Network traffic of trainer and critic, by group.
        refit: Cost of a weight transfer; None: the job has no weight transfer.
    """

    name: str
    needs: tuple[Need, ...]
    traffic: dict[str, list[Traffic]]
    refit: Handover | None
    work: Work
    weights: int

    @property
    def devices(self) -> int:
        """Accelerators of the whole job."""
        return sum(need.processes * need.devices for need in self.needs)

    def fits(self, machine: Machine) -> bool:
        """Return True if every process fits in the machine's device memory."""
        return all(need.moment.total <= machine.memory for need in self.needs)


def plan(
    job: AlignmentJob,
    shapes: Shapes,
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
    work = work_of(spec, prompt, response)
    shape = shapes.of(spec.policy.model, "policy", "spec.policy.model")
    planner = _Planner(spec, shapes, machine, work, shape)
    policy = planner.policy()
    needs = tuple(planner.needs())
    traffic_by_group: dict[str, list[Traffic]] = {}
    if spec.algorithm.value.trains:
        traffic_by_group["trainer"] = traffic(policy, machine)
    critic = planner.critic()
    if critic is not None:
        traffic_by_group["critic"] = traffic(critic, machine)
    workers = spec.effective_rollout.replicas if spec.effective_rollout is not None else 0
    refit = handover(policy, workers, machine) if workers and spec.algorithm.value.trains else None
    return JobPlan(job.name, needs, traffic_by_group, refit, work, parameters.total(shape))


@dataclass(frozen=True)
class _Planner:
    spec: AlignmentJobSpec
    shapes: Shapes
    machine: Machine
    work: Work
    shape: ModelShape

    def policy(self) -> TrainedModel:
        is_reward_model = self.spec.algorithm.value.makes is Makes.REWARD_MODEL
        return TrainedModel(
            self.shape, self.spec.trainer, self.work, self.machine.device, not is_reward_model
        )

    def critic(self) -> TrainedModel | None:
        critic = self.spec.effective_critic
        if critic is None or critic.model is None:
            return None
        shape = self.shapes.of(critic.model, "critic", "spec.critic.model")
        return TrainedModel(shape, critic, self.work, self.machine.device, has_vocabulary=False)

    def needs(self) -> Iterator[Need]:
        spec = self.spec
        if spec.algorithm.value.trains:
            yield self._trainer()
        critic = self.critic()
        if critic is not None:
            yield self._critic(critic)
        reference = spec.effective_reference
        if reference is not None and reference.placement is ReferencePlacement.OWN:
            yield Need("reference", 1, 1, self._asked(self._reference(), True))
        if spec.teacher is not None:
            shape = self.shapes.of(spec.teacher.model, "teacher", "spec.teacher.model")
            yield Need("teacher", 1, 1, self._asked(shape, True))
        for reward in spec.rewards:
            if reward.models and reward.placement is RewardPlacement.OWN:
                yield self._reward(reward.name, len(reward.models))
        if spec.effective_rollout is not None:
            yield self._rollout()

    def _asked(self, shape: ModelShape, has_vocabulary: bool, count: int = 1) -> Moment:
        backend = self.spec.trainer.backend.value
        tokens = backend.microbatch_tokens if has_vocabulary else REWARD_TOKENS
        return frozen(shape, backend.precision, tokens, self.machine.device, has_vocabulary, count)

    def _reference(self) -> ModelShape:
        reference = self.spec.effective_reference
        assert reference is not None and reference.model is not None
        if reference.model == self.spec.policy.model:
            return self.shape
        return self.shapes.of(reference.model, "reference", "spec.reference.model")

    def _trainer(self) -> Need:
        """Return the trainer's memory. A reference WithTrainer is offloaded to the host and reloaded beside
        the trainer's states.
        """
        model, reference = self.policy(), self.spec.effective_reference
        need = Need("trainer", model.trainer.ranks, 1, trained(model), self._host())
        if reference is not None and reference.placement is ReferencePlacement.WITH_TRAINER:
            need = self._beside(need, model, self._reference(), "reference", has_vocabulary=True)
        if self.spec.effective_rollout is not None:
            sent = handover(model, 1, self.machine).snapshot
            need = replace(need, host={**need.host, "snapshots": -(-sent // model.trainer.ranks)})
        return need

    def _critic(self, model: TrainedModel) -> Need:
        need = Need("critic", model.trainer.ranks, 1, trained(model), self._host())
        for reward in self.spec.rewards:
            if reward.placement is RewardPlacement.WITH_CRITIC and reward.model is not None:
                shape = self.shapes.of(reward.model, reward.name, f"spec.rewards[{reward.name}].model")
                need = self._beside(need, model, shape, reward.name, has_vocabulary=False)
        return need

    def _beside(
        self, need: Need, model: TrainedModel, shape: ModelShape, name: str, has_vocabulary: bool
    ) -> Need:
        """Add a model that is offloaded while idle. Megatron's ranks shard it like their own model; each rank
        of torch holds it unsharded.
        """
        division = division_of(model.trainer)
        split = 1 if division.sharded else division.tensor * division.pipeline
        frozen_peak = self._asked(shape, has_vocabulary)
        weights = -(-frozen_peak.parts["weights"] // split)
        idle_parts = {part: need.moment.parts.get(part, 0) for part in ("process", "weights", "optimizer")}
        active_peak = Moment(
            f"forward pass of {name}",
            idle_parts | {name: weights, "activations": frozen_peak.parts["activations"] // division.tensor},
        )
        moment = active_peak if active_peak.total > need.moment.total else need.moment
        host = {**need.host, name: weights}
        if self.machine.device is Device.CPU and moment is need.moment:
            # On a CPU the idle model stays in the same memory.
            moment = Moment(moment.name, {**moment.parts, name: weights})
        return replace(need, moment=moment, host=host)

    def _reward(self, name: str, count: int) -> Need:
        reward = next(each for each in self.spec.rewards if each.name == name)
        shape = self.shapes.of(reward.models[0], name, f"spec.rewards[{name}].model")
        return Need(f"reward-{name}", 1, 1, self._asked(shape, False, count), self._host())

    def _rollout(self) -> Need:
        rollout = self.spec.effective_rollout
        assert rollout is not None
        memory = generation(self.shape, rollout.engine, rollout.sampling, self.work, self.machine)
        notes = []
        if memory.sequences < memory.allowed:
            notes.append(
                f"of maxSequences {memory.allowed} the cache holds {memory.sequences} of "
                f"{self.work.sequence} tokens at once; the others wait"
            )
        sent = width(self.spec.trainer.backend.value.precision) * parameters.total(self.shape)
        host = (
            {**self._host(), "incoming weights": sent} if self.spec.algorithm.value.trains else self._host()
        )
        return Need("rollout", rollout.replicas, memory.devices, memory.moment, host, tuple(notes))

    def _host(self) -> dict[str, int]:
        return {"process": PROCESS} if self.machine.device is Device.GPU else {}

"""The processes of a job, their start order, and their gRPC peers.

Pure: the local runner starts the processes, and the operator renders them as pods.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from kubealign.process_settings import Role
from kubealign.role_specs import PREPARE as PREPARE
from kubealign.role_specs import ROLE_SPECS, RoleSpec, teacher_group
from kubealign.spec.job import AlignmentJob, AlignmentJobSpec
from kubealign.spec.sections.rollout import ReferencePlacement

#: Main module of a trainer whose processes are also the rollout workers.
_COLOCATED_MODULE = "kubealign_services.roles.colocated.main"


@dataclass(frozen=True)
class Process:
    """One process of a job, started as `python -m MODULE SETTINGS.json`."""

    #: Unique within the job: prepare, trainer-1, reward-helpful-0, teacher-math-0, rollout-3, driver.
    #: Additional ranks of an elastic worker: rollout-3-r1, reference-0-r1.
    name: str
    #: Role in the process's certificate.
    role: Role
    #: Process group: prepare, trainer, critic, reference, teacher, teacher-NAME, reward-NAME, rollout,
    #: environment, driver.
    group: str
    module: str
    #: Index of the worker in an elastic group, from 0.
    replica: int = 0
    #: The ranks of a group, or of one elastic worker (world_size above 1), share collectives and therefore
    #: restart together.
    rank: int = 0
    world_size: int = 1
    #: Reward processes: name of the entry in spec.rewards or in spec.validation.sampling.scores,
    #: SET-NAME of one in spec.validation.sets[].sampling.scores.
    reward: str | None = None
    #: Processes of one of several teachers: name of the entry in spec.teachers.
    teacher: str | None = None
    #: Groups that must be ready (one-shot: finished with code 0) before this process starts.
    after: tuple[str, ...] = ()
    #: The process ends when its work is done; other processes serve until the job ends.
    one_shot: bool = False
    #: The process pulls its work from the bus, so replicas may be added or lost at any time.
    elastic: bool = False
    #: The process has a gRPC server with health. Commands to a group's other ranks go through rank 0.
    serves: bool = True
    #: Groups that the process calls, whose addresses are in its settings.
    calls: tuple[str, ...] = ()
    #: Further ranks of the unit in the same pod, by rank. `roles` lists every process by itself; the operator
    #: divides the ranks into pods.
    companions: tuple["Process", ...] = ()

    @property
    def role_spec(self) -> RoleSpec:
        """Properties of the role.

        Preparation is a role of its own, although it has the driver's certificate.
        """
        return ROLE_SPECS.get(self.group) or ROLE_SPECS[self.role]

    @property
    def pod_processes(self) -> tuple["Process", ...]:
        """All processes of the pod whose first process this is, by rank."""
        return (self, *self.companions)

    @property
    def unit(self) -> str:
        """Name of the unit that starts and restarts together: an elastic worker, the ranks of a group, or
        this process alone.
        """
        if self.elastic:
            return worker_name(self.group, self.replica)
        return self.group if self.world_size > 1 else self.name

    @property
    def leader(self) -> str:
        """Name of the process with rank 0 in the unit, which hosts the rendezvous."""
        return f"{self.group}-0" if self.world_size > 1 and not self.elastic else self.unit


def roles(job: AlignmentJob) -> tuple[Process, ...]:
    """Return the job's processes in a valid start order: preparation first, the driver last."""
    workers = tuple(process for group in _worker_groups(job.spec) for process in group.processes())
    groups = tuple(dict.fromkeys(process.group for process in workers))
    prepare = replace(_process(PREPARE), one_shot=True)
    driver = replace(
        _process("driver"),
        after=(PREPARE, *groups),
        calls=tuple(dict.fromkeys(process.group for process in workers if process.role_spec.trains)),
    )
    return (prepare, *workers, driver)


def process_count(job: AlignmentJob) -> int:
    """Return the number of processes that `roles` would list, without listing them: a valid spec may ask for
    millions.
    """
    return 2 + sum(group.count for group in _worker_groups(job.spec))


@dataclass(frozen=True)
class _WorkerGroup:
    """The processes of one group.

    Attributes:
        first: The process with replica 0 and rank 0.
        replicas: Number of workers; 1 unless the group is elastic.
        ranks: Number of processes of each worker.
        all_serve: True when every rank has a gRPC server, not only rank 0.
    """

    first: Process
    replicas: int = 1
    ranks: int = 1
    all_serve: bool = False

    @property
    def count(self) -> int:
        return self.replicas * self.ranks

    def processes(self) -> Iterator[Process]:
        if not self.first.elastic:
            yield from _gang(self.first, self.ranks, all_serve=self.all_serve)
            return
        for replica in range(self.replicas):
            yield from self.worker(replica)

    def worker(self, replica: int) -> tuple[Process, ...]:
        """Return the processes of the elastic worker with this index."""
        return _worker_ranks(with_replica(self.first, replica), self.ranks)


def _worker_groups(spec: AlignmentJobSpec) -> Iterator[_WorkerGroup]:
    if spec.algorithm.value.trains:
        trainer = _worker(Role.TRAINER)
        if spec.rollout_with_trainer:
            trainer = replace(trainer, module=_COLOCATED_MODULE)
        # Each rank streams its weights to the rollout workers.
        yield _WorkerGroup(trainer, ranks=spec.trainer.ranks, all_serve=spec.samples)
    critic = spec.effective_critic
    if critic is not None:
        yield _WorkerGroup(_worker(Role.CRITIC), ranks=critic.ranks)
    reference = spec.effective_reference
    if reference is not None and reference.placement is ReferencePlacement.OWN:
        yield _WorkerGroup(_worker(Role.REFERENCE), reference.replicas, reference.ranks)
    if spec.teacher is not None:
        yield _WorkerGroup(_worker(Role.TEACHER), spec.teacher.replicas, spec.teacher.ranks)
    for teacher in spec.teachers:
        yield _WorkerGroup(_teacher_worker(teacher.name), teacher.replicas, teacher.ranks)
    for reward in spec.rewards:
        if reward.has_processes:
            yield _WorkerGroup(_reward_worker(reward.name), reward.replicas, reward.ranks)
    for score in spec.validation_scores:
        if score.policy_judge is None:
            yield _WorkerGroup(_reward_worker(score.name))
    if spec.environment_replicas:
        yield _WorkerGroup(_worker(Role.ENVIRONMENT), spec.environment_replicas)
    rollout = spec.own_rollout
    if rollout is not None:
        yield _rollout_workers(spec, rollout.replicas)


def rollout_worker_number(name: str) -> int:
    """Return the number, from 0, of the rollout worker with a process of this name, such as rollout-3."""
    return int(name.removeprefix(f"{Role.ROLLOUT}-").split("-")[0])


def rollout_worker(spec: AlignmentJobSpec, replica: int) -> tuple[Process, ...]:
    """Return the processes of the rollout worker with this index, from 0, also for workers added while the
    job runs.

    In a job without training the worker keeps its initial weights.
    """
    return _rollout_workers(spec, replica + 1).worker(replica)


def _rollout_workers(spec: AlignmentJobSpec, replicas: int) -> _WorkerGroup:
    calls = (Role.TRAINER.value,) if spec.algorithm.value.trains else ()
    rollout = spec.effective_rollout
    torch_engine = rollout.engine.torch if rollout is not None else None
    first = replace(_worker(Role.ROLLOUT), calls=calls)
    return _WorkerGroup(first, replicas, 1 if torch_engine is None else torch_engine.tensor_parallel)


def generation_role(processes: Iterable[Process]) -> Role:
    """Return the role whose processes generate: the trainer if generation is colocated with training,
    otherwise rollout, also for a job that does not generate.
    """
    is_colocated = any(process.module == _COLOCATED_MODULE for process in processes)
    return Role.TRAINER if is_colocated else Role.ROLLOUT


def worker_name(group: str, replica: int, rank: int = 0) -> str:
    """Return the name of a process of an elastic worker; rank 0 has the name of the worker."""
    return f"{group}-{replica}" + (f"-r{rank}" if rank else "")


def pod_process_names(first: str, count: int, worker_rank: int | None) -> list[str]:
    """Return the names of the processes in a pod, by rank.

    Args:
        first: Name of the pod's first process.
        count: Number of processes in the pod.
        worker_rank: Rank of the first process in its elastic worker; None: the group is not elastic, or its
            workers have one process.
    """
    if count <= 1:
        return [first]
    if worker_rank is None:
        group, _, rank = first.rpartition("-")
        return [worker_name(group, int(rank) + index) for index in range(count)]
    group, _, replica = first.removesuffix(f"-r{worker_rank}").rpartition("-")
    return [worker_name(group, int(replica), worker_rank + index) for index in range(count)]


def with_replica(process: Process, replica: int) -> Process:
    """Return the same process of another worker of its elastic group."""
    return replace(process, replica=replica, name=worker_name(process.group, replica, process.rank))


def _worker_ranks(first: Process, world_size: int) -> tuple[Process, ...]:
    """Return the processes of an elastic worker, from the process with rank 0, which alone serves."""
    ranks = (replace(first, rank=rank, world_size=world_size, serves=rank == 0) for rank in range(world_size))
    return tuple(with_replica(process, first.replica) for process in ranks)


def _gang(first: Process, world_size: int, *, all_serve: bool = False) -> Iterator[Process]:
    """Yield the processes of a group with ranks, from the process with rank 0."""
    for rank in range(world_size):
        yield replace(
            first,
            name=worker_name(first.group, rank),
            rank=rank,
            world_size=world_size,
            serves=all_serve or rank == 0,
        )


def _worker(role: Role, group: str | None = None) -> Process:
    """Return the first process of a worker role. `group`: where a role has several groups."""
    process = _process(role, group)
    return replace(process, name=worker_name(process.group, 0), after=(PREPARE,))


def _reward_worker(name: str) -> Process:
    """Return the first process that scores with the reward or validation score of this name."""
    return replace(_worker(Role.REWARD, f"{Role.REWARD}-{name}"), reward=name)


def _teacher_worker(name: str) -> Process:
    """Return the first process of the teacher of this name, one of several."""
    return replace(_worker(Role.TEACHER, teacher_group(name)), teacher=name)


def _process(role: str, group: str | None = None) -> Process:
    """Return a process with what the registry says of its role."""
    spec = ROLE_SPECS[role]
    assert spec.certificate is not None and spec.module is not None
    return Process(
        name=spec.name,
        role=spec.certificate,
        group=group or spec.name,
        module=spec.module,
        elastic=spec.elastic,
        serves=spec.serves,
    )

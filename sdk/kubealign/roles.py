"""The processes of a job, their start order, and their gRPC peers.

Pure: the local runner starts the processes, and the operator renders them as pods.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from kubealign.process_settings import Role
from kubealign.spec.job import AlignmentJob, AlignmentJobSpec
from kubealign.spec.sections.rewards import RewardPlacement
from kubealign.spec.sections.rollout import ReferencePlacement

PREPARE = "prepare"
#: Main module of a trainer whose processes are also the rollout workers.
_COLOCATED_MODULE = "kubealign_services.roles.colocated.main"


@dataclass(frozen=True)
class Process:
    """One process of a job, started as `python -m MODULE SETTINGS.json`."""

    #: Unique within the job: prepare, trainer-1, reward-helpful-0, rollout-3, driver. Additional ranks of a
    #: rollout worker: rollout-3-r1, rollout-3-r2.
    name: str
    #: Role in the process's certificate.
    role: Role
    #: Process group: prepare, trainer, critic, reference, teacher, reward-NAME, rollout, driver.
    group: str
    module: str
    #: Index of the worker in an elastic group, from 0.
    replica: int = 0
    #: The ranks of a group, or of one elastic worker (world_size above 1), share collectives and therefore
    #: restart together.
    rank: int = 0
    world_size: int = 1
    #: Reward processes: name of the entry in spec.rewards or in spec.validation.sampling.scores.
    reward: str | None = None
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
    workers = tuple(_worker_processes(job.spec))
    groups = tuple(dict.fromkeys(process.group for process in workers))
    prepare = Process(
        name=PREPARE,
        role=Role.DRIVER,
        group=PREPARE,
        module="kubealign_services.roles.driver.prepare",
        one_shot=True,
        serves=False,
    )
    driver = Process(
        name="driver",
        role=Role.DRIVER,
        group="driver",
        module=_module(Role.DRIVER),
        after=(PREPARE, *groups),
        calls=tuple(group for group in groups if group in (Role.TRAINER, Role.CRITIC)),
    )
    return (prepare, *workers, driver)


def _worker_processes(spec: AlignmentJobSpec) -> Iterator[Process]:
    if spec.algorithm.value.trains:
        module = _COLOCATED_MODULE if spec.rollout_with_trainer else _module(Role.TRAINER)
        # Each rank streams its weights to the rollout workers.
        yield from _rank_processes(Role.TRAINER, spec.trainer.ranks, module, all_serve=spec.samples)
    critic = spec.effective_critic
    if critic is not None:
        yield from _rank_processes(Role.CRITIC, critic.ranks)
    reference = spec.effective_reference
    if reference is not None and reference.placement is ReferencePlacement.OWN:
        yield _elastic_process(Role.REFERENCE, "reference", 0)
    if spec.teacher is not None:
        yield _elastic_process(Role.TEACHER, "teacher", 0)
    own_rewards = [reward.name for reward in spec.rewards if reward.placement is RewardPlacement.OWN]
    for name in (*own_rewards, *(score.name for score in spec.validation_scores)):
        yield _elastic_process(Role.REWARD, f"reward-{name}", 0, reward=name)
    rollout = spec.own_rollout
    if rollout is not None:
        for replica in range(rollout.replicas):
            yield from rollout_worker(spec, replica)


def rollout_worker(spec: AlignmentJobSpec, replica: int) -> tuple[Process, ...]:
    """Return the processes of the rollout worker with this index, from 0, also for workers added while the
    job runs.

    In a job without training the worker keeps its initial weights.
    """
    calls = ("trainer",) if spec.algorithm.value.trains else ()
    rollout = spec.effective_rollout
    torch_engine = rollout.engine.torch if rollout is not None else None
    first = _elastic_process(Role.ROLLOUT, "rollout", replica, calls=calls)
    return _tensor_parallel_worker(first, 1 if torch_engine is None else torch_engine.tensor_parallel)


def generation_role(processes: Iterable[Process]) -> Role:
    """Return the role of the processes that generate: the rollout workers, or the trainer if they share its
    processes.
    """
    with_trainer = any(process.module == _COLOCATED_MODULE for process in processes)
    return Role.TRAINER if with_trainer else Role.ROLLOUT


def worker_name(group: str, replica: int, rank: int = 0) -> str:
    """Return the name of a process of an elastic worker; rank 0 has the name of the worker."""
    return f"{group}-{replica}" + (f"-r{rank}" if rank else "")


def with_replica(process: Process, replica: int) -> Process:
    """Return the same process of another worker of its elastic group."""
    return replace(process, replica=replica, name=worker_name(process.group, replica, process.rank))


def _tensor_parallel_worker(first: Process, world_size: int) -> tuple[Process, ...]:
    """Return the processes of an elastic worker with several ranks."""
    ranks = (replace(first, rank=rank, world_size=world_size, serves=rank == 0) for rank in range(world_size))
    return tuple(with_replica(process, first.replica) for process in ranks)


def _rank_processes(
    role: Role, world_size: int, module: str | None = None, *, all_serve: bool = False
) -> Iterator[Process]:
    for rank in range(world_size):
        yield Process(
            name=f"{role}-{rank}",
            role=role,
            group=role.value,
            module=module or _module(role),
            rank=rank,
            world_size=world_size,
            after=(PREPARE,),
            serves=all_serve or rank == 0,
        )


def _elastic_process(
    role: Role, group: str, replica: int, *, reward: str | None = None, calls: tuple[str, ...] = ()
) -> Process:
    return Process(
        name=worker_name(group, replica),
        role=role,
        group=group,
        module=_module(role),
        replica=replica,
        reward=reward,
        after=(PREPARE,),
        elastic=True,
        calls=calls,
    )


def _module(role: Role) -> str:
    return f"kubealign_services.roles.{role}.main"

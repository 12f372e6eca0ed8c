"""Which processes a job has, in which order they start, and who calls whom.

Pure: the local runner starts them as processes, the operator renders them as pods.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from kubealign.process import Role
from kubealign.spec.job import AlignmentJob, AlignmentJobSpec
from kubealign.spec.rewards import RewardPlacement
from kubealign.spec.rollout import ReferencePlacement

PREPARE = "prepare"


@dataclass(frozen=True)
class Process:
    """One process of a job, started as `python -m MODULE SETTINGS.json`."""

    #: Unique within the job: prepare, trainer-1, reward-helpful-0, rollout-3, driver.
    name: str
    #: What its certificate says it is.
    role: Role
    #: The processes that belong together: prepare, trainer, critic, reference, teacher, reward-NAME, rollout,
    #: driver.
    #: The ranks of a group (world_size above 1) meet in collectives, so they restart together.
    group: str
    module: str
    rank: int = 0
    world_size: int = 1
    #: A reward process: its entry in spec.rewards or in spec.validation.sampling.scores.
    reward: str | None = None
    #: Groups that must be ready (a one-shot: finished with code 0) before it starts.
    after: tuple[str, ...] = ()
    #: It does its work and ends; the others serve until the job ends.
    one_shot: bool = False
    #: It pulls its work from the bus: more of it may be started, and one may be lost, at any time.
    elastic: bool = False
    #: It has a gRPC server with health. The other ranks of a group are reached through rank 0.
    serves: bool = True
    #: Groups whose address it is given.
    calls: tuple[str, ...] = ()


def roles(job: AlignmentJob) -> tuple[Process, ...]:
    """The job's processes in an order in which they can start: preparation first, the driver last."""
    workers = tuple(_workers(job.spec))
    groups = tuple(dict.fromkeys(process.group for process in workers))
    prepare = Process(
        name=PREPARE,
        role=Role.DRIVER,
        group=PREPARE,
        module="kubealign_services.driver.prepare",
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


def _workers(spec: AlignmentJobSpec) -> Iterator[Process]:
    if spec.algorithm.value.trains:
        yield from _ranks(Role.TRAINER, spec.trainer.ranks)
    critic = spec.effective_critic
    if critic is not None:
        yield from _ranks(Role.CRITIC, critic.ranks)
    reference = spec.effective_reference
    if reference is not None and reference.placement is ReferencePlacement.OWN:
        yield _elastic(Role.REFERENCE, "reference", 0)
    if spec.teacher is not None:
        yield _elastic(Role.TEACHER, "teacher", 0)
    own = [reward.name for reward in spec.rewards if reward.placement is RewardPlacement.OWN]
    for name in (*own, *(score.name for score in spec.scores)):
        yield _elastic(Role.REWARD, f"reward-{name}", 0, reward=name)
    rollout = spec.effective_rollout
    if rollout is not None:
        for replica in range(rollout.replicas):
            yield rollout_worker(spec, replica)


def rollout_worker(spec: AlignmentJobSpec, replica: int) -> Process:
    """The rollout worker of this number, from 0; also those that are added while the job runs. Where nothing
    is trained it keeps the weights that it begins with."""
    calls = ("trainer",) if spec.algorithm.value.trains else ()
    return _elastic(Role.ROLLOUT, "rollout", replica, calls=calls)


def _ranks(role: Role, world_size: int) -> Iterator[Process]:
    for rank in range(world_size):
        yield Process(
            name=f"{role}-{rank}",
            role=role,
            group=role.value,
            module=_module(role),
            rank=rank,
            world_size=world_size,
            after=(PREPARE,),
            serves=rank == 0,
        )


def _elastic(
    role: Role, group: str, replica: int, *, reward: str | None = None, calls: tuple[str, ...] = ()
) -> Process:
    return Process(
        name=f"{group}-{replica}",
        role=role,
        group=group,
        module=_module(role),
        reward=reward,
        after=(PREPARE,),
        elastic=True,
        calls=calls,
    )


def _module(role: Role) -> str:
    return f"kubealign_services.{role}.main"

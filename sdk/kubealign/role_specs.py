"""Registry of the roles of a job: everything that other code needs to know of a role, one entry per role.

Pure, and imported by the SDK, the operator, the services and the dashboard. `kubealign.roles` decides which
processes of these roles a job has.
"""

from dataclasses import dataclass
from enum import IntEnum, StrEnum

from kubealign.process_settings import Role

PREPARE = "prepare"
REDIS = "redis"


class StartStage(IntEnum):
    """Stage of a job's start in which the processes of a role start."""

    #: At once: the bus, the servers and the preparation, on which all other processes depend.
    FIRST = 0
    WORKERS = 1
    #: When all workers are ready.
    LAST = 2


class ComputePhase(StrEnum):
    """Phase of a step in which a role computes with a model."""

    GENERATION = "generation"
    SCORING = "scoring"
    TRAINING = "training"


@dataclass(frozen=True)
class RoleSpec:
    """Properties of one role.

    A role that starts with the workers has numbered processes (trainer-0, rollout-3); every other role has
    one process, which is named like the role.
    """

    #: Name in process records, commands and the dashboard.
    name: str
    #: Role in the certificate of the processes; None: the processes use none of the job's certificates.
    certificate: Role | None
    #: Main module of the processes; None: a server from another project.
    module: str | None
    start: StartStage = StartStage.WORKERS
    compute: ComputePhase | None = None
    #: The processes pull their work from the bus, or are found through it, so each is replaced, added and
    #: removed by itself. The ranks of a worker role that is not elastic form a gang, which restarts together.
    elastic: bool = False
    #: The processes serve gRPC with health, and send heartbeats, until the job ends.
    serves: bool = True
    #: Section of the spec with the settings and the pod template of the role.
    section: str | None = None
    #: Section of the spec that names the model of the role; also the name of the prepared model.
    model: str | None = None

    @property
    def is_worker(self) -> bool:
        return self.start is StartStage.WORKERS

    @property
    def trains(self) -> bool:
        """True if the role trains a model, at the driver's command."""
        return self.compute is ComputePhase.TRAINING


#: The roles by name, in display order; the driver is first because it is the most informative.
ROLE_SPECS: dict[str, RoleSpec] = {
    spec.name: spec
    for spec in (
        RoleSpec(
            "driver",
            Role.DRIVER,
            "kubealign_services.roles.driver.main",
            start=StartStage.LAST,
        ),
        RoleSpec(
            "trainer",
            Role.TRAINER,
            "kubealign_services.roles.trainer.main",
            compute=ComputePhase.TRAINING,
            section="trainer",
            model="policy",
        ),
        RoleSpec(
            "critic",
            Role.CRITIC,
            "kubealign_services.roles.critic.main",
            compute=ComputePhase.TRAINING,
            section="critic",
            model="critic",
        ),
        RoleSpec(
            "rollout",
            Role.ROLLOUT,
            "kubealign_services.roles.rollout.main",
            compute=ComputePhase.GENERATION,
            elastic=True,
            section="rollout",
        ),
        # Environments that are not run by the rollout workers themselves. Rollout workers choose among the
        # processes by the load that each announces on the bus.
        RoleSpec("environment", Role.ENVIRONMENT, "kubealign_services.roles.environment.main", elastic=True),
        # Each entry of spec.rewards names a model or a function of its own.
        RoleSpec(
            "reward",
            Role.REWARD,
            "kubealign_services.roles.reward.main",
            compute=ComputePhase.SCORING,
            elastic=True,
            section="rewards",
        ),
        RoleSpec(
            "reference",
            Role.REFERENCE,
            "kubealign_services.roles.reference.main",
            compute=ComputePhase.SCORING,
            elastic=True,
            section="reference",
            model="reference",
        ),
        # Each entry of spec.teachers names a model of its own, as spec.teacher does.
        RoleSpec(
            "teacher",
            Role.TEACHER,
            "kubealign_services.roles.teacher.main",
            compute=ComputePhase.SCORING,
            elastic=True,
            section="teacher",
            model="teacher",
        ),
        RoleSpec(
            PREPARE,
            Role.DRIVER,
            "kubealign_services.roles.driver.prepare",
            start=StartStage.FIRST,
            serves=False,
        ),
        RoleSpec("nats", Role.NATS, None, start=StartStage.FIRST, serves=False),
        RoleSpec(REDIS, None, None, start=StartStage.FIRST, serves=False),
    )
}

#: Servers from other projects that a job uses.
SERVERS = tuple(spec.name for spec in ROLE_SPECS.values() if spec.module is None)


def role_of_group(group: str) -> str:
    """Return the name of the role of a process group: `reward` for reward-helpful and `teacher` for
    teacher-math, otherwise the group.
    """
    role, hyphen, _ = group.partition("-")
    return role if hyphen and role in _NAMED_GROUPS else group


def teacher_group(name: str | None) -> str:
    """Return the process group of a teacher, which is also the name of its prepared model.

    Args:
        name: Name of one of several teachers; None: the only one.
    """
    return Role.TEACHER.value if name is None else f"{Role.TEACHER}-{name}"


#: Roles with several groups, each with the name of its entry in the spec.
_NAMED_GROUPS = (Role.REWARD.value, Role.TEACHER.value)


def display_position(role: str) -> int:
    """Return the position of a role among the roles in display order; unknown roles are last."""
    return _DISPLAY_POSITIONS.get(role, len(_DISPLAY_POSITIONS))


_DISPLAY_POSITIONS = {name: position for position, name in enumerate(ROLE_SPECS)}

"""Permissions of each role on the job's NATS server: the subjects that it may publish and subscribe to.

Every stream has the name of its subject (see kubealign_services.messaging.contract). The server maps a
client's certificate to the user of its role and enforces these permissions
(https://docs.nats.io/running-a-nats-service/configuration/securing_nats/authorization).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from kubealign.process_settings import Role

_WORK, _ROLLOUTS, _SCORES, _REFIT, _REFIT_ACKS = "work", "rollouts", "scores", "refit", "refit-acks"
_ENVIRONMENTS = "environments"


@dataclass(frozen=True)
class NatsPermissions:
    """Subjects of one role. Everything else is refused.

    Attributes:
        denied: Subjects that may not be published to although `publish` has a wildcard for them.
    """

    publish: tuple[str, ...] = ()
    denied: tuple[str, ...] = ()
    subscribe: tuple[str, ...] = ()


def nats_user(role: Role) -> str:
    """Return the user of a role: the subject of its certificate.

    See kubealign.access.certificate_authority.
    """
    return f"CN={role}"


def inbox_prefix(role: Role) -> str:
    """Return the prefix of the subjects at which a role receives replies and messages."""
    return f"_INBOX_{role}"


def _stores(stream: str) -> tuple[str, ...]:
    """Return the subjects for storing messages: the message, and the creation of the stream."""
    return (stream, *_creates(stream))


def _creates(stream: str) -> tuple[str, ...]:
    return (f"$JS.API.STREAM.CREATE.{stream}", f"$JS.API.STREAM.INFO.{stream}")


def _pulls(stream: str, consumer: str) -> tuple[str, ...]:
    """Return the subjects for pulling and settling messages: `consumer` is a name, or * for any name."""
    return (*_creates(stream), *_consumes(stream, consumer))


def _consumes(stream: str, consumer: str) -> tuple[str, ...]:
    return (
        f"$JS.API.CONSUMER.DURABLE.CREATE.{stream}.{consumer}",
        f"$JS.API.CONSUMER.MSG.NEXT.{stream}.{consumer}",
        f"$JS.ACK.{stream}.{consumer}.>",
    )


def _manages(stream: str) -> tuple[str, ...]:
    return (f"$JS.API.STREAM.UPDATE.{stream}", f"$JS.API.STREAM.PURGE.{stream}")


def _lists_consumers(stream: str) -> tuple[str, ...]:
    """Return the subjects for reading the positions of a stream's consumers."""
    return (f"$JS.API.CONSUMER.LIST.{stream}",)


def _permissions(role: Role, *publish: tuple[str, ...], denied: tuple[str, ...] = ()) -> NatsPermissions:
    # A running job may still have processes of a release without prefixes; those of this release never
    # receive anything at _INBOX.
    inboxes = (f"{inbox_prefix(role)}.>", "_INBOX.>")
    return NatsPermissions(tuple(dict.fromkeys(sum(publish, ()))), denied, inboxes)


def _generates(role: Role) -> NatsPermissions:
    """Return the permissions of a rollout worker, which follows `refit` and `environments` with consumers of
    its own.
    """
    return _permissions(
        role,
        _pulls(_WORK, "rollout"),
        _stores(_ROLLOUTS),
        _pulls(_REFIT, "*"),
        (f"$JS.API.CONSUMER.DELETE.{_REFIT}.*",),
        _stores(_REFIT_ACKS),
        _pulls(_ENVIRONMENTS, "*"),
    )


def _scores(role: Role) -> NatsPermissions:
    """Return the permissions of a scorer.

    Its consumer has the name of its process group: reference, teacher, teacher-NAME or reward-NAME.
    """
    others = ("driver", *({"reference", "teacher"} - {role.value}))
    denied = sum((_consumes(_ROLLOUTS, name) for name in sorted(others)), ())
    return _permissions(role, _pulls(_ROLLOUTS, "*"), _stores(_SCORES), denied=denied)


#: Role -> its permissions. The driver alone creates streams of every kind, changes their bounds and purges
#: them; nobody deletes streams, or messages one by one. A trainer generates when rollout is colocated.
NATS_PERMISSIONS: Mapping[Role, NatsPermissions] = MappingProxyType(
    {
        Role.DRIVER: _permissions(
            Role.DRIVER,
            _stores(_WORK),
            _stores(_ROLLOUTS),
            _stores(_REFIT),
            *(_pulls(stream, "driver") for stream in (_ROLLOUTS, _SCORES, _REFIT_ACKS)),
            *(_lists_consumers(stream) for stream in (_WORK, _ROLLOUTS, _SCORES)),
            *(_manages(stream) for stream in (_WORK, _ROLLOUTS, _SCORES, _REFIT, _REFIT_ACKS)),
        ),
        Role.TRAINER: _generates(Role.TRAINER),
        Role.ROLLOUT: _generates(Role.ROLLOUT),
        Role.ENVIRONMENT: _permissions(Role.ENVIRONMENT, _stores(_ENVIRONMENTS)),
        Role.REWARD: _scores(Role.REWARD),
        Role.REFERENCE: _scores(Role.REFERENCE),
        Role.TEACHER: _scores(Role.TEACHER),
        # The local runner logs in to see that the server answers.
        Role.RUNNER: _permissions(Role.RUNNER),
    }
)

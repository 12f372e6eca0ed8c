"""Replies of the platform's Redis as values. What a job has written stays bytes."""

from dataclasses import dataclass
from typing import Any

from kubealign.access.redis_acl import WRITER_COMMANDS, command_rules
from kubealign.access.redis_names import key_prefix
from kubealign_operator.controller.kube.ownership import JobKey

#: Fields of a job's status that the operator reads. See kubealign.read_model.
PROGRESS_FIELDS = ("step", "max_steps", "weight_version", "waiting_for")


@dataclass(frozen=True)
class RedisUser:
    """User of Redis. `pattern`: the first key pattern that the user may access; empty: none."""

    pattern: str
    #: The user may send the writer's commands, and no others.
    has_current_rules: bool
    #: SHA-256 of the user's first password in hexadecimal; empty: the user has none.
    password_digest: str = ""


@dataclass(frozen=True)
class ProgressReply:
    """Progress as stored by a job's driver.

    `status`: the PROGRESS_FIELDS that exist. `metrics`: the newest entries as JSON, newest first.
    """

    status: dict[str, bytes]
    metrics: tuple[bytes, ...]


@dataclass(frozen=True)
class UnreadableProgress:
    """The job's keys cannot be read, for this reason."""

    reason: str


def job_of_key(name: str, cluster_id: str = "") -> JobKey | None:
    """Return the job of a key or key pattern; None: it belongs to no job of this cluster."""
    prefix = key_prefix(cluster_id)
    match name.removeprefix(prefix).split(":"):
        case [namespace, job, _, *_] if name.startswith(prefix):
            return JobKey(namespace, job)
    return None


def parse_user(line: str) -> tuple[str, RedisUser]:
    """Parse a line of ACL LIST: user NAME RULE..."""
    _, name, *rules = line.split()
    pattern = next((rule.partition("~")[2] for rule in rules if rule.startswith(("~", "%"))), "")
    commands = {rule for rule in rules if rule.startswith(("+", "-"))}
    digest = next((rule[1:] for rule in rules if rule.startswith("#")), "")
    return name, RedisUser(pattern, commands == set(command_rules(*WRITER_COMMANDS)), digest)


def parse_progress_reply(prefix: str, status: Any, entries: Any) -> ProgressReply | UnreadableProgress:
    """Parse the replies to HMGET and XREVRANGE, which are exceptions where Redis refused the command."""
    for key, reply in (("status", status), ("metrics", entries)):
        if isinstance(reply, Exception):
            return UnreadableProgress(f"key {prefix}{key}: {reply}")
    return ProgressReply(
        {name: value for name, value in zip(PROGRESS_FIELDS, status, strict=True) if value is not None},
        tuple(fields.get(b"json", b"") for _, fields in entries),
    )

"""Which role a process has, by its name: that of its log, and of its heartbeat. Pure."""

import re

_NUMBER = re.compile(r"-\d+$")
_SINGLE = ("prepare", "driver", "nats", "redis", "runner")


def group_of(process: str) -> str:
    """`rollout` of rollout-3, `reward-helpful` of reward-helpful-0, `driver` of driver."""
    return process if process in _SINGLE else _NUMBER.sub("", process)


def role_of(process: str) -> str:
    """`reward` of reward-helpful-0, else as `group_of`."""
    group = group_of(process)
    return "reward" if group.startswith("reward-") else group

"""Which role a process has, by its name: that of its log, and of its heartbeat. Pure."""

import re

#: Of a worker, and of the further processes of one that has several.
_NUMBER = re.compile(r"-\d+(-r\d+)?$")
_FURTHER = re.compile(r"-\d+-r\d+$")
_SINGLE = ("prepare", "driver", "nats", "redis", "runner")


def group_of(process: str) -> str:
    """`rollout` of rollout-3 and rollout-3-r1, `reward-helpful` of reward-helpful-0, `driver` of driver."""
    return process if process in _SINGLE else _NUMBER.sub("", process)


def is_first(process: str) -> bool:
    """Whether it is the first, or only, process of a worker: the one that counts."""
    return _FURTHER.search(process) is None


def role_of(process: str) -> str:
    """`reward` of reward-helpful-0, else as `group_of`."""
    group = group_of(process)
    return "reward" if group.startswith("reward-") else group

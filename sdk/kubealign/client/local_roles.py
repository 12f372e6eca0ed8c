"""Derives roles from process names, which are also the names of logs and heartbeats. Pure."""

import re

#: Suffix of a worker, and of the additional processes of a worker that has several.
_NUMBER = re.compile(r"-\d+(-r\d+)?$")
_FURTHER = re.compile(r"-\d+-r\d+$")
_SINGLE = ("prepare", "driver", "nats", "redis", "runner")


def group_of(process: str) -> str:
    """Return `rollout` for rollout-3 and rollout-3-r1, `reward-helpful` for reward-helpful-0, `driver` for
    driver.
    """
    return process if process in _SINGLE else _NUMBER.sub("", process)


def is_first(process: str) -> bool:
    """Return True for the first or only process of a worker, which represents the worker in counts."""
    return _FURTHER.search(process) is None


def role_of(process: str) -> str:
    """Return `reward` for reward-helpful-0, otherwise the group."""
    group = group_of(process)
    return "reward" if group.startswith("reward-") else group

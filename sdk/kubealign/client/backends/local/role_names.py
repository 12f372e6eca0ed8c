"""Derives roles from process names, which are also the names of logs and heartbeats. Pure."""

import re

from kubealign.role_specs import role_of_group

#: Suffix of a worker, and of the additional processes of a worker that has several.
_INDEX_SUFFIX = re.compile(r"-\d+(-r\d+)?$")
_SECONDARY_SUFFIX = re.compile(r"-\d+-r\d+$")


def process_group(process: str) -> str:
    """Return `rollout` for rollout-3 and rollout-3-r1, `reward-helpful` for reward-helpful-0, `driver` for
    driver.
    """
    return _INDEX_SUFFIX.sub("", process)


def is_primary(process: str) -> bool:
    """Return True for the first or only process of a worker, which represents the worker in counts."""
    return _SECONDARY_SUFFIX.search(process) is None


def process_role(process: str) -> str:
    """Return `reward` for reward-helpful-0, otherwise the group."""
    return role_of_group(process_group(process))

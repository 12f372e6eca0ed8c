"""Locates Python environments beside the services' own, for libraries whose versions conflict with theirs."""

import os
import sys
from collections.abc import Mapping
from pathlib import Path

_VARIABLE_PREFIX = "KUBEALIGN_"


def environment_variable(name: str) -> str:
    """Return the variable that names the folder of an environment, such as KUBEALIGN_TRITON."""
    return _VARIABLE_PREFIX + name.upper().replace("-", "_")


def environment_folder(name: str, variables: Mapping[str, str] = os.environ) -> Path:
    """Return the folder of an environment, which need not exist: its variable's value, else `name` within the
    environment of this process.
    """
    return Path(variables.get(environment_variable(name)) or Path(sys.prefix) / name)

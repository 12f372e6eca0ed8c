"""Locates the Python environment of the trackers that run in a process of their own."""

import os
from collections.abc import Mapping
from pathlib import Path

from kubealign_services.runtime.python_environments import environment_folder, environment_variable
from kubealign_services.telemetry.trackers.contract import TrackerNotInstalled

_ENVIRONMENT = "trackers"


def find_tracker_python(name: str, library: str, environment: Mapping[str, str] = os.environ) -> Path:
    """Return the interpreter of the trackers' environment.

    Raises TrackerNotInstalled when there is none or it lacks the library.

    Args:
        name: Name of the tracker in the spec, for the message.
        library: Import name of the library.
    """
    folder = environment_folder(_ENVIRONMENT, environment)
    python = folder / "bin" / "python"
    if not python.exists() or not any(folder.glob(f"lib/python*/site-packages/{library}/__init__.py")):
        raise TrackerNotInstalled(
            f"spec.trackers, {name}: {library} is not installed in {folder}: create this environment as "
            f"docs/trackers.md describes, or name one in {environment_variable(_ENVIRONMENT)}"
        )
    return python

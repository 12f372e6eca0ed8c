"""Locates the Python environment of the trackers that run in a process of their own."""

import os
import sys
from collections.abc import Mapping
from pathlib import Path

from kubealign_services.telemetry.trackers.contract import TrackerNotInstalled

#: Names the folder of the trackers' environment. Default: `trackers` within this environment.
ENVIRONMENT_VARIABLE = "KUBEALIGN_TRACKERS"


def find_tracker_python(name: str, library: str, environment: Mapping[str, str] = os.environ) -> Path:
    """Return the interpreter of the trackers' environment.

    Raises TrackerNotInstalled when there is none or it lacks the library.

    Args:
        name: Name of the tracker in the spec, for the message.
        library: Import name of the library.
    """
    folder = Path(environment.get(ENVIRONMENT_VARIABLE) or Path(sys.prefix) / "trackers")
    python = folder / "bin" / "python"
    if not python.exists() or not any(folder.glob(f"lib/python*/site-packages/{library}/__init__.py")):
        raise TrackerNotInstalled(
            f"spec.trackers, {name}: {library} is not installed in {folder}: create this environment as "
            f"docs/trackers.md describes, or name one in {ENVIRONMENT_VARIABLE}"
        )
    return python

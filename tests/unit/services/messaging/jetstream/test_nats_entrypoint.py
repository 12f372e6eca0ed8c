"""The NATS container handles SIGTERM from its first moment."""

import subprocess
import sys

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

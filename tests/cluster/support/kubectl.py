"""kubectl commands of the tests."""

import json
import os
import subprocess
from functools import partial
from pathlib import Path

from kubealign.local.processes.parent_death import die_with_parent

from .behaviour import Json
from .daemon import plain_environment
from .programs import program


class KubectlFailed(Exception):
    """kubectl ended with an error; the text has the command and its output."""


class Kubectl:
    """kubectl with the configuration of one cluster."""

    def __init__(self, kubeconfig: Path) -> None:
        self._kubeconfig = kubeconfig
        self._environment = {**plain_environment(), "KUBECONFIG": str(kubeconfig)}

    def __call__(self, *arguments: str, stdin: str | None = None, timeout: float = 60.0) -> str:
        """Run kubectl and return its output.

        Raises KubectlFailed on failure, TimeoutExpired after `timeout` seconds."""
        done = subprocess.run(
            self._command(*arguments),
            input=stdin,
            text=True,
            capture_output=True,
            timeout=timeout,
            env=self._environment,
            check=False,
        )
        if done.returncode != 0:
            raise KubectlFailed(
                f"kubectl {' '.join(arguments)}: exit {done.returncode}\n{done.stdout}{done.stderr}".rstrip()
            )
        return done.stdout

    def apply(self, *manifests: Json, namespace: str | None = None, timeout: float = 60.0) -> None:
        """Apply manifests server-side. Raises KubectlFailed with the API server's reasons."""
        items = json.dumps({"apiVersion": "v1", "kind": "List", "items": manifests})
        where = ["-n", namespace] if namespace else []
        self("apply", "--server-side", *where, "-f", "-", stdin=items, timeout=timeout)

    def create_namespace(self, name: str) -> None:
        """Create a namespace and wait for its service account, without which pods are refused."""
        self("create", "namespace", name)
        self.wait_for("serviceaccount/default", "create", namespace=name)

    def wait_for(self, what: str, condition: str, *, namespace: str | None = None, seconds: int = 60) -> None:
        """Wait until `what` (kind/name) meets a condition as `kubectl wait --for` names it.

        Raises KubectlFailed after `seconds`, or when there is no such object."""
        where = ["-n", namespace] if namespace else []
        limit = f"--timeout={seconds}s"
        self("wait", *where, what, f"--for={condition}", limit, timeout=seconds + 10)

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        """Start kubectl in the background, for example to watch; the caller ends the process.

        stdout and stderr go to one pipe."""
        return subprocess.Popen(
            self._command(*arguments),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=self._environment,
            preexec_fn=partial(die_with_parent, os.getpid()),
        )

    def _command(self, *arguments: str) -> list[str]:
        # The default discovery cache is in the user's home and would outlive the cluster.
        return [
            str(program("kubectl")),
            f"--cache-dir={self._kubeconfig.parent / 'kubectl-cache'}",
            *arguments,
        ]

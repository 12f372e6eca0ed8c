"""The model class for Triton's Python backend; runs in the server's own environment."""

import os
import select
import signal
import threading
import traceback
from pathlib import Path
from typing import Any

import numpy as np
import torch
import triton_python_backend_utils as triton

from kubealign.spec import engines as engine_spec
from kubealign_services.generation.torch_engine.engine import TorchEngine
from kubealign_services.generation.triton_engine.engine_loop import EngineLoop
from kubealign_services.generation.triton_engine.messages import TENSOR, decoded, encoded

_END_SECONDS = 5.0


class TritonPythonModel:
    """A decoupled Triton model: `execute` queues requests and returns, a thread answers them for as long as
    they last.
    """

    def initialize(self, args: dict[str, str]) -> None:
        _end_with_the_server()
        self._loop = EngineLoop(_create)
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)
        self._thread.start()

    def execute(self, requests: list[Any]) -> None:
        for request in requests:
            reply = _Reply(request.get_response_sender())
            data = triton.get_input_tensor_by_name(request, TENSOR).as_numpy().tobytes()
            try:
                self._loop.submit(decoded(data), reply)
            except ValueError as error:
                reply.refuse(str(error))

    def finalize(self) -> None:
        self._loop.stop()
        self._thread.join(_END_SECONDS)

    def _run(self) -> None:
        try:
            self._loop.run()
        except BaseException:  # noqa: BLE001 - nothing above this thread catches it
            traceback.print_exc()
            # Otherwise a server with a dead model would be reported healthy.
            os.kill(os.getppid(), signal.SIGKILL)


class _Reply:
    """A Reply over Triton's response sender, which raises once it is closed."""

    def __init__(self, sender: Any) -> None:
        self._sender = sender
        self._open = True

    def send(self, message: dict[str, Any]) -> None:
        if self._open:
            tensor = triton.Tensor(TENSOR, np.frombuffer(encoded(message), dtype=np.uint8))
            self._sender.send(triton.InferenceResponse([tensor]))

    def refuse(self, words: str) -> None:
        self._sender.send(
            triton.InferenceResponse([], triton.TritonError(words)),
            flags=triton.TRITONSERVER_RESPONSE_COMPLETE_FINAL,
        )

    def close(self) -> None:
        if self._open:
            self._open = False
            self._sender.send(flags=triton.TRITONSERVER_RESPONSE_COMPLETE_FINAL)

    def left(self) -> bool:
        return not self._open or bool(self._sender.is_cancelled())


def _create(folder: Path, spec: engine_spec.TorchEngine, threads: int | None) -> TorchEngine:
    if threads is not None:
        torch.set_num_threads(threads)
    return TorchEngine.create(folder, spec)


def _end_with_the_server() -> None:
    """Exit when the server's process ends.

    Otherwise the backend's process notices a killed server only after seconds, and keeps its memory until
    then.
    """
    server = os.pidfd_open(os.getppid())

    def watch() -> None:
        select.select([server], [], [])
        os._exit(1)

    threading.Thread(target=watch, name="server's end", daemon=True).start()

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

from kubealign.spec.sections import engines as engine_spec
from kubealign_services.generation.torch_engine.engine import TorchRolloutEngine
from kubealign_services.generation.triton_engine.engine_loop import EngineLoop
from kubealign_services.generation.triton_engine.messages import TENSOR_NAME, decode, encode

_STOP_SECONDS = 5.0


class TritonPythonModel:
    """A decoupled Triton model: `execute` queues requests and returns, a thread answers them for as long as
    they last.
    """

    def initialize(self, args: dict[str, str]) -> None:
        _exit_with_server()
        self._loop = EngineLoop(_create_engine)
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)
        self._thread.start()

    def execute(self, requests: list[Any]) -> None:
        for request in requests:
            reply = _ResponseReply(request.get_response_sender())
            data = triton.get_input_tensor_by_name(request, TENSOR_NAME).as_numpy().tobytes()
            try:
                self._loop.submit(decode(data), reply)
            except ValueError as error:
                reply.send_error(str(error))

    def finalize(self) -> None:
        self._loop.stop()
        self._thread.join(_STOP_SECONDS)

    def _run(self) -> None:
        try:
            self._loop.run()
        except BaseException:  # noqa: BLE001 - nothing above this thread catches it
            traceback.print_exc()
            # Otherwise a server with a dead model would be reported healthy.
            os.kill(os.getppid(), signal.SIGKILL)


class _ResponseReply:
    """A Reply over Triton's response sender, which raises once it is closed."""

    def __init__(self, sender: Any) -> None:
        self._sender = sender
        self._is_open = True

    def send(self, message: dict[str, Any]) -> None:
        if self._is_open:
            tensor = triton.Tensor(TENSOR_NAME, np.frombuffer(encode(message), dtype=np.uint8))
            self._sender.send(triton.InferenceResponse([tensor]))

    def send_error(self, words: str) -> None:
        self._sender.send(
            triton.InferenceResponse([], triton.TritonError(words)),
            flags=triton.TRITONSERVER_RESPONSE_COMPLETE_FINAL,
        )

    def close(self) -> None:
        if self._is_open:
            self._is_open = False
            self._sender.send(flags=triton.TRITONSERVER_RESPONSE_COMPLETE_FINAL)

    def is_cancelled(self) -> bool:
        return not self._is_open or bool(self._sender.is_cancelled())


def _create_engine(
    folder: Path, spec: engine_spec.TorchEngineSpec, threads: int | None
) -> TorchRolloutEngine:
    if threads is not None:
        torch.set_num_threads(threads)
    return TorchRolloutEngine.create(folder, spec)


def _exit_with_server() -> None:
    """Exit when the server's process ends.

    Otherwise the backend's process notices a killed server only after seconds, and keeps its memory until
    then.
    """
    server = os.pidfd_open(os.getppid())

    def watch() -> None:
        select.select([server], [], [])
        os._exit(1)

    threading.Thread(target=watch, name="server's end", daemon=True).start()

"""A minimal role process: serves gRPC health over mutual TLS and ends as configured.

The behaviour of each process is read from BEHAVIOUR next to the run directory; events are appended to
EVENTS there.
"""

import json
import os
import signal
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from kubealign.process_settings import ProcessSettings

BEHAVIOUR = "behaviour.json"
EVENTS = "events.jsonl"


def main(argv: list[str]) -> int:
    settings = ProcessSettings.model_validate_json(Path(argv[1]).read_text())
    folder = settings.run_dir.parent
    messages = json.loads((folder / BEHAVIOUR).read_text()).get(settings.name, {})
    terminated = False

    def happened(event: str, pid: int | None = None) -> None:
        devices = os.environ.get("CUDA_VISIBLE_DEVICES")
        line = json.dumps(
            {"name": settings.name, "event": event, "pid": pid or os.getpid(), "devices": devices}
        )
        with (folder / EVENTS).open("a") as events:
            events.write(line + "\n")

    def on_term(*_: object) -> None:
        nonlocal terminated
        terminated = True
        happened("term")

    signal.signal(signal.SIGTERM, on_term if not messages.get("deaf") else lambda *_: happened("deaf"))
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
    happened("start")
    starts = [
        e
        for e in map(json.loads, (folder / EVENTS).read_text().splitlines())
        if e["name"] == settings.name and e["event"] == "start"
    ]
    if messages.get("helper"):
        helper = subprocess.Popen(["sleep", "1000"])
        happened("helper", helper.pid)
    codes = messages.get("codes", [])
    code = codes[len(starts) - 1] if len(starts) <= len(codes) else None
    if settings.name == "prepare" and not codes:
        code = 0
    print(f"{settings.name} says hello, start {len(starts)}", flush=True)
    if "why" in messages and code:
        settings.termination.write_text(messages["why"])
    if messages.get("redis"):
        _tell_redis(settings, messages["redis"])
    if code is not None and not messages.get("code_after_ready"):
        return code
    server = _serve(settings) if settings.listen and not messages.get("mute") else None
    if code is not None:
        time.sleep(messages["code_after_ready"])
        return code
    while not terminated:
        # SIGUSR1 means that the work is done; SIGTERM wakes the process. CPython returns an undefined signal
        # instead of None when the handler of SIGTERM returns after the timeout.
        if settings.liveness is not None:
            settings.liveness.touch()
        if signal.sigtimedwait({signal.SIGUSR1}, 0.2) is not None and not terminated:
            happened("done")
            return 0
    if server is not None:
        server.stop(0)
    happened("exit")
    return messages.get("stopped_code", 143)


def _serve(settings: ProcessSettings):
    import grpc
    from grpc_health.v1 import health, health_pb2, health_pb2_grpc

    server = grpc.server(ThreadPoolExecutor(4))
    servicer = health.HealthServicer()
    health_pb2_grpc.add_HealthServicer_to_server(servicer, server)
    tls = settings.tls
    credentials = grpc.ssl_server_credentials(
        [(tls.key.read_bytes(), tls.certificate.read_bytes())], tls.ca.read_bytes(), require_client_auth=True
    )
    server.add_secure_port(settings.listen, credentials)
    server.start()
    servicer.set("", health_pb2.HealthCheckResponse.SERVING)
    return server


def _tell_redis(settings: ProcessSettings, steps: list[dict]) -> None:
    import redis

    access = settings.redis
    client = redis.Redis(host=access.host, port=access.port, username=access.user, password=access.password)
    for step in steps:
        client.hset(
            access.prefix + "status", mapping={"phase": "Training", "step": step["step"], "max_steps": 90}
        )
        client.xadd(
            access.prefix + "metrics", {"step": step["step"], "fence": 1, "json": json.dumps(step["metrics"])}
        )
    client.xadd(
        access.prefix + "samples",
        {"step": 1, "json": json.dumps({"prompt": "12+34=", "response": "46", "reward": 1.0})},
    )
    client.set(
        f"{access.prefix}heartbeat:{settings.name}",
        json.dumps({"role": settings.role, "weight_version": 3}),
        ex=15,
    )
    client.close()

"""Logins and ACLs of a real Redis server with the chart's configuration."""

import base64
import os
import subprocess
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from redis import Redis
from redis.backoff import NoBackoff
from redis.exceptions import AuthenticationError, NoPermissionError, RedisError
from redis.retry import Retry

from cluster.support.chart_values import VALUES
from cluster.support.daemon import Daemon
from cluster.support.helm import Helm, of_kind
from cluster.support.platform import redis_with_tls
from cluster.support.programs import find
from kubealign.access.redis_acl import READER_COMMANDS, command_rules
from support.free_address import free_port
from support.redis_programs import redis_7

pytestmark = pytest.mark.skipif(find("helm") is None, reason="helm is not built: `make cluster-tools`")

_READY_SECONDS = 20.0


class Server:
    """Redis with the chart's configuration, moved to a folder and a free port of this machine."""

    def __init__(self, folder: Path, values: str) -> None:
        objects = Helm(folder / "helm").render(VALUES[values])
        [secret] = [
            manifest
            for manifest in of_kind(objects, "Secret")
            if "users.acl" in manifest.get("stringData", {})
        ]
        [config] = [
            manifest for manifest in of_kind(objects, "ConfigMap") if "redis.conf" in manifest["data"]
        ]
        self.port = free_port()
        self.passwords = secret["stringData"]
        self.ca: Path | None = None
        secrets, data = folder / "secrets", folder / "data"
        secrets.mkdir()
        data.mkdir()
        (secrets / "users.acl").write_text(self.passwords["users.acl"])
        for name, text in secret.get("data", {}).items():
            (secrets / name).write_bytes(base64.b64decode(text))
            self.ca = secrets / "ca.crt"
        text = config["data"]["redis.conf"].replace("/etc/redis-secrets", str(secrets))
        text = text.replace("dir /data", f"dir {data}").replace("port 6379", f"port {self.port}")
        file = folder / "redis.conf"
        file.write_text(text)
        program = redis_7() if self.ca is None else redis_with_tls()
        if program is None:
            pytest.skip("no redis-server with TLS on PATH; the wheel's has none")
        self.daemon = Daemon("redis", [program, file], folder / "redis.log")
        [pod] = [item for item in of_kind(objects, "StatefulSet") if "redis" in item["metadata"]["name"]]
        [container] = pod["spec"]["template"]["spec"]["containers"]
        self._probe = [
            str(secrets / "ca.crt") if part == "/etc/redis-secrets/ca.crt" else part
            for part in container["livenessProbe"]["exec"]["command"]
        ]
        [variable] = container["env"]
        self._probe_password = self.passwords[variable["valueFrom"]["secretKeyRef"]["key"]]

    def probe(self) -> int:
        """Run the command of the pod's probes against this server, and return its exit code."""
        # The pod's port is the default one.
        command = [*self._probe[:-1], "-p", str(self.port), self._probe[-1]]
        environment = os.environ | {"REDISCLI_AUTH": self._probe_password}
        return subprocess.run(command, env=environment, timeout=_READY_SECONDS, check=False).returncode

    def client(self, user: str | None, password: str | None = None) -> Redis:
        login_password = password or (self.passwords[f"{user}-password"] if user else None)
        return Redis(
            "localhost",
            self.port,
            username=user,
            password=login_password,
            socket_timeout=5,
            ssl=self.ca is not None,
            ssl_ca_certs=str(self.ca) if self.ca else None,
            # A refused login is final, so there are no retries.
            retry=Retry(NoBackoff(), 0),
        )

    def ready(self) -> bool:
        try:
            return bool(self.client("operator").ping())
        except RedisError:
            return False


@pytest.fixture(params=["default", "plain-redis"])
def server(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Server]:
    new_server = Server(tmp_path, request.param)
    new_server.daemon.start()
    try:
        new_server.daemon.wait_until(new_server.ready, "the operator's login", _READY_SECONDS)
        yield new_server
    finally:
        new_server.daemon.stop()


def test_nobody_is_let_in_without_a_password(server: Server) -> None:
    with pytest.raises(RedisError, match=r"(?i)auth"):
        server.client(None).get("kubealign:ns:job:status")
    with pytest.raises(AuthenticationError):
        server.client("operator", "a guess").ping()


def test_the_operator_makes_a_user_for_a_job_and_reads_its_keys(server: Server) -> None:
    operator = server.client("operator")
    keys = ["kubealign:ns:job:*"]
    operator.acl_setuser("kubealign-1", enabled=True, passwords=["+secret"], keys=keys, categories=["+@all"])
    job = server.client("kubealign-1", "secret")
    job.hset("kubealign:ns:job:status", "step", "3")
    with pytest.raises(NoPermissionError):
        job.hset("kubealign:ns:other:status", "step", "3")
    assert operator.hgetall("kubealign:ns:job:status") == {b"step": b"3"}
    operator.acl_deluser("kubealign-1")
    with pytest.raises(RedisError):
        server.client("kubealign-1", "secret").ping()


def test_the_dashboard_reads_what_is_shown_and_changes_nothing(server: Server) -> None:
    """Check the rules that tests/integration/operator/test_redis_acl.py tries command by command."""
    server.client("operator").hset("kubealign:ns:job:status", "step", "3")
    dashboard = server.client("dashboard")
    assert dashboard.hmget("kubealign:ns:job:status", "step") == [b"3"]
    rules: Any = server.client("operator").acl_getuser("dashboard")
    assert set(rules["commands"]) == set(command_rules(*READER_COMMANDS)) - {"-@all"}
    assert (rules["keys"], rules["channels"]) == (["~kubealign:*"], [])
    for refused in (
        lambda: dashboard.set("kubealign:ns:job:status", "gone"),
        lambda: dashboard.hmget("something:else", "step"),
        lambda: list(dashboard.scan_iter("kubealign:*")),
        lambda: dashboard.eval("return 1", 0),
        lambda: dashboard.acl_setuser("mine", enabled=True, nopass=True),
        lambda: dashboard.flushall(),
        lambda: dashboard.publish("kubealign:ns:job:status", "false"),
    ):
        with pytest.raises(NoPermissionError):
            refused()


def test_the_probes_see_a_server_that_answers_nobody(server: Server) -> None:
    """Check the command of the probes: it succeeds, and fails while a script stops the server."""
    assert server.probe() == 0
    operator = server.client("operator")
    operator.config_set("busy-reply-threshold", "100")
    script = threading.Thread(target=_run_endless_script, args=(server,))
    script.start()
    try:
        server.daemon.wait_until(lambda: server.probe() != 0, "a probe that fails", _READY_SECONDS)
    finally:
        server.client("operator").script_kill()
        script.join(timeout=_READY_SECONDS)
    assert server.probe() == 0
    with pytest.raises(NoPermissionError):
        server.client("probe").hmget("kubealign:ns:job:status", "step")


def _run_endless_script(server: Server) -> None:
    with suppress(RedisError):
        server.client("operator").eval("while true do end", 0)


def test_one_argument_and_all_connections_are_bounded(server: Server) -> None:
    operator = server.client("operator")
    with suppress(RedisError, OSError):
        operator.set("kubealign:ns:job:large", b"x" * (9 * 2**20))
    assert server.client("operator").exists("kubealign:ns:job:large") == 0
    settings = server.client("operator").config_get("maxmemory*")
    assert (settings["maxmemory"], settings["maxmemory-clients"]) == (str(256 * 2**20), str(64 * 2**20))

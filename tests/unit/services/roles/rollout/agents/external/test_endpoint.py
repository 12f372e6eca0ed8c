"""Address and token of a worker's endpoint for external agents."""

import json
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from kubealign.pod_contract import AGENTS_PORT
from kubealign.process_settings import NatsAccess, ProcessSettings, RedisAccess, Role, TlsFiles
from kubealign.spec.workflows.agents import AgentSpec, ExternalAgents
from kubealign_services.roles.rollout.agents.external.endpoint import (
    EndpointAddress,
    endpoint_address,
    read_agents_token,
)
from kubealign_services.roles.rollout.agents.server import AgentServer
from kubealign_services.roles.rollout.workflow.contract import WorkflowFailed
from kubealign_services.roles.rollout.workflow.factory import _open_agents
from support.free_address import free_port

TOKEN = {"tokenVariable": "AGENTS_TOKEN"}


def settings(folder: Path, name: str, listen: str, advertise: str | None = None) -> ProcessSettings:
    return ProcessSettings(
        name=name,
        role=Role.ROLLOUT,
        job=folder / "job.json",
        run_dir=folder,
        shared_memory=folder,
        listen=listen,
        advertise=advertise,
        tls=TlsFiles.of_role(folder, "rollout"),
        nats=NatsAccess(url="tls://x:1", user="u", password="p"),
        redis=RedisAccess(host="x", port=1, user="u", password="p", prefix="x:"),
        termination=folder / "termination",
    )


@pytest.mark.parametrize(("port", "expected"), [(None, AGENTS_PORT), (9000, 9000)])
def test_every_pod_has_the_port_of_the_spec(tmp_path: Path, port: int | None, expected: int) -> None:
    pod = settings(tmp_path, "rollout-3", "0.0.0.0:7070", "rollout-3.job-peers.team.svc:7070")
    address = endpoint_address(pod, ExternalAgents.model_validate(TOKEN | {"port": port}))
    assert address == EndpointAddress("0.0.0.0", expected, "rollout-3.job-peers.team.svc")


@pytest.mark.parametrize(("port", "expected"), [(None, 0), (9000, 9003)])
def test_workers_of_one_machine_have_ports_of_their_own(
    tmp_path: Path, port: int | None, expected: int
) -> None:
    local = settings(tmp_path, "rollout-3", "127.0.0.1:41000")
    address = endpoint_address(local, ExternalAgents.model_validate(TOKEN | {"port": port}))
    file = tmp_path / "agents" / "rollout-3.json"
    assert address == EndpointAddress("127.0.0.1", expected, "127.0.0.1", file)
    with address.announce(9003):
        assert json.loads(file.read_text()) == {"url": "http://127.0.0.1:9003"}
    assert not file.exists()


@pytest.mark.parametrize("variables", [{}, {"AGENTS_TOKEN": ""}])
def test_a_missing_token_is_named(variables: dict[str, str]) -> None:
    agents = ExternalAgents.model_validate(TOKEN)
    assert read_agents_token(agents, {"AGENTS_TOKEN": "secret"}) == "secret"
    with pytest.raises(WorkflowFailed, match=r"tokenVariable: .* AGENTS_TOKEN is not set"):
        read_agents_token(agents, variables)


async def test_a_taken_port_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AGENTS_TOKEN", "secret")
    port = free_port()
    spec = AgentSpec.model_validate({"external": TOKEN | {"port": 9000}})
    async with AgentServer(port=port), AsyncExitStack() as stack:
        with pytest.raises(WorkflowFailed, match=rf"external\.port: .* cannot listen at 127\.0\.0\.1:{port}"):
            await _open_agents(spec, stack, EndpointAddress(port=port))

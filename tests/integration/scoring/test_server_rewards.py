"""Rewards of other servers: certificates of both sides, and a job whose judge fails in every way."""

import asyncio
import json
import signal
import ssl
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from kubealign.access.certificate_authority import CertificateAuthority
from kubealign.read_model import parse_sample
from kubealign.roles import Role
from kubealign.spec.sections.reward_servers import HttpReward
from kubealign_services.scoring.functions.errors import RewardRaised
from kubealign_services.scoring.servers.endpoint import Endpoint
from support.free_address import free_port
from support.http_server import serving
from support.reward_server import chat_answer, hang, reward_server
from support.running import RunningJobs
from support.tiny_jobs import online_job, write_jobs

pytestmark = pytest.mark.timeout(240)

RLOO = {"rloo": {"promptsPerStep": 4, "samplesPerPrompt": 2}}


def certificates(folder: Path, authority: CertificateAuthority) -> Path:
    """Write certificate, key and authority as a Secret of the type kubernetes.io/tls has them."""
    folder.mkdir()
    issued = authority.issue(Role.REWARD)
    (folder / "tls.crt").write_bytes(issued.certificate_pem)
    (folder / "tls.key").write_bytes(issued.key_pem)
    (folder / "ca.crt").write_bytes(authority.certificate_pem)
    return folder


async def test_both_sides_have_certificates(tmp_path: Path) -> None:
    authority, stranger = (CertificateAuthority.create(name, timedelta(hours=1)) for name in ("own", "other"))
    own, foreign = certificates(tmp_path / "own", authority), certificates(tmp_path / "foreign", stranger)
    only_authority = tmp_path / "authority"
    only_authority.mkdir()
    (only_authority / "ca.crt").write_bytes(authority.certificate_pem)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=own / "ca.crt")
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_cert_chain(own / "tls.crt", own / "tls.key")

    async def answer(request: web.Request) -> web.StreamResponse:
        return web.json_response({"results": [1]})

    app = web.Application()
    app.router.add_post("/", answer)

    async def posted(folder: Path | None) -> Any:
        spec = HttpReward(url=url, retries=0, tls_folder=None if folder is None else str(folder))
        async with Endpoint("reward r: http", spec, url, 20.0, 1, {}) as endpoint:
            return await endpoint.post({}, lambda document: document)

    async with serving(app, tls=context) as url:
        assert url.startswith("https://")
        assert await posted(own) == {"results": [1]}
        for folder in (None, foreign):
            with pytest.raises(RewardRaised, match="CERTIFICATE_VERIFY_FAILED"):
                await posted(folder)
        # A client without a certificate is refused, at the handshake or at its first read.
        with pytest.raises(RewardRaised, match=r"Client(OS|Connector|ConnectorSSL)?Error|ServerDisconnected"):
            await posted(only_authority)


def is_judged(step: dict[str, Any]) -> bool:
    """Return True if each sample of a step has a verdict."""
    lost = {"reward/quality/errors", "reward/quality/timeouts"}
    return "reward/quality/mean" in step and not lost & step.keys()


async def test_a_judge_that_fails_costs_samples_and_not_the_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Check a judge that is busy, hangs, talks nonsense, dies and comes back."""
    monkeypatch.setenv("JUDGE_TOKEN", "secret")

    async def count(request: web.Request, body: Any, number: int) -> web.StreamResponse:
        # It paces the job.
        await asyncio.sleep(0.3)
        return web.json_response({"results": [len(sample["response"]) for sample in body["samples"]]})

    async def fail(request: web.Request, body: Any, number: int) -> web.StreamResponse:
        match number % 6:
            case 0:
                return web.Response(status=429)
            case 1:
                return await hang()
            case 2:
                return chat_answer("I would rather not say.")
            case 3:
                return web.Response(status=500, text="<html>")
        return chat_answer('{"score": 10, "explanation": "splendid"}')

    async def work(request: web.Request, body: Any, number: int) -> web.StreamResponse:
        return chat_answer('{"score": 1, "explanation": "poor"}')

    port = free_port()
    async with reward_server(count) as (counter_url, counter):
        judge = {"url": f"http://127.0.0.1:{port}", "model": "m", "task": {"pointwise": {}}}
        rewards = [
            {
                "name": "quality",
                "judge": judge | {"tokenVariable": "JUDGE_TOKEN", "retries": 0, "cacheEntries": 0},
                "timeoutSeconds": 1,
            },
            {"name": "length", "http": {"url": counter_url, "samplesPerRequest": 8}},
        ]
        job = online_job(tmp_path, "judged", RLOO, maxSteps=5000, rewards=rewards)
        with RunningJobs(write_jobs(tmp_path, job), tmp_path / "runs", "--no-dashboard") as run:

            async def step_after(more: int) -> int:
                step = max(run.steps("judged"), default=0) + more
                await asyncio.to_thread(run.wait_for_step, "judged", step)
                return step

            async with reward_server(fail, port) as (_, failing):
                await step_after(5)
            gone = await step_after(2)
            without = await step_after(2)
            async with reward_server(work, port) as (_, working):
                # The server is tried again after a pause.
                async with asyncio.timeout(120):
                    back = await step_after(1)
                    while not is_judged(run.steps("judged")[back]):
                        back = await step_after(1)
            run.send(signal.SIGINT)
            assert await asyncio.to_thread(run.end, 60) == 130, run.output[-4000:]
            steps = run.steps("judged")
            samples = run.folder("judged") / "samples.jsonl"
            explanations = {
                text
                for line in samples.read_text().splitlines()
                for text in parse_sample("", 0, json.loads(line)).explanations.values()
            }
    assert {headers["Authorization"] for headers in failing.headers + working.headers} == {"Bearer secret"}
    assert all("Authorization" not in headers for headers in counter.headers)
    before = [steps[step] for step in range(1, gone - 1)]
    assert sum(step.get("reward/quality/errors", 0) for step in before) > 0
    assert sum(step.get("reward/quality/timeouts", 0) for step in before) > 0
    assert any(step.get("reward/quality/mean") == 1.0 for step in before)
    # Nothing answers between the two servers; the other reward goes on.
    assert "reward/quality/mean" not in steps[without]
    assert all("reward/length/mean" in step for step in steps.values())
    assert steps[back]["reward/quality/mean"] == 0.0
    assert "score 1: poor" in explanations

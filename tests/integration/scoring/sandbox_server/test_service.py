"""The sandbox service as a process: its contract, its limits, and clients that it fails."""

import asyncio
import ssl
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import aiohttp
import psutil
import pytest

from kubealign.access.certificate_authority import CertificateAuthority
from kubealign.roles import Role
from kubealign.spec.sections.rewards import Reward
from kubealign_services.scoring.functions.errors import RewardRaised
from kubealign_services.scoring.functions.results import RewardResult
from kubealign_services.scoring.servers.contract import ServerSample
from kubealign_services.scoring.servers.endpoint import RewardServerRefused
from kubealign_services.scoring.servers.factory import open_server_reward
from support.sandbox_service import CONTRACT, LIMITS, MARKING_BYTES, SandboxServiceProcess, conforms

pytestmark = pytest.mark.timeout(240)

ADD = "def add(a, b):\n    return a + b\n"
TOKEN = "sesame"
#: Maxima that admit ENDLESS.
LONG = "--max-seconds-per-test", "600", "--max-seconds-per-response", "600"
#: Ends when a test kills it; by its memory a test sees that it runs.
ENDLESS: dict[str, Any] = {
    "kind": "inputOutput",
    "program": f"data = b'x' * {MARKING_BYTES}\nimport time\ntime.sleep(600)",
    "tests": [{"input": "", "output": ""}],
    "limits": LIMITS | {"secondsPerTest": 600, "secondsPerResponse": 600},
}


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SandboxServiceProcess]:
    """A service with a token."""
    output = tmp_path_factory.mktemp("service") / "output.txt"
    options = "--token-variable", "TOKEN", "--max-memory-mib", "512", *LONG
    with SandboxServiceProcess(output, *options, variables={"TOKEN": TOKEN}) as process:
        yield process


@pytest.fixture(autouse=True)
def token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SANDBOX_TOKEN", TOKEN)


def reward(url: str, code: dict[str, Any] | None = None, **server: Any) -> Reward:
    """Return a reward with the token of the tests, and more time than its programs take."""
    full = {"url": url, "tokenVariable": "SANDBOX_TOKEN"} | server
    limits = {"memoryMib": 256, "secondsPerTest": 20, "secondsPerResponse": 60}
    verifier = {"code": {"server": full} | limits | (code or {})}
    return Reward.model_validate({"name": "tests", "timeoutSeconds": 120, "verifier": verifier})


async def outcomes(entry: Reward, *samples: tuple[str, dict[str, Any]]) -> list[Any]:
    async with open_server_reward(entry) as server:
        return await server.outcomes([ServerSample("p", response, row) for response, row in samples])


async def post(url: str, body: Any, **headers: str) -> tuple[int, Any, dict[str, str]]:
    """Return status, JSON and headers of the answer to a document, or to bytes."""
    sent = {"data": body} if isinstance(body, bytes) else {"json": body}
    async with (
        aiohttp.ClientSession() as session,
        session.post(f"{url}/v1/programs", headers=headers, **sent) as answer,
    ):
        return answer.status, await answer.json(), dict(answer.headers)


async def test_statements(service: SandboxServiceProcess) -> None:
    row = {"tests": ["assert add(1, 2) == 3", "assert add(2, 2) == zero + 5"], "setup": "zero = 0"}
    spec = {"partial": True, "setupColumn": "setup"}
    response = f"Here:\n```python\n{ADD}```"
    half, none, blank, without = await outcomes(
        reward(service.url, spec),
        (response, row),
        ("def add(a, b):", row),
        ("", row),
        (ADD, {"tests": None, "setup": ""}),
    )
    assert (half.reward, half.metrics["tests.passed"], half.metrics["tests.total"]) == (0.5, 1, 2)
    assert half.explanation == "1 of 2 tests passed; test 2: AssertionError: assert add(2, 2) == zero + 5"
    assert half.metrics["seconds"] > 0
    assert none.reward == 0.0 and none.explanation.startswith("0 of 2 tests passed; test 1: IndentationError")
    assert (blank.reward, blank.explanation) == (0.0, "no program in the response")
    assert without == RewardResult(None)


async def test_rows_in_the_form_of_humaneval(service: SandboxServiceProcess) -> None:
    spec = {"testsColumn": "test", "prefixColumn": "prompt", "entryPointColumn": "entry_point"}
    row = {
        "prompt": "import math\ndef area(r):",
        "test": "def check(candidate):\n    assert candidate(1) == math.pi\n",
        "entry_point": "area",
    }
    right, wrong = await outcomes(
        reward(service.url, spec), ("    return math.pi * r * r", row), ("    return r", row)
    )
    assert (right.reward, wrong.reward) == (1.0, 0.0)
    assert wrong.explanation.endswith("test 1: AssertionError: assert candidate(1) == math.pi")


async def test_cases(service: SandboxServiceProcess) -> None:
    cases = [{"input": "1 2\n", "output": "3"}, {"input": "5 5", "output": "11"}]
    spec = {"kind": "InputOutput", "partial": True, "outputBytes": 16}
    half, loud = await outcomes(
        reward(service.url, spec),
        ("print(sum(map(int, input().split())))", {"tests": cases}),
        ("print('x' * 17)", {"tests": cases}),
    )
    assert (half.reward, half.explanation) == (
        0.5,
        "1 of 2 tests passed; test 2: printed '10'; expected '11'",
    )
    assert loud.explanation.endswith("test 2: printed more than 16 bytes")


async def test_hostile_programs(service: SandboxServiceProcess, tmp_path: Path) -> None:
    """Programs that attack the service, exhaust the machine, and forge their verdict."""
    pid = service.process.pid
    attack = f"""
import os
for pid in (-1, 1, {pid}):
    try:
        os.kill(pid, 9)
    except OSError:
        pass
try:
    print(open("/proc/{pid}/environ").read())
except OSError as error:
    print(type(error).__name__)
try:
    open({str(tmp_path / "written")!r}, "w")
except OSError as error:
    print(type(error).__name__)
print(os.environ.get("TOKEN"))
"""
    bomb = "import os\nwhile True:\n    try:\n        os.fork()\n    except OSError:\n        pass"
    forgery = """
import os
for descriptor in range(3, 64):
    try:
        os.write(descriptor, b'{"passed": true}\\n')
    except OSError:
        pass
def add(a, b):
    os._exit(0)
"""
    spec = {"kind": "InputOutput", "secondsPerTest": 2, "processes": 8}
    row = {"tests": [{"input": "", "output": "918273645546372819"}]}
    attacked, bombed = await outcomes(reward(service.url, spec), (attack, row), (bomb, row))
    (forged,) = await outcomes(reward(service.url), (forgery, {"tests": ["assert add(1, 2) == 3"]}))
    assert (attacked.reward, bombed.reward, forged.reward) == (0.0, 0.0, 0.0)
    assert attacked.explanation.startswith("0 of 1 tests passed; test 1: printed 'FileNotFoundError")
    assert TOKEN not in attacked.explanation
    assert bombed.explanation == "0 of 1 tests passed; test 1: took longer than 2 s"
    assert not (tmp_path / "written").exists()
    (after,) = await outcomes(reward(service.url), (ADD, {"tests": ["assert add(1, 2) == 3"]}))
    assert after.reward == 1.0 and service.process.pid == pid and service.process.poll() is None


async def test_the_contract(service: SandboxServiceProcess) -> None:
    """Every status that the service answers is in its OpenAPI document, and each body of its schema."""
    document = ENDLESS | {"program": "print(1)", "limits": LIMITS}
    bearer = {"Authorization": f"Bearer {TOKEN}"}
    responses = CONTRACT["paths"]["/v1/programs"]["post"]["responses"]
    requests: list[tuple[int, str, Any, dict[str, str]]] = [
        (200, "", document, bearer),
        (200, "", document | {"kind": "python", "tests": ["assert 1", "assert x"]}, bearer),
        (400, "limits.memoryMib: 1: ", document | {"limits": LIMITS | {"memoryMib": 1}}, bearer),
        (400, "kind: null: must be one of python, inputOutput", {}, bearer),
        (400, "the body is no JSON", b"program", bearer),
        (401, "send the token as a bearer token", document, {}),
        (401, "the token is not this service's", document, {"Authorization": "Bearer other"}),
        (
            403,
            "limits.memoryMib: 513: must be at most 512",
            document | {"limits": LIMITS | {"memoryMib": 513}},
            bearer,
        ),
        (413, "POST /v1/programs: Request Entity Too Large", b" " * (2**24 + 1), bearer),
    ]
    for expected, text, body, headers in requests:
        status, answer, _ = await post(service.url, body, **headers)
        assert status == expected and str(status) in responses, answer
        assert conforms("Verdicts" if status == 200 else "Error", answer), answer
        assert status == 200 or text in answer["error"]
    health = service.health()
    assert conforms("Health", health) and health == {"status": "ok", "programs": 0}
    async with aiohttp.ClientSession() as session:
        async with session.get(f"{service.url}/v1/programs", headers=bearer) as answer:
            assert answer.status == 405 and conforms("Error", await answer.json())
        async with session.get(f"{service.url}/v2", headers=bearer) as answer:
            assert answer.status == 404 and conforms("Error", await answer.json())


async def test_refusals_reach_the_reward(
    service: SandboxServiceProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = {"tests": ["assert add(1, 2) == 3"]}
    (large,) = await outcomes(reward(service.url, {"memoryMib": 1024}), (ADD, row))
    assert isinstance(large, RewardServerRefused)
    assert "answers 403: limits.memoryMib: 1024: must be at most 512, this service's maximum" in str(large)
    monkeypatch.setenv("SANDBOX_TOKEN", "other")
    (refused,) = await outcomes(reward(service.url), (ADD, row))
    assert isinstance(refused, RewardServerRefused) and "the token is not this service's" in str(refused)


async def test_a_client_that_leaves_makes_room(service: SandboxServiceProcess) -> None:
    """The tests that have not started are not run."""
    tests = [{"input": "", "output": ""}] * 1000
    document = ENDLESS | {"tests": tests, "limits": ENDLESS["limits"] | {"secondsPerTest": 1}}
    bearer = {"Authorization": f"Bearer {TOKEN}"}
    call = asyncio.create_task(post(service.url, document, **bearer))
    await asyncio.to_thread(service.wait_for_programs, 1)
    call.cancel()
    await asyncio.to_thread(service.wait_for_programs, 0)
    async with asyncio.timeout(60):
        status, answer, _ = await post(service.url, ENDLESS | {"program": "print(end='')"}, **bearer)
    assert (status, answer["verdicts"]) == (200, [{"passed": True, "reason": ""}])


async def test_a_service_that_is_killed_during_a_call(tmp_path: Path) -> None:
    """The sandboxes end with it, and the call succeeds once it is back."""
    with SandboxServiceProcess(tmp_path / "output.txt", *LONG) as service:
        row = {"tests": [{"input": "", "output": "1"}]}
        entry = reward(service.url, {"kind": "InputOutput"}, retries=20)
        endless = asyncio.create_task(post(service.url, ENDLESS))
        await asyncio.to_thread(service.wait_until_marked, 1)
        call = asyncio.create_task(outcomes(entry, ("import time\ntime.sleep(3)\nprint(1)", row)))
        await asyncio.to_thread(service.wait_for_programs, 2)
        await asyncio.to_thread(service.kill)
        with pytest.raises(aiohttp.ClientError):
            await endless
        await asyncio.to_thread(service.start)
        (result,) = await call
    assert result.reward == 1.0


async def test_a_full_service(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A program too many is refused, and its client asks again until there is room."""
    options = "--programs", "1", "--parallel-tests", "1", *LONG
    with SandboxServiceProcess(tmp_path / "output.txt", *options) as service:
        row = {"tests": ["assert add(1, 2) == 3"] * 2}
        slow = f"import time\ntime.sleep(3)\n{ADD}"
        entry = reward(service.url, retries=20)
        call = asyncio.create_task(outcomes(entry, (slow, row)))
        await asyncio.to_thread(service.wait_for_programs, 1)
        status, answer, headers = await post(service.url, ENDLESS)
        assert (status, headers["Retry-After"]) == (429, "1") and conforms("Error", answer)
        assert answer["error"] == "1 programs are running or waiting, the most that this service admits"
        with caplog.at_level("INFO", "kubealign_services.scoring.servers.endpoint"):
            (second,) = await outcomes(entry, (ADD, row))
        (first,) = await call
    assert (first.reward, second.reward) == (1.0, 1.0)
    assert "answers 429: 1 programs are running" in caplog.text
    assert "the request is repeated in 1.0 s" in caplog.text


async def test_a_service_that_is_stopped(tmp_path: Path) -> None:
    """No verdict is given on programs that run or wait; their sandboxes do not stay."""
    with SandboxServiceProcess(tmp_path / "output.txt", "--parallel-tests", "2", *LONG) as service:
        calls = [asyncio.create_task(post(service.url, ENDLESS)) for _ in range(3)]
        await asyncio.to_thread(service.wait_for_programs, 3)
        await asyncio.to_thread(service.wait_until_marked, 2)
        sandboxes = service.sandboxes()
        assert await asyncio.to_thread(service.stop) == 0
        for call in calls:
            status, answer, _ = await call
            assert (status, answer) == (503, {"error": "the service is stopping"})
        _, left = psutil.wait_procs(sandboxes, 0)
        assert not left


async def test_both_sides_have_certificates(tmp_path: Path) -> None:
    authority = CertificateAuthority.create("own", timedelta(hours=1))
    issued = authority.issue(Role.REWARD)
    (tmp_path / "tls.crt").write_bytes(issued.certificate_pem)
    (tmp_path / "tls.key").write_bytes(issued.key_pem)
    (tmp_path / "ca.crt").write_bytes(authority.certificate_pem)
    only_authority = tmp_path / "authority"
    only_authority.mkdir()
    (only_authority / "ca.crt").write_bytes(authority.certificate_pem)
    options = "--tls-folder", str(tmp_path), "--verify-clients"
    service = SandboxServiceProcess(
        tmp_path / "output.txt", *options, tls=ssl.create_default_context(cafile=tmp_path / "ca.crt")
    )
    assert service.tls is not None
    service.tls.load_cert_chain(tmp_path / "tls.crt", tmp_path / "tls.key")
    row = {"tests": ["assert add(1, 2) == 3"]}
    with service:
        assert service.url.startswith("https://")
        (right,) = await outcomes(reward(service.url, tlsFolder=str(tmp_path)), (ADD, row))
        (unknown,) = await outcomes(reward(service.url, retries=0), (ADD, row))
        without = reward(service.url, retries=0, tlsFolder=str(only_authority))
        (anonymous,) = await outcomes(without, (ADD, row))
    assert right.reward == 1.0
    assert isinstance(unknown, RewardRaised) and "CERTIFICATE_VERIFY_FAILED" in str(unknown)
    assert isinstance(anonymous, RewardRaised)


def test_a_machine_without_sandboxes(tmp_path: Path) -> None:
    """The command ends with the reason."""
    service = SandboxServiceProcess(tmp_path / "output.txt", variables={"PATH": str(tmp_path)})
    assert service.run_to_end() == 1
    output = service.output.read_text()
    assert "the program bwrap is not installed: add the package" in output and "Traceback" not in output


def test_an_address_in_use(tmp_path: Path, service: SandboxServiceProcess) -> None:
    other = SandboxServiceProcess(tmp_path / "output.txt", port=service.port)
    assert other.run_to_end() == 1
    output = other.output.read_text()
    assert "address already in use" in output and "Traceback" not in output

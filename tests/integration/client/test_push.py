"""A local job's result on a server with the hub's interface, by `kubealign push`."""

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from support.hub_server import LFS_BYTES, HubServer
from support.running import KUBEALIGN, RunningJobs
from support.tiny_jobs import sft_job, write_jobs

pytestmark = pytest.mark.timeout(300)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Run directories with a finished job."""
    folder = tmp_path_factory.mktemp("push")
    job = sft_job(folder, "tiny", maxSteps=2)
    job["spec"]["validation"] = {"data": job["spec"]["data"]}
    job["spec"]["trainer"]["podTemplate"] = {"metadata": {"labels": {"team": "secret-team"}}}
    with RunningJobs(write_jobs(folder, job), folder / "runs") as run:
        assert run.end(timeout=120.0) == 0, run.output
    return folder / "runs"


@pytest.fixture
def hub() -> Iterator[HubServer]:
    with HubServer() as server:
        yield server


def push(runs: Path, hub: HubServer, *arguments: str, token: str = "hf_test", code: int = 0) -> str:
    command = [str(KUBEALIGN), "push", *arguments, "--runs-dir", str(runs)]
    environment = {**os.environ, **hub.environment(token), "HF_HOME": str(runs / "huggingface")}
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=120, check=False, cwd=runs
    )
    assert done.returncode == code, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    return done.stderr if code else done.stdout


def test_a_result_is_pushed_with_its_card(runs: Path, hub: HubServer) -> None:
    address = push(runs, hub, "tiny", "acme/sums", "--private")
    repository = hub.repositories["acme/sums"]
    assert (repository.kind, repository.private) == ("model", True)
    assert address.startswith(f"{hub.address}/acme/sums/commit/")
    assert repository.commits == ["Add the result of tiny"]
    files = dict(repository.branches["main"])
    card = files.pop("README.md").decode()
    result = runs / "tiny" / "result"
    expected = {path.relative_to(result).as_posix(): path.read_bytes() for path in result.rglob("*")}
    assert files == expected
    assert any(len(content) > LFS_BYTES for content in files.values()) and hub.objects

    _, front, text = card.split("---\n", 2)
    assert yaml.safe_load(front) == {
        "library_name": "transformers",
        "pipeline_tag": "text-generation",
        "tags": ["kubealign", "sft"],
    }
    assert "job `tiny` (algorithm `sft`) after step 2" in text
    assert 'AutoModelForCausalLM.from_pretrained("acme/sums")' in text
    assert "| `val/loss` | " in text
    settings = yaml.safe_load(text.split("```yaml\n")[1].split("```")[0])
    assert settings["maxSteps"] == 2 and "sft" in settings["algorithm"]
    assert "secret-team" not in card


def test_a_branch_of_an_existing_repository(runs: Path, hub: HubServer) -> None:
    push(runs, hub, "tiny", "acme/sums")
    push(runs, hub, "tiny", "acme/sums", "--revision", "trial")
    repository = hub.repositories["acme/sums"]
    assert repository.branches["trial"] == repository.branches["main"]
    assert len(repository.commits) == 2


def test_what_the_hub_refuses_is_an_error_of_one_line(runs: Path, hub: HubServer) -> None:
    refused = push(runs, hub, "tiny", "acme/sums", token="hf_other", code=1)
    assert "the hub does not accept acme/sums" in refused and "401" in refused
    assert "the hub does not accept not a name" in push(runs, hub, "tiny", "not a name", code=1)
    assert hub.repositories == {}
    hub._server.server_close()
    assert "the hub does not answer" in push(runs, hub, "tiny", "acme/sums", code=1)

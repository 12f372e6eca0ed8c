"""The API against its own OpenAPI document: every check of schemathesis, over real sockets."""

import asyncio
import subprocess
import sys
from pathlib import Path

import pytest

from kubealign.client.records import JobEvent, ProcessRecord, ProcessState
from kubealign.read_model import SampleRecord
from kubealign_dashboard.app import create_app
from support.dashboard import LETTERS, site_with_jobs
from support.ruled_access import Person, RuledAccess
from support.served import served

SCHEMATHESIS = Path(sys.executable).with_name("schemathesis")
SETTINGS = Path(__file__).with_name("schemathesis.toml")
SECONDS = 240


@pytest.mark.timeout(SECONDS + 30, method="signal")
# The cases at the boundaries of every field take two minutes.
@pytest.mark.parametrize(
    "phases", ["examples,fuzzing,stateful", pytest.param("coverage", marks=pytest.mark.full)]
)
async def test_the_api_conforms_to_its_openapi_document(tmp_path: Path, phases: str) -> None:
    site = await site_with_jobs(tmp_path)
    for step in range(1, 4):
        site.report(LETTERS, step, {"reward/mean": 0.1 * step})
        site.sample(LETTERS, SampleRecord("", step, "ab", "a", 0.5, {"letters": 0.5}, tokens=("a",)))
    site.staff(LETTERS, ProcessRecord("driver", "driver", ProcessState.READY))
    created = (await site.get(LETTERS)).created
    assert created is not None
    site.happen(LETTERS, JobEvent(created, "Normal", "Started", "the driver is ready"))
    site.log(LETTERS, "driver", "step 1")
    with served(create_app(RuledAccess(site, {"jane": Person("jane")}))) as address:
        run = await asyncio.create_subprocess_exec(
            SCHEMATHESIS,
            "--config-file",
            SETTINGS,
            "run",
            f"{address}/api/v1/openapi.json",
            "--header=Authorization: Bearer jane",
            "--seed=1",
            "--max-examples=4",
            f"--phases={phases}",
            "--request-timeout=20",
            "--no-color",
            cwd=tmp_path,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        try:
            output, _ = await asyncio.wait_for(run.communicate(), SECONDS)
        finally:
            if run.returncode is None:
                run.kill()
                await run.wait()
    assert run.returncode == 0, output.decode()[-6000:]

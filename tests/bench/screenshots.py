"""Takes screenshots of the dashboard for the documentation: `make screenshots`.

Trains real jobs on the sums of examples/arithmetic, opens the page in Chromium while a job runs, and writes
the screenshots to docs/images.
"""

import secrets
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kubealign import AlignmentClient, AlignmentJob, Job, Metadata, load_jobs
from kubealign.errors import JobFailed
from kubealign_dashboard.local.access import LocalAccess
from support.browser import Dashboard, View, chromium

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "arithmetic"
IMAGES = ROOT / "docs" / "images"
STEPS, SEEN = 200, 40
SECONDS = 1800.0
MOST_BYTES = 250_000
DRAWN_MS = 120_000
WIDE, LOW, PHONE = (
    {"width": 1360, "height": 850},
    {"width": 1360, "height": 500},
    {"width": 390, "height": 844},
)
LABELS = {"team": "sums"}


def main() -> int:
    with tempfile.TemporaryDirectory(prefix="kubealign-pictures-") as temporary:
        folder = Path(temporary) / "arithmetic"
        shutil.copytree(EXAMPLE, folder, ignore=shutil.ignore_patterns("runs", "data", "__pycache__"))
        subprocess.run(
            [sys.executable, folder / "make_data.py", "--seed=1", f"--out={folder / 'data'}"], check=True
        )
        with AlignmentClient.local(folder / "runs") as client:
            job = until_it_has_something_to_show(client, folder)
            try:
                take(folder / "runs", job)
            finally:
                client.suspend(job.name)
                job.wait(SECONDS, until="Suspended")
    return 0


def until_it_has_something_to_show(client: AlignmentClient, folder: Path) -> Job:
    """Run a few jobs to their end, and return a job that has run for a while and is still running."""
    gentle = learner(folder, "sums-gentle", steps=12, rate=1.0e-4)
    for job in client.submit_all([imitator(folder), gentle]):
        job.wait(SECONDS)
    # Fails: the mismatch gate tolerates no difference of the engine.
    wrong = client.submit_all([learner(folder, "sums-strict", steps=30, rate=3.0e-4, gap=1.0e-12)])[0]
    with suppress(JobFailed):
        wrong.wait(SECONDS)
    running = client.submit_all([learner(folder, "sums-grpo", steps=STEPS, rate=3.0e-4)])[0]
    for one in client.changes(running.name):
        if (one.status.step or 0) >= SEEN or (one.phase is not None and one.phase.is_final):
            break
    return running


def imitator(folder: Path) -> AlignmentJob:
    """Return the example's first job with a fixed number of steps."""
    changes = [f"arithmetic-sft:spec.{change}" for change in ("maxSteps=600", "validation.everySteps=100")]
    jobs = load_jobs(folder / "jobs.yaml", {"DATA": "data"}, changes)
    return jobs[0].model_copy(update={"metadata": Metadata(name="sums-sft", labels=LABELS)})


def learner(folder: Path, name: str, *, steps: int, rate: float, gap: float = 0.05) -> AlignmentJob:
    """Return a job that is rewarded for the sum and for its working."""

    def function(of: str) -> dict[str, Any]:
        return {"file": {"path": str(folder / "rewards.py"), "name": of}}

    def rows(of: str) -> dict[str, Any]:
        return {"prompts": {"source": {"path": str(folder / "data" / f"{of}.jsonl")}}}

    return AlignmentJob.model_validate(
        {
            "metadata": {"name": name, "labels": LABELS},
            "spec": {
                "maxSteps": steps,
                "algorithm": {
                    "grpo": {
                        "promptsPerStep": 32,
                        "samplesPerPrompt": 8,
                        "minibatchSequences": 128,
                        "kl": {"placement": "Loss", "estimator": "K3", "fixed": {"coefficient": 0.04}},
                    }
                },
                "policy": {"model": {"job": {"name": "sums-sft"}}},
                "data": rows("prompts"),
                "trainer": {"optimizer": {"adamW": {"learningRate": rate}}},
                "rewards": [
                    {"name": "right", "function": function("exact")},
                    {"name": "worked", "weight": 0.5, "function": function("preferred")},
                ],
                "rollout": {
                    "engine": {"torch": {"maxSequences": 256}},
                    "sampling": {"maxTokens": 14},
                    "mismatchGate": {"mean": gap},
                },
                "validation": {
                    "data": {"prompts": rows("test")["prompts"] | {"limit": 100}},
                    "everySteps": 10,
                },
            },
        }
    )


def take(runs: Path, job: Job) -> None:
    token = secrets.token_urlsafe(16)
    route = f"#/jobs/{job.namespace}/{job.name}"
    with chromium() as browser, Dashboard(LocalAccess(runs, token)) as served:

        def picture(name: str, hash: str, ready: Callable[["Page"], None], **options: object) -> None:
            shoot(browser, served.url, token, name, hash, ready, **options)

        picture("list", "#/", lambda page: page.get_by_role("row").nth(4).wait_for(), viewport=LOW)
        picture("job", route, curves)
        picture("dark", route, lambda page: curves(page, "phases"), color_scheme="dark")
        picture(
            "sample",
            f"{route}?tab=samples&step={SEEN - 1}",
            lambda page: coloured(page, "KL to the reference"),
        )
        picture("phone", route, curves, viewport=PHONE, device_scale_factor=2)


def curves(page: "Page", panel: str = "reward") -> None:
    """Wait until this panel and the visible ones are drawn: a panel is drawn when it becomes visible."""
    page.locator(f"#figure-{panel}").evaluate("(one) => one.closest('.group').scrollIntoView()")
    page.wait_for_function(f"() => document.querySelector('#figure-{panel} .plot')?.data?.length > 0")
    if panel == "reward":
        page.evaluate("() => scrollTo(0, 0)")
    page.evaluate("() => new Promise((done) => requestIdleCallback(done))")


def coloured(page: "Page", by: str) -> None:
    page.get_by_label("Colour by").first.select_option(by)
    page.locator("[role=option]").first.hover()


def shoot(
    browser: "Browser",
    url: str,
    token: str,
    name: str,
    hash: str,
    ready: Callable[["Page"], None],
    **options: object,
) -> None:
    with View(browser, url, **({"viewport": WIDE, "color_scheme": "light"} | options)) as view:
        view.sign_in(token)
        view.context.set_default_timeout(DRAWN_MS)
        page = view.open(hash)
        ready(page)
        path = IMAGES / f"{name}.png"
        page.screenshot(path=path)
    size = path.stat().st_size
    print(f"{name}: {size:,} bytes")
    assert size <= MOST_BYTES, f"{path} is larger than {MOST_BYTES:,} bytes"


if __name__ == "__main__":
    sys.exit(main())

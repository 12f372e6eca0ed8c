"""The page over a job that really runs on this machine."""

import os
import re
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from playwright.sync_api import expect

from kubealign import AlignmentClient
from kubealign.local.run_dir.layout import RunDirectory
from kubealign_dashboard.local.access import LocalAccess
from support.browser import Dashboard, View
from support.tiny_jobs import PACED_LETTER_A, online_job, set_pace, write_reward

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

_END_SECONDS = 30.0
_RLOO = {"rloo": {"promptsPerStep": 4, "samplesPerPrompt": 2}}


@pytest.fixture
def runs(tmp_path: Path) -> Iterator[Path]:
    """Serve one job that runs until it is stopped."""
    job = online_job(tmp_path, "letters", _RLOO, maxSteps=5000)
    reward = PACED_LETTER_A.format(file=str(set_pace(tmp_path, 0.3)))
    job["spec"]["rewards"] = [write_reward(tmp_path, reward)]
    runs = tmp_path / "runs"
    with AlignmentClient.local(runs) as client:
        client.submit(job)
    yield runs
    lock = RunDirectory(runs / "letters").lock()
    deadline = time.monotonic() + _END_SECONDS
    while (holder := lock.read_holder()) is not None and time.monotonic() < deadline:
        if holder.pid:
            os.kill(holder.pid, signal.SIGKILL)
        time.sleep(0.1)


@pytest.fixture
def dashboard(runs: Path) -> Iterator[Dashboard]:
    with Dashboard(LocalAccess(runs, "secret")) as served:
        yield served


def drawn(page: "Page") -> list[int]:
    """Return the steps of the reward curve."""
    script = "() => document.querySelector('#figure-reward .plot')?.data?.[1]?.customdata ?? []"
    steps: list[int] = page.evaluate(script)
    return steps


def until(page: "Page", step: int) -> list[int]:
    """Wait until the curve has reached this step; return all its steps."""
    script = "(step) => document.querySelector('#figure-reward .plot')?.data?.[1]?.customdata?.at(-1) >= step"
    page.wait_for_function(script, arg=step, timeout=150_000)
    return drawn(page)


def whole(steps: list[int]) -> bool:
    """Verify that no step is missing or repeated."""
    return steps == list(range(1, len(steps) + 1))


@pytest.mark.timeout(400)
def test_follow_suspend_resume_and_delete(browser: "Browser", dashboard: Dashboard) -> None:
    with View(browser, dashboard.url) as view:
        view.sign_in("secret")
        page = view.page
        row = page.get_by_role("row").filter(has_text="letters")
        expect(row).to_contain_text("Running", timeout=150_000)
        page.get_by_label("Search").fill("nothing-like-it")
        expect(page.get_by_text("No job matches these filters.")).to_be_visible()
        page.get_by_label("Search").fill("lett")
        page.get_by_role("group", name="Phase").get_by_role("button", name="Running").click()
        row.get_by_role("link").click()

        assert whole(until(page, 2))
        other = view.tab()
        other.goto(page.url)
        last = until(page, 4)[-1]
        assert whole(until(other, last))

        page.get_by_role("link", name="Roles").click()
        trainer = page.get_by_role("row").filter(
            has=page.get_by_role("rowheader", name=re.compile("^trainer"))
        )
        expect(trainer).to_contain_text("Ready")
        page.get_by_role("link", name="Logs").click()
        expect(page.locator(".logline").first).to_be_visible()
        page.get_by_role("link", name="Samples").click()
        expect(page.locator(".sample .token").first).to_be_visible()
        page.locator(".sample .token").first.hover()
        expect(page.locator(".reading")).to_contain_text("Token 1 of")
        page.get_by_role("link", name="Curves").click()

        dashboard.stop()
        expect(page.locator(".live")).to_have_text("reconnecting")
        dashboard.start()
        expect(page.locator(".live")).to_have_text("live")
        for tab in (page, other):
            last = until(tab, last + 2)[-1]
            assert whole(drawn(tab))

        page.get_by_role("button", name="Suspend").click()
        expect(page.locator(".jobhead .phase")).to_have_text("Suspended", timeout=90_000)
        expect(other.locator(".jobhead .phase")).to_have_text("Suspended")
        stopped = drawn(page)[-1]
        page.get_by_role("button", name="Resume").click()
        expect(page.locator(".jobhead .phase")).to_have_text("Running", timeout=150_000)
        assert whole(until(page, stopped + 1))

        page.get_by_role("link", name="Events").click()
        expect(page.get_by_role("row").filter(has_text="Started").first).to_be_visible()
        page.get_by_role("button", name="Delete").click()
        page.get_by_role("dialog").get_by_role("button", name="Delete").click()
        expect(page.get_by_role("heading", name="Jobs")).to_be_visible(timeout=90_000)
        expect(other.locator("main").get_by_text("has been deleted")).to_be_visible()

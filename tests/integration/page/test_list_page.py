"""The job list in a browser."""

import json
import re
from typing import TYPE_CHECKING, Any

from playwright.sync_api import expect

from kubealign.client.errors import Unavailable
from kubealign.client.records import JobRef
from support.browser import Dashboard, View, done
from support.memory_backend import MemoryBackend
from support.page_jobs import document
from support.ruled_access import RuledAccess

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page


async def _create(site: MemoryBackend, count: int) -> None:
    phases = ("Running", "Failed", "Succeeded")
    for number in range(count):
        job = document(
            f"job-{number:03}", "team" if number % 2 else "default", labels={"part": str(number % 5)}
        )
        job["metadata"]["labels"] = {"part": str(number % 5)}
        record = await site.create(job)
        site.status(record.ref, phase=phases[number % 3], step=number, reward=number / 10)


def names(page: "Page") -> Any:
    return page.locator("table.jobs tbody th a")


def test_filters_order_and_pages_are_in_the_url(site: MemoryBackend, view: View) -> None:
    done(_create(site, 120))
    page = view.open("#/")
    expect(names(page)).to_have_count(50)
    expect(page.locator(".pages")).to_contain_text("1–50 of 120")
    page.get_by_role("button", name="Next").click()
    expect(page.locator(".pages")).to_contain_text("51–100 of 120")
    page.get_by_role("button", name="Previous").click()
    expect(page.locator(".pages")).to_contain_text("1–50 of 120")

    page.get_by_role("group", name="Phase").get_by_role("button", name="Failed").click()
    expect(page.locator(".pages")).to_contain_text("of 40")
    page.get_by_role("button", name="Steps").click()
    expect(names(page).first).to_have_text("job-118")
    expect(page.get_by_role("columnheader", name="Steps")).to_have_attribute("aria-sort", "descending")
    page.get_by_label("Namespace").select_option("team")
    expect(page.locator(".pages")).to_contain_text("of 20")
    page.get_by_label("Labels").fill("part=3")
    expect(page.locator(".pages")).to_contain_text("of 4")
    page.reload()
    expect(page.locator(".pages")).to_contain_text("of 4")
    expect(page.get_by_label("Labels")).to_have_value("part=3")
    page.get_by_label("Labels").fill("part in (")
    expect(page.get_by_role("alert")).to_contain_text("labelSelector")

    view.open("#/?search=job-07&sort=name")
    expect(names(page)).to_have_text([f"job-07{digit}" for digit in range(10)])


def test_keyboard_search_and_navigation(site: MemoryBackend, view: View) -> None:
    done(_create(site, 6))
    page = view.open("#/?sort=name")
    expect(names(page)).to_have_count(6)
    page.keyboard.press("/")
    expect(page.get_by_label("Search")).to_be_focused()
    page.keyboard.type("job-00")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowDown")
    expect(names(page).nth(1)).to_be_focused()
    page.keyboard.press("ArrowUp")
    expect(names(page).nth(0)).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", level=1)).to_have_text("job-000")
    page.go_back()
    expect(names(page)).to_have_count(6)


def test_live_updates(site: MemoryBackend, view: View) -> None:
    done(_create(site, 3))
    page = view.open("#/?sort=name")
    expect(page.locator(".live")).to_have_text("live")
    row = page.get_by_role("row").filter(has_text="job-001")
    expect(row).to_contain_text("Failed")
    site.status(JobRef("team", "job-001"), phase="Running", step=77, message="goes on")
    expect(row).to_contain_text("Running")
    expect(row).to_contain_text("77 / 200")
    done(site.create(document("late-comer")))
    expect(names(page)).to_have_text(["job-000", "job-001", "job-002", "late-comer"])
    done(site.delete(JobRef("default", "job-000")))
    expect(names(page)).to_have_text(["job-001", "job-002", "late-comer"])


def test_the_sign_in_form(site: MemoryBackend, dashboard: Dashboard, browser: "Browser") -> None:
    done(_create(site, 2))
    with View(browser, dashboard.url) as view:
        page = view.open("#/?search=job-001")
        token = page.get_by_label("Token")
        token.fill("wrong")
        page.get_by_role("button", name="Enter").click()
        expect(page.get_by_role("alert")).to_contain_text("not known")
        token.fill("secret")
        page.get_by_role("button", name="Enter").click()
        expect(names(page)).to_have_text(["job-001"])
        assert "secret" not in page.url
        assert page.evaluate("document.cookie") == ""


def test_empty_and_failed_lists_are_explained(site: MemoryBackend, view: View) -> None:
    page = view.open("#/")
    expect(page.get_by_text("There are no jobs yet.")).to_be_visible()
    view.open("#/?phase=Failed")
    page.get_by_role("button", name="Clear the filters").click()
    expect(page.get_by_text("There are no jobs yet.")).to_be_visible()
    done(_create(site, 1))
    expect(names(page)).to_have_count(1)
    site.failing = Unavailable("the API server did not answer")
    view.open("#/?sort=name")
    expect(page.get_by_role("alert")).to_contain_text("the API server did not answer")
    site.failing = None
    page.get_by_role("button", name="Try again").click()
    expect(names(page)).to_have_count(1)


def test_submitting_a_job_and_read_only(access: RuledAccess, site: MemoryBackend, view: View) -> None:
    page = view.open("#/")
    page.get_by_role("button", name="Submit a job").click()
    text = page.get_by_label("AlignmentJob")
    submit = page.get_by_role("dialog").get_by_role("button", name="Submit")
    text.fill("{")
    submit.click()
    expect(page.get_by_role("alert")).to_contain_text("not a JSON document")
    text.fill(json.dumps(document("handed-in") | {"spec": {"maxSteps": -1}}))
    submit.click()
    expect(page.get_by_role("alert")).to_contain_text("maxSteps")
    text.fill(json.dumps(document("handed-in", "team")))
    submit.click()
    expect(page.get_by_role("heading", level=1)).to_have_text("handed-in")
    expect(page).to_have_url(re.compile(r"#/jobs/team/handed-in$"))

    access.read_only = True
    page.reload()
    expect(page.get_by_role("heading", level=1)).to_have_text("handed-in")
    expect(page.locator(".bar")).to_contain_text("read only")
    expect(page.locator(".phase")).to_have_text("Pending")
    expect(page.get_by_role("button", name="Delete")).to_have_count(0)
    view.open("#/")
    expect(names(page)).to_have_count(1)
    expect(page.get_by_role("button", name="Submit a job")).to_have_count(0)

"""Two validations side by side."""

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from playwright.sync_api import expect

from kubealign.client.records import JobRef
from support.browser import View, done
from support.memory_backend import MemoryBackend
from support.page_jobs import running_job, validate
from support.ruled_access import Person, RuledAccess

if TYPE_CHECKING:
    from playwright.sync_api import Page

_COMPARE = "#/compare?left=default/llama&leftStep=0&right=default/other&rightStep=20"


@pytest.fixture
def ref(site: MemoryBackend) -> JobRef:
    ref = done(running_job(site, "llama", 20))
    validate(site, ref, 0, 4)
    validate(site, ref, 20, 10)
    validate(site, done(running_job(site, "other", 20)), 20, 22)
    return ref


def test_two_jobs_are_compared_filtered_and_paged(ref: JobRef, view: View) -> None:
    page = view.open(_COMPARE)
    summary = page.locator(".summary")
    expect(summary).to_contain_text("24 prompts that both answered")
    expect(summary).to_contain_text("right higher in 18, left higher in 0, equal in 6")
    expect(page.get_by_role("row", name="exact")).to_contain_text("0.167 (0.0867 to 0.247)")
    expect(page.get_by_role("row", name="exact")).to_contain_text("intervals apart")
    expect(page.locator(".compared")).to_have_count(10)
    pair = page.get_by_role("article", name="Pair 1 of 24")
    expect(pair.locator("del")).to_have_text(["11"])
    expect(pair.locator("ins")).to_have_text(["21"])
    expect(pair.get_by_role("region", name="Right: other, step 20")).to_contain_text("read 21")

    # By keyboard alone: filter, then turn the page.
    page.get_by_label("Show").focus()
    page.keyboard.press("ArrowDown")
    expect(page.get_by_role("article", name="Pair 1 of 18")).to_be_visible()
    expect(page).to_have_url(re.compile(r"show=different"))
    expect(page.get_by_label("Show")).to_be_focused()
    page.get_by_role("button", name="Next page").focus()
    page.keyboard.press("Enter")
    expect(page.get_by_text("Page 2 of 2")).to_be_visible()
    expect(page.locator(".compared")).to_have_count(8)

    # The address names the same comparison in another tab.
    other = view.tab()
    other.goto(page.url)
    expect(other.get_by_role("article", name="Pair 11 of 18")).to_be_visible()
    expect(other.get_by_label("Show")).to_have_value("different")
    page.get_by_label("Show").select_option("Left is higher")
    expect(page.get_by_text("No pair matches.")).to_be_visible()


def test_two_steps_of_a_job_are_chosen(ref: JobRef, view: View) -> None:
    page = view.open("#/jobs/default/llama")
    page.get_by_role("link", name="Compare", exact=True).click()
    # The first validation and the last one, which the address names from then on.
    expect(page).to_have_url(re.compile(r"leftStep=0&rightStep=20"))
    expect(page.locator(".summary")).to_contain_text("right higher in 6")
    right = page.get_by_role("group", name="Right")
    right.get_by_label("Job").fill("other")
    right.get_by_label("Job").press("Enter")
    expect(page.locator(".summary")).to_contain_text("right higher in 18")
    left = page.get_by_role("group", name="Left")
    left.get_by_label("Step").select_option("20")
    expect(page.locator(".summary")).to_contain_text("right higher in 12")
    # A step that has validation metrics, but no stored responses.
    left.get_by_label("Step").select_option("10")
    expect(
        page.get_by_text("no response of a validation at step 10 of default/llama is stored")
    ).to_be_visible()


def label_two_pairs(page: "Page") -> None:
    """Label two pairs and one response."""
    first = page.get_by_role("article", name="Pair 1 of 24").get_by_role("group", name="Label of this pair")
    first.get_by_role("button", name="Left is better").click()
    expect(first).to_contain_text("by ann")
    first.get_by_role("button", name="Right is better").click()
    expect(first.get_by_role("button", name="Left is better")).to_have_attribute("aria-pressed", "false")
    first.get_by_label("Reason").fill("<b>correct</b>")
    first.get_by_label("Reason").press("Enter")
    expect(page.locator("#spoken")).to_have_text("Label stored")
    second = page.get_by_role("article", name="Pair 2 of 24")
    bad = second.get_by_role("button", name="Both bad")
    bad.focus()
    page.keyboard.press("Enter")
    expect(bad).to_have_attribute("aria-pressed", "true")
    page.keyboard.press("Enter")
    expect(bad).to_have_attribute("aria-pressed", "false")
    wrong = second.get_by_role("group", name="Label of the right response")
    wrong.get_by_role("button", name="Wrong").click()
    expect(wrong).to_contain_text("by ann")


def test_labels_survive_a_reload_and_become_preferences(
    site: MemoryBackend, ref: JobRef, view: View, tmp_path: Path
) -> None:
    page = view.open(_COMPARE)
    label_two_pairs(page)
    page.reload()
    first = page.get_by_role("article", name="Pair 1 of 24").get_by_role("group", name="Label of this pair")
    expect(first.get_by_role("button", name="Right is better")).to_have_attribute("aria-pressed", "true")
    expect(first.get_by_label("Reason")).to_have_value("<b>correct</b>")
    second = page.get_by_role("article", name="Pair 2 of 24")
    expect(second.get_by_role("button", name="Both bad")).to_have_attribute("aria-pressed", "false")

    with page.expect_download() as download:
        page.get_by_role("link", name="Preferences of default/llama").click()
    download.value.save_as(tmp_path / "preferences.jsonl")
    (row,) = [json.loads(line) for line in (tmp_path / "preferences.jsonl").read_text().splitlines()]
    text = "Add the tens, then the ones. 4 + 17 is"
    assert row == {"prompt": "4 + 17 =", "chosen": f"{text} 21.", "rejected": f"{text} 11."}

    # With the sides swapped it is the same pair.
    view.open("#/compare?left=default/other&leftStep=20&right=default/llama&rightStep=0")
    first = page.get_by_role("article", name="Pair 1 of 24").get_by_role("group", name="Label of this pair")
    expect(first.get_by_role("button", name="Left is better")).to_have_attribute("aria-pressed", "true")


def test_labels_are_shown_and_refused_where_the_dashboard_is_read_only(
    access: RuledAccess, ref: JobRef, view: View
) -> None:
    page = view.open(_COMPARE)
    label_two_pairs(page)
    access.read_only = True
    page.reload()
    first = page.get_by_role("article", name="Pair 1 of 24").get_by_role("group", name="Label of this pair")
    expect(first).to_contain_text("Right is better · <b>correct</b> · by ann")
    expect(first.get_by_role("button")).to_have_count(0)


def test_a_refused_label_is_explained(access: RuledAccess, ref: JobRef, view: View) -> None:
    access.people["secret"] = Person("ann", verbs=frozenset({"get", "list", "watch"}))
    page = view.open(_COMPARE)
    first = page.get_by_role("article", name="Pair 1 of 24").get_by_role("group", name="Label of this pair")
    first.get_by_role("button", name="Left is better").click()
    expect(first.get_by_role("alert")).to_contain_text("ann may not patch alignmentjobs")
    expect(first.get_by_role("button", name="Left is better")).to_have_attribute("aria-pressed", "false")


def test_intervals_are_drawn_in_the_curves(ref: JobRef, view: View) -> None:
    page = view.open("#/jobs/default/llama")
    figure = page.locator("#figure-validation")
    figure.scroll_into_view_if_needed()
    expect(figure.locator(".errorbars path").first).to_be_attached()
    expect(figure.locator(".unseen")).to_contain_text("0.337 to 0.497")
    figure.get_by_text("Table").click()
    expect(figure.get_by_role("row", name="20")).to_contain_text("0.417 (0.337 to 0.497)")

"""Every view passes axe's accessibility rules, in both themes and on a phone."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import expect

from support.browser import Dashboard, View, done
from support.memory_backend import MemoryBackend
from support.page_jobs import running_job, validate

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

_JOB = "#/jobs/default/llama"
#: Addresses, each with the selector of an element that the drawn view contains.
_VIEWS = (
    ("#/", "table.jobs tbody tr"),
    ("#/?phase=Failed", ".notice"),
    (f"{_JOB}?step=20", ".besides .token"),
    (f"{_JOB}?tab=samples&versus=20", ".pair article:nth-child(2)"),
    (f"{_JOB}?tab=roles", ".roles tbody tr"),
    (f"{_JOB}?tab=logs", ".logline"),
    (f"{_JOB}?tab=spec", ".yaml li"),
    (f"{_JOB}?tab=events", ".events tbody tr"),
    ("#/compare?left=default/llama&leftStep=0&right=default/other&rightStep=5", ".compared"),
)


@pytest.fixture
def filled(site: MemoryBackend, dashboard: Dashboard) -> Iterator[Dashboard]:
    ref = done(running_job(site, "llama", 30))
    validate(site, ref, 0, 3)
    validate(site, done(running_job(site, "other", 5)), 5, 20)
    site.status(ref, message="waits for a very-long-name-without-any-place-to-break-it-" + "x" * 60)
    yield dashboard


def serious(page: "Page", theme: str) -> list[str]:
    """Return the serious violations that axe finds. The themes differ only in colours."""
    options = {} if theme == "light" else {"runOnly": ["color-contrast"]}
    violations = Axe().run(page, options=options).response["violations"]
    return [
        f"{rule['id']} ({rule['impact']}) {page.url}: {node['html'][:160]} {node['failureSummary'][:200]}"
        for rule in violations
        if rule["impact"] in ("serious", "critical")
        for node in rule["nodes"]
    ]


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_no_view_has_serious_violations(browser: "Browser", filled: Dashboard, theme: str) -> None:
    with View(browser, filled.url, color_scheme=theme, reduced_motion="reduce") as view:
        page = view.open("")
        expect(page.get_by_label("Token")).to_be_visible()
        violations = serious(page, theme)
        view.sign_in("secret")
        for address, selector in _VIEWS:
            view.open(address)
            expect(page.locator(selector).first).to_be_visible()
            if "step=" in address:
                expect(page.locator(".chart .main-svg").first).to_be_visible()
                page.locator(".astable summary").first.click()
            assert page.locator("html").get_attribute("data-theme") == theme
            violations += serious(page, theme)
        view.open(_JOB)
        page.get_by_role("button", name="Delete").click()
        violations += serious(page, theme)
    assert not violations, "\n".join(violations)


def test_no_horizontal_scrolling_on_a_phone(browser: "Browser", filled: Dashboard) -> None:
    small = {"width": 360, "height": 740}
    with View(browser, filled.url, viewport=small, has_touch=True, is_mobile=True) as view:
        view.sign_in("secret")
        for address, selector in _VIEWS:
            page = view.open(address)
            expect(page.locator(selector).first).to_be_visible()
            width = page.evaluate("document.documentElement.scrollWidth")
            assert width <= small["width"], f"{address} is {width} pixels wide"


def test_the_chosen_theme_is_stored(browser: "Browser", filled: Dashboard) -> None:
    with View(browser, filled.url, color_scheme="light") as view:
        view.sign_in("secret")
        page = view.page
        page.get_by_role("button", name="Use the dark colours").click()
        page.reload()
        expect(page.locator("html")).to_have_attribute("data-theme", "dark")
        page.get_by_role("button", name="Use the light colours").click()
        expect(page.locator("html")).to_have_attribute("data-theme", "light")

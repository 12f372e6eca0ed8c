"""A job's page in a browser, over a simulated job."""

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

import pytest
from playwright.sync_api import expect

from kubealign.client.errors import MetricsUnreadable
from kubealign.client.records import JobRef
from kubealign.read_model import StepMetrics
from support.browser import Dashboard, View, done
from support.memory_backend import MemoryBackend
from support.page_jobs import running_job, sample, values

if TYPE_CHECKING:
    from playwright.sync_api import Page

_STEPS = 40
_ADDRESS = "#/jobs/default/llama"


@pytest.fixture
def ref(site: MemoryBackend) -> JobRef:
    return done(running_job(site, "llama", _STEPS))


def steps(page: "Page", panel: str = "kl", trace: int = 1) -> list[int]:
    """Return the steps that a panel's curve shows."""
    script = "([id, trace]) => document.querySelector(`#figure-${id} .plot`)?.data?.[trace]?.customdata ?? []"
    shown: list[int] = page.evaluate(script, [panel, trace])
    return shown


def until_steps(page: "Page", expected: list[int], panel: str = "kl") -> None:
    """Wait until the curve shows exactly these steps."""
    script = """([id, expected]) => JSON.stringify(
        document.querySelector(`#figure-${id} .plot`)?.data?.[1]?.customdata) === JSON.stringify(expected)"""
    page.wait_for_function(script, arg=[panel, expected])


def shown_range(page: "Page", panel: str) -> list[float]:
    shown: list[float] = page.evaluate(f"document.querySelector('#figure-{panel} .plot').layout.xaxis.range")
    return shown


def test_curves_grow_and_drop_rolled_back_steps(site: MemoryBackend, ref: JobRef, view: View) -> None:
    page = view.open(_ADDRESS)
    until_steps(page, list(range(1, 41)))
    expect(page.locator("#figure-reward .legend")).to_contain_text("helpful")
    expect(page.locator("#figure-kl [role=img]")).to_have_accessible_description(
        re.compile("at step 40; .* at step 1")
    )
    for step in (41, 42, 43):
        site.report(ref, step, values(step))
    until_steps(page, list(range(1, 44)))
    expect(page.locator(".jobhead .steps")).to_have_text("43 / 200")
    site.report(ref, 40, values(40) | {"kl/reference": 9.0}, fence=2)
    until_steps(page, list(range(1, 41)))
    expect(page.locator("#figure-kl .legend")).to_contain_text("9")
    page.locator("#figure-kl summary").click()
    expect(page.locator("#figure-kl tbody tr").first).to_have_text("409")


def test_shared_zoom_smoothing_axis_and_overlay(site: MemoryBackend, ref: JobRef, view: View) -> None:
    done(running_job(site, "other", 60, seed=3))
    page = view.open(_ADDRESS)
    until_steps(page, list(range(1, 41)))
    page.get_by_label("From (x axis)").fill("10")
    page.get_by_label("to (x axis)").fill("20")
    page.keyboard.press("Tab")
    until_steps(page, list(range(9, 22)))
    assert shown_range(page, "kl") == shown_range(page, "reward") == [10, 20]
    page.get_by_role("button", name="Whole run").click()
    until_steps(page, list(range(1, 41)))

    page.get_by_role("slider", name="Smoothing").fill("0")
    page.wait_for_function("() => document.querySelector('#figure-kl .plot').data.length === 1")
    page.get_by_role("button", name="log y").click()
    page.wait_for_function("() => document.querySelector('#figure-kl .plot').layout.yaxis.type === 'log'")

    page.get_by_label("Compare with").fill("other")
    expect(page.locator("datalist option")).to_have_count(1)
    page.get_by_label("Compare with").fill("default/other")
    page.wait_for_function("() => document.querySelector('#figure-kl .plot').data.length === 2")
    assert steps(page)[-1] == 60
    page.get_by_role("button", name="time", exact=True).click()
    expect(page).to_have_url(re.compile("axis=time"))
    page.reload()
    page.wait_for_function("() => document.querySelector('#figure-kl .plot')?.data?.length === 3")


def test_navigation_from_curve_to_step_to_sample_to_token(
    site: MemoryBackend, ref: JobRef, view: View
) -> None:
    page = view.open(_ADDRESS)
    until_steps(page, list(range(1, 41)))
    box = page.locator("#figure-reward .plot").bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + box["width"] - 80, box["y"] + 80)
    expect(page.locator("#figure-kl .cursor")).to_be_visible()
    page.mouse.click(box["x"] + box["width"] - 80, box["y"] + 80)
    expect(page).to_have_url(re.compile(r"step=3\d"))
    view.open(f"{_ADDRESS}?step=35")
    panel = page.get_by_role("complementary")
    expect(panel.get_by_role("heading", name="Samples of step 35")).to_be_visible()
    expect(panel.locator(".sampleline")).to_have_count(4)
    panel.get_by_role("button", name="Next sample").click()
    expect(panel.get_by_role("article")).to_contain_text("Sample 2 of 4")
    expect(panel.get_by_role("article")).to_contain_text("Weight version34")
    expect(panel.locator(".explanation")).to_have_text("2 of 2 tags")

    tokens = panel.locator(".token")
    tokens.nth(2).hover()
    expect(panel.locator(".reading")).to_contain_text("Token 3 of")
    page.keyboard.press("Tab")
    panel.get_by_role("listbox").focus()
    page.keyboard.press("ArrowRight")
    expect(panel.locator(".reading")).to_contain_text("Token 4 of")
    panel.get_by_label("Colour by").select_option("Advantage")
    assert {"high", "low"} <= set(tokens.evaluate_all("all => all.map((one) => one.dataset.tone)"))
    panel.get_by_label("Compare with step").fill("10")
    page.keyboard.press("Enter")
    expect(panel.get_by_role("article", name="Step 10, the same prompt")).to_be_visible()
    view.open(f"{_ADDRESS}?tab=samples&step=33")
    page.get_by_role("button", name="Show step 35").click()
    expect(page.get_by_role("heading", name="Samples of step 35")).to_be_visible()


def test_new_samples_replace_unread_ones(site: MemoryBackend, ref: JobRef, view: View) -> None:
    page = view.open(f"{_ADDRESS}?tab=samples")
    expect(page.get_by_role("heading", name="Samples of step 40")).to_be_visible()
    site.sample(ref, sample(41, 0))
    expect(page.get_by_role("heading", name="Samples of step 41")).to_be_visible()


def test_suspend_resume_scale_and_delete(site: MemoryBackend, ref: JobRef, view: View) -> None:
    page = view.open(_ADDRESS)
    page.get_by_role("button", name="Suspend").click()
    expect(page.locator(".jobhead .phase")).to_have_text("Suspended")
    expect(page.locator("#spoken")).to_contain_text("llama is suspended")
    page.get_by_role("button", name="Resume").click()
    expect(page.locator(".jobhead .phase")).to_have_text("Running")
    page.get_by_role("button", name="Scale").click()
    page.get_by_label("Rollout workers").fill("5")
    page.get_by_role("dialog").get_by_role("button", name="Scale").click()
    expect(page.get_by_role("dialog")).to_have_count(0)
    assert done(site.get(ref)).resource["spec"]["rollout"]["replicas"] == 5
    page.get_by_role("button", name="Delete").click()
    page.get_by_role("dialog").get_by_role("button", name="Cancel").click()
    page.get_by_role("button", name="Delete").click()
    page.get_by_role("dialog").get_by_role("button", name="Delete").click()
    expect(page.get_by_text("There are no jobs yet.")).to_be_visible()
    view.open(_ADDRESS)
    expect(page.locator("main").get_by_text("there is no job llama")).to_be_visible()


def test_metrics_that_cannot_be_read_are_explained(
    site: MemoryBackend, ref: JobRef, view: View, monkeypatch: pytest.MonkeyPatch
) -> None:
    readable = site.metrics

    async def unreadable(*arguments: object) -> Sequence[StepMetrics]:
        raise MetricsUnreadable("the key kubealign:default:llama:metrics cannot be read: <b>WRONGTYPE</b>")

    monkeypatch.setattr(site, "metrics", unreadable)
    page = view.open(_ADDRESS)
    notice = page.locator(".job > [role=status] .notice")
    expect(notice).to_have_text("the key kubealign:default:llama:metrics cannot be read: <b>WRONGTYPE</b>")
    expect(page.locator(".live")).to_have_text("live")
    expect(page.locator(".jobhead .steps")).to_be_visible()
    monkeypatch.setattr(site, "metrics", readable)
    # A change of the job, so that the page need not wait for the next poll.
    done(site.suspend(ref, True))
    until_steps(page, list(range(1, _STEPS + 1)))
    expect(notice).to_have_count(0)


def test_a_lost_connection_resumes_without_loss_in_two_tabs(
    site: MemoryBackend, ref: JobRef, dashboard: Dashboard, view: View
) -> None:
    first, second = view.open(_ADDRESS), view.tab()
    second.goto(view.url + _ADDRESS)
    for page in (first, second):
        until_steps(page, list(range(1, 41)))
        expect(page.locator(".live")).to_have_text("live")
        _count_resets(page)
    dashboard.stop()
    for page in (first, second):
        expect(page.locator(".live")).to_have_text("reconnecting")
    for step in (41, 42):
        site.report(ref, step, values(step))
    dashboard.start()
    for page in (first, second):
        expect(page.locator(".live")).to_have_text("live")
        until_steps(page, list(range(1, 43)))
    view.context.set_offline(True)
    expect(first.locator(".live")).to_have_text("reconnecting")
    site.report(ref, 43, values(43))
    view.context.set_offline(False)
    for page in (first, second):
        until_steps(page, list(range(1, 44)))
        # The stream resumed: a new one would have sent the first step again.
        assert page.evaluate("window.resumedFrom.every((id) => id.startsWith('4'))")
        assert page.evaluate("window.resumedFrom.length") >= 1


def _count_resets(page: "Page") -> None:
    page.evaluate("""() => {
        window.resumedFrom = [];
        const Source = window.EventSource;
        window.EventSource = class extends Source {
            constructor(url) {
                super(url);
                window.resumedFrom.push(new URL(url).searchParams.get('lastEventId') ?? '');
            }
        };
    }""")


def test_roles_logs_spec_and_events(site: MemoryBackend, ref: JobRef, view: View) -> None:
    page = view.open(f"{_ADDRESS}?tab=roles")
    row = page.get_by_role("row").filter(has=page.get_by_role("rowheader", name="rollout-1"))
    expect(row).to_contain_text("2600")
    expect(row).to_contain_text("out of memory")
    site.say(ref, "rollout-1", weight_version=41, tokens_per_second=1300.0, quarantined=True)
    expect(row).to_contain_text("1300")

    page.get_by_role("link", name="Logs").click()
    lines = page.locator(".logline")
    expect(lines).to_have_count(4)
    site.log(ref, "rollout-0", "a line of later")
    expect(lines).to_have_count(5)
    page.get_by_label("Process").select_option("all of rollout")
    expect(lines).to_have_count(2)
    page.get_by_label("Filter").fill("LATER")
    expect(lines).to_have_text([re.compile("a line of later")])

    page.get_by_role("link", name="Spec").click()
    expect(page.locator(".yaml")).to_contain_text("promptsPerStep: 64")
    page.get_by_role("button", name="Fold all", exact=True).click()
    expect(page.get_by_text("promptsPerStep:", exact=True)).to_be_hidden()
    page.get_by_role("link", name="Events").click()
    expect(page.get_by_role("row").nth(1)).to_contain_text("rollout-1 ended with 137")


def test_thousands_of_steps_are_downsampled(site: MemoryBackend, ref: JobRef, view: View) -> None:
    for step in range(_STEPS + 1, 5001):
        site.report(ref, step, values(step))
    page = view.open(_ADDRESS)
    expect(page.locator(".jobhead .steps")).to_contain_text("5,000")
    page.wait_for_function(
        "() => document.querySelector('#figure-kl .plot')?.data?.[1]?.customdata.at(-1) === 5000"
    )
    shown = steps(page)
    assert shown[0] == 1
    assert len(shown) < 1500

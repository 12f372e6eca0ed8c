"""Data of a job is displayed verbatim and never executed."""

import re
from dataclasses import replace

from playwright.sync_api import expect

from kubealign.client.records import JobEvent
from kubealign.read_model import SampleRecord
from kubealign.validation_record import ValidationRecord
from support.browser import View, done
from support.memory_backend import MemoryBackend
from support.page_jobs import MARKUP, running_job

_ADDRESS = "#/jobs/default/llama"


def test_markup_is_shown_and_never_run(site: MemoryBackend, view: View) -> None:
    ref = done(running_job(site, "llama", 3))
    site.status(ref, message=MARKUP)
    site.report(
        ref, 4, {"reward/mean": 1.0, "reward/<img src=x onerror=alert()>/mean": 0.5, f"odd {MARKUP}": 1.0}
    )
    values = {"kl": (0.1, 0.2)}
    marked = SampleRecord("", 4, MARKUP, MARKUP, 9.0, {MARKUP: 1.0}, group_id=MARKUP, purpose=MARKUP,
                    tokens=(MARKUP, "!"), token_values=values, explanations={MARKUP: MARKUP})  # fmt: skip
    site.sample(ref, marked)
    site.log(ref, "driver", MARKUP, f'{{"message": "{MARKUP.replace(chr(34), chr(39))}"}}')
    site.say(ref, "rollout-0", last_error=MARKUP)
    done(site.patch(ref, {"metadata": {"annotations": {"note": MARKUP}}}))
    now = done(site.events(ref))[0].time
    site.happen(ref, JobEvent(now, "Warning", "Odd", MARKUP))

    page = view.open("#/")
    expect(page.locator("table.jobs")).to_contain_text(MARKUP)
    view.open(_ADDRESS)
    expect(page.locator(".jobhead")).to_contain_text(MARKUP)
    expect(page.locator("#figure-reward .legend")).to_contain_text("<img src=x")
    view.open(f"{_ADDRESS}?tab=samples")
    expect(page.locator(".sample .prompt")).to_have_text(MARKUP)
    expect(page.locator(".sample .tokens")).to_contain_text(MARKUP)
    expect(page.locator(".sample .explanation")).to_have_text(MARKUP)
    page.locator(".token").first.hover()
    expect(page.locator(".reading")).to_contain_text("<img src=x")
    for tab, selector in (("roles", ".roles"), ("logs", ".logs"), ("spec", ".yaml"), ("events", ".events")):
        view.open(f"{_ADDRESS}?tab={tab}")
        expect(page.locator(selector)).to_contain_text(re.compile(r"<img src=x onerror="))
    record = ValidationRecord(0, MARKUP, MARKUP, {MARKUP: 1.0}, {MARKUP: MARKUP}, set_name=MARKUP)
    site.validate(ref, 4, record)
    site.validate(ref, 5, replace(record, response=f"{MARKUP} and more"))
    site.report(ref, 5, {f"val/{MARKUP}": 1.0})
    view.open("#/compare?left=default/llama&leftStep=4&right=default/llama&rightStep=5")
    expect(page.locator(".compared .prompt")).to_have_text(MARKUP)
    expect(page.locator(".compared ins")).to_have_text(" and more")
    expect(page.locator(".compare table")).to_contain_text("<img src=x")
    assert page.evaluate("window.ran") is None
    assert page.locator("main img, main script").count() == 0


def test_the_content_security_policy_blocks_inline_scripts(view: View) -> None:
    page = view.open("#/")
    page.evaluate(
        "document.body.insertAdjacentHTML('beforeend', '<img src=x onerror=\"window.ran = true\">')"
    )
    page.evaluate("() => new Promise((done) => requestAnimationFrame(() => setTimeout(done, 100)))")
    assert page.evaluate("window.ran") is None
    assert any("Content Security Policy" in failure for failure in view.failures)
    view.failures.clear()

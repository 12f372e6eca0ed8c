"""A real browser and a real dashboard."""

import asyncio
import contextlib
from collections.abc import Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from kubealign_dashboard.access import Access
from kubealign_dashboard.app import create_app
from kubealign_dashboard.streams.job_feed import PollIntervals
from support.free_address import free_port
from support.served import served

if TYPE_CHECKING:
    from playwright.sync_api import Browser, BrowserContext, Page

CHROMIUM = Path("/usr/bin/chromium")
_ANSWER_SECONDS = 30.0

T = TypeVar("T")


def done(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine in a thread with its own event loop; Playwright occupies that of the test's thread."""
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(asyncio.run, work).result(_ANSWER_SECONDS)


@contextlib.contextmanager
def chromium() -> Iterator["Browser"]:
    """Launch Debian's Chromium without a window."""
    from playwright.sync_api import expect, sync_playwright

    # A machine that is busy with other tests draws slowly.
    expect.set_options(timeout=_ANSWER_SECONDS * 1000)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=CHROMIUM, args=["--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu"]
        )
        try:
            yield browser
        finally:
            browser.close()


class Dashboard:
    """Serves the dashboard application over an access, on a port that stays the same across restarts, with
    poll intervals short enough for tests."""

    def __init__(self, access: Access) -> None:
        self._access = access
        self._stack = contextlib.ExitStack()
        self.port = free_port()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/"

    def start(self) -> None:
        """Start serving; return when the server answers."""
        app = create_app(self._access, poll_intervals=PollIntervals(metrics=0.1, processes=0.2, finished=0.5))
        self._stack.enter_context(served(app, self.port))

    def stop(self) -> None:
        """Stop the server and cut its streams."""
        self._stack.close()

    def __enter__(self) -> "Dashboard":
        self.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()


class View:
    """A browser window with one tab, and more on demand. Script errors of the page fail the test on exit."""

    def __init__(self, browser: "Browser", url: str, **options: Any) -> None:
        self.url = url
        self.context: BrowserContext = browser.new_context(
            viewport=options.pop("viewport", {"width": 1440, "height": 900}), **options
        )
        self.context.set_default_timeout(_ANSWER_SECONDS * 1000)
        self.failures: list[str] = []
        self.page: Page = self.tab()

    def tab(self) -> "Page":
        """Open another tab of the same window, which shares the cookie."""
        page = self.context.new_page()
        page.on("pageerror", lambda error: self.failures.append(str(error)))
        page.on("console", lambda message: self._record_error(message.type, message.text))
        return page

    def sign_in(self, token: str) -> None:
        self.page.goto(f"{self.url}?token={token}")

    def open(self, hash: str) -> "Page":
        """Open a view of the page by its URL."""
        self.page.goto(self.url + hash)
        return self.page

    def _record_error(self, kind: str, text: str) -> None:
        # Some tests stop the dashboard or expect a refusal. A violation of the content security policy is
        # always an error.
        if kind == "error" and "Failed to load resource" not in text and "ERR_" not in text:
            self.failures.append(text)

    def __enter__(self) -> "View":
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        self.context.close()
        if kind is None:
            assert not self.failures, "\n".join(self.failures)

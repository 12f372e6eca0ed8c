"""A browser and a dashboard for the page's tests."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from support.browser import CHROMIUM, Dashboard, View, chromium
from support.memory_backend import MemoryBackend
from support.ruled_access import Person, RuledAccess

if TYPE_CHECKING:
    from playwright.sync_api import Browser


@pytest.fixture(scope="package")
def browser() -> "Iterator[Browser]":
    if not CHROMIUM.exists():
        pytest.skip(f"{CHROMIUM} is not there: install chromium")
    with chromium() as launched:
        yield launched


@pytest.fixture
def site() -> MemoryBackend:
    return MemoryBackend()


@pytest.fixture
def access(site: MemoryBackend) -> RuledAccess:
    return RuledAccess(site, {"secret": Person("ann")})


@pytest.fixture
def dashboard(access: RuledAccess) -> Iterator[Dashboard]:
    with Dashboard(access) as served:
        yield served


@pytest.fixture
def view(browser: "Browser", dashboard: Dashboard) -> Iterator[View]:
    """Open a signed-in tab on a wide screen; a script error fails the test."""
    with View(browser, dashboard.url) as opened:
        opened.sign_in("secret")
        yield opened

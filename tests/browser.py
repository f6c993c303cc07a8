"""A headless Chromium for tests of pages; they are skipped where there is none."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

SYSTEM = ("chromium", "chromium-browser", "google-chrome")
WIDE, NARROW = 1280, 375


@contextmanager
def opened_browser() -> Iterator[Any]:
    """Playwright's browser. Skips the test: no playwright, or no Chromium."""
    sync_api = pytest.importorskip("playwright.sync_api", reason="needs playwright (extra dev)")
    found = next(filter(None, map(shutil.which, SYSTEM)), None)
    with sync_api.sync_playwright() as playwright:
        path = found or playwright.chromium.executable_path
        if not Path(path).exists():
            pytest.skip("no Chromium: install the system's, or run `playwright install chromium`")
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield browser
        browser.close()


@contextmanager
def opened_page(browser: Any, address: str, width: int = WIDE) -> Iterator[Any]:
    """A page in light colors; that its script fails or that it fetches what it may not fails the test."""
    page = browser.new_page(viewport={"width": width, "height": 800}, color_scheme="light")
    problems: list[str] = []
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.on("console", lambda message: problems.append(message.text) if message.type == "error" else None)
    page.goto(address)
    yield page
    page.close()
    assert problems == []


def overflow(page: Any) -> int:
    """Pixels by which the page is wider than its window."""
    return page.evaluate("document.documentElement.scrollWidth - window.innerWidth")

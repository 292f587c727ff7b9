"""Debian's Chromium through Playwright: no browser is downloaded, and nothing but the page under test is talked to."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Browser, Page, Request, sync_playwright

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
         "--disable-component-update", "--disable-sync"]  # fmt: skip


@contextmanager
def started() -> Iterator[Browser]:
    path = next(filter(None, map(shutil.which, NAMES)), None)
    if path is None:
        pytest.skip("no Chromium here; on Debian: apt-get install chromium")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=FLAGS)
        try:
            yield browser
        finally:
            browser.close()


class Watched:
    """A visitor's page, with what must not happen on it: console errors and requests to other hosts."""

    def __init__(
        self, browser: Browser, url: str, *, locale: str = "en-US", width: int = 1280, height: int = 900,
        init_script: str = "",
    ) -> None:
        self.errors: list[str] = []
        self.strangers: list[str] = []
        context = browser.new_context(locale=locale, viewport={"width": width, "height": height})
        context.set_default_timeout(60_000)
        if init_script:
            context.add_init_script(init_script)
        self.page: Page = context.new_page()
        self.page.on("console", lambda message: self.errors.append(message.text) if message.type == "error" else None)
        self.page.on("pageerror", lambda error: self.errors.append(str(error)))
        self.page.on("request", self._note)
        self.page.goto(url)
        self.page.wait_for_selector("#generate")
        self.page.wait_for_selector("#status-line .vc-dot.ready")

    def _note(self, request: Request) -> None:
        parts = urlsplit(request.url)
        if parts.scheme not in ("data", "blob") and parts.hostname != "127.0.0.1":
            self.strangers.append(request.url)

    def give(self, clip: str, text: str, seed: str = "") -> None:
        self.page.set_input_files("#clip input[type=file]", clip)
        self.page.wait_for_selector("#doctor .vc-verdict")
        self.page.fill("#text textarea", text)
        self.page.fill("#seed textarea, #seed input", seed)

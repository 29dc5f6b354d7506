"""Chromium of the distribution, driven by playwright, and a page whose requests and errors are recorded."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

NAMES = ("chromium", "chromium-browser", "google-chrome")
PATIENCE_MS = 15_000


def find_chromium() -> str | None:
    """Its path: PENSTOCK_CHROMIUM, else the first of NAMES on PATH."""
    return os.environ.get("PENSTOCK_CHROMIUM") or next(
        (at for name in NAMES if (at := shutil.which(name))), None
    )


@contextmanager
def chromium() -> Iterator[Browser]:
    """A browser without a screen. Skips the test where Chromium or playwright is missing."""
    path = find_chromium()
    if path is None:
        pytest.skip("no chromium: apt-get install chromium, or name one in PENSTOCK_CHROMIUM")
    driver = pytest.importorskip("playwright.sync_api", reason="no playwright: make setup installs it")
    with driver.sync_playwright() as playwright:
        # Root, as in a container, has no sandbox; the pages are our own.
        sandbox = ["--no-sandbox"] if os.geteuid() == 0 else []
        browser = playwright.chromium.launch(executable_path=path, args=[*sandbox, "--disable-dev-shm-usage"])
        try:
            yield browser
        finally:
            browser.close()


class Tab:
    """A page of the server's, in a browser profile of its own.

    requests: URLs of all requests. troubles: errors of scripts, refusals by the content security policy,
    dialogs.
    """

    def __init__(self, browser: Browser, url: str, **options: Any) -> None:
        self.url = url
        self.requests: list[str] = []
        self.troubles: list[str] = []
        self.context = browser.new_context(**options)
        self.context.set_default_timeout(PATIENCE_MS)
        self.context.on("request", lambda request: self.requests.append(request.url))
        self.page: Page = self.context.new_page()
        self.page.on("pageerror", lambda error: self.troubles.append(str(error)))
        self.page.on("console", self._on_console)
        self.page.on("dialog", self._on_dialog)

    def _on_console(self, message: Any) -> None:
        # A status of 400 and above is noted as an error of the console; the page shows it to the user.
        if message.type == "error" and "Failed to load resource" not in message.text:
            self.troubles.append(message.text)

    def _on_dialog(self, dialog: Any) -> None:
        self.troubles.append(f"dialog: {dialog.message}")
        dialog.dismiss()

    def open(self, view: str = "") -> Page:
        """Opens a view of the page by its address."""
        self.page.goto(f"{self.url}#/{view}" if view else self.url)
        return self.page

    def log_in(self, user: str = "ann", password: str = "secret") -> Page:
        """Fills the login form in and sends it; waits for the views."""
        page = self.open()
        page.get_by_label("User").fill(user)
        page.get_by_label("Password").fill(password)
        page.get_by_role("button", name="Log in").click()
        page.get_by_role("navigation", name="Views").wait_for()
        return page

    def close(self) -> None:
        """Closes it. Raises AssertionError for troubles, and for requests to other origins."""
        self.context.close()
        assert self.troubles == []
        strange = [
            url for url in self.requests if not url.startswith(self.url.rpartition("/ui/")[0] + "/ui/")
        ]
        assert strange == []
        assert self.requests

"""A real Chromium, driven over its own protocol, for pages that must be looked at."""

from __future__ import annotations

import base64
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from selenium import webdriver
from selenium.webdriver.chrome.options import Options
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.support.ui import WebDriverWait

FLAGS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
    "--hide-scrollbars",
)


class Page:
    """One page in a browser of its own."""

    def __init__(self, driver: webdriver.Chrome) -> None:
        self.driver = driver

    def open(self, path: Path, *, width: int = 1200, dark: bool = False, mobile: bool = False) -> None:
        """Open a file at a width and in a colour scheme, and wait until its charts are drawn."""
        self._command(
            "Emulation.setEmulatedMedia",
            features=[{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}],
        )
        self._command("Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=mobile)
        self.visit(path.as_uri())

    def visit(self, address: str) -> None:
        """Go to an address and wait until its charts are drawn."""
        self.driver.get(address)
        self.wait("return !document.querySelector('.chart') || document.documentElement.dataset.charts === 'drawn'")

    def wait(self, script: str) -> None:
        """Wait, at most two and a half minutes, until a script returns true."""
        WebDriverWait(self.driver, 150).until(lambda driver: driver.execute_script(script))

    def run(self, script: str) -> Any:
        """Return what a script in the page returns."""
        return self.driver.execute_script(script)

    def complaints(self) -> list[str]:
        """Return what the page's console holds: errors, refused scripts, refused fetches."""
        return [str(entry["message"]) for entry in self.driver.get_log("browser")]  # type: ignore[no-untyped-call]

    def printed(self) -> bytes:
        """Return the page as a PDF."""
        answer = self._command("Page.printToPDF", printBackground=True)
        return base64.b64decode(answer["data"])

    def overflow(self) -> int:
        """Return by how many pixels the page is wider than its window."""
        return int(self.run("return document.documentElement.scrollWidth - innerWidth"))

    def _command(self, name: str, **arguments: object) -> Any:
        return self.driver.execute_cdp_cmd(name, arguments)


@contextmanager
def chromium(profile: Path) -> Iterator[Page]:
    """Yield a page in a fresh Chromium. Skips where there is none: script/setup installs it."""
    browser, driver_path = shutil.which("chromium"), shutil.which("chromedriver")
    if browser is None or driver_path is None:
        pytest.skip("no chromium and chromedriver here: script/setup installs them")
    options = Options()
    options.binary_location = browser
    for flag in (*FLAGS, f"--user-data-dir={profile}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(driver_path))
    try:
        driver.set_page_load_timeout(180)
        yield Page(driver)
    finally:
        driver.quit()

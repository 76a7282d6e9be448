"""A real browser for tests and pictures: Debian's Chromium, installed if need be, driven by playwright."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from debian import install

NAMES = ("chromium", "chromium-browser", "google-chrome")
ARGUMENTS = ("--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--disable-background-networking")


class NoBrowser(Exception):
    """Why there is none; tests are skipped with it."""


def _find() -> str | None:
    return next((found for name in NAMES if (found := shutil.which(name))), None)


@contextmanager
def chromium() -> Iterator[Any]:
    """A running browser with a profile of its own; raises NoBrowser with the reason."""
    try:
        from playwright.sync_api import sync_playwright
    except ImportError as error:
        raise NoBrowser(f"no playwright here ({error}): pip install playwright") from None
    if (missing := install("chromium", _find)) is not None:
        raise NoBrowser(missing)
    with sync_playwright() as running:
        browser = running.chromium.launch(executable_path=_find(), args=list(ARGUMENTS))
        try:
            yield browser
        finally:
            browser.close()

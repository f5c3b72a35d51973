"""Failures are written down as they come: a whole table takes long, and a broken promise should be seen at once."""

from __future__ import annotations

import os
import re
from pathlib import Path
from zlib import crc32

import pytest


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Write a failed cell's story beside the outcomes of the others."""
    folder = os.environ.get("OPSCTL_FAULTS_OUT")
    if folder and report.failed:
        slug = re.sub(r"[^a-z0-9]+", "-", report.nodeid.lower())[-120:]
        Path(folder, f"{slug}-{crc32(report.nodeid.encode()):08x}.failed.txt").write_text(
            f"{report.nodeid}\n\n{report.longreprtext}\n"
        )

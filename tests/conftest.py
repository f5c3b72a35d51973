"""Fixtures for every test. Those of the lab are in labfixtures.py."""

from __future__ import annotations

import os
import signal
from collections.abc import Generator

import hypothesis
import pytest

from tests.labfixtures import (
    fresh_lab_host,
    lab,
    lab_host,
    lab_hosts,
    make_lab_host,
    standin_host,
    standin_unit,
)

__all__ = [
    "fresh_lab_host",
    "lab",
    "lab_host",
    "lab_hosts",
    "make_lab_host",
    "standin_host",
    "standin_unit",
]

# The same examples every time: what a change breaks is what it broke, not what was drawn today.
hypothesis.settings.register_profile("same", derandomize=True, deadline=None)
hypothesis.settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "same"))

CORE = (
    "tests/campaign/test_runner.py",
    "tests/campaign/test_bad_input.py",
    "tests/campaign/test_launch_lines.py",
    "tests/faults/",
    "tests/guard/test_lease.py",
    "tests/host/test_fence.py",
    "tests/host/test_connection.py",
    "tests/lab/test_units.py",
    "tests/plan/",
    "tests/schedule/test_timer.py::test_a_timer_fires_and_the_night_is_measured_and_recorded",
    "tests/serving/launch/test_variants.py",
    "tests/test_docs.py::test_a_page_for_real_hosts_runs_in_order_on_a_host_of_that_name[README.md]",
    "tests/test_docs.py::test_the_walk_through_a_crash",
)
"""Tests on lab hosts that ``script/test`` runs within its eight minutes; ``script/test-lab`` runs the others."""


def pytest_configure() -> None:
    """Hear Ctrl-C though a shell started the suite in its background, ignored: what tests start inherits that."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add what ``script/test`` asks for: a package that is missing must not hide a test."""
    parser.addoption("--no-skips", action="store_true", help="a test that is skipped fails")


def _refuse_skip(report: pytest.TestReport | pytest.CollectReport) -> None:
    reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr
    report.outcome, report.longrepr = "failed", f"{reason}: with --no-skips a skipped test fails"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Fail a test that is skipped, where ``--no-skips`` says so."""
    report = yield
    if report.skipped and item.config.getoption("no_skips") and not hasattr(report, "wasxfail"):
        _refuse_skip(report)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """Fail a file that is skipped, where ``--no-skips`` says so."""
    report = yield
    if report.skipped and collector.config.getoption("no_skips"):
        _refuse_skip(report)
    return report


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what ``script/test`` leaves to ``script/test-lab``."""
    for item in items:
        if item.get_closest_marker("lab") and not item.nodeid.startswith(CORE):
            item.add_marker(pytest.mark.thorough)

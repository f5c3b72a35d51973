"""Fixtures for every test. Those of the lab are in labfixtures.py."""

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

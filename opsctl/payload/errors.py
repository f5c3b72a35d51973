"""Errors of the payload. They end up as the reason of a cell or of the ``end`` record, never as a traceback."""

from __future__ import annotations


class PayloadError(Exception):
    """What was asked cannot be measured here. ``str(error)`` is a sentence for a person."""


class CellFailed(PayloadError):
    """One cell cannot be measured; the others go on."""


class CellSkipped(PayloadError):
    """One cell does not apply to this machine, such as a kernel of a package that is not there."""


class Cancelled(BaseException):
    """SIGTERM or SIGINT: stop now, and say so in the ``end`` record. Not an Exception: nothing may swallow it."""

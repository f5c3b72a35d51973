"""Kineto traces: what a decode step consists of, from gigabytes, in seconds. A library of its own.

>>> from opsctl.trace import analyse
>>> analyse([Path("traces/")], world_size=8).document()["steps"]["decode"]["wall_us"]["p50"]

It imports nothing of opsctl but ``opsctl.errors``, runs on the standard library of Python 3.9 and later (on
the serving host too), and is faster where numpy, msgspec and isal can be imported; never different.
"""

from opsctl.trace.analysis import Analysis, analyse
from opsctl.trace.check import FileCheck, verify_file
from opsctl.trace.clock import Tpot
from opsctl.trace.compare import Comparison, compare
from opsctl.trace.excerpt import Excerpt, write_excerpt

__all__ = [
    "Analysis",
    "Comparison",
    "Excerpt",
    "FileCheck",
    "Tpot",
    "analyse",
    "compare",
    "verify_file",
    "write_excerpt",
]

"""Kineto traces: what a decode step consists of, from gigabytes, in seconds. A library of its own.

>>> from opsctl.trace import analyse
>>> analyse([Path("traces/")], world_size=8).main.wall_us.p50

It imports nothing of opsctl but ``opsctl.errors``, runs on the standard library of Python 3.9 and later (on
the serving host too), and is faster where numpy, msgspec and isal can be imported; never different.
"""

from opsctl.trace.analysis import analyse
from opsctl.trace.check import FileCheck, verify_file
from opsctl.trace.clock import Tpot
from opsctl.trace.compare import compare
from opsctl.trace.document import Comparison, TraceAnalysis
from opsctl.trace.excerpt import Excerpt, Taken, write_excerpt

__all__ = [
    "Comparison",
    "Excerpt",
    "FileCheck",
    "Taken",
    "Tpot",
    "TraceAnalysis",
    "analyse",
    "compare",
    "verify_file",
    "write_excerpt",
]

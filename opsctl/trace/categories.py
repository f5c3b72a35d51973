"""Names to categories, and collectives' names to operations, by tables kept as data."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from pkgutil import get_data

from opsctl.errors import TraceError

OTHER = "other"
COMMUNICATION = "communication"
_DEVICE_COPIES = {"gpu_memcpy", "gpu_memset", "memcpy", "memset"}
_SAID = (
    ("allreduce", "all_reduce"), ("reducescatter", "reduce_scatter"), ("allgather", "all_gather"),
    ("alltoall", "all_to_all"), ("broadcast", "broadcast"), ("barrier", "barrier"), ("send", "send_recv"),
    ("recv", "send_recv"), ("reduce", "reduce"), ("gather", "gather"), ("scatter", "scatter"),
)  # fmt: skip
_CATEGORY = re.compile(r"([a-z][a-z_-]*):")
_PATTERN = re.compile(r"  - '((?:[^']|'')+)'")


def read_table(text: str, where: str) -> dict[str, list[re.Pattern[str]]]:
    """Return patterns by category of the strict subset of YAML that the tables are written in.

    Raises TraceError that names the line which is neither blank, a comment, ``name:`` nor ``  - 'pattern'``.
    """
    table: dict[str, list[re.Pattern[str]]] = {}
    last: list[re.Pattern[str]] | None = None
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        category, pattern = _CATEGORY.fullmatch(line), _PATTERN.fullmatch(line)
        try:
            if category and category[1] not in table:
                last = table.setdefault(category[1], [])
                continue
            if pattern and last is not None:
                last.append(re.compile(pattern[1].replace("''", "'"), re.IGNORECASE))
                continue
            reason = "wanted a new category, or a pattern in single quotes under one"
        except re.error as error:
            reason = f"this is no regular expression ({error})"
        raise TraceError(f"{where}:{number}: {reason}", seen=line)
    return table


class Categories:
    """Sorts names. ``order`` is the order of attribution where work overlaps: communication comes last.

    While a kernel computes, communication beside it costs nothing, so the time is the computation's.
    """

    def __init__(self, table: Mapping[str, list[re.Pattern[str]]], ops: Mapping[str, list[re.Pattern[str]]]) -> None:
        self._table, self._ops = table, ops
        self.order = [*(name for name in table if name != COMMUNICATION), OTHER, COMMUNICATION]
        self.category = lru_cache(maxsize=None)(self._category)
        self.collective = lru_cache(maxsize=None)(self._collective)

    def _category(self, kind: str, name: str) -> str:
        """Return the category of a name; ``kind`` is the ``cat`` that the file gives it."""
        if kind.lower() in _DEVICE_COPIES:
            return "copy"
        return _first(self._table, name) or OTHER

    def _collective(self, kind: str, name: str) -> str | None:
        """Return the operation (all_reduce, all_gather, …) that a name carries out, None for any other name."""
        if self.category(kind, name) != COMMUNICATION:
            return None
        return _first(self._ops, name)

    def is_collective(self, kind: str, name: str) -> bool:
        """Whether a name carries out a collective."""
        return self.collective(kind, name) is not None


def _first(table: Mapping[str, list[re.Pattern[str]]], name: str) -> str | None:
    return next((key for key, patterns in table.items() if any(pattern.search(name) for pattern in patterns)), None)


def operation_said(text: str) -> str | None:
    """Return the operation that the profiler's words mean (``_allgather_base``, ``nccl:all_to_all``)."""
    plain = text.lower().replace("_", "")
    return next((operation for word, operation in _SAID if word in plain), None)


@lru_cache(maxsize=1)
def default_categories() -> Categories:
    """Return the tables that come with opsctl, also from inside a zipapp."""
    files = ("categories.yml", "collectives.yml")
    return Categories(*(read_table((get_data("opsctl.trace", file) or b"").decode(), file) for file in files))

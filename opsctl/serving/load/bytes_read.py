"""How much a unit's processes have read: movement that no log shows.

journald keeps a progress bar back until its line ends, so half an hour of weights can pass without an entry.
The kernel counts meanwhile: what was read from disks (also through mmap) and by read() (also from networks).
"""

from __future__ import annotations

import re

from opsctl.deadline import Deadline
from opsctl.host.protocol import Host
from opsctl.serving.waits import CALL_LIMIT

STEP = 64 << 20
"""Bytes that count as movement: less is a server that polls its sockets."""

_COUNT = """
find "/sys/fs/cgroup$1" -name cgroup.procs -exec cat {} + 2>/dev/null | while read -r pid; do
  sed -n 's/^rchar: \\|^read_bytes: /&/p' "/proc/$pid/io" 2>/dev/null
done
exit 0
"""


def bytes_read(host: Host, control_group: str, *, deadline: Deadline) -> int | None:
    """Return bytes that the processes of a control group have read so far; None where it cannot be seen.

    Of the two counts the larger is taken, process by process: they overlap.
    """
    if not control_group:
        return None
    said = host.run(
        ["sh", "-c", _COUNT, "count", control_group], deadline=deadline.within(CALL_LIMIT, "what was read"), check=False
    )
    return parse_counts(said.text)


def parse_counts(text: str) -> int | None:
    """Sum pairs of ``rchar:`` and ``read_bytes:`` lines, the larger of each pair."""
    asked = [int(number) for number in re.findall(r"^rchar: (\d+)$", text, re.MULTILINE)]
    fetched = [int(number) for number in re.findall(r"^read_bytes: (\d+)$", text, re.MULTILINE)]
    if not asked or len(asked) != len(fetched):
        return None
    return sum(max(pair) for pair in zip(asked, fetched, strict=True))

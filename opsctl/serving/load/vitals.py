"""Signs of life of a unit that no log shows: bytes read, CPU time, GPU memory, its processes.

journald keeps a progress bar back until its line ends, so half an hour of weights can pass without an entry.
The kernel counts meanwhile: what was read from disks (also through mmap) and by read() (also from networks).
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from opsctl.deadline import Deadline
from opsctl.host.protocol import Host
from opsctl.serving.waits import CALL_LIMIT

STEP = 64 << 20
"""Bytes that count as movement: less is a server that polls its sockets."""
BUSY = 0.2
"""Share of one core that counts as movement: less is a server that polls."""

_COUNT = """
find "/sys/fs/cgroup$1" -name cgroup.procs -exec cat {} + 2>/dev/null | while read -r pid; do
  echo "pid: $pid"
  sed -n 's/^rchar: \\|^read_bytes: /&/p' "/proc/$pid/io" 2>/dev/null
done
sed -n 's/^usage_usec /cpu: /p' "/sys/fs/cgroup$1/cpu.stat" 2>/dev/null
[ "$2" = yes ] && timeout 5 nvidia-smi --query-gpu=memory.used --format=csv,noheader 2>/dev/null | sed 's/^/gpu: /'
exit 0
"""


@dataclass(frozen=True)
class Vitals:
    """One reading. ``None`` is unknown, never 0."""

    read: int | None = None
    """Bytes that the processes have read so far."""
    cpu: float | None = None
    """Seconds of CPU time that they have used so far."""
    gpu: tuple[str, ...] = ()
    """Memory in use of each GPU, as nvidia-smi prints it; empty where it was not asked or does not say."""
    pids: frozenset[int] = frozenset()

    def moved_since(self, before: Vitals, seconds: float) -> bool:
        """Return whether the processes did something in the ``seconds`` since an earlier reading."""
        read = self.read is not None and before.read is not None and self.read >= before.read + STEP
        cpu = self.cpu is not None and before.cpu is not None and self.cpu - before.cpu > BUSY * seconds
        return read or cpu or (bool(before.gpu) and bool(self.gpu) and self.gpu != before.gpu)


def read_vitals(host: Host, control_group: str, *, gpu: bool, deadline: Deadline) -> Vitals:
    """Read a control group. ``gpu``: ask nvidia-smi too, which costs a second."""
    if not control_group:
        return Vitals()
    limit = deadline.within(CALL_LIMIT, "signs of life")
    command = ["sh", "-c", _COUNT, "count", control_group, "yes" if gpu else "no"]
    return parse_vitals(host.run(command, deadline=limit, check=False).text)


def parse_vitals(text: str) -> Vitals:
    """Read the script's lines. Of ``rchar:`` and ``read_bytes:`` the larger counts, a process each: they overlap."""
    asked = [int(number) for number in re.findall(r"^rchar: (\d+)$", text, re.MULTILINE)]
    fetched = [int(number) for number in re.findall(r"^read_bytes: (\d+)$", text, re.MULTILINE)]
    known = bool(asked) and len(asked) == len(fetched)
    cpu = re.search(r"^cpu: (\d+)$", text, re.MULTILINE)
    return Vitals(
        read=sum(max(pair) for pair in zip(asked, fetched, strict=True)) if known else None,
        cpu=int(cpu[1]) / 1e6 if cpu else None,
        gpu=tuple(re.findall(r"^gpu: (.+)$", text, re.MULTILINE)),
        pids=frozenset(int(pid) for pid in re.findall(r"^pid: (\d+)$", text, re.MULTILINE)),
    )

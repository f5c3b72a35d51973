"""What nvidia-smi says, parsed (of AMD's and Intel's GPUs the kernel's word), and who holds a GPU, by process and unit.

nvidia-smi may be absent, may hang without end in the driver, may not know a field, and inside containers its
list of processes can be empty while memory is held. Each of these is an answer of its own, never "free".
"""

from __future__ import annotations

import csv
import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from opsctl.deadline import Deadline
from opsctl.errors import DeadlineExceeded
from opsctl.host.protocol import Host

SMI_LIMIT = 15.0
"""Seconds for nvidia-smi on a healthy host of eight GPUs, cold; beyond it hangs."""

FIELDS: tuple[str, ...] = (
    "index",
    "uuid",
    "name",
    "pci.bus_id",
    "driver_version",
    "memory.total",
    "memory.used",
    "utilization.gpu",
    "power.draw",
    "power.limit",
    "power.default_limit",
    "clocks.sm",
    "clocks.max.sm",
    "clocks_event_reasons.active",
    "temperature.gpu",
    "pcie.link.gen.current",
    "pcie.link.gen.max",
    "pcie.link.width.current",
    "pcie.link.width.max",
    "ecc.mode.current",
    "ecc.errors.uncorrected.volatile.total",
    "mig.mode.current",
    "persistence_mode",
)
OLD_NAMES = {"clocks_event_reasons.active": "clocks_throttle_reasons.active"}
"""Fields that older drivers call otherwise."""
APP_FIELDS = ("gpu_uuid", "pid", "process_name", "used_memory")

_INVALID_FIELD = re.compile(r'Field "(?P<field>[^"]+)" is not a valid field to query')
# [N/A], [Not Supported], [Insufficient Permissions], [Unknown Error], [GPU requires reset], ERR!: no value.
_ABSENT = re.compile(r"^(?:\[.*\]|N/A|ERR!|Not Supported|)$", re.IGNORECASE)
_FAULT = re.compile(r"requires reset|is lost", re.IGNORECASE)


@dataclass(frozen=True)
class Gpu:
    """One GPU, by field as nvidia-smi names them. A value that it does not give is not in ``values``."""

    index: int
    uuid: str
    values: dict[str, str] = field(default_factory=dict)
    fault: str = ""
    """What nvidia-smi says in a value's place of a GPU that does not work any more, such as GPU requires reset."""

    @property
    def name(self) -> str:
        """The card's name, such as NVIDIA H200."""
        return self.values.get("name", "unknown GPU")

    def number(self, name: str) -> float | None:
        """Return a field as a number (MiB, W, MHz, %, °C), or None."""
        try:
            return float(self.values[name])
        except (KeyError, ValueError):
            return None

    @property
    def memory_used(self) -> float | None:
        """MiB in use."""
        return self.number("memory.used")


@dataclass(frozen=True)
class GpuProcess:
    """A process that holds a GPU. ``memory`` is MiB; unit, state and command come from /proc."""

    pid: int
    gpu_uuid: str = ""
    name: str = ""
    memory: float | None = None
    unit: str = ""
    cgroup: str = ""
    state: str = ""
    """The kernel's letter; D cannot be killed."""
    command: str = ""

    def __str__(self) -> str:
        held = f", {self.memory:.0f} MiB" if self.memory is not None else ""
        stuck = ", in state D (cannot be killed)" if self.state == "D" else ""
        return (
            f"pid {self.pid} of {self.unit or 'no unit'}: {self.command or self.name or 'unknown command'}{held}{stuck}"
        )


@dataclass(frozen=True)
class GpuReading:
    """One look at all GPUs. ``problem`` says why there is none; then nothing is known, and nothing is free."""

    gpus: tuple[Gpu, ...] = ()
    processes: tuple[GpuProcess, ...] = ()
    problem: str = ""
    absent: bool = False
    """There is no nvidia-smi at all."""

    @property
    def known(self) -> bool:
        """Whether nvidia-smi answered."""
        return not self.problem

    @property
    def faults(self) -> str:
        """The GPUs that do not work, in words; "" where all do."""
        return "; ".join(f"GPU {gpu.index}: {gpu.fault}" for gpu in self.gpus if gpu.fault)


def parse_gpus(text: str, fields: Sequence[str] = FIELDS) -> tuple[Gpu, ...]:
    """Parse ``--query-gpu=… --format=csv,noheader,nounits``. Raises ValueError for lines of another shape."""
    gpus: list[Gpu] = []
    for row in csv.reader(text.splitlines(), skipinitialspace=True):
        if not row:
            continue
        if len(row) != len(fields):
            msg = f"wanted {len(fields)} fields a GPU, found {len(row)} in {','.join(row)[:120]!r}"
            raise ValueError(msg)
        values = {name: value.strip() for name, value in zip(fields, row, strict=True) if not _ABSENT.match(value)}
        fault = next((value.strip(" []") for value in row if _FAULT.search(value)), "")
        index = values.get("index", "")
        gpus.append(Gpu(int(index) if index.isdigit() else len(gpus), values.get("uuid", ""), values, fault))
    return tuple(gpus)


def parse_processes(text: str) -> tuple[GpuProcess, ...]:
    """Parse ``--query-compute-apps=gpu_uuid,pid,process_name,used_memory --format=csv,noheader,nounits``.

    A process name may hold commas: the first two and the last fields are counted from the ends.
    """
    processes = []
    for line in text.splitlines():
        parts = [part.strip() for part in line.split(",")]
        if len(parts) < len(APP_FIELDS) or not parts[1].isdigit():
            continue
        memory = parts[-1]
        processes.append(
            GpuProcess(
                pid=int(parts[1]),
                gpu_uuid=parts[0],
                name=", ".join(parts[2:-1]),
                memory=float(memory) if memory.replace(".", "", 1).isdigit() else None,
            )
        )
    return tuple(processes)


def invalid_field(text: str) -> str | None:
    """Return the field that this driver's nvidia-smi does not know, from its complaint."""
    match = _INVALID_FIELD.search(text)
    return match["field"] if match else None


_SPLIT = "-- opsctl: processes --"


def read_gpus(host: Host, *, deadline: Deadline, fields: Sequence[str] = FIELDS) -> GpuReading:
    """Ask nvidia-smi for GPUs and processes, in one round trip. A tool that hangs is a problem, not an exception."""
    return _read(
        host, deadline, fields, f"echo '{_SPLIT}'; nvidia-smi --query-compute-apps={','.join(APP_FIELDS)} {_CSV}"
    )


def read_memory(host: Host, *, deadline: Deadline, fields: Sequence[str]) -> GpuReading:
    """Ask nvidia-smi for GPUs alone: half the time, for samples that come often. ``processes`` is empty."""
    return _read(host, deadline, fields, "true")


_CSV = "--format=csv,noheader,nounits"


def _read(host: Host, deadline: Deadline, fields: Sequence[str], then: str) -> GpuReading:
    wanted = list(fields)
    for _ in range(len(fields)):
        limit = deadline.within(SMI_LIMIT, "nvidia-smi")
        # 127 says that the tool is not there.
        script = (
            "command -v nvidia-smi >/dev/null 2>&1 || exit 127; "
            f"nvidia-smi --query-gpu={','.join(wanted)} {_CSV} || exit $?; {then} || exit $?"
        )
        try:
            said = host.run(["sh", "-c", script], deadline=limit, check=False, become=False)
        except DeadlineExceeded:
            return GpuReading(problem=f"nvidia-smi gave no answer within {limit.seconds:.3g} s: the driver may hang")
        text = said.text
        if said.exit_status == 127:
            return read_others(host, deadline=deadline)
        if (unknown := invalid_field(text)) in wanted:
            renamed = [OLD_NAMES.get(name, "") if name == unknown else name for name in wanted]
            wanted = [name for name in renamed if name]
            continue
        if said.exit_status != 0:
            words = " ".join((text or said.stderr.decode(errors="replace")).split())
            return GpuReading(problem=f"nvidia-smi ended with {said.exit_status}: {words[:200]}")
        return _parse_both(text, wanted)
    return GpuReading(problem="nvidia-smi knows none of the fields that are needed")


def _parse_both(text: str, fields: Sequence[str]) -> GpuReading:
    first, _, second = text.partition(_SPLIT)
    new_names = {old: new for new, old in OLD_NAMES.items()}
    try:
        gpus = parse_gpus(first.strip(), [new_names.get(name, name) for name in fields])
    except ValueError as error:
        return GpuReading(problem=f"nvidia-smi answered in an unknown way: {error}")
    if not gpus:
        return GpuReading(problem="nvidia-smi lists no GPU")
    return GpuReading(gpus, parse_processes(second))


# Index, PCI address, and bytes of each card (AMD; Intel's driver xe gives none); then AMD's compute processes.
_OTHERS = """
for device in /sys/class/drm/card[0-9]*/device; do
  at=$(readlink -f "$device"); card=${device%/device}; card=${card##*/card}
  case $card in *[!0-9]*) continue ;; esac
  if [ -r "$device/mem_info_vram_used" ]; then
    echo "$card ${at##*/} $(cat "$device/mem_info_vram_total") $(cat "$device/mem_info_vram_used")"
  else case $(readlink -f "$device/driver") in */xe) echo "$card ${at##*/} - -" ;; esac
  fi
done
echo --
ls /sys/class/kfd/kfd/proc 2>/dev/null
exit 0
"""


def read_others(host: Host, *, deadline: Deadline) -> GpuReading:
    """Read AMD's and Intel's GPUs from sysfs: that needs none of their tools. Absent: there is none."""
    limit = deadline.within(SMI_LIMIT, "reading the GPUs from sysfs")
    return parse_others(host.run(["sh", "-c", _OTHERS], deadline=limit, check=False, become=False).text)


def parse_others(text: str) -> GpuReading:
    """Return what the lines of cards, and of pids after ``--``, say. A card without bytes does not say its memory."""
    cards, _, pids = text.partition("--")
    gpus = []
    for line in cards.splitlines():
        index, address, total, used = line.split()
        known = {"memory.total": total, "memory.used": used}
        mib = {field: str(int(count) >> 20) for field, count in known.items() if count.isdigit()}
        name = "AMD GPU" if mib else "Intel GPU"
        gpus.append(Gpu(int(index), address, {"index": index, "uuid": address, "name": name, **mib}))
    if not gpus:
        return GpuReading(problem="there is no nvidia-smi on the host, and no GPU of AMD or Intel", absent=True)
    return GpuReading(tuple(gpus), tuple(GpuProcess(int(pid)) for pid in pids.split() if pid.isdigit()))


_WHO = """
for pid in "$@"; do
  [ -d /proc/$pid ] || continue
  cgroup=$(sed -n 's/^0:://p; s/^1:name=systemd://p' /proc/$pid/cgroup 2>/dev/null | head -n 1)
  state=$(sed 's/.*) //; s/ .*//' /proc/$pid/stat 2>/dev/null)
  command=$(tr '\\0\\n\\t' '   ' </proc/$pid/cmdline 2>/dev/null | cut -c 1-200)
  printf '%s\\t%s\\t%s\\t%s\\n' "$pid" "$state" "$cgroup" "$command"
done
"""


def identify(host: Host, processes: Sequence[GpuProcess], *, deadline: Deadline) -> tuple[GpuProcess, ...]:
    """Fill in unit, state and command of each process from /proc; a process that is gone by now is left out."""
    if not processes:
        return ()
    argv = ["sh", "-c", _WHO, "who", *sorted({str(process.pid) for process in processes})]
    said = host.run(argv, deadline=deadline.within(SMI_LIMIT, "reading /proc"), check=False)
    known: dict[int, tuple[str, str, str]] = {}
    for line in said.text.splitlines():
        parts = line.split("\t")
        if len(parts) == 4 and parts[0].isdigit():
            known[int(parts[0])] = (parts[1], parts[2], parts[3].strip())
    return tuple(
        GpuProcess(
            process.pid,
            process.gpu_uuid,
            process.name,
            process.memory,
            unit=unit_of(known[process.pid][1]),
            cgroup=known[process.pid][1],
            state=known[process.pid][0],
            command=known[process.pid][2],
        )
        for process in processes
        if process.pid in known
    )


def unit_of(cgroup: str) -> str:
    """Return the unit that a cgroup path belongs to: its innermost service or scope, else "".

    >>> unit_of("/system.slice/vllm.service/worker")
    'vllm.service'
    """
    units = [part for part in cgroup.split("/") if part.endswith((".service", ".scope"))]
    return units[-1] if units else ""


_HOLDERS = """
for folder in /proc/[0-9]*; do
  case $(ls -l "$folder/fd" 2>/dev/null) in
    */dev/nvidia[0-9]* | */dev/kfd* | */dev/dri/renderD*)
      case $(cat "$folder/comm" 2>/dev/null) in
        nvidia-persiste* | nv-hostengine | dcgm* | nvidia-smi | nvtop | Xorg | gnome-shell) ;;
        *) echo "${folder#/proc/}" ;;
      esac ;;
  esac
done
"""


def device_holders(host: Host, *, deadline: Deadline) -> tuple[GpuProcess, ...]:
    """Return processes that have a GPU's device file open, monitors left out: where memory does not say who holds it.

    Only root sees the files of others' processes.
    """
    limit = deadline.within(SMI_LIMIT, "looking for open GPU device files")
    said = host.run(["sh", "-c", _HOLDERS], deadline=limit, check=False)
    pids = [int(word) for word in said.text.split() if word.isdigit()]
    return identify(host, [GpuProcess(pid) for pid in pids], deadline=deadline)

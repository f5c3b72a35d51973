"""Disk, memory, model, port, kernel log and tools of a host. Pure: what commands printed in, checks out."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from opsctl.playbook.resolved import ResolvedService
from opsctl.quantities import format_size
from opsctl.serving.doctor.checks import Check, ok, stop, unknown, warning
from opsctl.serving.listening import Holding, PortHolder

RAW_TRACE = 1.3 * 2**30
"""Bytes of one rank's trace before gzip (1.3 GB seen); vLLM writes it to the temporary folder first."""
COMPRESSION = 8.0
LEAST = 1 << 30
"""Bytes that results of any campaign need."""


@dataclass(frozen=True)
class Space:
    """Free and total bytes of a path's file system."""

    path: str
    mount: str
    free: int
    total: int


def parse_df(text: str) -> list[Space]:
    """Parse ``df -P -B1 PATH…`` with the asked paths put before it, a line each: ``path<TAB>df's line``."""
    found = []
    for line in text.splitlines():
        path, _, rest = line.partition("\t")
        fields = rest.split()
        if len(fields) >= 6 and fields[1].isdigit() and fields[3].isdigit():
            found.append(Space(path, " ".join(fields[5:]), int(fields[3]), int(fields[1])))
    return found


def judge_space(spaces: Sequence[Space], *, state_dir: str, temporary: str, ranks: int, profiled: bool) -> list[Check]:
    """Judge whether results, and traces where a profile is planned, fit."""
    checks = []
    by_path = {space.path: space for space in spaces}
    needs = {
        state_dir: LEAST + (ranks * RAW_TRACE / COMPRESSION if profiled else 0),
        temporary: ranks * RAW_TRACE if profiled else LEAST / 8,
    }
    for path, need in needs.items():
        name = f"disk space of {path}"
        space = by_path.get(path)
        if space is None:
            checks.append(unknown(name, "df does not say"))
        elif space.free < LEAST / 8:
            checks.append(
                stop(name, f"{format_size(space.free)} free on {space.mount}", "free some: results would be lost")
            )
        elif space.free < need:
            reason = f"{format_size(space.free)} free on {space.mount}, {format_size(need)} may be needed"
            why = f"8 × a trace's size for {ranks} ranks" if profiled else "results"
            checks.append(warning(name, reason, f"free some: {why}"))
        else:
            checks.append(ok(name, f"{format_size(space.free)} free on {space.mount}"))
    return checks


@dataclass(frozen=True)
class ModelFiles:
    """What was seen of a model's folder. ``cached`` bytes are in the page cache; None: not known.

    ``made_up``: the server fills its weights with random numbers, so no file is read.
    """

    path: str
    readable: bool | None
    size: int = 0
    cached: int | None = None
    made_up: bool = False


def judge_model(model: ModelFiles, *, available: int | None) -> Check:
    """Say whether the model can be read, and how much of it is in memory already."""
    name = f"model {model.path}"
    if model.made_up:
        return ok(name, "random weights (--load-format dummy): no file is read")
    if model.readable is False:
        return stop(name, "cannot be read", "see the mount, and the owner of the files")
    if model.readable is None or not model.size:
        return unknown(name, "no weights were seen there (a name on the hub, or another format)")
    if model.cached is None:
        return ok(name, f"{format_size(model.size)}, page cache not known (no fincore)")
    share = model.cached / model.size
    reason = f"{format_size(model.size)}, {share:.0%} in the page cache"
    if share < 0.5 and available is not None and model.size > available:
        return warning(
            name, f"{reason}, {format_size(available)} of memory available", "every load reads the disk again"
        )
    return ok(name, reason)


def judge_port(service: ResolvedService, held: PortHolder, *, active: bool) -> Check:
    """Say whether the service's port is its own."""
    name = f"port of {service.name}"
    if held.holding is Holding.OTHER:
        return stop(name, f"{held.seen}, not by {service.unit}", "two servers cannot have one port: end that process")
    if held.holding is Holding.NOBODY:
        reason, hint = f"{held.seen}, though the unit is active", "it still loads, or listens elsewhere"
        return warning(name, reason, hint) if active else ok(name, f"free: {held.seen}")
    if held.holding is Holding.UNKNOWN and not held.who:
        return unknown(name, f"{held.seen}: whoever answers at {service.url} is taken for {service.unit}")
    if not active:
        return stop(name, f"{held.seen}, while the unit is down", "what holds it must go first")
    if held.holding is Holding.UNKNOWN:
        reason = f"{held.seen}, not by {service.unit}: a proxy or a container's, as far as can be told"
        return unknown(name, reason, "a lease records who it is; from then on only the same, or the unit, is believed")
    return ok(name, held.seen)


XIDS = {
    "13": "a kernel's fault (often software)",
    "31": "a page fault (often software)",
    "43": "a stopped channel (often software)",
    "45": "a channel was removed (after another error)",
    "48": "a double-bit ECC error",
    "63": "a row was remapped",
    "64": "a row could not be remapped",
    "74": "an NVLink error",
    "79": "the GPU fell off the bus",
    "92": "many single-bit ECC errors",
    "94": "a contained ECC error",
    "95": "an uncontained ECC error",
    "119": "the GPU's own processor does not answer",
    "120": "the GPU's own processor failed",
}
LASTING = frozenset({"48", "64", "79", "95", "119", "120"})
"""Xids after which a GPU is not to be trusted before a reset (NVIDIA's catalogue)."""
_XID = re.compile(r"NVRM: Xid \(PCI:(?P<bus>[0-9a-fA-F:.]+)\): (?P<number>\d+)")
_DISK = re.compile(r"I/O error|EXT4-fs error|XFS .*(?:[Cc]orruption|error)|nvme.*timeout", re.IGNORECASE)


def judge_kernel_log(text: str | None) -> list[Check]:
    """Judge the kernel's lines since boot that name a GPU's or a disk's fault; None: it cannot be read."""
    if text is None:
        return [unknown("kernel log", "it cannot be read", "opsctl needs root, or the group systemd-journal")]
    seen: dict[str, list[str]] = {}
    for match in _XID.finditer(text):
        seen.setdefault(match["number"], []).append(match["bus"])
    checks = []
    for number, buses in seen.items():
        words = XIDS.get(number, "see NVIDIA's catalogue of Xids")
        reason = f"Xid {number}, {words}: {len(buses)} × since boot, on {', '.join(sorted(set(buses)))}"
        lasting = number in LASTING
        checks.append(
            stop(f"xid {number}", reason, "reset the GPU or reboot before you measure")
            if lasting
            else warning(f"xid {number}", reason)
        )
    if disk := [line.strip() for line in text.splitlines() if _DISK.search(line)]:
        checks.append(warning("disk errors", f"{len(disk)} × since boot, such as: {disk[-1][-160:]}", "see smartctl"))
    return checks or [ok("kernel log", "no Xid, ECC or disk error since boot")]


def judge_tools(present: Sequence[str]) -> list[Check]:
    """Say what the guard and the stages will miss."""
    if "curl" in present:
        return [ok("tools", f"{', '.join(present)}")]
    reason = "no curl: a restore by the guard is recorded as started, unverified"
    return [warning("tools", reason, "install curl on the host")]


OLDEST_PYTHON = (3, 9)
_PYTHON = re.compile(r"^opsctl-python (\d+) (\d+)$", re.MULTILINE)


def judge_python(host: str, path: str, status: int, said: str) -> Check:
    """Judge the Python that the stages run with, by how it ended and what it said."""
    name, hint = f"python {path}", f"hosts: {{{host}: {{python: PATH}}}} names the serving environment's Python"
    match = _PYTHON.search(said)
    if match is None:
        seen = said.strip()[-200:] or "it printed nothing"
        return stop(name, f"the inventory's `python` does not start (status {status}): {seen}", hint)
    version = int(match[1]), int(match[2])
    if version < OLDEST_PYTHON:
        wanted = ".".join(map(str, OLDEST_PYTHON))
        return stop(name, f"Python {match[1]}.{match[2]}: the stages need {wanted} or newer", hint)
    return ok(name, f"Python {match[1]}.{match[2]} starts")


def judge_fence(broken: str | None) -> Check:
    """Say whether the fence held when it was tried; ``broken``: what was seen where it did not."""
    if broken is None:
        return ok("fence", "a session was opened, killed and seen dead; a unit whose condition says no did not start")
    return stop("fence", broken, "a controller that wakes up late could stop production after its restore")

"""What nvidia-smi's figures mean for a campaign. Pure: readings in, checks out."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatchcase

from opsctl.serving.doctor.checks import Check, ok, stop, unknown, warning
from opsctl.serving.gpu.nvidia_smi import Gpu, GpuProcess, GpuReading

SLOWDOWNS: Mapping[int, str] = {
    0x2: "application clocks are set below the maximum",
    0x8: "hardware slowdown",
    0x20: "software thermal slowdown",
    0x40: "hardware thermal slowdown",
    0x80: "hardware power brake",
}
"""Bits of clocks_event_reasons.active (nvml.h) that make figures slow; idle and the software power cap are usual."""
CAPPED = 0.9
"""A power limit below this share of the default counts as a cap."""
BUSY = 90.0
LAZY = 0.35
"""A GPU at so many % that draws less than this share of its limit waits for something (rtx6kpro 25: 140 W at 100 %)."""


def judge_gpus(
    reading: GpuReading,
    processes: Sequence[GpuProcess],
    *,
    ours: Iterable[str],
    ranks: int | None,
    kill_foreign: bool = False,
    all_seen: bool = True,
) -> list[Check]:
    """Judge a reading. ``processes`` are its own, with their units; ``ours`` are globs of units that may hold GPUs.

    ``all_seen`` False: who has a GPU's device open is not shown to this login.
    """
    if reading.absent:
        return [unknown("gpus", reading.problem, "without it, it is not known whether the GPUs are free after a stop")]
    if not reading.known:
        hint = "the GPU gate between stop and start could not open: mend the driver first (dmesg, reboot)"
        return [stop("gpus", reading.problem, hint)]
    return [
        _inventory(reading.gpus, ranks),
        _memory(reading, all_seen=all_seen),
        _processes(processes, tuple(ours), kill_foreign=kill_foreign),
        _power_cap(reading.gpus),
        _lazy(reading.gpus),
        _slowdowns(reading.gpus),
        _link_width(reading.gpus),
        _ecc(reading.gpus),
        _modes(reading.gpus),
    ]


def _inventory(gpus: Sequence[Gpu], ranks: int | None) -> Check:
    kinds = sorted({gpu.name for gpu in gpus})
    seen = f"{len(gpus)} × {' and '.join(kinds)}, driver {gpus[0].values.get('driver_version', 'unknown')}"
    if ranks is not None and ranks > len(gpus):
        return stop("gpus", f"{seen}, but the server wants {ranks}", "a GPU has gone: see nvidia-smi and dmesg")
    if len(kinds) > 1:
        return warning("gpus", f"{seen}: kinds differ, and the slowest sets the pace")
    return ok("gpus", seen)


def _memory(reading: GpuReading, *, all_seen: bool) -> Check:
    if reading.faults:
        return stop("gpu memory", reading.faults, "nvidia-smi --gpu-reset, or a reboot: no server could start on it")
    silent = [gpu for gpu in reading.gpus if gpu.memory_used is None]
    if silent:
        seen = f"not given by {_each(reading.gpus, [(gpu, gpu.name) for gpu in silent])}"
        if not all_seen:
            hint = "whether they are free could not be judged after a stop: log in as root, or set `become: true`"
            return stop("gpu memory", f"{seen}, and others' processes are not shown to this login", hint)
        return warning("gpu memory", seen, "whether they are free is judged by the processes that have them open")
    return ok("gpu memory", "given by every GPU")


def _processes(processes: Sequence[GpuProcess], ours: Sequence[str], *, kill_foreign: bool) -> Check:
    foreign = [process for process in processes if not any(fnmatchcase(process.unit, pattern) for pattern in ours)]
    if not foreign:
        return ok("gpu processes", f"{len(processes)} processes, all of production" if processes else "none")
    named = "; ".join(str(process) for process in foreign)
    if kill_foreign:
        return warning("gpu processes", f"will be killed: {named}")
    hint = "it would hold the GPU gate shut while production is down: stop it, or allow --kill-foreign"
    return stop("gpu processes", named, hint)


def _each(gpus: Sequence[Gpu], found: Iterable[tuple[Gpu, str]]) -> str:
    """Return what was found, GPUs with the same words together."""
    by_words: dict[str, list[str]] = {}
    for gpu, words in found:
        by_words.setdefault(words, []).append(str(gpu.index))
    every = {words: "every GPU" if len(indexes) == len(gpus) else f"GPU {', '.join(indexes)}"
             for words, indexes in by_words.items()}  # fmt: skip
    return "; ".join(f"{where}: {words}" for words, where in every.items())


def _power_cap(gpus: Sequence[Gpu]) -> Check:
    pairs = [(gpu, gpu.number("power.limit"), gpu.number("power.default_limit")) for gpu in gpus]
    known = [(gpu, limit, default) for gpu, limit, default in pairs if limit is not None and default]
    if not known:
        limits = [(gpu, f"{limit:.0f} W") for gpu, limit, _ in pairs if limit is not None]
        return unknown("power cap", f"{_each(gpus, limits)}, default not given" if limits else "not given")
    capped = [
        (gpu, f"limited to {limit:.0f} of {default:.0f} W") for gpu, limit, default in known if limit < CAPPED * default
    ]
    if capped:
        hint = "figures are those of the cap; nvidia-smi -pl sets it"
        return warning("power cap", _each(gpus, capped), hint)
    return ok("power cap", _each(gpus, [(gpu, f"{limit:.0f} W") for gpu, limit, _ in known]))


def _lazy(gpus: Sequence[Gpu]) -> Check:
    found = []
    known = 0
    for gpu in gpus:
        used, draw, limit = gpu.number("utilization.gpu"), gpu.number("power.draw"), gpu.number("power.limit")
        if used is None or draw is None or not limit:
            continue
        known += 1
        if used >= BUSY and draw < LAZY * limit:
            found.append((gpu, f"{used:.0f} % busy at {draw:.0f} of {limit:.0f} W"))
    if not known:
        return unknown("power at load", "utilisation or power is not given")
    if found:
        hint = "it waits rather than computes: a spinning collective, host memory or PCIe (rtx6kpro 25)"
        return warning("power at load", _each(gpus, found), hint)
    return ok("power at load", "no GPU is busy at low power")


def _slowdowns(gpus: Sequence[Gpu]) -> Check:
    found, known = [], 0
    for gpu in gpus:
        text = gpu.values.get("clocks_event_reasons.active", "")
        if not re.fullmatch(r"0x[0-9a-fA-F]+", text):
            continue
        known += 1
        found += [(gpu, words) for bit, words in SLOWDOWNS.items() if int(text, 16) & bit]
    if not known:
        return unknown("clocks", "clock event reasons are not given")
    if found:
        return warning("clocks", _each(gpus, found), "see nvidia-smi -q -d PERFORMANCE,CLOCK: cooling, power supply")
    return ok("clocks", "no slowdown")


def _link_width(gpus: Sequence[Gpu]) -> Check:
    pairs = [(gpu, gpu.number("pcie.link.width.current"), gpu.number("pcie.link.width.max")) for gpu in gpus]
    known = [(gpu, now, most) for gpu, now, most in pairs if now is not None and most is not None]
    if not known:
        return unknown("pcie", "link widths are not given")
    narrow = [(gpu, f"×{now:.0f} of ×{most:.0f}") for gpu, now, most in known if now < most]
    if narrow:
        return warning("pcie", _each(gpus, narrow), "reseat the card or riser: collectives and loads run at that width")
    return ok("pcie", _each(gpus, [(gpu, f"×{now:.0f}") for gpu, now, _ in known]))


def _ecc(gpus: Sequence[Gpu]) -> Check:
    counts = [(gpu, gpu.number("ecc.errors.uncorrected.volatile.total")) for gpu in gpus]
    known = [(gpu, count) for gpu, count in counts if count is not None]
    if not known:
        return unknown("ecc", "error counters are not given (ECC off, or a card without it)")
    found = [(gpu, f"{count:.0f} uncorrected errors since the driver was loaded") for gpu, count in known if count > 0]
    if found:
        return warning("ecc", _each(gpus, found), "nvidia-smi -q -d ECC,ROW_REMAPPER; reset or replace the GPU")
    return ok("ecc", "no uncorrected error")


def _modes(gpus: Sequence[Gpu]) -> Check:
    found = [(gpu, "MIG is on") for gpu in gpus if gpu.values.get("mig.mode.current") == "Enabled"]
    found += [(gpu, "persistence mode is off") for gpu in gpus if gpu.values.get("persistence_mode") == "Disabled"]
    if found:
        return warning(
            "gpu modes", _each(gpus, found), "nvidia-smi -pm 1; MIG splits a GPU that a server wants for itself"
        )
    return ok("gpu modes", "persistence on, MIG off")


LINKS = ("NV", "PIX", "PXB", "PHB", "NODE", "SYS")
"""How two GPUs are joined, best first (nvidia-smi topo -m)."""


def parse_topology(text: str) -> dict[tuple[int, int], str]:
    """Parse ``nvidia-smi topo -m`` into the link of each pair of GPUs, such as ``{(0, 1): "NV18"}``."""
    rows = [line.split("\t") for line in re.sub(r"\x1b\[[0-9;]*m", "", text).splitlines()]
    header = next((row for row in rows if any(cell.strip() == "GPU0" for cell in row) and not row[0].strip()), [])
    columns = {position: cell.strip() for position, cell in enumerate(header) if re.fullmatch(r"GPU\d+", cell.strip())}
    links: dict[tuple[int, int], str] = {}
    for row in rows:
        if not re.fullmatch(r"GPU\d+", row[0].strip()):
            continue
        first = int(row[0].strip()[3:])
        for position, name in columns.items():
            second = int(name[3:])
            link = row[position].strip() if position < len(row) else ""
            if first < second and link:
                links[first, second] = link
    return links


def judge_topology(links: Mapping[tuple[int, int], str], count: int) -> Check:
    """Say how the GPUs are joined, by the worst link, since a ring of all of them goes through it."""
    if count < 2:
        return ok("topology", "one GPU")
    if not links:
        return unknown("topology", "nvidia-smi topo -m shows no pair of GPUs")
    worst = max(links.values(), key=lambda link: LINKS.index(re.sub(r"\d+$", "", link)) if _known(link) else len(LINKS))
    kinds = ", ".join(sorted(set(links.values())))
    if worst.startswith("NV"):
        return ok("topology", f"NVLink between all pairs ({kinds})")
    if worst in {"SYS", "NODE"}:
        reason = (
            f"no NVLink between some pairs, the worst link crosses {'sockets' if worst == 'SYS' else 'host bridges'}"
        )
        return warning("topology", f"{reason} ({kinds})", "all-reduce dominates decode here: measure collectives")
    return warning("topology", f"PCIe without NVLink ({kinds})", "measure collectives before advice on parallelism")


def _known(link: str) -> bool:
    return re.sub(r"\d+$", "", link) in LINKS

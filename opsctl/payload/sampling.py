"""The GPUs while a stage runs: power, clocks and throttle reasons every few seconds, and what stands out in them."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any

from opsctl.payload.environment import gpu_state
from opsctl.payload.statistics import percentile

_PERIOD = 10.0
_BUSY = 90.0  # percent of utilisation, as nvidia-smi counts it: a kernel was running
_LOW_POWER = 0.35  # of the cap
_FEWEST = 3
# The power cap is what a GPU at full load runs into; it stays in the record, and is no finding.
_HARMLESS = {"idle", "application clocks", "display clocks", "power cap"}


def _number(text: object) -> float | None:
    try:
        return float(str(text))
    except ValueError:
        return None  # "[N/A]" where a GPU does not tell


def summarise(samples: Sequence[Sequence[Mapping[str, Any]]]) -> list[dict[str, Any]]:
    """Return a document a GPU: the median of power, clock, temperature and utilisation, and every throttle reason."""
    documents = []
    for index in dict.fromkeys(str(gpu.get("index")) for sample in samples for gpu in sample):
        mine = [gpu for sample in samples for gpu in sample if str(gpu.get("index")) == index]
        document: dict[str, Any] = {"index": index, "samples": len(mine)}
        for name in ("power.draw", "power.limit", "clocks.sm", "temperature.gpu", "utilization.gpu"):
            values = [value for gpu in mine if (value := _number(gpu.get(name))) is not None]
            document[name] = percentile(values, 50) if values else None
        counted: dict[str, int] = {}
        for gpu in mine:
            for reason in gpu.get("throttle", ()):
                counted[reason] = counted.get(reason, 0) + 1
        document["throttle"] = counted
        documents.append(document)
    return documents


def findings(documents: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return what stands out: a busy GPU that draws little, and clocks held down for a reason.

    100 % utilisation says only that some kernel was running: at a quarter of the power cap it mostly waited.
    """
    found = []
    for each in documents:
        if each["samples"] < _FEWEST:
            continue
        power, cap, used = each["power.draw"], each["power.limit"], each["utilization.gpu"]
        if power and cap and used is not None and used >= _BUSY and power < _LOW_POWER * cap:
            found.append(
                f"GPU {each['index']}: {used:.0f} % utilisation at {power:.0f} W of {cap:.0f} W: it waits more than it "
                "works (communication, or launches)"
            )
        for reason, times in each["throttle"].items():
            if reason not in _HARMLESS and times * 2 >= each["samples"]:
                found.append(
                    f"GPU {each['index']}: clocks were held down by {reason} in {times} of {each['samples']} looks"
                )
    return found


class Sampler:
    """Looks at the GPUs from a thread while the block runs; nothing where there is no nvidia-smi."""

    def __init__(self, period: float = _PERIOD) -> None:
        self._period = period
        self._samples: list[list[dict[str, Any]]] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="gpu sampler", daemon=True)

    def __enter__(self) -> Sampler:  # noqa: PYI034 - typing.Self came with Python 3.11
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()

    def _run(self) -> None:
        while not self._stop.wait(self._period):
            state = gpu_state()
            if not state["gpus"]:
                return
            self._samples.append(state["gpus"])

    def environment(self) -> dict[str, Any]:
        """Return what goes into the record: nothing where nothing was seen."""
        documents = summarise(list(self._samples))
        return {"during": documents, "findings": findings(documents)} if documents else {}

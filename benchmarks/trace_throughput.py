"""How fast ``opsctl trace`` reads, against Holistic Trace Analysis 0.5.0 and against inflating alone.

    python benchmarks/trace_throughput.py [--json] [--sizes 0.1 0.5 1.3] [--hta-sizes 0.1 0.5] [--no-ranks]

Input: a real trace (docs/measurements/h200-decode-loop, recorded on an H200), repeated with times shifted and
correlations renumbered, to ranks of the sizes asked for (GB of JSON), gzip level 6. All programs read the same
files in one run, each in a process of its own, on one core; figures are processor seconds, so that a neighbour
on the machine moves them little, and the best of the rounds. HTA gets an environment of its own (`.venv-hta`,
made here; pandas below 3, which its 0.5.0 needs). The floor is zlib's inflate alone, which is what Python has
everywhere; isal's, which opsctl uses where it can, is printed beside it.
"""

from __future__ import annotations

import argparse
import gzip
import importlib
import json
import os
import re
import resource
import subprocess
import sys
import tempfile
import time
import zlib
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from isal import isal_zlib

from opsctl.trace import analyse

HERE = Path(__file__).resolve().parent
RECORDED = HERE.parent / "docs" / "measurements" / "h200-decode-loop"
HTA_HOME = HERE.parent / ".venv-hta"
HTA = ("HolisticTraceAnalysis==0.5.0", "pandas<3")
TIMES_HTA, TIMES_HTA_OTHER, TIMES_FLOOR, PEAK_MB, RANKS_S, LINEAR = 20.0, 5.0, 3.0, 400.0, 60.0, 1.25
RANKS, RANK_GB = 8, 1.3
_TS = re.compile(rb'"ts": (\d+)\.')
_ID = re.compile(rb'(?<="correlation": )\d+|(?<="id": )\d+')


@dataclass
class Bound:
    """One promise: the figure, its bound, and whether it is kept."""

    name: str
    value: float
    bound: float
    at_least: bool
    unit: str

    @property
    def kept(self) -> bool:
        """Whether the figure is within its bound."""
        return self.value >= self.bound if self.at_least else self.value <= self.bound


class Repeater:
    """Writes the recorded trace again and again, later and with other correlations each time."""

    def __init__(self, text: bytes) -> None:
        begin = text.index(b"\n  {\n", text.index(b'"traceEvents"'))
        end = text.rindex(b"\n  {\n", 0, text.rindex(b"Record Window End"))
        self.head, self.tail = text[:begin], text[end:]
        # Correlations of one width, so that they can be counted up in place.
        body = _ID.sub(lambda match: b"%d" % (10_000_000 + int(match[0])), text[begin:end])
        self.body = np.frombuffer(body, dtype=np.uint8)
        self.times = [(match.start(1), match.end(1)) for match in _TS.finditer(body)]
        self.ids = [match.span() for match in _ID.finditer(body)]
        values = [int(body[a:b]) for a, b in self.times]
        self.span = max(values) - min(values) + 10_000

    def copies(self, size: float) -> Iterator[bytes]:
        """Yield the text of a file of about ``size`` bytes, piece by piece."""
        yield self.head
        for number in range(max(1, round(size / len(self.body)))):
            piece = self.body.copy()
            _count_up(piece, self.times, number * self.span)
            _count_up(piece, self.ids, number * 1_000_000)
            yield piece.tobytes()
        yield self.tail


def _count_up(text: Any, places: list[tuple[int, int]], by: int) -> None:
    """Add ``by`` to the numbers that stand at ``places``, in place; their widths must do."""
    spans = np.array(places)
    for width in np.unique(spans[:, 1] - spans[:, 0]).tolist():
        at = spans[spans[:, 1] - spans[:, 0] == width][:, :1] + np.arange(width)
        powers = 10 ** np.arange(width - 1, -1, -1, dtype=np.int64)
        values = (text[at].astype(np.int64) - 48) @ powers + by
        text[at] = (values[:, None] // powers % 10 + 48).astype(np.uint8)


def compress(pieces: Iterator[bytes], path: Path) -> int:
    """Write pieces as one gzip file; return how many bytes of text it holds."""
    size = 0
    with gzip.open(path, "wb", compresslevel=6) as file:
        for piece in pieces:
            size += file.write(piece)
    return size


def respell(source: Path, target: Path) -> None:
    """Write the same document minified: no spelling of Kineto's own."""
    with gzip.open(source) as file:
        document = json.load(file)
    with gzip.open(target, "wb", compresslevel=6) as out:
        out.write(json.dumps(document, separators=(",", ":")).encode())


_HEAP = {"MALLOC_MMAP_THRESHOLD_": str(1 << 30), "MALLOC_TRIM_THRESHOLD_": str(1 << 32)}
"""Whether glibc gives a freed block of a MiB back to the kernel depends on how the heap happens to lie, and moved the
floor by half from run to run. So no process gives any back: the floor is its lowest, and the peaks are higher."""


def cpu_seconds(function: Callable[[], object]) -> float:
    """Return the processor seconds that a call takes."""
    begin = time.process_time()
    function()
    return time.process_time() - begin


def child(what: str, path: str) -> None:
    """Be the measured process: ``analyse``, ``zlib`` or ``isal`` on one file; print what it took."""
    if what == "analyse":
        for module in ("isal.isal_zlib", "msgspec"):
            importlib.import_module(module)  # imports are not what is timed, of HTA neither
        seconds = cpu_seconds(lambda: analyse([Path(path)], jobs=1).to_json())
    else:
        seconds = cpu_seconds(lambda: inflate(zlib if what == "zlib" else isal_zlib, path))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print("RESULT " + json.dumps({"cpu_s": seconds, "peak_mb": peak}))


def inflate(library: Any, path: str) -> None:
    """Inflate a file in blocks and drop them."""
    stream = library.decompressobj(31)
    with Path(path).open("rb") as file:
        while not stream.eof:
            stream.decompress(stream.unconsumed_tail or file.read(1 << 17), 1 << 20)


def measured(command: list[str], core: int | None = 0) -> dict[str, Any]:
    """Run a program on one core; return the document that it prints last. Raises RuntimeError when it fails."""

    def pin() -> None:
        if core is not None:
            os.sched_setaffinity(0, {sorted(os.sched_getaffinity(0))[core]})

    done = subprocess.run(
        command, capture_output=True, text=True, check=False, timeout=3600, preexec_fn=pin, env={**os.environ, **_HEAP}
    )
    lines = [line for line in done.stdout.splitlines() if line.startswith("RESULT ")]
    if done.returncode or not lines:
        raise RuntimeError(f"{' '.join(command)}: status {done.returncode}\n{done.stderr[-2000:]}")
    return dict(json.loads(lines[-1].removeprefix("RESULT ")))


def best(what: str, path: Path, rounds: int) -> dict[str, Any]:
    """Return the round with the least processor time of ``child``."""
    command = [sys.executable, __file__, "--child", what, str(path)]
    return min((measured(command) for _ in range(rounds)), key=lambda row: row["cpu_s"])


def hta_python(given: str | None) -> str:
    """Return the Python of HTA's own environment, which is made where it is missing."""
    if given:
        return given
    python = HTA_HOME / "bin" / "python"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", str(HTA_HOME)], check=True)
        subprocess.run([str(python), "-m", "pip", "install", "-q", *HTA], check=True)
    return str(python)


def sizes_table(files: dict[float, Path], hta: dict[float, dict[str, Any]], rounds: int) -> list[dict[str, Any]]:
    """Measure each size: opsctl, both floors, beside what HTA took."""
    rows = []
    for size, path in files.items():
        row: dict[str, Any] = {"gb": size, "hta": hta.get(size)}
        found: dict[str, list[dict[str, Any]]] = {"analyse": [], "zlib": [], "isal": []}
        for _ in range(rounds):  # interleaved, so that a slow minute of the machine hits all alike
            for what, taken in found.items():
                taken.append(best(what, path, 1))
        row |= {what: min(taken, key=lambda one: one["cpu_s"]) for what, taken in found.items()}
        rows.append(row)
    return rows


def ranks_at_once(folder: Path, repeater: Repeater, body: Path) -> float:
    """Return the wall seconds of eight ranks of 1.3 GB on two cores. The ranks share their text, not their head."""
    ranks = folder / "ranks"
    ranks.mkdir()
    for rank in range(RANKS):
        head = repeater.head.replace(
            b'"schemaVersion": 1,', b'"schemaVersion": 1,\n "distributedInfo": {"rank": %d, "world_size": 8},' % rank, 1
        )
        with (ranks / f"rank{rank}.pt.trace.json.gz").open("wb") as out:
            out.write(gzip.compress(head))
            out.write(body.read_bytes())
    begin = time.perf_counter()
    command = [sys.executable, "-m", "opsctl", "trace", str(ranks), "--json", "--jobs", "2"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=1800)
    seconds = time.perf_counter() - begin
    document = json.loads(done.stdout)
    if len(document["ranks"]) != RANKS or not all(row["whole"] for row in document["ranks"]):
        raise RuntimeError("the eight ranks were not all read to their end")
    return seconds


def agreement(path: Path, found: dict[str, list[float]]) -> dict[str, Any]:
    """Compare kernels with HTA's: counts, and sums, which HTA builds from times cut to whole µs."""
    rows = analyse([path], jobs=1).kernels
    ours = {row.name: (row.calls, row.sum_us) for row in rows if not row.name.startswith(("Memcpy", "Memset"))}
    return {
        "names_equal": set(ours) == set(found),
        "counts_equal": all(ours[name][0] == count for name, (count, _) in found.items() if name in ours),
        "largest_difference_us_per_call": max(
            abs(ours[name][1] - total) / count for name, (count, total) in found.items() if name in ours
        ),
    }


def bounds(rows: list[dict[str, Any]], other: dict[str, Any] | None, ranks_s: float | None) -> list[Bound]:
    """Return every promise beside its figure."""
    result = []
    for row in rows:
        if row["hta"]:
            ratio = row["hta"]["cpu_s"] / row["analyse"]["cpu_s"]
            result.append(Bound(f"times faster than HTA, {row['gb']} GB", ratio, TIMES_HTA, at_least=True, unit="×"))
        ratio = row["analyse"]["cpu_s"] / row["zlib"]["cpu_s"]
        result.append(Bound(f"times the floor, {row['gb']} GB", ratio, TIMES_FLOOR, at_least=False, unit="×"))
    largest = max(rows, key=lambda row: float(row["gb"]))
    peak = largest["analyse"]["peak_mb"]
    result.append(Bound(f"peak memory, {largest['gb']} GB", peak, PEAK_MB, at_least=False, unit="MB"))
    rates = [row["analyse"]["cpu_s"] / row["bytes"] for row in rows]
    result.append(
        Bound("slowest over fastest second a byte", max(rates) / min(rates), LINEAR, at_least=False, unit="×")
    )
    if other:
        ratio = other["hta"]["cpu_s"] / other["analyse"]["cpu_s"]
        result.append(Bound("times faster than HTA, minified", ratio, TIMES_HTA_OTHER, at_least=True, unit="×"))
    if ranks_s is not None:
        result.append(Bound(f"{RANKS} ranks of {RANK_GB} GB, two cores", ranks_s, RANKS_S, at_least=False, unit="s"))
    return result


def run(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Make the files, measure all programs, and return the document."""
    recorded = next(RECORDED.glob("*.pt.trace.json.gz"))
    repeater = Repeater(gzip.decompress(recorded.read_bytes()))
    files, text_bytes = {}, {}
    for size in options.sizes:
        files[size] = folder / f"rank0-{size}.pt.trace.json.gz"
        text_bytes[size] = compress(repeater.copies(size * 1e9), files[size])
    python = hta_python(options.hta_python)
    script = str(HERE / "hta_breakdown.py")
    hta = {size: measured([python, script, str(files[size])]) for size in options.hta_sizes if size in files}
    rows = sizes_table(files, hta, options.rounds)
    for row in rows:
        row["bytes"] = text_bytes[row["gb"]]
    other = None
    if hta:
        minified = folder / "minified.pt.trace.json.gz"
        respell(files[min(hta)], minified)
        other = {"analyse": best("analyse", minified, options.rounds), "hta": measured([python, script, str(minified)])}
    agreed = agreement(files[min(hta)], hta[min(hta)]["kernels"]) if hta else None
    ranks_s = None
    if options.ranks:
        body = folder / "body.gz"
        events = repeater.copies(RANK_GB * 1e9)
        next(events)  # each rank has a head of its own
        compress(events, body)
        ranks_s = ranks_at_once(folder, repeater, body)
    for row in [*rows, *([other] if other else [])]:
        if row["hta"]:
            row["hta"].pop("kernels")
    found = bounds(rows, other, ranks_s)
    return {
        "sizes": rows,
        "minified": other,
        "agreement_with_hta": agreed,
        "bounds": [asdict(bound) | {"kept": bound.kept} for bound in found],
        "environment": {"python": sys.version.split()[0], "cores": os.cpu_count(), "numpy": np.__version__},
    }


def show(document: dict[str, Any]) -> None:
    """Print the figures with their bounds beside them."""
    for row in document["sizes"]:
        hta = f"{row['hta']['cpu_s']:.2f} s, {row['hta']['peak_mb']:.0f} MB" if row["hta"] else "not run"
        print(
            f"{row['bytes'] / 1e9:.2f} GB: opsctl {row['analyse']['cpu_s']:.3f} s, {row['analyse']['peak_mb']:.0f} MB; "
            f"inflate alone: zlib {row['zlib']['cpu_s']:.3f} s, isal {row['isal']['cpu_s']:.3f} s; HTA {hta}"
        )
    if document["agreement_with_hta"]:
        print(f"against HTA: {document['agreement_with_hta']}")
    for bound in document["bounds"]:
        sign = "≥" if bound["at_least"] else "≤"
        kept = "ok" if bound["kept"] else "MISSED"
        print(f"{bound['name']}: {bound['value']:.2f} {bound['unit']} (bound {sign} {bound['bound']:g}) {kept}")


def main() -> int:
    """Run the benchmark; return 1 when a bound is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--sizes", type=float, nargs="+", default=[0.1, 0.5, 1.3])
    parser.add_argument("--hta-sizes", type=float, nargs="*", default=[0.1, 0.5])
    parser.add_argument("--hta-python", help="Python of an environment that has HTA; default: make .venv-hta")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--no-ranks", dest="ranks", action="store_false", help="leave out the eight ranks")
    parser.add_argument("--child", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        child(*options.child)
        return 0
    with tempfile.TemporaryDirectory(prefix="opsctl-trace-") as folder:
        document = run(options, Path(folder))
    if options.json:
        print(json.dumps(document, indent=1))
    else:
        show(document)
    return 0 if all(bound["kept"] for bound in document["bounds"]) else 1


if __name__ == "__main__":
    sys.exit(main())

"""profile: windows of steady decode under the server's own profiler, until every rank's file is proven complete.

A status 200 proves nothing here: start and stop that fail inside workers are logged and swallowed by the server.
What counts is N files that parse to their end and hold events.
"""

from __future__ import annotations

import json
import shutil
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from opsctl.payload.errors import CellFailed, PayloadError
from opsctl.payload.latency import measure_round
from opsctl.payload.load import Offer, offer_load
from opsctl.payload.output import Output
from opsctl.payload.profile_spec import CellSpec, Spec
from opsctl.payload.prompts import PromptSource
from opsctl.payload.records import Figure
from opsctl.payload.server import Server
from opsctl.payload.serving_benchmark import request_body, slug, verdict
from opsctl.payload.statistics import figure, mean, std
from opsctl.payload.tls import Trust
from opsctl.payload.tracefiles import Seen, bring, changed, rank_files, snapshot, total

if TYPE_CHECKING:
    from opsctl.trace import TraceAnalysis
    from opsctl.trace.document import RankFile

_POLL = 1.0
_REQUESTS = 5  # a stream, in a window for which the playbook does not say how many
_START_LIMIT = 120.0
_SETTLE = 120.0  # seconds for files to become complete once stop_profile has returned


class _Window:
    """One window: the same load without and with the profiler, then the files."""

    def __init__(self, spec: Spec, cell: CellSpec, server: Server, output: Output) -> None:
        self.spec = spec
        self.cell = cell
        self.name = cell.id
        self.concurrency = cell.concurrency
        self.server = server
        self.output = output
        self.folder = Path(spec.trace_dir)
        self.prompts = PromptSource(spec.input_tokens, count=lambda text: server.count_tokens(spec.model, text))

    def load(self, requests: int, text: str) -> list[float]:
        """Send requests and return their TPOT in ms. Raises CellFailed when any of them failed."""
        tokens = self.spec.output_tokens
        offer = Offer(
            self.server.url,
            [request_body(self.spec.model, self.prompts.next_exact(), tokens) for _ in range(requests)],
            concurrency=min(self.concurrency, requests),
            request_limit=self.spec.request_limit,
            headers=self.server.headers,
            trust=self.server.trust,
        )
        done = offer_load(
            offer,
            limit=self.spec.request_limit * max(1, -(-requests // self.concurrency)),
            progress=lambda some, of: self.output.progress(f"{self.name}, {text}", some, of, every=2.0),
        )
        failed = [exchange.error for exchange in done.exchanges if exchange.error]
        if failed:
            msg = f"{text}: {len(failed)} of {requests} requests failed: {failed[0]}"
            raise CellFailed(msg)
        found = list(measure_round(done.exchanges, started=done.started, asked_output=tokens).pooled["tpot"])
        if not found:
            msg = f"{text}: no request returned two tokens, so nothing was decoded"
            raise CellFailed(msg)
        return found

    def start(self) -> None:
        """Switch the profiler on. Raises CellFailed when the server says no."""
        response = self.server.request("POST", self.spec.start, limit=_START_LIMIT, json=self.spec.start_body)
        if response.status_code == 404:
            msg = f"POST {self.spec.start} answered 404: this server was not started with its profiler on"
            raise CellFailed(msg)
        if response.status_code != 200 or self.spec.accepted not in response.text.lower():
            msg = f"POST {self.spec.start} answered {response.status_code}: {response.text[:200] or 'no text'}"
            raise CellFailed(msg)

    def stop(self, before: Mapping[str, Seen]) -> float:
        """Switch the profiler off, however long it takes, with the growth of the files as progress; return seconds."""
        limit, route = self.spec.flush_limit, self.spec.stop
        failure: list[PayloadError] = []

        def ask() -> None:
            try:
                response = self.server.request("POST", route, limit=limit)
                if response.status_code != 200:
                    failure.append(CellFailed(f"POST {route} answered {response.status_code}"))
            except PayloadError as error:
                failure.append(error)

        began = time.monotonic()
        asked = threading.Thread(target=ask, daemon=True)
        asked.start()
        while asked.is_alive() and time.monotonic() - began < limit:
            asked.join(_POLL)
            written = total(changed(before, snapshot(self.folder)))
            text = f"{self.name}, traces are written: {written / 1e6:.1f} MB"
            self.output.progress(text, time.monotonic() - began, limit, every=5.0)
        if asked.is_alive():
            msg = f"POST {route} did not return within {limit:g} s"
            raise CellFailed(msg)
        if failure:
            raise CellFailed(str(failure[0]))
        return time.monotonic() - began

    def proven(
        self, before: Mapping[str, Seen], plain: Sequence[float], profiled: Sequence[float]
    ) -> tuple[list[Seen], TraceAnalysis]:
        """Wait until there are N complete rank files of stable size; return them and their analysis.

        Each file is read once: hundreds of megabytes of text take longer than the flush. Raises CellFailed.
        """
        wanted = self.spec.ranks
        end = time.monotonic() + _SETTLE
        last: dict[Path, int] = {}
        while True:
            files = rank_files(changed(before, snapshot(self.folder)))
            sizes = {seen.path: seen.size for seen in files}
            stable = sizes == last
            problems: list[str] = []
            if len(files) > wanted:
                names = ", ".join(seen.path.name for seen in files)
                msg = f"{len(files)} rank files for {wanted} ranks: {names}"
                raise CellFailed(msg)
            if stable and len(files) == wanted:
                analysis, problems = self.analyse([seen.path for seen in files], plain, profiled)
                if analysis is not None and not problems:
                    return files, analysis
            last = sizes
            if time.monotonic() > end:
                raise CellFailed(_what_is_missing(files, wanted, problems))
            # A server that named no file at all has nothing left to write: do not wait for it that long.
            if stable and not files:
                end = min(end, time.monotonic() + 10.0)
            time.sleep(_POLL)

    def analyse(
        self, paths: Sequence[Path], plain: Sequence[float], profiled: Sequence[float]
    ) -> tuple[TraceAnalysis | None, list[str]]:
        """Analyse the files here, where they lie; return the analysis and what keeps a file from being proof.

        Raises CellFailed for files that are complete and hold nothing to analyse: waiting would not change that.
        """
        from opsctl import trace
        from opsctl.errors import TraceError

        size = sum(path.stat().st_size for path in paths) / 1e6
        self.output.progress(f"{self.name}, {len(paths)} rank files are read: {size:.1f} MB", 0, 1)
        tpot = trace.Tpot(
            armed_us=mean(plain) * 1e3,
            capturing_us=mean(profiled) * 1e3,
            source=f"the client of this window, {self.name}: right before it, and inside",
        )
        try:
            analysis = trace.analyse(
                list(paths),
                world_size=self.spec.ranks,
                expected=self.spec.expected,
                token_bytes=self.spec.token_bytes,
                tpot=tpot,
            )
        except TraceError as error:
            problems = [problem for path in paths for problem in check_file(path)]
            if problems:
                return None, problems
            msg = f"the rank files are complete, but hold nothing to analyse: {'; '.join(error.lines())}"
            raise CellFailed(msg) from error
        return analysis, [problem for file in analysis.ranks for problem in _doubts(file)]

    def measure(self) -> None:
        """Measure the window and record it."""
        count = max(self.spec.requests or _REQUESTS * self.concurrency, self.concurrency)
        warm = self.spec.warmup_requests
        if warm:
            self.load(max(warm, self.concurrency), "warm-up")
        plain = self.load(count, "without the profiler")
        before = snapshot(self.folder)
        self.start()
        try:
            profiled = self.load(count, "with the profiler")
        except PayloadError:
            # Left on, the profiler would slow and fill whatever comes next. Not so when we are told to stop:
            # a flush takes minutes, and the server is about to be taken down.
            self.stop(before)
            raise
        flush = self.stop(before)
        if self.spec.profiler == "nsys":
            detail = self._take_reports(before)
        else:
            detail = self._take_traces(before, plain, profiled)
        self.output.cell(
            self.name,
            "verified",
            figures=[
                _tpot("tpot.unprofiled", plain, "right before the window, same load"),
                _tpot("tpot.profiled", profiled, "inside the window"),
                *_slowdown(plain, profiled),
                figure("flush.time", flush, "s", formula="POST /stop_profile, wall"),
            ],
            detail={"requests": count, "concurrency": self.concurrency, **detail},
        )

    def _take_traces(
        self, before: Mapping[str, Seen], plain: Sequence[float], profiled: Sequence[float]
    ) -> dict[str, Any]:
        began = time.monotonic()
        files, analysis = self.proven(before, plain, profiled)
        took = time.monotonic() - began
        here = self.output.folder / "traces" / slug(self.name)
        taken = []
        for seen in files:
            target = here / seen.path.name
            bring(seen.path, target)
            self.output.artifact(target, "trace")
            taken.append(target)
        self.output.evidence(
            f"{self.name}: rank files that parse to their end",
            f"{len(taken)} of {self.spec.ranks}, {sum(path.stat().st_size for path in taken)} bytes, "
            f"read and analysed in {took:.1f} s",
        )
        path = self.output.folder / f"trace-{slug(self.name)}.json"
        path.write_text(json.dumps(analysis.to_json(), indent=1), encoding="utf-8")
        self.output.artifact(path, "trace-analysis")
        return {
            "files": [path.name for path in taken],
            "trace": path.name,
            "device_events": analysis.on_device,
            "note": "" if analysis.on_device else "no device kernels: what is shown is the host's operators",
            "problems": list(analysis.problems),
        }

    def _take_reports(self, before: Mapping[str, Seen]) -> dict[str, Any]:
        end = time.monotonic() + _SETTLE
        while True:
            reports = [s for s in changed(before, snapshot(self.folder)) if s.path.suffix == ".nsys-rep" and s.size]
            if reports:
                break
            if time.monotonic() > end:
                msg = f"no .nsys-rep appeared in {self.folder}: is the service started under nsys profile?"
                raise CellFailed(msg)
            time.sleep(_POLL)
        names = []
        for seen in reports:
            target = self.output.folder / "traces" / slug(self.name) / seen.path.name
            bring(seen.path, target)
            self.output.artifact(target, "nsys-report")
            names.append(target.name)
        return {"files": names}


def _tpot(name: str, values: Sequence[float], when: str) -> Figure:
    formula = f"mean of (E2EL − TTFT) / (output tokens − 1), {when}"
    return figure(name, mean(values), "ms", samples=len(values), spread=std(values), formula=formula)


def _slowdown(plain: Sequence[float], profiled: Sequence[float]) -> list[Figure]:
    if not mean(plain):
        return []  # every answer came in one piece: there is no time between tokens
    return [figure("profiler.slowdown", mean(profiled) / mean(plain), "ratio", formula="TPOT with / without")]


def _what_is_missing(files: Sequence[Seen], wanted: int, problems: Sequence[str]) -> str:
    parts = []
    if len(files) < wanted:
        parts.append(f"{len(files)} of {wanted} rank files appeared within {_SETTLE:g} s of /stop_profile's return")
    parts.extend(problems)
    return "; ".join(parts) or f"the files still grew {_SETTLE:g} s after /stop_profile returned"


def check_file(path: Path) -> list[str]:
    """Return what keeps a rank file from being proof, each naming the file; empty when nothing does."""
    from opsctl import trace

    found = trace.verify_file(path)
    return _faults(path.name, whole=found.whole, events=found.events, problems=found.problems)


def _doubts(file: RankFile) -> list[str]:
    return _faults(file.file, whole=file.whole, events=file.events, problems=file.problems)


def _faults(name: str, *, whole: bool, events: int, problems: Sequence[str]) -> list[str]:
    faults = [f"{name}: {problem}" for problem in problems]
    if not whole and not faults:
        faults.append(f"{name}: it is cut short")
    if whole and events == 0:
        faults.append(f"{name}: it holds no events")
    return faults


def _fit(spec: Spec) -> None:
    if spec.profiler == "nsys" and shutil.which("nsys") is None:
        msg = "nsys is not on this host's PATH: install Nsight Systems, or profile with torch"
        raise PayloadError(msg)


def run(spec: Spec, output: Output) -> tuple[str, str]:
    """Profile every window. Returns the state and reason of the ``end`` record."""
    _fit(spec)
    cells = spec.cells
    states: list[str] = []
    with Server(spec.url, api_key_file=spec.api_key_file, trust=Trust(spec.ca_file, spec.verify)) as server:
        output.environment(
            {"engine": {"url": server.url, "version": server.version(spec.version), "models": server.models()}}
        )
        for place, cell in enumerate(cells):
            if cell.id in output.verified:
                states.append("verified")
                continue
            output.progress(cell.id, place, len(cells))
            output.cell(cell.id, "running")
            try:
                _Window(spec, cell, server, output).measure()
                states.append("verified")
            except PayloadError as error:
                output.cell(cell.id, "failed", reason=str(error))
                states.append("failed")
            except OSError as error:
                reason = f"the traces could not be taken: {error.strerror or error} ({error.filename or ''})"
                output.cell(cell.id, "failed", reason=reason)
                states.append("failed")
    return verdict(states)

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from opsctl.payload.idle_wait import Disturbed, NeverQuiet, QuietWatch
from opsctl.payload.output import Output, read_records
from opsctl.payload.server import Server
from opsctl.payload.serving_spec import Metrics, QuietSpec
from opsctl.playbook.models import HostEntry
from opsctl.results import State
from opsctl.stages.base import StageContext
from opsctl.stages.serving_benchmark import Quiet, ServingBenchmark, ServingBenchmarkStage

METRICS = Metrics(
    running=("vllm:num_requests_running",),
    waiting=("vllm:num_requests_waiting",),
    finished=("vllm:request_success_total",),
)
SPEC = {"wait": 5.0, "stable": 0.2, "running": 0}


@dataclass
class Counters:
    """What the server counts; ``busy`` is taken from the front, its last value stays."""

    busy: list[float] = field(default_factory=lambda: [0.0])
    finished: float = 0.0
    counts: bool = True
    asked: int = 0
    url: str = ""

    def metrics(self) -> bytes:
        self.asked += 1
        if not self.counts:
            return b"# nothing is counted\n"
        busy = self.busy.pop(0) if len(self.busy) > 1 else self.busy[0]
        return (
            f'vllm:num_requests_running{{engine="0"}} {busy}\n'
            f'vllm:num_requests_waiting{{engine="0"}} 0.0\n'
            f'vllm:request_success_total{{finished_reason="length"}} {self.finished}\n'
            f'vllm:request_success_total{{finished_reason="stop"}} 0.0\n'
        ).encode()


@pytest.fixture
def counters() -> Iterator[Counters]:
    state = Counters()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = state.metrics()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    state.url = f"http://127.0.0.1:{server.server_port}"
    yield state
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def output(tmp_path: Path) -> Iterator[Output]:
    with Output(tmp_path / "results.jsonl") as made:
        yield made


def watch(counters: Counters, output: Output, **spec: float) -> QuietWatch:
    return QuietWatch(QuietSpec.from_dict({**SPEC, **spec}), METRICS, Server(counters.url), output)


def test_it_waits_until_the_server_was_quiet_for_long_enough(counters: Counters, output: Output) -> None:
    counters.busy = [3.0, 2.0, 0.0, 1.0, 0.0]
    watch(counters, output).await_quiet()
    # Busy, busy, quiet for one look, busy again, then quiet for the whole time.
    assert counters.asked >= 4 + 2
    (said,) = [record for record in read_records(output.path) if record["record"] == "evidence"]
    assert said["asked"] == "quiet server"
    assert said["observed"].startswith("at most 0 requests in flight for 0.2 s")


def test_a_server_that_never_gets_quiet_is_left_alone_with_the_reason(counters: Counters, output: Output) -> None:
    counters.busy = [2.0]
    with pytest.raises(NeverQuiet, match=r"not quiet for 0.2 s within 0.3 s: 2 requests in flight at last"):
        watch(counters, output, wait=0.3).await_quiet()
    watch(counters, output, running=2).await_quiet()


def test_a_server_that_counts_nothing_is_not_quiet(counters: Counters, output: Output) -> None:
    counters.counts = False
    with pytest.raises(NeverQuiet, match="it is not known whether"):
        watch(counters, output).await_quiet()


def test_more_in_flight_than_ours_is_other_traffic(counters: Counters, output: Output) -> None:
    counters.busy = [8.0]
    watch(counters, output).look(8)
    counters.busy = [9.0]
    with pytest.raises(Disturbed, match="9 requests in flight, 8 of them ours"):
        watch(counters, output).look(8)
    counters.counts = False
    with pytest.raises(Disturbed, match="its counters went away"):
        watch(counters, output).look(8)


def test_more_finished_than_we_sent_is_other_traffic(counters: Counters, output: Output) -> None:
    counters.finished = 100
    one = watch(counters, output)
    one.begin()
    counters.finished = 110
    one.end(10)
    with pytest.raises(Disturbed, match="3 requests of others finished meanwhile"):
        one.end(7)


def test_without_the_option_nothing_is_asked(counters: Counters, output: Output) -> None:
    one = QuietWatch(None, METRICS, Server(counters.url), output)
    one.await_quiet()
    one.begin()
    one.look(1)
    one.end(1)
    assert counters.asked == 0


@pytest.mark.parametrize(
    ("records", "state"),
    [
        ([{"record": "cell", "id": "concurrency=1", "state": "skipped", "reason": "busy"}], State.INCONCLUSIVE),
        ([{"record": "cell", "id": "concurrency=1", "state": "inconclusive", "reason": "busy"}], State.INCONCLUSIVE),
        ([{"record": "cell", "id": "concurrency=1", "state": "failed", "reason": "died"}], State.FAILED),
    ],
)
def test_the_night_is_inconclusive_and_not_failed(records: list[dict[str, str]], state: State) -> None:
    options = ServingBenchmark(concurrency=(1,), quiet=Quiet())
    stage = ServingBenchmarkStage()
    context = StageContext(run="r", step="s", host_name="h", host=HostEntry(), folder="/x")
    planned = stage.cells(options, context)
    end = {"record": "end", "state": "inconclusive", "reason": "other traffic came"}
    result = stage.judge(options, context, planned, [*records, end])
    assert result.state is state
    assert all(cell.state is not State.VERIFIED for cell in result.cells)

"""The wait for a load, against a real unit, journal and HTTP server: each way in which it ends."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from opsctl.errors import DeadlineExceeded, HostRebooted, Interrupted, LoadFailed, LoadStalled, NotReady, UnitNotFound
from opsctl.host.protocol import Host
from opsctl.lab.hosts import LabHost
from opsctl.lab.units import Standin
from opsctl.playbook.models import Readiness, Role
from opsctl.serving import readiness
from opsctl.serving.load import waiting
from opsctl.serving.load.progress import LoadProgress
from opsctl.serving.readiness import Ready, Serving
from tests.serving.conftest import limit, service_for

pytestmark = pytest.mark.lab

STALL = 6.0
"""Longer than a stand-in takes from its start to its first line on a machine that others use too."""
QUICK = {"settle": 0.2, "request_limit": 3.0, "completions": 3}


class Loads:
    """Starts stand-ins on one host and waits for them, as a run does."""

    def __init__(self, lab_host: LabHost, host: Host, install: Callable[..., None]) -> None:
        self.lab_host = lab_host
        self.host = host
        self._install = install
        self.units: list[str] = []
        self.seen: list[LoadProgress] = []

    def install(self, standin: Standin) -> None:
        self._install(self.lab_host, standin, start=False)
        self.units.append(standin.service_name)

    def load(
        self,
        standin: Standin,
        *,
        seconds: float = 60.0,
        host: Host | None = None,
        cancelled: Callable[[], bool] = lambda: False,
        during: Callable[[], None] = lambda: None,
        **service: Any,
    ) -> Ready:
        self.install(standin)
        host = host or self.host
        described = service_for(standin, **{"readiness": Readiness(**QUICK), **service})
        mark = readiness.journal_mark(host, described, deadline=limit())
        host.systemd().start(described.unit, deadline=limit())
        started = host.systemd().status(described.unit, deadline=limit())
        during()
        return readiness.await_ready(
            host,
            described,
            deadline=limit(seconds),
            started=started,
            on_progress=self.seen.append,
            cancelled=cancelled,
            journal_after=mark,
        )


@pytest.fixture
def loads(lab_host: LabHost, reach: Callable[..., Host], standin_unit: Callable[..., None]) -> Iterator[Loads]:
    made = Loads(lab_host, reach(lab_host), standin_unit)
    yield made
    for unit in made.units:
        lab_host.systemctl("kill", "--signal=KILL", unit, check=False)
        lab_host.systemctl("stop", unit, check=False)
        lab_host.systemctl("reset-failed", unit, check=False)


def test_a_load_is_followed_to_its_tokens(loads: Loads) -> None:
    ready = loads.load(Standin(load_seconds=1.5))
    assert [proof.asked for proof in ready.evidence] == [
        "systemd: state of vllm-kimi-k25-int4.service",
        "GET /v1/models",
        *["POST /v1/completions"] * 3,
        "who listens at http://127.0.0.1:8000",
    ]
    assert ready.version == "0.32.0"
    assert ready.n_restarts == 0
    assert ready.invocation_id
    assert ready.phases["weights"] == pytest.approx(1.5, abs=0.4)
    assert next(iter(ready.phases)) == "spawned"
    assert list(ready.phases)[-1] == "first tokens"
    assert ready.seconds == pytest.approx(sum(ready.phases.values()), abs=0.1)
    assert any(state.shards_total == 6 for state in loads.seen)


def test_readiness_is_seen_within_half_a_second_of_the_first_good_completion(loads: Loads) -> None:
    loads.install(Standin())
    script = (
        "until curl -sf -m 2 http://127.0.0.1:8000/v1/completions -H 'content-type: application/json' "
        '-d \'{"model": "kimi-k2.5", "prompt": "a", "max_tokens": 1}\' >/dev/null; do sleep 0.02; done'
    )
    first: list[float] = []

    def watch() -> None:
        loads.lab_host.exec("sh", "-c", script, timeout=60)
        first.append(time.monotonic())

    watcher = threading.Thread(target=watch)
    loads.load(Standin(), during=watcher.start)
    seen = time.monotonic()
    watcher.join(30)
    assert seen - first[0] < 0.5 + 0.5, "half a second, and half a second for a machine that others use too"


@pytest.mark.parametrize(
    ("fault", "words", "transient", "quoted"),
    [
        ("dies-at-shard=2", "disk error", True, "Input/output error"),
        ("out-of-memory", "out of GPU memory", False, "CUDA out of memory"),
        ("bad-arguments", "wrong command line", False, "unrecognized arguments"),
    ],
)
def test_a_load_that_dies_says_why(loads: Loads, fault: str, words: str, transient: bool, quoted: str) -> None:
    with pytest.raises(LoadFailed, match=words) as raised:
        loads.load(Standin(fault=fault))
    assert raised.value.transient is transient
    assert raised.value.hint
    assert quoted in raised.value.lines_quoted[0]


LAST_WORDS = (
    (
        "(APIServer pid=9) ERROR 02-03 10:00:02 [repo_utils.py:47] Error retrieving safetensors: Repo id must "
        "be in the form 'repo_name' or 'namespace/repo_name': '/models/m'., retrying 1 of 2"
    ),
    "+ export VLLM_ENGINE_READY_TIMEOUT_S=3600",
    (
        "(EngineCore_DP0 pid=200) [rank0]:E0303 10:02:00.000000 200 torch/_inductor/select_algorithm.py:2691] [8/0] "
        "CUDA out of memory. Tried to allocate 1.00 GiB."
    ),
    "(EngineCore_DP0 pid=200) ERROR 10-03 10:02:30 [core.py:708] EngineCore failed to start.",
)


@pytest.mark.parametrize("line", LAST_WORDS, ids=["local path", "shell", "tuner", "an end that is none"])
def test_no_line_alone_ends_the_wait_for_a_server_that_comes_up(loads: Loads, line: str) -> None:
    loads.lab_host.write_file("/opt/line", line + "\n")
    ready = loads.load(Standin(service=("ExecStartPre=/bin/cat /opt/line",), load_seconds=1.5))
    assert len(ready.evidence) == 6


def test_a_line_and_silence_after_it_end_the_wait_for_a_variant_alone(
    loads: Loads, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(waiting, "GRACE", 4.0)
    loads.lab_host.write_file("/opt/hangs", f"#!/bin/sh\necho '{LAST_WORDS[-1]}' >&2\nexec sleep 600\n", 0o755)
    hanging = Standin(service=("ExecStart=", "ExecStart=/opt/hangs"))
    with pytest.raises(LoadFailed, match="will never serve: engine did not start") as raised:
        loads.load(hanging, role=Role.VARIANT)
    assert "nothing moved for" in (raised.value.seen or "")
    with pytest.raises(DeadlineExceeded):
        loads.load(hanging, seconds=10.0)


def test_a_server_that_ends_with_status_0_after_a_fatal_error_failed(loads: Loads) -> None:
    loads.lab_host.write_file("/opt/ends", f"#!/bin/sh\necho '{LAST_WORDS[-1]}' >&2\nsleep 2\nexit 0\n", 0o755)
    with pytest.raises(LoadFailed, match=r"ended .*: engine did not start") as raised:
        loads.load(Standin(service=("ExecStart=", "ExecStart=/opt/ends")))
    assert raised.value.transient


def test_a_crash_loop_is_seen_at_once(loads: Loads) -> None:
    standin = Standin(environment={"STANDIN_FAULT": "dies-at-shard=1"}, service=("Restart=always", "RestartSec=0.1"))
    with pytest.raises(LoadFailed) as raised:
        loads.load(standin)
    assert loads.seen or raised.value.seen


def test_a_program_that_is_not_there_is_named_by_systemd(loads: Loads) -> None:
    standin = Standin(service=("ExecStart=", "ExecStart=/opt/none/bin/vllm serve /models/none"))
    with pytest.raises(LoadFailed, match="failed") as raised:
        loads.load(standin)
    assert "could not be executed" in str(raised.value.hint)
    assert not raised.value.transient


def test_a_load_that_stands_still_is_given_up(loads: Loads) -> None:
    standin = Standin(fault="stuck-at-shard=3")
    with pytest.raises(LoadStalled, match="phase weights") as raised:
        loads.load(standin, readiness=Readiness(**QUICK, stall=STALL))
    assert "weights 2/6" in str(raised.value.seen)
    assert "readiness.stall" in str(raised.value.wanted)


def test_silence_after_the_last_shard_is_a_stall_too(loads: Loads) -> None:
    with pytest.raises(LoadStalled, match="nothing moved"):
        loads.load(Standin(fault="stuck-after-load"), readiness=Readiness(**QUICK, stall=STALL))


def test_healthy_but_dead_is_not_ready(loads: Loads) -> None:
    readiness_ = Readiness(settle=0.2, request_limit=0.5, completions=3, stall=STALL)
    with pytest.raises(LoadStalled, match="first tokens") as raised:
        loads.load(Standin(fault="healthy-but-dead"), readiness=readiness_)
    assert "no answer within" in str(raised.value.seen)


def test_answers_without_tokens_are_not_ready(loads: Loads) -> None:
    with pytest.raises(DeadlineExceeded) as raised:
        loads.load(Standin(fault="no-tokens"), seconds=8)
    assert "no token" in str(raised.value.seen)


def test_a_server_that_logs_nothing_known_is_still_waited_for(loads: Loads) -> None:
    ready = loads.load(Standin(load_seconds=1.0, service=("StandardError=null", "StandardOutput=null")))
    assert "weights" not in ready.phases
    assert list(ready.phases) == ["spawned", "first tokens"]


def test_a_wrong_key_is_its_own_error(loads: Loads) -> None:
    loads.lab_host.write_file("/etc/vllm/key", "wrong\n", 0o600)
    standin = Standin(environment={"VLLM_API_KEY": "right-key"})
    with pytest.raises(NotReady, match="key was refused") as raised:
        loads.load(standin, api_key_file="/etc/vllm/key")
    assert "api-key-file" in str(raised.value.hint)
    assert "wrong" not in "".join(raised.value.lines())


def test_the_right_key_opens(loads: Loads) -> None:
    loads.lab_host.write_file("/etc/vllm/key", "right-key\n", 0o600)
    ready = loads.load(Standin(environment={"VLLM_API_KEY": "right-key"}), api_key_file="/etc/vllm/key")
    assert "right-key" not in repr(ready)


def test_a_key_file_that_is_not_there_is_named(loads: Loads) -> None:
    with pytest.raises(NotReady, match="cannot be read") as raised:
        loads.load(Standin(environment={"VLLM_API_KEY": "right-key"}), api_key_file="/etc/vllm/none")
    assert "/etc/vllm/none" in str(raised.value.where)


def test_another_model_on_the_port_is_its_own_error(loads: Loads) -> None:
    with pytest.raises(NotReady, match="another model") as raised:
        loads.load(Standin(served="llama"), model="kimi-k2.5")
    assert "llama" in str(raised.value.seen)


def test_something_else_on_the_port_is_its_own_error(loads: Loads) -> None:
    loads.lab_host.exec(
        "systemd-run", "--unit=other-server", "/usr/bin/python3", "-m", "http.server", "8123", "--bind", "127.0.0.1"
    )
    loads.units.append("other-server.service")
    with pytest.raises(NotReady, match="something else answers"):
        loads.load(Standin(load_seconds=20), url="http://127.0.0.1:8123")


def test_the_deadline_says_what_was_last_seen(loads: Loads) -> None:
    with pytest.raises(DeadlineExceeded) as raised:
        loads.load(Standin(load_seconds=60), seconds=4)
    assert "weights" in str(raised.value.seen)


def test_a_cancel_ends_the_wait_even_when_a_request_hangs(loads: Loads) -> None:
    asked = threading.Event()
    threading.Timer(4.0, asked.set).start()
    began = time.monotonic()
    with pytest.raises(Interrupted):
        loads.load(
            Standin(fault="healthy-but-dead"),
            cancelled=asked.is_set,
            readiness=Readiness(settle=0.2, request_limit=60.0, completions=3),
        )
    assert time.monotonic() - began < 20


def test_a_stop_by_somebody_else_ends_the_wait(loads: Loads) -> None:
    def stop() -> None:
        loads.lab_host.systemctl("stop", "--no-block", "vllm-kimi-k25-int4.service")

    with pytest.raises(LoadFailed, match=r"ended|being stopped"):
        loads.load(Standin(load_seconds=30), during=stop)


def test_a_lost_link_costs_its_own_budget(
    loads: Loads, fresh_lab_host: LabHost, reach: Callable[..., Host], standin_unit: Callable[..., None]
) -> None:
    loads.lab_host = fresh_lab_host

    def cut() -> None:
        threading.Timer(0.5, fresh_lab_host.cut).start()
        threading.Timer(3.0, fresh_lab_host.heal).start()

    ready = loads.load(Standin(load_seconds=6), host=reach(fresh_lab_host), during=cut)
    assert ready.version == "0.32.0"
    assert "weights" in ready.phases


def test_a_reboot_is_not_a_lost_link(
    loads: Loads, fresh_lab_host: LabHost, reach: Callable[..., Host], standin_unit: Callable[..., None]
) -> None:
    loads.lab_host = fresh_lab_host
    with pytest.raises(HostRebooted):
        loads.load(Standin(load_seconds=30), host=reach(fresh_lab_host), during=fresh_lab_host.reboot)


def test_verify_serving_proves_and_refuses(loads: Loads) -> None:
    standin = Standin()
    service = service_for(standin, readiness=Readiness(**QUICK))
    loads.install(standin)
    with pytest.raises(NotReady, match="not active"):
        readiness.verify_serving(loads.host, service, deadline=limit())
    loads.load(standin)
    proven = readiness.verify_serving(loads.host, service, deadline=limit())
    assert [proof.asked for proof in proven.evidence].count("POST /v1/completions") == 3
    assert proven.version == "0.32.0"
    with pytest.raises(NotReady, match="nothing listens"):
        readiness.verify_serving(loads.host, service_for(standin, url="http://127.0.0.1:8009"), deadline=limit())
    with pytest.raises(UnitNotFound):
        readiness.verify_serving(loads.host, service_for(standin, unit="none.service"), deadline=limit())


def test_observe_never_raises_for_a_server_that_is_down(loads: Loads) -> None:
    standin = Standin(load_seconds=1.0)
    service = service_for(standin)
    loads.install(standin)

    def look(**changes: Any) -> Serving:
        return readiness.observe(loads.host, service.model_copy(update=changes), deadline=limit()).state

    assert look() is Serving.DOWN
    assert look(unit="none.service") is Serving.DOWN
    loads.host.systemd().start(service.unit, deadline=limit())
    assert look() is Serving.LOADING
    loads.lab_host.systemctl("stop", service.unit)
    loads.load(standin)
    assert look() is Serving.SERVING
    assert look(model="other") is Serving.UNKNOWN
    assert look(api_key_file="/none") is Serving.UNKNOWN

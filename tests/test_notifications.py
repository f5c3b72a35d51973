"""Messages sent for real, over HTTP, to a server that keeps them."""

from __future__ import annotations

import http.server
import json
import logging
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from opsctl.notifications import after_run, expanded, news_of, tell
from opsctl.record import RunRecord, Standing
from tests.report import samples


class Mailbox(http.server.ThreadingHTTPServer):
    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.received: list[dict[str, Any]] = []
        self.answer = 200
        self.hold = threading.Event()
        self.hold.set()


class Handler(http.server.BaseHTTPRequestHandler):
    server: Mailbox

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.hold.wait(20)
        self.server.received.append(json.loads(body))
        self.send_response(self.server.answer)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@pytest.fixture
def mailbox() -> Iterator[Mailbox]:
    with Mailbox() as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server
        server.hold.set()
        server.shutdown()
        thread.join(10)


@pytest.fixture
def kimi(tmp_path: Path) -> RunRecord:
    return samples.kimi_campaign(tmp_path)


def address(mailbox: Mailbox) -> str:
    return f"json://user:hunter2secret@127.0.0.1:{mailbox.server_port}/hook"


def test_a_run_is_told_with_its_finding_and_its_report(mailbox: Mailbox, kimi: RunRecord) -> None:
    assert after_run(kimi, [address(mailbox)], reports=[Path("/x/report.html")]) == []
    (message,) = mailbox.received
    assert message["title"] == "profile-campaign on kimi: failed"
    assert message["message"].startswith(
        "production vllm-kimi-k25-int4.service on kimi: back and verified by the controller after 2h 40m"
    )
    assert "Communication is 47." in message["message"]
    assert "report: /x/report.html" in message["message"]


@pytest.mark.parametrize(
    ("changes", "alarms", "kind", "title"),
    [
        ({"exit_code": 0, "outcome": "verified"}, (), "finished", "profile-campaign on kimi: verified"),
        ({"exit_code": 5, "outcome": "inconclusive"}, (), "failed", "profile-campaign on kimi: inconclusive"),
        ({"exit_code": 0}, ("tpot.p50: +6 %",), "regression", "profile-campaign: 1 figure got worse"),
        ({"exit_code": 3}, ("tpot.p50: +6 %",), "production not verified", "PRODUCTION NOT VERIFIED on kimi"),
    ],
)
def test_what_matters_most_is_the_title(
    kimi: RunRecord, changes: dict[str, Any], alarms: tuple[str, ...], kind: str, title: str
) -> None:
    news = news_of(kimi.model_copy(update=changes), alarms=alarms)
    assert (news.kind, news.title) == (kind, title)
    assert all(alarm in news.body for alarm in alarms)


def test_production_that_is_not_verified_comes_first_whatever_the_code_says(kimi: RunRecord) -> None:
    down = kimi.production[0].model_copy(update={"standing": Standing.UNVERIFIED})
    news = news_of(kimi.model_copy(update={"production": (down,), "exit_code": 0}))
    assert news.kind == "production not verified"
    assert "opsctl rollback kimi" in news.body.splitlines()[0]


def test_a_secret_does_not_travel(mailbox: Mailbox, kimi: RunRecord) -> None:
    leaky = kimi.model_copy(update={"reason": "vllm serve --api-key sk-verysecretvalue123456 failed"})
    after_run(leaky, [address(mailbox)])
    assert "verysecretvalue" not in json.dumps(mailbox.received)
    assert "[redacted]" in mailbox.received[0]["message"]


def test_a_notifier_that_fails_is_named_without_its_address(
    mailbox: Mailbox, kimi: RunRecord, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    mailbox.answer = 500
    nobody = "json://user:hunter2secret@127.0.0.1:1/"
    with caplog.at_level(logging.DEBUG):
        problems = after_run(kimi, [address(mailbox), nobody, "nonsense", "slack://hunter2secret"])
    assert problems == [
        "notifier 1 (json) could not be told",
        "notifier 2 (json) could not be told",
        "notifier 3 (an address without a scheme) could not be told",
        "notifier 4 (slack) could not be told",
    ]
    out = capfd.readouterr()
    assert "hunter2" not in out.out + out.err + caplog.text + "".join(problems)


def test_a_notifier_that_hangs_does_not_hold_the_run(mailbox: Mailbox, kimi: RunRecord) -> None:
    mailbox.hold.clear()
    tell(news_of(kimi), ["nonsense"])  # loads apprise, which is not what is timed here
    began = time.monotonic()
    problems = tell(news_of(kimi), [address(mailbox)], limit=0.5)
    assert time.monotonic() - began < 10
    assert problems == ["notifier 1 (json) did not answer within 0.5 s"]


def test_addresses_can_lie_in_a_file(mailbox: Mailbox, kimi: RunRecord, tmp_path: Path) -> None:
    path = tmp_path / "notify.txt"
    path.write_text(f"# on call\n\n{address(mailbox)}\n")
    assert after_run(kimi, [f"file:{path}"]) == []
    assert len(mailbox.received) == 1
    assert expanded([f"file:{tmp_path}/none"]) == (
        [],
        [f"notifiers in {tmp_path}/none could not be read: No such file or directory"],
    )


def test_without_apprise_the_run_ends_all_the_same(kimi: RunRecord, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "apprise", None)
    (problem,) = after_run(kimi, ["json://localhost/"])
    assert "pip install 'opsctl[notify]'" in problem
    assert after_run(kimi, []) == []


def test_nothing_that_goes_wrong_inside_comes_out(kimi: RunRecord, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = kimi.model_copy(update={"production": (None,)})
    assert after_run(broken, ["json://localhost/"]) == ["no notification was sent: AttributeError"]

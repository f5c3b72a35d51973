"""Terms and views as text: tables, no host."""

from __future__ import annotations

import json
from base64 import b64decode

import pytest

from opsctl.errors import UnfitError
from opsctl.host.guard.terms import LeaseTerms
from opsctl.host.guard.view import parse_view
from opsctl.playbook.models import Readiness, Role, Stopping, Traffic
from opsctl.playbook.resolved import ResolvedService

SERVICE = ResolvedService(
    name="p", host="h", unit="p@1.service", role=Role.PRODUCTION, url="http://127.0.0.1:8000/", model='odd "model"',
    api_key_file="/etc/key", readiness=Readiness(limit=2700.0, request_limit=60.0), stop=Stopping(limit=0.2),
    traffic=Traffic(in_=("lb", "in", "")),
)  # fmt: skip


def lines(terms: LeaseTerms) -> list[tuple[str, str]]:
    return [line.partition("=")[::2] for line in terms.encode("v").decode().splitlines()]


def test_terms_hold_the_whole_target() -> None:
    pairs = lines(LeaseTerms(run="r", holder="a@b", ttl=90.9, service=SERVICE, dependents=("x.service", "y.timer")))
    terms = dict(pairs)
    assert terms["ttl"] == "90"
    assert terms["url"] == "http://127.0.0.1:8000/v1/completions"
    assert json.loads(b64decode(terms["body"]))["model"] == 'odd "model"'
    assert (terms["stop_limit"], terms["load_limit"], terms["key_file"]) == ("1", "2700", "/etc/key")
    assert [value for key, value in pairs if key == "dependent"] == ["x.service", "y.timer"]
    assert [b64decode(value).decode() for key, value in pairs if key == "traffic"] == ["lb", "in", ""]


def test_how_https_is_checked_travels_where_it_is_said() -> None:
    def said(**changes: object) -> dict[str, str]:
        service = SERVICE.model_copy(update=changes)
        return dict(lines(LeaseTerms(run="r", holder="a", ttl=1, service=service)))

    assert {"ca_file", "verify"} & said().keys() == set(), "curl's own default: the system's store"
    assert said(ca_file="/etc/ssl/lab.pem")["ca_file"] == "/etc/ssl/lab.pem"
    assert said(verify=False)["verify"] == "no"


def test_nothing_to_restore_has_no_unit() -> None:
    assert "unit" not in dict(lines(LeaseTerms(run="r", holder="a", ttl=1, service=None)))


@pytest.mark.parametrize("field", ["run", "holder"])
@pytest.mark.parametrize("text", ["a\nb", "a\x00b", "a\x1b[1m"])
def test_text_that_cannot_travel_is_refused(field: str, text: str) -> None:
    values = {"run": "r", "holder": "a", field: text}
    with pytest.raises(UnfitError):
        LeaseTerms(run=values["run"], holder=values["holder"], ttl=1, service=None).encode("v")


@pytest.mark.parametrize(
    ("shown", "said"),
    [
        ("", "no lease was ever held here"),
        ("state=none\ntoken=0", "no lease was ever held here"),
        (
            "state=held\nholder=a@b\nrun=r\nsince=2026\nremaining=90\ntick_age=2",
            "held by a@b (run r) since 2026, until 1m 30s from now unless renewed",
        ),
        (
            "state=held\nholder=a@b\nsince=2026\nremaining=90",
            "held by a@b since 2026, until 1m 30s from now unless renewed; NO guard watches it",
        ),
        (
            "state=restoring\nwhy=not renewed for 9 s\nunit=p.service\nphase=verify\nattempt=2\nseen=x=y",
            "not renewed for 9 s: the guard is bringing back p.service (verify, attempt 3: x=y)",
        ),
        (
            "state=closed\nunit=p.service\nresult=verified\nclosed_by=guard\nclosed_at=T\nwhy=broken by c\nrun=r",
            "closed by guard at T: p.service verified, after: broken by c (run r)",
        ),
    ],
)
def test_a_view_in_one_line(shown: str, said: str) -> None:
    assert parse_view(shown).describe() == said


def test_a_view_keeps_the_log_and_survives_noise() -> None:
    view = parse_view("motd line\nstate=held\nlog=one\nlog=two = 2\ntick_age=31\ntoken=\n")
    assert view.log == ("one", "two = 2")
    assert view.live
    assert not view.watched
    assert view.token == 0
    assert view.document()["live"] is True

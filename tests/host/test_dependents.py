"""What hangs on production: a table of relations, and the same by a real systemd."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from opsctl.host.dependents import Hanging, closure, runs
from opsctl.host.protocol import Host, UnitStatus
from opsctl.lab.hosts import LabHost
from tests.host.conftest import limit

Relations = dict[str, dict[str, list[str]]]


def closed(relations: Relations, *, down: tuple[str, ...] = ()) -> Hanging:
    def status_of(name: str) -> UnitStatus:
        state = "inactive" if name in down else "active"
        return UnitStatus(name, "loaded", state, "", properties=relations.get(name, {}))

    return closure("p.service", status_of, wanted=runs)


@pytest.mark.parametrize("relation", ["RequiredBy", "RequisiteOf", "BoundBy", "ConsistsOf", "PropagatesStopTo"])
def test_every_relation_that_stops_a_unit(relation: str) -> None:
    assert closed({"p.service": {relation: ["a.service"]}}).dependents == ("a.service",)


@pytest.mark.parametrize(
    ("relations", "down", "wanted"),
    [
        ({}, (), Hanging()),
        (
            {"p.service": {"RequiredBy": ["z.service"]}, "z.service": {"BoundBy": ["a.target"]},
             "a.target": {"ConsistsOf": ["b.service"]}},
            (), Hanging(("z.service", "a.target", "b.service")),
        ),
        (
            {"p.service": {"RequiredBy": ["a.service"]}, "a.service": {"RequiredBy": ["p.service", "a.service"]}},
            (), Hanging(("a.service",)),
        ),
        ({"p.service": {"RequiredBy": ["a.service", "b.service"]}}, ("a.service",), Hanging(("b.service",))),
        (
            {"p.service": {"RequiredBy": ["a.service"], "TriggeredBy": ["p.timer", "p.socket"]},
             "a.service": {"TriggeredBy": ["a.path"]}},
            ("p.timer",), Hanging(("a.service",), ("p.socket", "a.path")),
        ),
        (
            {"p.service": {"UpheldBy": ["watch.service", "multi-user.target"]}},
            (), Hanging((), ("watch.service",), ("multi-user.target",)),
        ),
    ],
)  # fmt: skip
def test_the_closure(relations: Relations, down: tuple[str, ...], wanted: Hanging) -> None:
    assert closed(relations, down=down) == wanted


@pytest.mark.lab
def test_what_systemd_stops_is_what_is_found(fresh_lab_host: LabHost, reach: Callable[..., Host]) -> None:
    """Every unit that a stop of production takes down is in the closure, and nothing else."""
    sleep = "[Service]\nExecStart=/bin/sleep infinity\n"
    units = {
        "p.service": sleep,
        "requires.service": f"[Unit]\nRequires=p.service\nAfter=p.service\n{sleep}",
        "binds.service": f"[Unit]\nBindsTo=requires.service\nAfter=requires.service\n{sleep}",
        "part.service": f"[Unit]\nPartOf=whole.target\n{sleep}",
        "whole.target": "[Unit]\nRequires=p.service\nAfter=p.service\nWants=part.service\n",
        "told.service": f"[Unit]\nStopPropagatedFrom=p.service\n{sleep}",
        "p.timer": "[Timer]\nOnCalendar=2099-01-01\n",
        "keeper.service": f"[Unit]\nUpholds=p.service\n{sleep}",
        "bystander.service": f"[Unit]\nWants=p.service\n{sleep}",
    }
    for name, text in units.items():
        fresh_lab_host.write_file(f"/etc/systemd/system/{name}", text)
    fresh_lab_host.systemctl("daemon-reload")
    fresh_lab_host.systemctl("start", *units)
    systemd = reach(fresh_lab_host).systemd()
    found = closure("p.service", lambda name: systemd.status(name, deadline=limit()), wanted=runs)
    assert set(found.triggers) == {"p.timer", "keeper.service"}
    fresh_lab_host.systemctl("stop", *found.triggers)
    fresh_lab_host.systemctl("stop", "p.service")
    stopped = {name for name in units if fresh_lab_host.systemctl("is-active", name, check=False) != "active"}
    assert stopped - {"p.service", *found.triggers} == set(found.dependents)
    assert set(found.dependents) == {
        "requires.service",
        "binds.service",
        "whole.target",
        "part.service",
        "told.service",
    }

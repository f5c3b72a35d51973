"""Taking production out of the load balancer and putting it back: the user's own argv, run on the host.

They run as units through the fenced bus: a controller that lost its lease must not take traffic away from
a production that the guard has just restored.
"""

from __future__ import annotations

import time
import uuid
from dataclasses import dataclass
from typing import Literal

from opsctl.deadline import Deadline
from opsctl.errors import CommandFailed, JobFailed
from opsctl.host.protocol import Host, Systemd, TransientUnit
from opsctl.playbook.resolved import ResolvedService
from opsctl.results import Evidence
from opsctl.serving.waits import evidence

Direction = Literal["out", "in", "check"]

_GRACE = 15.0


@dataclass(frozen=True)
class TrafficRecord:
    """What was run, and that it ended well. ``argv`` is empty where the inventory names nothing."""

    direction: Direction
    argv: tuple[str, ...]
    seconds: float
    evidence: tuple[Evidence, ...] = ()


def argv_for(service: ResolvedService, direction: Direction) -> tuple[str, ...]:
    """Return the command of the inventory."""
    return {"out": service.traffic.out, "in": service.traffic.in_, "check": service.traffic.check}[direction]


def run_traffic(
    systemd: Systemd,
    host: Host,
    service: ResolvedService,
    direction: Direction,
    *,
    deadline: Deadline,
) -> TrafficRecord:
    """Run one of the commands to its end, within ``traffic.limit``, and then ``check`` where there is one.

    Raises CommandFailed with the command's own last words.
    """
    began = time.monotonic()
    proofs = []
    directions: tuple[Direction, ...] = (direction,) if direction == "check" else (direction, "check")
    for one in directions:
        argv = argv_for(service, one)
        if argv:
            _run(systemd, host, service, one, deadline=deadline)
            proofs.append(evidence(f"traffic {one}: {' '.join(argv)}", "ended with status 0"))
    return TrafficRecord(direction, argv_for(service, direction), time.monotonic() - began, tuple(proofs))


def _run(systemd: Systemd, host: Host, service: ResolvedService, direction: Direction, *, deadline: Deadline) -> None:
    argv = argv_for(service, direction)
    # The host ends the command at its limit; we wait a little longer, to hear that it did.
    limit = deadline.within(service.traffic.limit + _GRACE, f"traffic {direction} of {service.name}")
    output = f"{host.state_dir}/traffic-{uuid.uuid4().hex[:12]}.log"
    unit = TransientUnit(
        name=f"opsctl-traffic-{direction}-{uuid.uuid4().hex[:8]}.service",
        argv=argv,
        description=f"opsctl: traffic {direction} of {service.name}",
        runtime_max=service.traffic.limit,
        stdout_file=output,
        stderr_file=output,
        # The job of a oneshot ends when the program does, with its verdict.
        properties={"Type": "oneshot", "TimeoutStartUSec": round(service.traffic.limit * 1e6)},
    )
    host.run(["mkdir", "-p", "--", host.state_dir], deadline=limit)
    try:
        systemd.start_transient(unit, deadline=limit)
    except JobFailed as error:
        said = _last_line(host, output)
        raise CommandFailed(
            f"traffic {direction} of {service.name} failed",
            exit_status=1,
            stderr=said,
            wanted=f"{' '.join(argv)} to end with status 0 within {service.traffic.limit:g} s",
            seen=f"{error.result}; {said or 'it said nothing'}",
            where=f"host {host.name}",
            hint="run it by hand on the host; production still gets traffic"
            if direction == "out"
            else "production may get no traffic: put it back by hand",
        ) from error
    finally:
        host.run(["rm", "-f", "--", output], deadline=Deadline(10, "cleaning up"), check=False)


def _last_line(host: Host, path: str) -> str:
    said = host.run(["tail", "-c", "400", "--", path], deadline=Deadline(10, "the command's output"), check=False)
    return " ".join(said.text.split())

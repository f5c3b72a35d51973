"""What hangs on production: its dependents started again after it, its triggers stopped first and started again."""

from __future__ import annotations

from opsctl.campaign import limits, swap
from opsctl.campaign.borrowed_host import BorrowedHost, Done, seen
from opsctl.errors import JobFailed
from opsctl.host.protocol import UnitStatus
from opsctl.plan.actions import StartDependent, StartTrigger, StopTrigger
from opsctl.results import State
from opsctl.serving.unitstate import describe_unit
from opsctl.serving.waits import evidence


def stop_trigger(b: BorrowedHost, action: StopTrigger) -> Done:
    """Stop what would start production in mid-campaign. Raises JobFailed, LeaseLost, Interrupted.

    Where production requires the unit (``Requires=X.socket``), systemd stops production with it: production is then
    taken down first, as any stop of it, with its drain.
    """
    unit = action.unit
    before = status_of(b, unit)
    if before.stopped:
        return seen(f"systemd: state of {unit}", describe_unit(before))
    taken_down = swap.take_down(b, b.production).evidence if _required(b, unit) else ()

    def stop() -> UnitStatus:
        if not b.host.systemd().status(unit, deadline=b.call("status")).stopped:
            with b.change("stop", unit):
                b.systemd().stop(unit, deadline=b.call(f"stop of {unit}", action.limit + limits.STOP_GRACE))
        return b.host.systemd().status(unit, deadline=b.call("status"))

    after = b.persist(f"stop of {unit}", stop)
    if not after.stopped:
        raise JobFailed(f"{unit} does not stop", result=after.result, seen=describe_unit(after), where=_where(b, unit))
    b.say("service.stopped", f"{unit}, which starts production, is stopped", unit=unit)
    return Done((evidence(f"systemd: state of {unit}", describe_unit(after)), *taken_down))


def _required(b: BorrowedHost, unit: str) -> bool:
    production = status_of(b, b.production.unit)
    return not production.stopped and any(unit in _names(production, one) for one in ("Requires", "BindsTo"))


def start_trigger(b: BorrowedHost, action: StartTrigger) -> Done:
    """Start what starts production, as it ran before. Raises JobFailed.

    systemd starts no socket whose service runs: then it stays down, which is said, and production is left alone.
    """
    unit = action.unit
    refusal = None
    try:
        status = _start(b, unit)
    except JobFailed as error:
        refusal = error
        status = status_of(b, unit)
    if status.active:
        b.say("service.ready", f"{unit}, which starts production, is active again", unit=unit)
        return seen(f"systemd: state of {unit}", describe_unit(status))
    served = [one for one in _names(status, "Triggers") if not status_of(b, one).stopped]
    if unit.endswith(".socket") and served:
        words = (
            f"{unit} stays down: systemd starts no socket whose service runs, and {served[0]} runs;"
            f" once it may be stopped: systemctl stop {served[0]}; systemctl start {unit} {served[0]}"
        )
        b.say("restore.attempt", words, unit=unit)
        return Done((evidence(f"systemd: state of {unit}", describe_unit(status)),), State.INCONCLUSIVE, words)
    raise _did_not_come_back(b, status, "starts production") from refusal


def start_dependent(b: BorrowedHost, action: StartDependent) -> Done:
    """Start what stopped with production; it is looked at again, since a start job proves little.

    Raises JobFailed.
    """
    status = _start(b, action.unit)
    if not status.active:
        raise _did_not_come_back(b, status, "is a dependent of production")
    b.say("service.ready", f"{action.unit}, a dependent of production, is active again", unit=action.unit)
    return seen(f"systemd: state of {action.unit}", describe_unit(status))


def _start(b: BorrowedHost, unit: str) -> UnitStatus:
    def start() -> UnitStatus:
        status = b.host.systemd().status(unit, deadline=b.call("status"))
        if not status.active:
            with b.change("start", unit):
                b.systemd().start(unit, deadline=b.call(f"start of {unit}", limits.UNIT_JOB))
            status = b.host.systemd().status(unit, deadline=b.call("status"))
        return status

    return b.persist(f"start of {unit}", start)


def _did_not_come_back(b: BorrowedHost, status: UnitStatus, what: str) -> JobFailed:
    return JobFailed(
        f"{status.name} {what} and did not come back",
        result=status.result,
        wanted="active",
        seen=f"{status.active_state} ({status.sub_state})",
        where=_where(b, status.name),
        hint=f"journalctl -u {status.name}",
    )


def _names(status: UnitStatus, relation: str) -> tuple[str, ...]:
    value = status.properties.get(relation)
    return tuple(str(name) for name in value) if isinstance(value, (list, tuple)) else ()


def status_of(b: BorrowedHost, unit: str) -> UnitStatus:
    """Return one reading of a unit, through losses of the link."""
    return b.persist(f"a look at {unit}", lambda: b.host.systemd().status(unit, deadline=b.call("status")))


def _where(b: BorrowedHost, unit: str) -> str:
    return f"{unit} on {b.name}"

"""A unit that died under a load: how it died, whether another attempt can help, and the error that says so."""

from __future__ import annotations

from dataclasses import dataclass

from opsctl.errors import LoadFailed
from opsctl.host.protocol import Host, UnitStatus
from opsctl.playbook.resolved import ResolvedService
from opsctl.quantities import format_duration
from opsctl.serving.load.progress import LoadParser
from opsctl.serving.unitstate import EXIT_NAMES, describe_unit


@dataclass(frozen=True)
class Death:
    """How a unit ended, by systemd's own words."""

    how: str
    seen: str
    transient: bool
    advice: str = ""
    unexplained: bool = False
    """systemd calls it a success: only the log can say whether it was a failure."""

    def error(self, host: Host, service: ResolvedService, parser: LoadParser) -> LoadFailed:
        """Return the error, with the server's own first cause where its log holds one."""
        finding = parser.judge.finding()
        state = parser.state
        after = format_duration(sum(state.seconds_by_phase.values()))
        cause = f": {finding.name}" if finding else ""
        hint = finding.advice.replace("UNIT", service.unit) if finding else f"journalctl -u {service.unit}"
        return LoadFailed(
            f"{service.name} {self.how} {after} into its load, in phase {state.phase.value}{cause}",
            transient=finding.transient
            if finding and finding.ends and self.unexplained
            else self.transient and (finding is None or finding.transient),
            lines_quoted=parser.judge.quoted(),
            seen=self.seen,
            where=f"host {host.name}, {service.unit}",
            hint=hint if self.unexplained and finding and finding.ends else self.advice or hint,
        )


def death_of(first: UnitStatus, now: UnitStatus) -> Death | None:
    """Return how the unit that was started has died, or None while it lives.

    ``first`` is the status right after the start: a restart since then is a death too, since a load that
    systemd began anew is not the load that was waited for.
    """
    seen = describe_unit(now)
    if now.load_state == "not-found":
        return Death("lost its unit", seen, transient=False, advice="somebody removed the unit file meanwhile")
    if now.sub_state.startswith("auto-restart") or now.n_restarts > first.n_restarts:
        return Death(
            "is in a crash loop", seen, transient=_transient(now), advice=_advice(now) or "systemctl stop ends the loop"
        )
    if now.active_state == "failed":
        return Death("failed", f"{seen}, exit status {now.exec_main_status}", _transient(now), _advice(now))
    if now.active_state in {"inactive", "deactivating"}:
        return _ended(now, seen)
    if first.invocation_id and now.invocation_id and now.invocation_id != first.invocation_id:
        return Death("was started anew by somebody else", seen, transient=False, advice="see who works on this host")
    return None


def _ended(now: UnitStatus, seen: str) -> Death:
    if now.result == "exec-condition":
        advice = "its ExecCondition refused: the lease's token is gone, or the unit was started by hand"
        return Death("was not allowed to start", seen, transient=False, advice=advice)
    if now.active_state == "deactivating":
        advice = "see who works on this host: `systemctl list-jobs`"
        return Death("is being stopped by somebody", seen, transient=False, advice=advice, unexplained=True)
    if not now.main_pid and not now.invocation_id:
        # A unit that was refused and forgotten again keeps no result.
        advice = "it never ran: its ExecCondition refused (for a variant: the lease's token is gone)"
        return Death("did not start", seen, transient=False, advice=advice)
    # vLLM ends with status 0 after a fatal error too: systemd's success proves nothing.
    advice = "a server that ends with status 0 was told to, or its command is not a server"
    return Death("ended", f"{seen}, exit status 0", transient=False, advice=advice, unexplained=True)


def _transient(now: UnitStatus) -> bool:
    return now.result not in {"oom-kill", "resources", "exec-condition"} and now.exec_main_status not in EXIT_NAMES


def _advice(now: UnitStatus) -> str:
    if now.result == "oom-kill":
        return "the kernel killed it for memory: see MemoryMax= of the unit and `free -m`"
    if now.result == "timeout":
        return "systemd's own start limit ended it: set TimeoutStartSec=infinity in the unit"
    if now.exec_main_status in EXIT_NAMES:
        return EXIT_NAMES[now.exec_main_status]
    return ""


def fatal_line(host: Host, service: ResolvedService, parser: LoadParser, proof: str) -> LoadFailed:
    """Return the error for a line that suggested the end, and what confirmed it."""
    state = parser.state
    fatal = parser.judge.finding()
    name, transient, advice = (fatal.name, fatal.transient, fatal.advice) if fatal else ("unknown", False, "")
    after = format_duration(sum(state.seconds_by_phase.values()))
    return LoadFailed(
        f"{service.name} will never serve: {name}, {after} into its load, in phase {state.phase.value}",
        transient=transient,
        lines_quoted=parser.judge.quoted(),
        seen=proof,
        where=f"host {host.name}, {service.unit}",
        hint=advice.replace("UNIT", service.unit),
    )

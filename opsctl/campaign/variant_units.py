"""Putting variants' units on the host before production is touched, and taking them away again."""

from __future__ import annotations

from opsctl.campaign import limits
from opsctl.campaign.borrowed_host import BorrowedHost, Done, seen
from opsctl.errors import HostError, UnfitError
from opsctl.plan.actions import InstallVariant, RemoveVariant
from opsctl.serving.launch import variants


def install(b: BorrowedHost, action: InstallVariant) -> Done:
    """Derive a variant from what production runs now, write its unit, and check what systemd loaded.

    Done while production still serves: a variant that cannot be derived costs no downtime.
    Raises UnitError, UnfitError, HostError.
    """
    service = action.service
    status = b.host.systemd().status(b.production.unit, deadline=b.call("status"))
    variant = variants.derive(
        b.host,
        service,
        status,
        token=b.lease.token,
        run=b.run,
        trace_dir=action.trace_dir,
        version=action.engine_version,
        deadline=b.call(f"derivation of {service.name}", limits.UNIT_JOB),
    )
    with b.change("install variant", service.unit) as detail:
        b.intended[service.name] = variant.intended
        detail["differences"] = list(variant.differences)
        variants.install(
            b.host,
            variant,
            systemd=b.systemd(),
            deadline=b.call(f"installation of {service.unit}", limits.UNIT_JOB),
        )
    b.recorder.journal.variant(b.run, service.name, tuple(variant.differences))
    words = f"{service.unit} is derived from {b.production.unit}: {len(variant.differences)} differences"
    b.say("variant.installed", words, service=service.name, differences=list(variant.differences))
    return seen("the command line that systemd loaded", words)


def remove(b: BorrowedHost, action: RemoveVariant) -> Done:
    """Take a variant away; it is gone at reboot in any case, so a failure is only said."""
    unit = action.unit
    if b.host.systemd().status(unit, deadline=b.call("status")).load_state == "not-found":
        return seen("systemd", f"there is no {unit}")
    try:
        with b.change("remove variant", unit):
            variants.remove(b.host, unit, systemd=b.systemd(), deadline=b.call("removal", limits.UNIT_JOB))
    except (HostError, UnfitError) as error:
        words = f"{unit} could not be removed; it is gone at the next boot: {error}"
    else:
        words = f"{unit} is removed"
    b.say("variant.removed", words, unit=unit)
    return seen("removal of the unit's file", words)

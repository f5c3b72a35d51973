"""Putting variants' units on the host before production is touched, and taking them away again."""

from __future__ import annotations

from opsctl.campaign import limits
from opsctl.campaign.borrowed_host import BorrowedHost
from opsctl.errors import HostError, UnfitError
from opsctl.playbook.resolved import ResolvedService
from opsctl.serving.launch import variants


def install_all(b: BorrowedHost, services: tuple[ResolvedService, ...], trace_dir: str, version: str | None) -> None:
    """Derive every variant from what production runs now, write the units, and check what systemd loaded.

    Done while production still serves: a variant that cannot be derived costs no downtime.
    Raises UnitError, UnfitError, HostError.
    """
    if not services:
        return
    status = b.host.systemd().status(b.production.unit, deadline=b.call("status"))
    for service in services:
        variant = variants.derive(
            b.host,
            service,
            status,
            token=b.lease.token,
            run=b.run,
            trace_dir=f"{trace_dir}/{service.name}",
            version=version,
            deadline=b.call(f"derivation of {service.name}", limits.UNIT_JOB),
        )
        with b.change("install variant", service.unit) as detail:
            b.installed[service.name] = service.unit
            detail["differences"] = list(variant.differences)
            variants.install(
                b.host,
                variant,
                systemd=b.systemd(),
                deadline=b.call(f"installation of {service.unit}", limits.UNIT_JOB),
            )
        b.recorder.journal.variant(b.run, service.name, tuple(variant.differences))
        b.say(
            "variant.installed",
            f"{service.unit} is derived from {b.production.unit}: {len(variant.differences)} differences",
            service=service.name,
            differences=list(variant.differences),
        )


def remove_installed(b: BorrowedHost) -> None:
    """Take this run's variants away; they are gone at reboot in any case, so a failure is only said."""
    if not b.installed:
        return
    for name, unit in list(b.installed.items()):
        try:
            with b.change("remove variant", unit):
                variants.remove(b.host, unit, systemd=b.systemd(), deadline=b.call("removal", limits.UNIT_JOB))
            del b.installed[name]
        except (HostError, UnfitError) as error:
            b.say("variant.removed", f"{unit} could not be removed; it is gone at the next boot: {error}", unit=unit)
        else:
            b.say("variant.removed", f"{unit} is removed", unit=unit)

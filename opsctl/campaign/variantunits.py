"""Putting variants' units on the host before production is touched, and taking them away again."""

from __future__ import annotations

from opsctl.campaign import limits
from opsctl.campaign.borrowing import Borrowing
from opsctl.errors import HostError
from opsctl.playbook.resolved import ResolvedService
from opsctl.serving import variants


def install_all(b: Borrowing, services: tuple[ResolvedService, ...], trace_dir: str) -> None:
    """Derive every variant from what production runs now, write the units, and check what systemd loaded.

    Done while production still serves: a variant that cannot be derived costs no downtime.
    Raises UnitError, UnfitError, HostError.
    """
    for service in services:
        status = b.host.systemd().status(b.production.unit, deadline=b.call("status"))
        variant = variants.derive(
            b.host,
            service,
            status,
            token=b.lease.token,
            run=b.run,
            trace_dir=f"{trace_dir}/{service.name}",
            deadline=b.call("derivation", 60),
        )
        with b.change("install variant", service.unit) as detail:
            b.installed[service.name] = service.unit
            variants.install(b.host, variant, deadline=b.call("installation"))
            detail["differences"] = list(variant.differences)
        b.recorder.journal.variant(b.run, service.name, tuple(variant.differences))
        with b.change("daemon-reload", service.unit):
            b.systemd().daemon_reload(deadline=b.call("daemon-reload", limits.UNIT_JOB))
        variants.check_loaded(b.host.systemd(), variant, deadline=b.call("check of the loaded unit"))
        b.say(
            "variant.installed",
            f"{service.unit} is derived from {b.production.unit}",
            service=service.name,
            differences=list(variant.differences),
        )


def remove_installed(b: Borrowing) -> None:
    """Take this run's variants away; they are gone at reboot in any case, so a failure is only said."""
    if not b.installed:
        return
    for name, unit in list(b.installed.items()):
        try:
            with b.change("remove variant", unit):
                variants.remove(b.host, unit, deadline=b.call("removal"))
            del b.installed[name]
        except HostError as error:
            b.say("variant.removed", f"{unit} could not be removed; it is gone at the next boot: {error}", unit=unit)
    with b.change("daemon-reload", "variants removed"):
        b.systemd().daemon_reload(deadline=b.call("daemon-reload", limits.UNIT_JOB))
    b.say("variant.removed", "the variants' units are removed")

"""Playbook + inventory + what the hosts look like -> ordered actions. Pure: no I/O, no host."""

from opsctl.plan.facts import Estimate, HostFacts, Seen

__all__ = ["Estimate", "HostFacts", "Seen"]

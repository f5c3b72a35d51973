"""Playbook + inventory + what the hosts look like -> ordered actions. Pure: no I/O, no host."""

from opsctl.plan.actions import HostPlan, Plan
from opsctl.plan.facts import Estimate, HostFacts, IfDown, Seen
from opsctl.plan.planner import plan
from opsctl.plan.render import Line, document, lines_of

__all__ = ["Estimate", "HostFacts", "HostPlan", "IfDown", "Line", "Plan", "Seen", "document", "lines_of", "plan"]

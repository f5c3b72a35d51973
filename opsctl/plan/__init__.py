"""Playbook, inventory and what the preflight saw of a host -> the ordered actions that a run executes.

Pure: no I/O, no host. What is printed is what runs: campaign executes these objects and journals each by its id.
"""

from opsctl.plan.facts import Estimate, HostFacts, IfDown, Seen
from opsctl.plan.hostplan import HostPlan, Plan
from opsctl.plan.planner import plan
from opsctl.plan.render import Line, document, lines_of

__all__ = ["Estimate", "HostFacts", "HostPlan", "IfDown", "Line", "Plan", "Seen", "document", "lines_of", "plan"]

"""Which function carries out which action: the one place that joins the plan to what changes a host."""

from __future__ import annotations

from collections.abc import Mapping

from opsctl.campaign import dependents, leasing, restore, steps, swap, variant_units
from opsctl.campaign.borrowed_host import Executor
from opsctl.plan import actions
from opsctl.plan.actions import Action

EXECUTORS: Mapping[type[Action], Executor] = {
    actions.InstallGuard: leasing.install_guard,
    actions.Arm: leasing.arm,
    actions.TakeOver: leasing.take_over,
    actions.StopStage: steps.stop_stray,
    actions.InstallVariant: variant_units.install,
    actions.TrafficOut: swap.traffic_out,
    actions.StopTrigger: dependents.stop_trigger,
    actions.Stop: swap.stop,
    actions.Gate: swap.free_gpus,
    actions.Start: swap.start,
    actions.AwaitReady: swap.await_ready,
    actions.Verify: swap.verify,
    actions.Measure: steps.measure,
    actions.Clear: restore.clear,
    actions.StartDependent: dependents.start_dependent,
    actions.StartTrigger: dependents.start_trigger,
    actions.LeaveDown: restore.leave_down,
    actions.TrafficIn: swap.traffic_in,
    actions.RemoveVariant: variant_units.remove,
    actions.Release: leasing.release,
}

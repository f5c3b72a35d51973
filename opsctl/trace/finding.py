"""The answer of an analysis in a sentence or two."""

from __future__ import annotations

from opsctl.trace.document import TraceAnalysis
from opsctl.trace.markers import OTHER_KIND

_NAMED = 3


def sentence(analysis: TraceAnalysis) -> str:
    """Return what a step takes and what the device is busy with; without steps, what the whole window was busy with."""
    shares = ", ".join(f"{row.name} {row.share_of_busy:.1%}" for row in analysis.categories[:_NAMED])
    steps, kind = analysis.main, analysis.kind
    if steps.wall_us is None or steps.busy_us is None or steps.idle_us is None or steps.sum_us is None:
        busy, window = analysis.busy_us / 1000, analysis.window_us / 1000
        return f"No steps could be told apart. Busy {busy:,.3f} ms of {window:,.3f} ms: {shares}."
    what = f"{steps.count} steps of unknown kind" if kind == OTHER_KIND else f"{steps.count} {kind} steps"
    batch = f" of batch {steps.batch}" if steps.batch is not None else ""
    doubt = "" if steps.verdict == "steady" else " (inconclusive)"
    return (
        f"{what}{batch}: {steps.wall_us.mean / 1000:,.3f} ms a step on average{doubt}, "
        f"busy {steps.busy_us.mean / 1000:,.3f} ms ({shares} of it), idle {steps.idle_us.mean / 1000:,.3f} ms; "
        f"kernels add up to {steps.sum_us.mean / 1000:,.3f} ms, which can exceed wall time where streams overlap."
    )

"""Every default limit of a campaign, in one place. In seconds where nothing else is said.

What an inventory or playbook says (readiness, stop, lease, limit of a step) takes the place of these
where it can; the rest is fixed, since a person has no reason to turn it.
"""

from __future__ import annotations

CALL = 15.0
"""One remote call: a systemd reading, a small command, a probe. A lease's ttl is at least ten of these."""

CONNECT = 30.0
"""Making a connection, log-in included."""

TRANSFER = 600.0
"""Moving one file; a larger one gets a second more for each TRANSFER_RATE bytes."""

TRANSFER_RATE = 2 << 20

FETCHED_MOST = 8 << 30
"""Bytes of one file that are fetched from a host; a larger one stays there, and the step says so."""

FETCHED_LOG_MOST = 64 << 20
"""The same of a log: one that is larger was filled by mistake."""

RENEW_EVERY = 0.2
"""Fraction of the ttl after which the heartbeat renews the lease."""

UNIT_JOB = 60.0
"""A start job of a server unit: its command is only spawned, the load is waited for apart."""

STOP_GRACE = 30.0
"""Added to a unit's own stop limit for its job to be reported."""

STEP_GRACE = 60.0
"""Added to a step's limit: the host itself ends the stage first, and the controller reads that it did."""

POLL_STEP = 0.25
"""Between two looks at a stage that runs."""

RESTORE_ATTEMPTS = 5
"""Starts of production that the controller tries before it leaves the rest to the guard, which never stops."""

RESTORE_PAUSE = 2.0
"""First wait between two such starts; doubles up to RESTORE_PAUSE_LONGEST."""

RESTORE_PAUSE_LONGEST = 30.0

LOST_LINK_GRACE = 30.0
"""How much longer than the ttl a controller without a link goes on trying: then it says what the guard does."""

"""Telling people how a run ended, through Apprise: mail, Slack, webhooks and the rest.

A message never holds a secret, and a notifier that fails, hangs or is not installed never changes how a run
ended: ``after_run`` raises nothing and returns what went wrong, for the run's own record.
"""

from __future__ import annotations

import logging
import threading
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from opsctl.deadline import Deadline
from opsctl.production import production_words
from opsctl.record import ProductionRecord, RunRecord, Standing
from opsctl.redaction import redact
from opsctl.report import finding

Kind = Literal["finished", "failed", "production not verified", "regression"]
LIMIT = 30.0
"""Seconds for all notifiers together: a run's exit must not wait long for a mail server."""
_LEVELS = {"finished": "success", "failed": "warning", "production not verified": "failure", "regression": "warning"}


@dataclass(frozen=True)
class News:
    """One message."""

    kind: Kind
    title: str
    body: str


def news_of(record: RunRecord, *, reports: Sequence[Path] = (), alarms: Sequence[str] = ()) -> News:
    """Return what there is to tell of a run: production first, then the finding, then where the report lies.

    ``alarms``: lines about watched figures that changed for the worse.
    """
    missing = [item for item in record.production if item.standing is Standing.UNVERIFIED]
    if missing or record.exit_code == 3:
        kind: Kind = "production not verified"
        title = f"PRODUCTION NOT VERIFIED on {', '.join(item.host for item in missing) or ', '.join(record.hosts)}"
    elif alarms:
        kind, title = (
            "regression",
            f"{record.playbook}: {len(alarms)} figure{'s' if len(alarms) != 1 else ''} got worse",
        )
    elif record.exit_code == 0:
        kind, title = "finished", f"{record.playbook} on {', '.join(record.hosts)}: verified"
    else:
        kind, title = "failed", f"{record.playbook} on {', '.join(record.hosts)}: {record.outcome or 'failed'}"
    lines = [
        *(_production_line(item) for item in record.production),
        *([record.reason] if record.reason else []),
        *alarms,
        finding(record).sentence,
        *(f"report: {path}" for path in reports),
        f"run {record.run}: opsctl status {record.run}",
    ]
    return News(kind, redact(title), redact("\n".join(lines)))


def _production_line(item: ProductionRecord) -> str:
    look = f": look now (opsctl rollback {item.host})" if item.standing is Standing.UNVERIFIED else ""
    return f"production {item.unit} on {item.host}: {production_words(item)[0]}{look}"


def after_run(
    record: RunRecord, targets: Sequence[str], *, reports: Sequence[Path] = (), alarms: Sequence[str] = ()
) -> list[str]:
    """Tell every target how a run ended. Returns one line for each that could not be told; raises nothing."""
    if not targets:
        return []
    try:
        return tell(news_of(record, reports=reports, alarms=alarms), targets)
    except Exception as error:  # noqa: BLE001 - whatever a notifier does, the run ended as it did
        return [f"no notification was sent: {type(error).__name__}"]


def tell(news: News, targets: Sequence[str], *, limit: float = LIMIT) -> list[str]:
    """Send one message to every target. Returns what went wrong, a line each, without addresses or secrets."""
    addresses, problems = expanded(targets)
    try:
        import apprise  # noqa: PLC0415 - an extra, and a second to load
    except ImportError:
        return [*problems, "no notification was sent: apprise is not installed (pip install 'opsctl[notify]')"]
    # Its log lines hold addresses with their passwords.
    logging.getLogger("apprise").setLevel(logging.CRITICAL + 1)
    results: dict[int, bool] = {}

    def send(place: int, sender: Any) -> None:
        try:
            results[place] = bool(sender.notify(title=news.title, body=news.body, notify_type=_LEVELS[news.kind]))
        except Exception:  # noqa: BLE001 - it counts as not told; the error's text may hold the address
            results[place] = False

    threads: dict[int, threading.Thread] = {}
    with warnings.catch_warnings():
        # Reading an address loads all of Apprise's plugins, whose own deprecations are no news of a run.
        warnings.simplefilter("ignore")
        for place, address in enumerate(addresses):
            sender = apprise.Apprise()
            if sender.add(address):
                threads[place] = threading.Thread(target=send, args=(place, sender), daemon=True, name="notify")
    for thread in threads.values():
        thread.start()
    deadline = Deadline(limit, "the notifiers")
    for thread in threads.values():
        thread.join(deadline.remaining())
    for place, address in enumerate(addresses):
        service = address.split(":", 1)[0] if "://" in address else "an address without a scheme"
        if place in threads and threads[place].is_alive():
            problems.append(f"notifier {place + 1} ({service}) did not answer within {limit:g} s")
        elif not results.get(place):
            problems.append(f"notifier {place + 1} ({service}) could not be told")
    return problems


def expanded(targets: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return (addresses, problems): ``file:PATH`` is replaced by the addresses in that file, a line each."""
    addresses: list[str] = []
    problems: list[str] = []
    for target in targets:
        if not target.startswith("file:"):
            addresses.append(target)
            continue
        path = Path(target.removeprefix("file:")).expanduser()
        try:
            lines = path.read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "it is not text"
            problems.append(f"notifiers in {path} could not be read: {reason}")
            continue
        addresses += [line.strip() for line in lines if line.strip() and not line.lstrip().startswith("#")]
    return addresses, problems

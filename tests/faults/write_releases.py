"""Write the releases' part of docs/faults.md: ``python -m tests.faults.write_releases FOLDER [--quick]``.

The folder holds a JUnit file for each release, named as ``opsctl.lab.releases`` names it.
"""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path
from xml.etree import ElementTree as ET

from opsctl.lab.releases import RELEASES, Release
from tests.faults.write_table import PAGE, RELEASES_HEADING

SUITES = {
    "fence": "tests.host.test_fence",
    "lease": "tests.guard.test_lease",
    "guard": "tests.guard.",
    "host": "tests.host.",
    "campaign": "tests.lab.test_releases",
    "fault table": "tests.faults.",
}
"""Column -> the head of its tests' module; the first that fits counts."""
_BAD = ("failure", "error")


def main() -> int:
    """Write the part; return 1 when a test did not pass on some release."""
    folder, quick = Path(sys.argv[1]), "--quick" in sys.argv[2:]
    lines = [RELEASES_HEADING, ""]
    lines += [f"*Written by `script/test-releases{' --quick' if quick else ''}`.* The suites that touch a host, on lab"]
    lines += ["hosts that run the release's own systemd, D-Bus, sshd and Python: tests passed, of those run."]
    lines += ["With `--quick` the fault table is represented by the cells that `script/test` runs."] if quick else []
    lines += ["", "| Debian | systemd | Python | " + " | ".join(SUITES) + " |", "|---" * (len(SUITES) + 3) + "|"]
    failed: list[str] = []
    for release in RELEASES:
        results = read(folder / f"{release.name}.xml")
        lines.append(row(release, results))
        failed += [f"- {release.name}: {name}" for name, (_, outcome) in results.items() if outcome in _BAD]
    lines += ["", "Did not pass:", "", *failed] if failed else []
    page = PAGE.read_text().partition(f"\n{RELEASES_HEADING}")[0].rstrip("\n")
    PAGE.write_text(page + "\n\n" + "\n".join(lines) + "\n")
    return 1 if failed else 0


def read(path: Path) -> dict[str, tuple[str, str]]:
    """Return test -> (column, passed | failure | error | skipped); empty where the release was not run."""
    found: dict[str, tuple[str, str]] = {}
    if not path.exists():
        return found
    for case in ET.parse(path).iter("testcase"):  # noqa: S314 - pytest wrote it a moment ago
        module = case.get("classname", "")
        column = next((name for name, head in SUITES.items() if module.startswith(head)), "host")
        outcome = next((child.tag for child in case if child.tag in {*_BAD, "skipped"}), "passed")
        name = f"{module}::{case.get('name')}"
        if found.get(name, ("", ""))[1] not in _BAD:  # a test whose clean-up failed stands there twice
            found[name] = (column, outcome)
    return found


def row(release: Release, results: dict[str, tuple[str, str]]) -> str:
    """Return a release's line of the table."""
    counts = Counter(results.values())
    cells = []
    for column in SUITES:
        passed = counts[column, "passed"]
        run = passed + sum(counts[column, bad] for bad in _BAD)
        skipped = counts[column, "skipped"]
        cells.append((f"{passed} of {run}" if run else "*not run*") + (f", {skipped} skipped" if skipped else ""))
    return f"| {release.number} ({release.name}) | {release.systemd} | {release.python} | " + " | ".join(cells) + " |"


if __name__ == "__main__":
    sys.exit(main())

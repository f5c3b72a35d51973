from __future__ import annotations

from pathlib import Path

import pytest

from opsctl.errors import JournalError
from opsctl.runs.journal import Journal
from opsctl.runs.reading import find_run


def test_a_run_that_was_merely_refused_does_not_hide_one_that_matters(tmp_path: Path) -> None:
    with Journal(tmp_path) as journal:
        with pytest.raises(JournalError, match="no run was ever made"):
            find_run(journal, None)
        for run, outcome in (("1", "verified"), ("2", None), ("3", "held by someone else"), ("4", "not fit")):
            journal.begin_run(run, playbook="p", file="f", version="0", definition={})
            if outcome:
                journal.end_run(run, outcome=outcome, exit_code=0, reason="")
        assert find_run(journal, None) == "2"
        journal.end_run("2", outcome="failed", exit_code=1, reason="")
        assert find_run(journal, None) == "2"

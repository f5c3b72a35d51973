from __future__ import annotations

import errno
import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from opsctl.errors import Defect, JournalError
from opsctl.results import Cell, Evidence, State, StepResult
from opsctl.runs.journal import Journal
from opsctl.runs.reading import CONTROLLER_DIED, find_run, list_runs, load_run
from opsctl.runs.schema import SCHEMA_VERSION
from opsctl.stages.command import Command

RUN = "20261201-024500-ab12"


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[Journal]:
    with Journal(tmp_path / "state") as opened:
        yield opened


def begin(journal: Journal, run: str = RUN) -> None:
    journal.begin_run(run, playbook="p", file="p.yml", version="0", definition={"playbook": "p"})
    journal.host(run, "kimi", production="vllm", unit="vllm.service")


def planned() -> StepResult:
    return StepResult(stage="command", state=State.PENDING, cells=(Cell(id="a"), Cell(id="b")))


def add_step(journal: Journal, hash_: str = "h1") -> None:
    journal.step(
        RUN,
        "kimi",
        0,
        0,
        id_="x/1-command",
        stage="command",
        name="command",
        options=Command(argv=("true",)),
        hash_=hash_,
        planned=planned(),
    )


def test_a_run_reads_back_whole(journal: Journal) -> None:
    begin(journal)
    journal.phase(RUN, "kimi", 0, round_=1, name="x", serve="nothing")
    add_step(journal)
    journal.phase_state(RUN, "kimi", 0, State.RUNNING)
    done = planned().model_copy(update={"state": State.VERIFIED})
    journal.step_state(RUN, "kimi", 0, 0, State.RUNNING, unit="u.service")
    journal.step_state(RUN, "kimi", 0, 0, State.VERIFIED, result=done)
    journal.update_host(
        RUN,
        "kimi",
        as_found="serving",
        verified=1,
        down_since="2026-12-01T02:45:00.000+00:00",
        back_at="2026-12-01T02:46:30.000+00:00",
        evidence=[Evidence(asked="q", observed="o", time="t")],
    )
    journal.hold(RUN, "kimi", "vllm", "production")
    journal.hold(RUN, "kimi", "", "nobody")
    load = journal.begin_load(RUN, "kimi", service="vllm", unit="vllm.service", attempt=1)
    journal.end_load(load, outcome="ready", seconds=12.5, version="0.32.0", phases={"weights": 9.0})
    journal.variant(RUN, "vllm-profiler", ("+ --profiler-config",))
    journal.event(RUN, "t", "phase.begun", host="kimi", phase="x", step="", message="m", data={"a": 1})
    journal.end_run(RUN, outcome="verified", exit_code=0, reason="")

    record = load_run(journal, RUN)

    assert record.outcome == "verified"
    assert record.exit_code == 0
    [phase] = record.phases
    [step] = phase.steps
    assert (phase.state, step.state) == (State.RUNNING, State.VERIFIED)
    assert step.result == done
    assert step.options["argv"] == ["true"]
    [production] = record.production
    assert production.downtime_seconds == 90
    assert production.evidence[0].observed == "o"
    assert [hold.ended is None for hold in record.holds] == [False, True]
    assert record.loads[0].phases == {"weights": 9.0}
    assert record.variants == {"vllm-profiler": ("+ --profiler-config",)}
    assert record.events[0].data == {"a": 1}


def test_planning_again_keeps_what_is_verified_and_unchanged(journal: Journal) -> None:
    begin(journal)
    journal.phase(RUN, "kimi", 0, round_=1, name="x", serve="nothing")
    add_step(journal)
    verified = planned().model_copy(update={"state": State.VERIFIED})
    journal.step_state(RUN, "kimi", 0, 0, State.RUNNING)
    journal.step_state(RUN, "kimi", 0, 0, State.VERIFIED, result=verified)
    add_step(journal)
    assert load_run(journal, RUN).phases[0].steps[0].state is State.VERIFIED
    add_step(journal, "h2")
    assert load_run(journal, RUN).phases[0].steps[0].state is State.PENDING


def test_secrets_do_not_reach_the_file(journal: Journal) -> None:
    journal.begin_run(RUN, playbook="p", file="p.yml", version="0", definition={"api_key": "hunter2secret"})
    journal.event(RUN, "t", "x", host="", phase="", step="", message="", data={"argv": ["--api-key", "hunter2secret"]})
    with journal.mutation(RUN, "kimi", "start", "u") as detail:
        detail["argv"] = ["--api-key", "hunter2secret"]
    with pytest.raises(RuntimeError), journal.mutation(RUN, "kimi", "start", "u"):
        raise RuntimeError("--api-key hunter2secret")
    journal.close()
    for path in journal.folder.glob("journal.sqlite*"):
        assert b"hunter2secret" not in path.read_bytes()


def test_a_mutation_stands_before_it_is_made_and_says_how_it_ended(journal: Journal) -> None:
    begin(journal)
    with journal.mutation(RUN, "kimi", "stop", "vllm.service"):
        [row] = journal.unfinished(RUN)
        assert (row["action"], row["subject"]) == ("stop", "vllm.service")
    assert journal.unfinished(RUN) == []
    with pytest.raises(ValueError, match="boom"), journal.mutation(RUN, "kimi", "start", "vllm.service"):
        raise ValueError("boom")
    rows = journal.query("SELECT outcome FROM mutations ORDER BY id")
    assert [row["outcome"] for row in rows] == ["done", "ValueError: boom"]


KILLED = """
import os, signal, sys
from pathlib import Path
from opsctl.runs.journal import Journal
journal = Journal(Path(sys.argv[1]))
journal.begin_run("r", playbook="p", file="f", version="0", definition={})
journal.host("r", "kimi", production="vllm", unit="vllm.service")
with journal.mutation("r", "kimi", "stop", "vllm.service"):
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_what_was_committed_survives_kill_9_and_the_run_is_shown_as_dead(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", KILLED, str(tmp_path)], check=False)
    assert done.returncode == -signal.SIGKILL
    with Journal(tmp_path) as journal:
        assert [row["action"] for row in journal.unfinished("r")] == ["stop"]
        assert list_runs(journal)[0].outcome == CONTROLLER_DIED
        journal.lock_run("r")
        assert list_runs(journal)[0].outcome == "running"


def test_a_living_controller_keeps_others_out(journal: Journal) -> None:
    begin(journal)
    with Journal(journal.folder) as other:
        assert other.controller_lives(RUN)
        assert list_runs(other)[0].outcome == "running"
        with pytest.raises(JournalError, match="has a living controller"):
            other.lock_run(RUN)


def test_files_that_are_deleted_by_hand_do_not_make_a_living_controller_dead(journal: Journal) -> None:
    begin(journal)
    for path in journal.run_folder(RUN).iterdir():
        path.unlink()
    with Journal(journal.folder) as other:
        assert other.controller_lives(RUN)
        assert list_runs(other)[0].outcome == "running"


def test_the_database_is_in_wal_mode_and_syncs_fully(journal: Journal) -> None:
    assert journal.query("PRAGMA journal_mode")[0][0] == "wal"
    assert journal.query("PRAGMA synchronous")[0][0] == 2


def test_a_journal_of_a_newer_opsctl_is_refused(tmp_path: Path) -> None:
    Journal(tmp_path).close()
    with sqlite3.connect(tmp_path / "journal.sqlite") as db:
        db.execute("PRAGMA user_version=99")
    db.close()
    with pytest.raises(JournalError, match="newer opsctl"):
        Journal(tmp_path)


def test_a_file_that_is_no_database_is_an_error_with_its_place(tmp_path: Path) -> None:
    (tmp_path / "journal.sqlite").write_bytes(b"not a database, not at all" * 100)
    with pytest.raises(JournalError) as caught:
        Journal(tmp_path)
    assert str(tmp_path) in (caught.value.where or "")


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    if os.geteuid() != 0:
        pytest.skip("mounting a small disk needs root")
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(tmp_path)], check=True)
    yield tmp_path
    subprocess.run(["umount", "-l", str(tmp_path)], check=True)


def fill(path: Path) -> None:
    """Write until the disk is full."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT)
    try:
        while True:
            os.write(descriptor, b"x" * 4096)
    except OSError as error:
        assert error.errno == errno.ENOSPC  # noqa: PT017 - what is filled is the fixture's own small disk
    finally:
        os.close(descriptor)


def test_a_full_disk_is_said_once_and_does_not_stop_what_follows(small_disk: Path) -> None:
    with Journal(small_disk) as journal:
        begin(journal)
        filler = small_disk / "filler"
        fill(filler)
        with pytest.raises(JournalError, match="could not record"):
            for _ in range(200):
                journal.event(RUN, "t", "x", host="", phase="", step="", message="m" * 500, data={})
        journal.event(RUN, "t", "restore.begun", host="", phase="", step="", message="goes on", data={})
        filler.unlink()
        journal.event(RUN, "t", "restore.ended", host="", phase="", step="", message="m" * 500, data={})
        assert load_run(journal, RUN).events[-1].event == "restore.ended"


def test_runs_are_found_by_their_beginning(journal: Journal) -> None:
    begin(journal, "20261201-01-aa")
    begin(journal, "20261201-02-bb")
    assert find_run(journal, None) == "20261201-02-bb"
    assert find_run(journal, "20261201-01") == "20261201-01-aa"
    with pytest.raises(JournalError, match="beginning of 2 runs"):
        find_run(journal, "20261201")
    with pytest.raises(JournalError, match="no run 'nope'"):
        find_run(journal, "nope")


def test_a_restore_is_not_stopped_by_a_disk_that_fills_up_during_it(tmp_path: Path) -> None:
    """The first write that fails ends a campaign; in a thread that restores it is only remembered."""
    with Journal(tmp_path) as journal:
        journal.begin_run("r", playbook="p", file="f", version="1", definition={})
        pages = journal.query("PRAGMA page_count")[0][0]
        journal.query(f"PRAGMA max_page_count={pages}")
        journal.forgive()
        for number in range(2000):
            journal.event("r", "t", f"e{number}", host="h", phase="", step="", message="x" * 500, data={})
        assert journal.failed is not None
        assert "could not record event" in str(journal.failed)
    with Journal(tmp_path / "other") as journal:
        journal.begin_run("r", playbook="p", file="f", version="1", definition={})
        journal.query(f"PRAGMA max_page_count={journal.query('PRAGMA page_count')[0][0]}")
        with pytest.raises(JournalError, match="could not record event"):
            for number in range(2000):
                journal.event("r", "t", f"e{number}", host="h", phase="", step="", message="x" * 500, data={})


def test_states_follow_each_other_or_raise(journal: Journal) -> None:
    begin(journal)
    journal.phase(RUN, "kimi", 0, round_=1, name="x", serve="nothing")
    add_step(journal)
    with pytest.raises(Defect, match="pending cannot become verified"):
        journal.step_state(RUN, "kimi", 0, 0, State.VERIFIED)
    with pytest.raises(Defect, match="pending cannot become failed"):
        journal.phase_state(RUN, "kimi", 0, State.FAILED)
    journal.step_state(RUN, "kimi", 0, 0, State.RUNNING)
    journal.step_state(RUN, "kimi", 0, 0, State.FAILED)
    with pytest.raises(Defect, match="failed cannot become verified"):
        journal.step_state(RUN, "kimi", 0, 0, State.VERIFIED)
    journal.step_state(RUN, "kimi", 0, 0, State.VERIFIED, again=True)


def test_what_the_disk_refused_is_known_all_the_same(small_disk: Path) -> None:
    with Journal(small_disk) as journal:
        begin(journal)
        fill(small_disk / "filler")
        journal.forgive()
        for _ in range(50):
            journal.event(RUN, "t", "x", host="", phase="", step="", message="m" * 500, data={})
        assert journal.failed is not None
        with journal.mutation(RUN, "kimi", "stop", "vllm.service"):
            assert [row["action"] for row in journal.unfinished(RUN)] == ["stop"]
        assert journal.unfinished(RUN) == []
        journal.update_host(RUN, "kimi", verified=1, evidence=[Evidence(asked="q", observed="o", time="t")])
        assert load_run(journal, RUN).production[0].verified


OLD = Path(__file__).parent / "journal-0.1.sql"


def test_a_journal_of_0_1_opens_and_its_runs_are_listed_and_shown(tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / "journal.sqlite") as db:
        db.executescript(OLD.read_text())
    db.close()
    with Journal(tmp_path) as journal:
        assert journal.query("PRAGMA user_version")[0][0] == SCHEMA_VERSION
        done, cut = list_runs(journal)[::-1]
        assert (done.outcome, done.exit_code) == ("verified", 0)
        assert cut.outcome == CONTROLLER_DIED
        record = load_run(journal, done.run)
        assert record.production[0].verified
        assert record.phases[0].steps[0].state is State.VERIFIED
        assert record.actions == ()
        assert journal.query("SELECT dependents FROM hosts")[0]["dependents"] == '["router.service"]'
        # A new run goes into the same file.
        begin(journal)
        journal.host(RUN, "kimi", production="vllm", unit="vllm.service")
        assert len(list_runs(journal)) == 3
    with Journal(tmp_path / "new") as fresh, Journal(tmp_path) as migrated:
        columns = (
            "SELECT m.name AS t, p.name AS c FROM sqlite_master m, pragma_table_info(m.name) p WHERE m.type='table'"
        )
        assert {tuple(row) for row in fresh.query(columns)} == {tuple(row) for row in migrated.query(columns)}

"""How a run ended is derived from its journal alone: a table of what may stand there."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from opsctl.errors import ExitCode
from opsctl.results import Evidence, State, StepResult
from opsctl.runs.journal import Journal
from opsctl.runs.verdict import verdict_of
from opsctl.stages.command import Command

RUN = "r"
PROOF = [Evidence(asked="a completion", observed="4 tokens", time="t")]
Story = Callable[[Journal], None]


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[Journal]:
    with Journal(tmp_path) as opened:
        opened.begin_run(RUN, playbook="p", file="p.yml", version="0", definition={})
        yield opened


def changed(*actions: str) -> Story:
    def story(journal: Journal) -> None:
        journal.host(RUN, "kimi", production="vllm", unit="vllm.service")
        for action in actions:
            with journal.mutation(RUN, "kimi", action, "x"):
                pass

    return story


def down(journal: Journal) -> None:
    journal.update_host(RUN, "kimi", down_since="t", verified=0)


def verified(journal: Journal) -> None:
    journal.update_host(RUN, "kimi", verified=1, evidence=PROOF)


def claimed(journal: Journal) -> None:
    journal.update_host(RUN, "kimi", verified=1)


def left_down(journal: Journal) -> None:
    journal.update_host(RUN, "kimi", left_down=1)


def failed(journal: Journal) -> None:
    journal.fail_host(RUN, "kimi", "the variant died")


def error(code: ExitCode | None, *, interrupted: bool = False) -> Story:
    def story(journal: Journal) -> None:
        journal.run_failure(RUN, interrupted=interrupted, error="no" if code else "", code=code)

    return story


def step(state: State) -> Story:
    def story(journal: Journal) -> None:
        journal.phase(RUN, "kimi", 0, round_=1, name="x", serve="nothing")
        journal.step(
            RUN, "kimi", 0, 0, id_="x/1-command", stage="command", name="command", options=Command(argv=("true",)),
            hash_="h", planned=StepResult(stage="command", state=State.PENDING),
        )  # fmt: skip
        journal.step_state(RUN, "kimi", 0, 0, State.RUNNING)
        journal.step_state(RUN, "kimi", 0, 0, state)

    return story


ARMED = changed("install guard", "arm")
TOUCHED = changed("install guard", "arm", "stop")
OVER = changed("release")
UNFIT, HELD, FAILED, NOT_VERIFIED = ExitCode.UNFIT, ExitCode.HELD, ExitCode.FAILED, ExitCode.PRODUCTION_NOT_VERIFIED


@pytest.mark.parametrize(
    ("stories", "code"),
    [
        pytest.param([error(UNFIT)], UNFIT, id="refused before any host was seen"),
        pytest.param([changed(), error(FAILED)], UNFIT, id="a stage that cannot be planned: nothing was touched"),
        pytest.param([changed(), error(HELD)], HELD, id="held by someone else"),
        pytest.param([changed(), error(None, interrupted=True)], ExitCode.INTERRUPTED, id="interrupted before arming"),
        pytest.param([ARMED, OVER, error(HELD)], HELD, id="armed and released: another host was held"),
        pytest.param([ARMED, error(UNFIT)], NOT_VERIFIED, id="armed and not known to be released"),
        pytest.param([TOUCHED, down, error(UNFIT)], NOT_VERIFIED, id="production down, then a broken playbook"),
        pytest.param([TOUCHED, down, error(HELD)], NOT_VERIFIED, id="production down, then held by someone else"),
        pytest.param([TOUCHED, down, error(None, interrupted=True)], NOT_VERIFIED, id="interrupted, and not restored"),
        pytest.param([TOUCHED, down, claimed], NOT_VERIFIED, id="verified without evidence is not verified"),
        pytest.param([TOUCHED, down, verified, OVER], ExitCode.VERIFIED, id="all well"),
        pytest.param([TOUCHED, down, verified, failed], FAILED, id="failed, production verified"),
        pytest.param([TOUCHED, verified, error(UNFIT)], FAILED, id="an error after a touch is never exit 2"),
        pytest.param(
            [TOUCHED, verified, OVER, error(None, interrupted=True)], ExitCode.INTERRUPTED, id="interrupted, restored"
        ),
        pytest.param([TOUCHED, left_down, OVER], ExitCode.VERIFIED, id="left down as it was found"),
        pytest.param([TOUCHED, step(State.FAILED), verified], FAILED, id="a step failed"),
        pytest.param([TOUCHED, step(State.INCONCLUSIVE), verified], ExitCode.INCONCLUSIVE, id="a step inconclusive"),
        pytest.param([TOUCHED, step(State.VERIFIED), verified], ExitCode.VERIFIED, id="a step verified"),
    ],
)
def test_the_exit_code_follows_from_the_evidence(journal: Journal, stories: list[Story], code: ExitCode) -> None:
    for story in stories:
        story(journal)
    assert verdict_of(journal, RUN).code is code


def test_an_arming_that_was_refused_holds_nothing(journal: Journal) -> None:
    changed("install guard")(journal)
    with pytest.raises(ValueError, match="held"), journal.mutation(RUN, "kimi", "arm", "x"):
        raise ValueError("held")
    assert verdict_of(journal, RUN).code is NOT_VERIFIED, "what did not end may hold"
    [row] = journal.query("SELECT id FROM mutations WHERE action='arm'")
    journal.resolve(row["id"], "HostHeld: kimi is held by ann")
    assert verdict_of(journal, RUN).code is UNFIT

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from opsctl.errors import HostHeld, PreflightStop, StageError
from opsctl.plan import Estimate, HostFacts, HostPlan, IfDown, Seen, document, lines_of, plan
from opsctl.plan.actions import AwaitReady, Branch, Measure, Start, Stop, TrafficOut
from opsctl.plan.facts import Resumed
from opsctl.plan.planner import cells_by_stage
from opsctl.playbook.hashing import content_hash
from opsctl.playbook.inventory import LoadedInventory, load_inventory
from opsctl.playbook.loading import load_playbooks
from opsctl.playbook.steps import Step
from opsctl.results import Cell
from opsctl.stages.base import StageContext
from opsctl.stages.gemm import Gemm

INVENTORY = """
hosts: {g1: {}, g2: {}}
groups: {both: [g1, g2]}
services:
  prod:
    url: http://127.0.0.1:8000
    model: kimi
    stop: {drain: 10s, limit: 1m, gpu-limit: 30s}
    readiness: {limit: 30m}
  v: {of: prod, profiler: torch}
  w: {of: prod}
"""
LOADS = {"prod": Estimate(600.0, 3.0, 5), "v": Estimate(700.0, 4.0, 2), "w": Estimate(700.0, 4.0, 2)}
STOPS = {name: Estimate(10.0) for name in LOADS}
STEP = Gemm(tokens=(1, 2))
FOUND = HostFacts(
    "g1",
    services={"prod": Seen.SERVING},
    units={"prod": "active"},
    loads=LOADS,
    stops=STOPS,
    steps={content_hash(STEP): Estimate(60.0, 0.0, 3)},
    dependents=(),
    gpus=8,
    holder="",
)


def two_cells(step: Step, _context: StageContext) -> tuple[Cell, ...]:
    return tuple(Cell(id=f"M={tokens}", axes={"m": tokens}) for tokens in step.options.tokens)


def inventory_at(folder: Path, text: str = INVENTORY) -> LoadedInventory:
    path = folder / "inventory.yml"
    path.write_text(text)
    return load_inventory(path)


def planned(
    folder: Path,
    *serves: str,
    facts: HostFacts | None = FOUND,
    inventory: str = INVENTORY,
    hosts: str = "g1",
    more: str = "",
    if_down: IfDown = "refuse",
    cells_of: Any = two_cells,
) -> Any:
    phases = "".join(
        f"  - {{name: p{number}, serve: {serve}, steps: [gemm: {{tokens: [1, 2], device: cpu}}]}}\n"
        for number, serve in enumerate(serves, start=1)
    )
    path = folder / "p.yml"
    path.write_text(f"name: c\nhosts: {hosts}\n{more}phases:\n{phases}")
    loaded = inventory_at(folder, inventory)
    playbooks = load_playbooks(path, loaded).by_host
    seen: Mapping[str, HostFacts] = {} if facts is None else {"g1": facts}
    return plan(playbooks, loaded, seen, if_down=if_down, cells_of=cells_of)


def kinds(host: HostPlan) -> str:
    """Return the actions of the main branch as words, a service or phase in brackets; without those of the lease."""
    words = []
    for action in host.main:
        service = getattr(action, "service", None)
        about = service.name if service else getattr(action, "step", "").split("/")[0]
        words.append(f"{action.kind}({about})" if about else action.kind)
    assert words[:2] == ["install-guard", "arm"]
    assert words[-1] == "release"
    return " ".join(words[2:-1])


SWAP_BACK = "clear(prod) gate start(prod) await-ready(prod)"
UP_V = "start(v) await-ready(v)"


@pytest.mark.parametrize(
    ("serves", "actions", "loads"),
    [
        (["prod"], "verify(prod) measure(p1) verify(prod)", 0),
        (["prod", "prod"], "verify(prod) measure(p1) verify(prod) measure(p2) verify(prod)", 0),
        (["nothing"], f"stop(prod) gate measure(p1) {SWAP_BACK}", 1),
        (
            ["nothing", "nothing", "v"],
            (
                "install-variant(v) stop(prod) gate measure(p1) measure(p2) "
                f"{UP_V} measure(p3) {SWAP_BACK} remove-variant(v)"
            ),
            2,
        ),
        (
            ["v", "v"],
            (
                f"install-variant(v) stop(prod) gate {UP_V} measure(p1) verify(v) measure(p2) "
                f"{SWAP_BACK} remove-variant(v)"
            ),
            2,
        ),
        (
            ["v", "prod"],
            (
                f"install-variant(v) stop(prod) gate {UP_V} measure(p1) "
                "stop(v) gate start(prod) await-ready(prod) measure(p2) verify(prod) remove-variant(v)"
            ),
            2,
        ),
        (
            ["v", "w", "v"],
            (
                f"install-variant(v) install-variant(w) stop(prod) gate {UP_V} measure(p1) "
                "stop(v) gate start(w) await-ready(w) measure(p2) "
                f"stop(w) gate {UP_V} measure(p3) {SWAP_BACK} remove-variant(v) remove-variant(w)"
            ),
            4,
        ),
    ],
)
def test_a_swap_only_where_something_else_serves(tmp_path: Path, serves: list[str], actions: str, loads: int) -> None:
    made = planned(tmp_path, *serves)
    (host,) = made.hosts
    assert kinds(host) == actions
    assert made.loads == loads


def test_traffic_leaves_once_before_production_stops_and_comes_back_after_it_is_verified(tmp_path: Path) -> None:
    text = INVENTORY.replace("model: kimi", "model: kimi\n    traffic: {out: [lb, 'a b'], in: [lb, in]}")
    (host,) = planned(tmp_path, "nothing", "prod", "nothing", inventory=text).hosts
    words = kinds(host)
    assert words.count("traffic-out") == 1
    assert words.index("traffic-out(prod)") < words.index("stop(prod)")
    assert words.endswith("await-ready(prod) traffic-in(prod)")
    assert words.count("traffic-in") == 1
    assert {action.service.traffic.out for action in host.main if isinstance(action, TrafficOut)} == {("lb", "a b")}
    assert any("leaves the load balancer first, and is put back once it is verified" in one for one in host.notices)
    shown = [line.text for line in lines_of(planned(tmp_path, "nothing", inventory=text))]
    assert any("out of the load balancer: lb 'a b';" in line for line in shown)
    # Production that never stops keeps its traffic.
    (kept,) = planned(tmp_path, "prod", inventory=text).hosts
    assert "traffic-out" not in kinds(kept)
    assert "traffic-in" not in kinds(kept)


def test_rounds_repeat_the_phases_in_turn_with_ids_of_their_own(tmp_path: Path) -> None:
    made = planned(tmp_path, "prod", "v", more="rounds: {count: 2}\n")
    (host,) = made.hosts
    assert [step.step for step in host.steps] == [
        "round-1/p1/1-gemm",
        "round-1/p2/1-gemm",
        "round-2/p1/1-gemm",
        "round-2/p2/1-gemm",
    ]
    assert made.loads == 4
    assert made.saving is not None
    assert made.saving.because_of_rounds


@pytest.mark.parametrize(
    ("serves", "instead_of", "loads", "order"),
    [
        (["v", "prod"], None, None, None),
        (["prod", "nothing", "v"], None, None, None),
        (["v", "w", "v"], 4, 3, ("p1", "p3", "p2")),
        (["v", "prod", "v"], 4, 2, ("p2", "p1", "p3")),
        (["v", "nothing", "prod", "nothing"], 3, 2, ("p3", "p2", "p4", "p1")),
    ],
)
def test_what_another_order_would_save(
    tmp_path: Path, serves: list[str], instead_of: int | None, loads: int | None, order: tuple[str, ...] | None
) -> None:
    made = planned(tmp_path, *serves)
    if instead_of is None:
        assert made.saving is None
        return
    assert made.saving is not None
    assert made.hosts[0].loads == made.saving.instead_of == instead_of
    assert (made.saving.loads, made.saving.order) == (loads, order)
    # The promise is kept by the planner itself.
    again = [serves[int(name[1:]) - 1] for name in made.saving.order]
    assert planned(tmp_path, *again).loads == loads
    assert any(f"instead of {instead_of}" in line.text for line in lines_of(made))


def test_downtime_is_the_sum_of_what_was_measured(tmp_path: Path) -> None:
    facts = FOUND
    made = planned(tmp_path, "nothing", facts=facts, cells_of=two_cells)
    downtime = made.hosts[0].downtime
    options = next(action for action in made.hosts[0].actions if isinstance(action, Measure))
    assert options.forecast is None  # device: cpu is another step than the one that was measured
    assert downtime is not None
    assert downtime.expected is None
    assert downtime.unknown == ("step p1/1-gemm",)
    assert downtime.measured.seconds == 10 + 600
    hashed = content_hash(Gemm(tokens=(1, 2), device="cpu"))
    known = HostFacts("g1", loads=LOADS, stops=STOPS, steps={hashed: Estimate(60.0, 4.0, 3)})
    downtime = planned(tmp_path, "nothing", "v", facts=known).hosts[0].downtime
    assert downtime is not None
    assert downtime.expected is not None
    # stop 10 + step 60 + load of v 700 + step 60 + stop of v 10 + load of prod 600
    assert downtime.expected.seconds == pytest.approx(1440)
    assert downtime.expected.spread == pytest.approx((4**2 + 4**2 + 4**2 + 3**2) ** 0.5)
    assert downtime.expected.samples == 1
    # drain 10 + stop 60 + gate 30, step 3600, load 2 × 1800, step 3600, stop 60 + gate 30, load 1800
    assert downtime.most == 100 + 3600 + 3600 + 3600 + 90 + 1800


def test_downtime_does_not_count_while_production_serves_in_between(tmp_path: Path) -> None:
    hashed = content_hash(Gemm(tokens=(1, 2), device="cpu"))
    known = HostFacts("g1", loads=LOADS, stops=STOPS, steps={hashed: Estimate(60.0)})
    downtime = planned(tmp_path, "nothing", "prod", facts=known).hosts[0].downtime
    assert downtime is not None
    assert downtime.expected is not None
    assert downtime.expected.seconds == 10 + 60 + 600


def test_the_playbook_limit_bounds_the_phases(tmp_path: Path) -> None:
    downtime = planned(tmp_path, "nothing", more="limit: 10m\n").hosts[0].downtime
    assert downtime is not None
    assert downtime.most == 600 + 1800


def test_without_a_swap_nothing_is_down(tmp_path: Path) -> None:
    (host,) = planned(tmp_path, "prod").hosts
    assert host.downtime is None
    assert host.notices == ("Production serves all the time; it also answers the requests of this run.",)


def test_what_is_unknown_is_shown_as_unknown(tmp_path: Path) -> None:
    made = planned(tmp_path, "nothing", "v", facts=None)
    (host,) = made.hosts
    assert host.found == (
        "production prod: unknown; prod.service unknown",
        "GPUs: unknown",
        "lease: unknown",
    )
    assert "what stops with prod.service, and what starts it" in host.unknown
    downtime = host.downtime
    assert downtime is not None
    assert downtime.expected is None
    assert {"stop of prod.service", "load of v", "load of prod"} < set(downtime.unknown)
    assert any("an unknown time" in notice for notice in host.notices)
    assert host.refusals == ()


def test_cells_that_cannot_be_known_yet_say_why(tmp_path: Path) -> None:
    def refuse(_step: Step, _context: StageContext) -> tuple[Cell, ...]:
        raise StageError("the served model's config.json could not be read")

    made = planned(tmp_path, "nothing", cells_of=refuse)
    (step,) = made.hosts[0].steps
    assert step.cells is None
    assert any("cells unknown: the served model's config.json" in line.text for line in lines_of(made))
    measured = [one for one in document(made)["hosts"][0]["actions"] if one["action"] == "measure"]
    assert measured[0]["cells"] is None


def test_a_stage_sees_the_service_with_what_it_inherits(tmp_path: Path) -> None:
    contexts: list[StageContext] = []

    def note(step: Step, context: StageContext) -> tuple[Cell, ...]:
        contexts.append(context)
        return two_cells(step, context)

    facts = HostFacts("g1", model_config={"hidden_size": 7168}, engine_version="0.16.0")
    planned(tmp_path, "v", "nothing", facts=facts, cells_of=note)
    served, alone = contexts
    assert served.service is not None
    assert served.service.url == "http://127.0.0.1:8000"
    assert served.service_name == "v"
    assert (served.trace_dir or "").endswith("/traces/v")
    assert served.model_config == {"hidden_size": 7168}
    assert served.engine_version == "0.16.0"
    assert alone.service is None
    assert alone.model_config == {"hidden_size": 7168}


@pytest.mark.parametrize(
    ("if_down", "actions"),
    [
        ("restore", f"measure(p1) {SWAP_BACK}"),
        ("leave", "measure(p1) clear(prod) gate leave-down(prod)"),
    ],
)
def test_production_found_down(tmp_path: Path, if_down: IfDown, actions: str) -> None:
    facts = HostFacts("g1", services={"prod": Seen.DOWN})
    (host,) = planned(tmp_path, "nothing", facts=facts, if_down=if_down).hosts
    assert kinds(host) == actions
    assert host.restores is (if_down == "restore")
    assert {action.branch for action in host.restore} == {Branch.RESTORE}


def test_production_that_is_left_down_is_stopped_again_where_a_phase_served_it(tmp_path: Path) -> None:
    facts = HostFacts("g1", services={"prod": Seen.DOWN})
    (host,) = planned(tmp_path, "prod", facts=facts, if_down="leave").hosts
    assert kinds(host) == "start(prod) await-ready(prod) measure(p1) clear(prod) gate leave-down(prod)"


def test_what_the_preflight_refuses_is_refused_by_the_plan_with_its_exit_code(tmp_path: Path) -> None:
    held = HostHeld("g1 is held by ann@laptop", seen="held since 02:10", hint="wait")
    made = planned(tmp_path, "v", facts=HostFacts("g1", refusals=(held, PreflightStop("no space"))))
    shown = [line.text for line in lines_of(made)]
    assert "  a run would be refused now: g1 is held by ann@laptop: held since 02:10 (exit 4); wait" in shown
    assert document(made)["hosts"][0]["stops"][1] == "no space (exit 2)"


def test_cells_that_a_stage_cannot_plan_are_unknown_offline_and_a_refusal_on_a_host(tmp_path: Path) -> None:
    def refuse(_step: Step, _context: StageContext) -> tuple[Cell, ...]:
        raise StageError("no config")

    assert planned(tmp_path, "v", facts=None, cells_of=refuse).hosts[0].refusals == ()
    assert [str(error) for error in planned(tmp_path, "v", cells_of=refuse).hosts[0].refusals] == ["no config"]


def test_every_action_has_an_id_of_its_own_and_says_what_it_needs_does_and_proves(tmp_path: Path) -> None:
    made = planned(tmp_path, "v", "w", "nothing", "prod", "v", more="rounds: {count: 2}\n")
    actions = made.hosts[0].actions
    assert len({action.id for action in actions}) == len(actions)
    for action in actions:
        assert action.needs
        assert action.proof
        assert action.describe().endswith(".")


def test_a_load_is_tried_again_by_a_branch_of_the_plan(tmp_path: Path) -> None:
    (host,) = planned(tmp_path, "v", more="load: {attempts: 3}\n").hosts
    retried = [action.id for action in host.actions if action.branch is Branch.RETRY]
    assert retried == ["p1/retry/stop", "p1/retry/gate", "p1/retry/start", "p1/retry/await-ready"]
    (once,) = planned(tmp_path, "v", more="load: {attempts: 1}\n").hosts
    assert not [action for action in once.actions if action.branch is Branch.RETRY]


# -- what starts production


TRIGGERS = ("p.socket", "p.timer", "p.path")


def around(host: HostPlan, *kinds_: str) -> str:
    """Return the actions of some kinds in the main branch, a trigger by its name's end."""
    words = {"stop-trigger": "stop", "start-trigger": "start"}
    said = []
    for action in host.main:
        if action.kind in words:
            said.append(f"{words[action.kind]}.{getattr(action, 'unit', '').partition('.')[2]}")
        elif action.kind in kinds_:
            said.append(action.kind if action.kind == "measure" else f"{action.kind}({action.service.name})")  # type: ignore[attr-defined]
    return " ".join(said)


BACK = "start.socket start(prod) start.socket start.timer start.path"


@pytest.mark.parametrize(
    ("serves", "found", "wanted"),
    [
        (["prod"], "active", "measure start.socket start.timer start.path"),
        (["nothing"], "active", f"stop.timer stop.path stop.socket stop(prod) measure {BACK}"),
        (
            ["prod", "v", "nothing"],
            "active",
            f"measure stop.timer stop.path stop.socket stop(prod) start(v) measure stop(v) measure {BACK}",
        ),
        (
            ["nothing", "prod", "nothing"],
            "active",
            (
                "stop.timer stop.path stop.socket stop(prod) measure start.socket start(prod) measure "
                f"stop.socket stop(prod) measure {BACK}"
            ),
        ),
        (["nothing"], "inactive", f"stop.timer stop.path stop.socket measure {BACK}"),
        (["prod", "nothing"], "inactive", (
            f"start.socket start(prod) measure stop.timer stop.path stop.socket stop(prod) measure {BACK}"
        )),
    ],
)  # fmt: skip
def test_triggers_stop_before_production_is_away_and_its_socket_starts_before_it(
    tmp_path: Path, serves: list[str], found: str, wanted: str
) -> None:
    seen = {"prod": Seen.SERVING if found == "active" else Seen.DOWN}
    facts = replace(FOUND, triggers=TRIGGERS, units={"prod": found}, services=seen)
    (host,) = planned(tmp_path, *serves, facts=facts, if_down="restore").hosts
    assert around(host, "stop", "start", "measure") == wanted
    assert len({action.id for action in host.actions}) == len(host.actions)
    assert any("starts p.socket, p.timer, p.path again" in action.describe() for action in host.setup)


def test_a_retry_of_productions_load_keeps_its_socket_closed_until_the_gpus_are_free(tmp_path: Path) -> None:
    (host,) = planned(tmp_path, "nothing", "prod", facts=replace(FOUND, triggers=TRIGGERS)).hosts
    retried = [action.id.removeprefix("p2/retry/") for action in host.actions if action.branch is Branch.RETRY]
    assert retried == [
        "stop-trigger/p.socket", "stop", "gate", "start-socket/p.socket", "start", "await-ready",
    ]  # fmt: skip


def test_what_waits_for_production_waits_again_where_that_is_left_down(tmp_path: Path) -> None:
    facts = replace(FOUND, triggers=TRIGGERS, units={"prod": "inactive"}, services={"prod": Seen.DOWN})
    (host,) = planned(tmp_path, "nothing", facts=facts, if_down="leave").hosts
    assert around(host, "leave-down").endswith("leave-down(prod) start.socket start.timer start.path")


def test_ending_leftovers_is_said_where_it_is_allowed(tmp_path: Path) -> None:
    allowed = INVENTORY.replace("gpu-limit: 30s", "gpu-limit: 30s, end-leftovers: true")
    for text, said in ((INVENTORY, 0), (allowed, 3)):
        (host,) = planned(tmp_path, "nothing", inventory=text).hosts
        assert sum("end what it" in action.describe() for action in host.actions) == said


# -- a run that is resumed


def after(folder: Path, serves: list[str], count: int) -> HostFacts:
    """Return what a host looks like once the first ``count`` actions of a plan are verified and the controller died."""
    (host,) = planned(folder, *serves).hosts
    done, units = set(), {"prod": "active", "v": "not-found", "w": "not-found"}
    for action in host.main[:count]:
        if isinstance(action, Measure):
            done.add((action.step, action.hash))
        elif isinstance(action, Stop):
            units[action.service.name] = "inactive"
        elif isinstance(action, Start | AwaitReady):
            units[action.service.name] = "active"
    loading = isinstance(host.main[count - 1], Start)
    seen = {name: Seen.DOWN if state != "active" else Seen.SERVING for name, state in units.items()}
    if loading:
        seen[host.main[count - 1].service.name] = Seen.LOADING
    resumed = Resumed(as_found="serving", token=7, done=frozenset(done))
    return replace(FOUND, services=seen, units=units, resumed=resumed)


@pytest.mark.parametrize("serves", [["prod", "nothing", "v", "prod"], ["v", "w", "nothing"], ["nothing"], ["v", "v"]])
def test_a_resumed_run_goes_on_with_the_first_action_that_is_not_verified(tmp_path: Path, serves: list[str]) -> None:
    (whole,) = planned(tmp_path, *serves).hosts
    first = 2 + sum(action.kind == "install-variant" for action in whole.main)
    last = max(place for place, action in enumerate(whole.main) if isinstance(action, Measure))
    for count in range(first, last + 1):
        (host,) = planned(tmp_path, *serves, facts=after(tmp_path, serves, count)).hosts
        ids = [action.id for action in host.main if action.phase is not None]
        rest = [action.id for action in whole.main[count:] if action.phase is not None]
        again = len(ids) - len(rest)
        # What cannot be known by looking is done again: a gate, a start that finds its unit running, a verification.
        assert ids[again:] == rest, (count, ids, rest)
        assert all(re.search(r"/(gate|start|verify)$", id_) for id_ in ids[:again]), ids[:again]
        assert host.main[0].kind == "take-over"


def test_a_stage_that_still_runs_is_attached_to_and_one_that_is_not_wanted_is_stopped(tmp_path: Path) -> None:
    (whole,) = planned(tmp_path, "nothing", "v").hosts
    resumed = Resumed(as_found="serving", token=7, stages=(whole.steps[0].unit, "opsctl-RUN-p9s9-aaaaaa.service"))
    facts = replace(FOUND, units={"prod": "inactive", "v": "not-found"}, resumed=resumed)
    (host,) = planned(tmp_path, "nothing", "v", facts=facts).hosts
    assert [action.id for action in host.phases[0].actions] == ["p1/1-gemm"], "no gate: the stage holds the GPUs"
    assert [action.kind for action in host.setup] == ["take-over", "stop-stage", "install-variant"]


@pytest.mark.parametrize(
    ("as_found", "now", "restores"),
    [("serving", "inactive", True), ("down", "inactive", False), ("down", "active", True)],
)
def test_what_must_be_restored_is_worked_out_again_by_a_resume(
    tmp_path: Path, as_found: str, now: str, *, restores: bool
) -> None:
    seen = {"prod": Seen.SERVING if now == "active" else Seen.DOWN}
    facts = replace(FOUND, units={"prod": now}, services=seen, resumed=Resumed(as_found=as_found))
    (host,) = planned(tmp_path, "nothing", facts=facts, if_down="leave").hosts
    assert host.restores is restores


def test_hosts_are_planned_in_the_order_in_which_they_are_armed(tmp_path: Path) -> None:
    made = planned(tmp_path, "nothing", hosts="both")
    assert [host.host for host in made.hosts] == ["g1", "g2"]
    assert made.loads == 2


def test_the_document_is_json_and_holds_every_action(tmp_path: Path) -> None:

    made = planned(tmp_path, "prod", "nothing", "v")
    told = json.loads(json.dumps(document(made)))
    assert told.keys() == {"playbook", "description", "loads", "hosts", "saving", "notes"}
    (host,) = told["hosts"]
    assert [action["action"] for action in host["actions"]] == [action.kind for action in made.hosts[0].actions]
    step = next(action for action in host["actions"] if action["action"] == "measure")
    assert [cell["id"] for cell in step["cells"]] == ["M=1", "M=2"]
    awaited = next(action for action in host["actions"] if action["action"] == "await-ready")
    assert awaited["expected"] == {"seconds": 700.0, "spread": 4.0, "samples": 2}


def test_the_picture_counts_and_names_everything(tmp_path: Path) -> None:
    made = planned(tmp_path, "prod", "nothing", "v")
    shown = "\n".join(line.text for line in lines_of(made, cells=True))
    assert "g1: 3 steps, 6 cells, 2 weight loads" in shown
    assert "about 11m 40s ± 4.0 s (n=2)" in shown
    assert "2 cells (M=1 … M=2)" in shown
    assert shown.count("\n         M=1") == 3
    for action in made.hosts[0].actions:
        assert action.describe()[:-1] in shown


def test_estimates_say_their_spread() -> None:
    assert Estimate.of([]) is None
    assert Estimate.of([5.0]) == Estimate(5.0, 0.0, 1, slowest=5.0)
    assert Estimate.of([4.0, 6.0]) == Estimate(5.0, 2**0.5, 2, slowest=6.0)


def test_the_campaign_of_the_repository_is_planned_to_the_last_cell() -> None:
    root = Path(__file__).parents[2]
    inventory = load_inventory(root / "inventory.yml")
    playbooks = load_playbooks(root / "playbooks" / "profile-campaign.yml", inventory).by_host
    (host,) = plan(playbooks, inventory, {}, cells_of=cells_by_stage).hosts
    assert host.loads == 2
    assert all(step.cells for step in host.steps)
    ids = [cell.id for step in host.steps for cell in step.cells or ()]
    assert {"concurrency=1", "concurrency=64"} <= set(ids)

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from opsctl.errors import StageError
from opsctl.plan import Estimate, HostFacts, HostPlan, IfDown, Seen, document, lines_of, plan
from opsctl.plan.actions import AwaitReady, Restore, RunStep, Stop, TakeOut
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
    dependents={"prod": ()},
    gpus=8,
    python="3.12",
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
    """Return the actions as words, a service in brackets."""
    words = []
    for action in host.actions:
        about = getattr(action, "service", "") or getattr(action, "step", "").split("/")[0]
        words.append(f"{action.kind}({about})" if about else action.kind)
    return " ".join(words)


SWAP_BACK = "restore(prod) verify(prod)"


@pytest.mark.parametrize(
    ("serves", "actions", "loads"),
    [
        (["prod"], "arm run-step(p1) verify(prod) release", 0),
        (["prod", "prod"], "arm run-step(p1) run-step(p2) verify(prod) release", 0),
        (["nothing"], f"arm stop(prod) gate run-step(p1) {SWAP_BACK} release", 1),
        (
            ["nothing", "nothing", "v"],
            (
                "arm stop(prod) gate run-step(p1) run-step(p2) install-variant(v) start(v) await-ready(v) run-step(p3) "
                f"stop(v) gate {SWAP_BACK} remove-variant(v) release"
            ),
            2,
        ),
        (
            ["v", "v"],
            (
                "arm stop(prod) gate install-variant(v) start(v) await-ready(v) run-step(p1) run-step(p2) "
                f"stop(v) gate {SWAP_BACK} remove-variant(v) release"
            ),
            2,
        ),
        (
            ["v", "prod"],
            (
                "arm stop(prod) gate install-variant(v) start(v) await-ready(v) run-step(p1) "
                "stop(v) gate start(prod) await-ready(prod) run-step(p2) verify(prod) remove-variant(v) release"
            ),
            2,
        ),
        (
            ["v", "w", "v"],
            (
                "arm stop(prod) gate install-variant(v) start(v) await-ready(v) run-step(p1) "
                "stop(v) gate install-variant(w) start(w) await-ready(w) run-step(p2) "
                "stop(w) gate start(v) await-ready(v) run-step(p3) "
                f"stop(v) gate {SWAP_BACK} remove-variant(v) remove-variant(w) release"
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
    assert words.count("take-out") == 1
    assert words.index("take-out(prod)") < words.index("stop(prod)")
    assert words.endswith("restore(prod) verify(prod) put-in(prod) release")
    (taken,) = [action for action in host.actions if isinstance(action, TakeOut)]
    assert taken.argv == ("lb", "a b")
    assert any("leaves the load balancer first, and is put back once it is verified" in one for one in host.notices)
    shown = [line.text for line in lines_of(planned(tmp_path, "nothing", inventory=text))]
    assert any("take out" in line and "lb 'a b'" in line for line in shown)
    # Production that never stops keeps its traffic.
    (kept,) = planned(tmp_path, "prod", inventory=text).hosts
    assert "take-out" not in kinds(kept)
    assert "put-in" not in kinds(kept)


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
    options = next(action for action in made.hosts[0].actions if isinstance(action, RunStep))
    assert options.expected is None  # device: cpu is another step than the one that was measured
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
    # drain 10 + stop 60 + gate 30, step 3600, load 2 × 1800, step 3600, stop 70 + gate 30, load 1800
    assert downtime.most == 100 + 3600 + 3600 + 3600 + 100 + 1800


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
    assert "what stops with prod.service" in host.unknown
    assert "whether the serving environment's Python starts" in host.unknown
    downtime = host.downtime
    assert downtime is not None
    assert downtime.expected is None
    assert {"stop of prod.service", "load of v", "load of prod"} < set(downtime.unknown)
    assert any("an unknown time" in notice for notice in host.notices)
    assert host.stops == ()


def test_cells_that_cannot_be_known_yet_say_why(tmp_path: Path) -> None:
    def refuse(_step: Step, _context: StageContext) -> tuple[Cell, ...]:
        raise StageError("the served model's config.json could not be read")

    made = planned(tmp_path, "nothing", cells_of=refuse)
    (step,) = made.hosts[0].steps
    assert step.cells is None
    assert any("cells unknown: the served model's config.json" in line.text for line in lines_of(made))
    assert document(made)["hosts"][0]["actions"][3]["cells"] is None


def test_a_stage_sees_the_service_with_what_it_inherits(tmp_path: Path) -> None:
    contexts: list[StageContext] = []

    def note(step: Step, context: StageContext) -> tuple[Cell, ...]:
        contexts.append(context)
        return two_cells(step, context)

    facts = HostFacts("g1", model_config={"prod": {"hidden_size": 7168}}, engine_versions={"prod": "0.16.0"})
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
        ("restore", "arm run-step(p1) restore(prod) verify(prod) release"),
        ("leave", "arm run-step(p1) leave-down(prod) release"),
    ],
)
def test_production_found_down(tmp_path: Path, if_down: IfDown, actions: str) -> None:
    facts = HostFacts("g1", services={"prod": Seen.DOWN})
    (host,) = planned(tmp_path, "nothing", facts=facts, if_down=if_down).hosts
    assert kinds(host) == actions
    assert host.stops == ()
    (refused,) = planned(tmp_path, "nothing", facts=facts).hosts
    assert refused.stops == ("production prod is down (exit 2); mend it, or say --if-down restore or --if-down leave",)


def test_production_that_is_left_down_is_stopped_again_where_a_phase_served_it(tmp_path: Path) -> None:
    facts = HostFacts("g1", services={"prod": Seen.DOWN})
    (host,) = planned(tmp_path, "prod", facts=facts, if_down="leave").hosts
    assert kinds(host) == ("arm start(prod) await-ready(prod) run-step(p1) stop(prod) gate leave-down(prod) release")


@pytest.mark.parametrize(
    ("facts", "said"),
    [
        (HostFacts("g1", holder="ann@laptop since 02:10"), "the host is held by ann@laptop since 02:10 (exit 4)"),
        (HostFacts("g1", units={"prod": "not-found"}), "the host has no unit prod.service (service prod; exit 2)"),
        (HostFacts("g1", python=""), "the inventory's `python` does not start on the host (exit 2)"),
        (HostFacts("g1", services={"prod": Seen.LOADING}), "production prod is loading (exit 2)"),
    ],
)
def test_why_a_run_would_be_refused(tmp_path: Path, facts: HostFacts, said: str) -> None:
    made = planned(tmp_path, "v", facts=facts)
    assert any(said in stop for stop in made.hosts[0].stops)
    assert any("a run would be refused now" in line.text for line in lines_of(made))


def test_a_variant_that_is_not_there_yet_is_no_reason_to_refuse(tmp_path: Path) -> None:
    assert planned(tmp_path, "v", facts=HostFacts("g1", units={"v": "not-found"})).hosts[0].stops == ()


def test_several_productions_are_all_taken_down_and_all_brought_back(tmp_path: Path) -> None:
    text = INVENTORY.replace("g1: {}", "g1: {production: [prod, q]}").replace("g2: {}", "g2: {production: [prod]}")
    text += "  q: {url: 'http://127.0.0.1:8001', model: other}\n"
    (host,) = planned(tmp_path, "q", "v", "q", inventory=text).hosts
    assert kinds(host) == (
        "arm run-step(p1) stop(prod) stop(q) gate install-variant(v) start(v) await-ready(v) run-step(p2) "
        "stop(v) gate start(q) await-ready(q) run-step(p3) restore(prod) verify(prod) verify(q) "
        "remove-variant(v) release"
    )
    # One of two serves again from phase 3 on; the other is missing until the end.
    assert host.downtime is not None
    assert set(host.downtime.unknown) == {"stop of q.service", "load of q", "step p2/1-gemm", "step p3/1-gemm"}
    assert host.downtime.measured.seconds == 10 + 700 + 10 + 600


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
    step = next(action for action in host["actions"] if action["action"] == "run-step")
    assert [cell["id"] for cell in step["cells"]] == ["M=1", "M=2"]
    awaited = next(action for action in host["actions"] if action["action"] == "await-ready")
    assert awaited["expected"] == {"seconds": 700.0, "spread": 4.0, "samples": 2}


def test_the_picture_counts_and_names_everything(tmp_path: Path) -> None:
    made = planned(tmp_path, "prod", "nothing", "v")
    shown = "\n".join(line.text for line in lines_of(made, cells=True))
    assert "g1: 3 steps, 6 cells, 2 weight loads" in shown
    assert "about 11m 40s ± 4.0 s (n=2)" in shown
    assert "2 cells (M=1 … M=2)" in shown
    assert shown.count("\n                   M=1") == 3
    for action in made.hosts[0].actions:
        if isinstance(action, Stop | Restore):
            assert action.unit in shown
        if isinstance(action, AwaitReady):
            assert action.service in shown


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

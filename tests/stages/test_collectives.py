import json
from typing import Any

import pytest

from opsctl.errors import StageError
from opsctl.payload.collectives import Rendezvous, Spec
from opsctl.playbook.models import HostEntry, ServiceEntry
from opsctl.results import State
from opsctl.stages.collectives import Collectives, CollectivesStage, message_bytes, ranks
from opsctl.stages.models import KIMI_K25, derive
from tests.stages.contexts import context, nothing
from tests.stages.test_topology import PCIE, PEERS

STAGE = CollectivesStage()
KIMI = derive(KIMI_K25, name="kimi-k2.5", tensor_parallel=8)


@pytest.mark.parametrize(
    ("op", "tokens", "size"),
    [
        ("all_reduce", 1, 14336),
        ("all_reduce", 64, 64 * 14336),
        ("reduce_scatter", 8, 8 * 14336),
        ("all_gather", 1, 327680),
        ("all_to_all", 1, 8 * 14336),
        ("all_to_all", 64, 8 * 8 * 14336),
    ],
)
def test_the_models_own_messages(op: str, tokens: int, size: int) -> None:
    assert message_bytes(op, tokens, KIMI, 8) == size


def test_cells_are_op_message_graph_and_sweep() -> None:
    options = Collectives(
        model="kimi-k2.5", tokens=(1, 8), ops=("all_reduce",), sweep={"NCCL_PROTO": ("default", "LL")}
    )
    cells = STAGE.cells(options, nothing())
    assert [cell.id for cell in cells] == [
        f"all_reduce/M={tokens}/graph={graph}/NCCL_PROTO={protocol}"
        for protocol in ("default", "LL")
        for tokens in (1, 8)
        for graph in ("on", "off")
    ]
    spec = Spec.from_dict(json.loads(STAGE.invocation(options, nothing(), cells).spec_json()))
    assert spec.world_size == 8
    assert [cell.environment for cell in spec.cells] == [{}] * 4 + [{"NCCL_PROTO": "LL"}] * 4


def test_gloo_has_no_graphs() -> None:
    options = Collectives(model="kimi-k2.5", backend="gloo", tokens=(1,), ops=("all_reduce",))
    assert [cell.id for cell in STAGE.cells(options, nothing())] == ["all_reduce/M=1/graph=off"]


def test_own_sizes() -> None:
    options = Collectives(sizes=("14KiB",), ops=("all_reduce",), graphs="off")
    assert [cell.id for cell in STAGE.cells(options, nothing())] == ["all_reduce/14336B/graph=off"]


def test_ranks_come_from_the_step_the_service_or_the_host() -> None:
    assert ranks(Collectives(world_size=2), context()) == 2
    assert ranks(Collectives(), context()) == 8
    assert ranks(Collectives(), nothing(host=HostEntry(gpus=4))) == 4
    production = ServiceEntry(url="http://x", model="m", tensor_parallel=2)
    assert ranks(Collectives(), nothing(host=HostEntry(gpus=4), production=production)) == 2
    with pytest.raises(StageError, match="number of ranks is not known"):
        ranks(Collectives(), nothing(host=HostEntry()))
    with pytest.raises(StageError, match="number of ranks on kimi-1 is not known"):
        STAGE.refuse(Collectives(), nothing(host=HostEntry()))


def test_more_ranks_than_gpus_are_refused_with_both_numbers() -> None:
    options = Collectives(model="kimi-k2.5", world_size=16)
    with pytest.raises(StageError, match="world-size: wanted a GPU for each rank, found 16 ranks and 2 GPUs on kimi-1"):
        STAGE.refuse(options, nothing(host=HostEntry(gpus=2)))
    # What the inventory does not say is seen on the host.
    with pytest.raises(StageError, match="found 16 ranks and 8 GPUs on kimi-1"):
        STAGE.cells(options, nothing(host=HostEntry(), gpus=8))


@pytest.mark.parametrize(("changes", "gpus"), [({}, 1), ({"backend": "gloo"}, 2), ({"world_size": 2}, 2), ({}, None)])
def test_ranks_that_fit_or_do_not_apply_are_planned(changes: dict[str, Any], gpus: int | None) -> None:
    options = Collectives(**{"model": "kimi-k2.5", "world_size": 16, **changes})
    STAGE.refuse(options, nothing(host=HostEntry(gpus=gpus)))
    assert STAGE.cells(options, nothing(gpus=gpus))


def test_one_gpu_on_each_of_several_hosts_has_much_to_exchange() -> None:
    options = Collectives(model="kimi-k2.5", world_size=2, across_hosts=True)
    with pytest.raises(StageError, match="found 2 ranks and 1 GPUs"):
        STAGE.cells(options, nothing(gpus=1, peers=PEERS_OF_TWO))


def test_an_unknown_collective() -> None:
    with pytest.raises(StageError, match=r"ops: wanted any of all_reduce, .* found broadcast"):
        STAGE.refuse(Collectives(model="kimi-k2.5", ops=("broadcast",)), nothing())


def test_the_result_names_topology_expectation_and_advice() -> None:
    options = Collectives(model="kimi-k2.5", tokens=(1,), graphs="on")
    cells = STAGE.cells(options, nothing())
    environment = {
        "topology": PCIE,
        "p2p": PEERS,
        "p2p_findings": ["GPU 0 → GPU 1 claims P2P and its copy arrives wrong"],
    }
    records: list[dict[str, Any]] = [{"record": "environment", "environment": environment}]
    for cell in cells:
        figures = [{"name": "collective.time.p50", "value": 20.0, "unit": "us"}]
        records.append({"record": "cell", "id": cell.id, "state": "verified", "figures": figures})
    result = STAGE.judge(options, nothing(), cells, [*records, {"record": "end", "state": "verified"}])
    assert result.state is State.VERIFIED
    assert result.detail["topology"].startswith("4 GPUs, no NVLink")
    assert result.detail["expected_per_step"] == {"all_reduce": 123, "all_gather": 1}
    assert result.detail["findings"][-1] == environment["p2p_findings"][0]
    assert "no NVLink" in result.detail["advice"]["lines"][0]


def test_without_a_topology_the_result_says_so() -> None:
    options = Collectives(model="kimi-k2.5", tokens=(1,))
    result = STAGE.judge(options, nothing(), STAGE.cells(options, nothing()), [])
    assert result.detail["topology"].startswith("topology unknown")
    assert result.detail["advice"]["lines"][0].startswith("nothing was measured")


PEERS_OF_TWO = (("node-a", "10.0.0.1"), ("node-b", "10.0.0.2"))


def test_across_hosts_they_meet_at_the_first_ones_address() -> None:
    options = Collectives(model="kimi-k2.5", across_hosts=True, world_size=4, tokens=(1,), ops=("all_to_all",))
    here = nothing(host_name="node-b", peers=PEERS_OF_TWO)
    cells = STAGE.cells(options, here)
    spec = Spec.from_dict(json.loads(STAGE.invocation(options, here, cells).spec_json()))
    assert spec.world_size == 8
    assert spec.rendezvous == Rendezvous("10.0.0.1", 29511, 1, 2)


def test_across_hosts_wants_several() -> None:
    options = Collectives(model="kimi-k2.5", across_hosts=True)
    with pytest.raises(StageError, match="wants a run over several hosts"):
        STAGE.invocation(options, nothing(), STAGE.cells(options, nothing()))

import pytest

from opsctl.results import Cell, Figure, State
from opsctl.stages.advice import ASSUMPTIONS, advise, fastest
from opsctl.stages.models import KIMI_K25, derive
from tests.stages.test_models import TINY

KIMI = derive(KIMI_K25, name="kimi-k2.5", tensor_parallel=8)
PCIE = "8 GPUs, no NVLink"


def cell(op: str, tokens: int, micros: float, *, graph: str = "on", state: State = State.VERIFIED, **axes: str) -> Cell:
    return Cell(
        id=f"{op}/{tokens}/{graph}/{axes}",
        axes={"op": op, "tokens": tokens, "bytes": 1, "graph": graph, **axes},
        state=state,
        figures=(Figure(name="collective.time.p50", value=micros, unit="us"),),
    )


def measured(all_reduce: float, all_gather: float, all_to_all: float, tokens: int = 8) -> list[Cell]:
    return [
        cell("all_reduce", tokens, all_reduce),
        cell("all_gather", tokens, all_gather),
        cell("all_to_all", tokens, all_to_all),
    ]


def test_counts_times_measured_time() -> None:
    (choice,) = advise(KIMI, measured(24.0, 100.0, 40.0), PCIE).choices
    assert choice.tensor_parallel_us == pytest.approx(123 * 24 + 100)
    assert choice.expert_parallel_us == pytest.approx(120 * 40)


@pytest.mark.parametrize(
    ("times", "said"),
    [
        (
            (24.0, 100.0, 40.0),
            "8 tokens: tensor parallel, 3.05 ms of collectives a step against 4.80 ms with",
        ),
        (
            (90.0, 100.0, 40.0),
            "8 tokens: expert parallel, 4.80 ms of collectives a step against 11.17 ms with",
        ),
        ((39.0, 100.0, 40.0), "8 tokens: no clear difference"),
    ],
)
def test_advice_follows_measurement_and_names_the_topology(times: tuple[float, float, float], said: str) -> None:
    (line,) = advise(KIMI, measured(*times), PCIE).lines
    assert line.startswith(said)
    assert line.endswith(PCIE)


def test_the_fastest_protocol_counts_and_is_named() -> None:
    cells = [
        cell("all_reduce", 8, 24.0, NCCL_PROTO="default"),
        cell("all_reduce", 8, 21.0, NCCL_PROTO="LL128"),
        cell("all_reduce", 8, 1.0, NCCL_PROTO="Simple", state=State.FAILED),
    ]
    assert fastest(cells, "all_reduce", 8) == (21.0, "NCCL_PROTO=LL128")


def test_graphs_are_how_decode_runs_them() -> None:
    cells = [cell("all_reduce", 8, 24.0, graph="on"), cell("all_reduce", 8, 5.0, graph="off")]
    assert fastest(cells, "all_reduce", 8) == (24.0, "default")
    assert fastest(cells[1:], "all_reduce", 8) == (5.0, "default")


def test_where_something_was_not_measured_nothing_is_advised() -> None:
    advice = advise(KIMI, measured(24.0, 100.0, 40.0)[:2], PCIE)
    assert advice.lines == ("8 tokens: not measured: all_to_all: no advice",)
    assert advice.choices[0].expert_parallel_us is None


@pytest.mark.parametrize("cells", [[], [cell("all_reduce", 8, 1.0, state=State.FAILED)]])
def test_nothing_measured(cells: list[Cell]) -> None:
    assert advise(KIMI, cells, PCIE).lines == ("nothing was measured that would speak for one or the other: no advice",)


def test_a_dense_model_has_no_choice() -> None:
    lines = advise(derive(TINY, name="tiny", tensor_parallel=2), measured(1, 1, 1), PCIE).lines
    assert lines == ("tiny has no experts: expert parallelism is no choice",)


def test_the_document_carries_the_assumptions() -> None:
    document = advise(KIMI, measured(24.0, 100.0, 40.0), PCIE).document()
    assert document["assumptions"] == list(ASSUMPTIONS)
    assert document["topology"] == PCIE
    assert document["choices"][0]["settings"] == {
        "all_reduce": "default",
        "all_gather": "default",
        "all_to_all": "default",
    }

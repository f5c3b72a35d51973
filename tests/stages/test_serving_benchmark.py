import pytest

from opsctl.errors import StageError
from opsctl.playbook.models import ServiceEntry
from opsctl.playbook.steps import ServingBenchmark
from opsctl.stages.serving_benchmark import ServingBenchmarkStage
from tests.stages.contexts import context, nothing

STAGE = ServingBenchmarkStage()


def test_cells_are_concurrencies_and_rates() -> None:
    options = ServingBenchmark(concurrency=(1, 8, 8), request_rate=(2.0, 4.5))
    cells = STAGE.cells(options, context())
    assert [cell.id for cell in cells] == ["concurrency=1", "concurrency=8", "rate=2", "rate=4.5"]
    assert cells[1].axes == {"concurrency": 8}
    assert cells[3].axes == {"request_rate": 4.5}


def test_one_stream_where_nothing_is_said() -> None:
    assert [cell.id for cell in STAGE.cells(ServingBenchmark(), context())] == ["concurrency=1"]


def test_the_spec_names_the_key_file_and_not_the_key() -> None:
    options = ServingBenchmark(concurrency=(8,), slo={"ttft": 2.0})
    invocation = STAGE.invocation(options, context(), STAGE.cells(options, context()))
    assert invocation.spec["api_key_file"] == "/etc/key"
    assert invocation.spec["cells"] == [{"id": "concurrency=8", "concurrency": 8}]
    assert invocation.spec["slo"] == {"ttft": 2.0}
    assert invocation.environment == {}
    assert not invocation.exclusive_gpu
    assert invocation.limit == options.limit


@pytest.mark.parametrize("where", [nothing(), context(service=ServiceEntry(url="http://x"))])
def test_without_a_server_there_is_nothing_to_measure(where: object) -> None:
    with pytest.raises(StageError, match="wants a service that serves"):
        STAGE.invocation(ServingBenchmark(), where, ())  # type: ignore[arg-type]


def test_an_slo_on_nothing() -> None:
    with pytest.raises(StageError, match="slo names latency"):
        STAGE.invocation(ServingBenchmark(slo={"latency": 1.0}), context(), ())

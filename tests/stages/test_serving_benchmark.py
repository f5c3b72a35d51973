import json

import pytest

from opsctl.engines import ENGINES, Engine
from opsctl.errors import StageError
from opsctl.payload.serving_spec import CellSpec, Spec
from opsctl.playbook.models import ServiceEntry
from opsctl.stages.serving_benchmark import ServingBenchmark, ServingBenchmarkStage
from tests.stages.contexts import context, nothing

STAGE = ServingBenchmarkStage()


def test_cells_are_concurrencies_and_rates() -> None:
    options = ServingBenchmark(concurrency=(1, 8), request_rate=(2.0, 4.5))
    cells = STAGE.cells(options, context())
    assert [cell.id for cell in cells] == ["concurrency=1", "concurrency=8", "rate=2", "rate=4.5"]
    assert cells[1].axes == {"concurrency": 8}
    assert cells[3].axes == {"request_rate": 4.5}


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (ServingBenchmark(), "wanted `concurrency` or `request-rate`"),
        (ServingBenchmark(concurrency=(8, 8)), "concurrency: wanted values that differ"),
        (ServingBenchmark(concurrency=(1,), requests=8, duration=9.0), "wanted `requests` or `duration`, found both"),
        (ServingBenchmark(concurrency=(1,), slo={"latency": 1.0}), "slo: wanted any of ttft, .* found latency"),
    ],
)
def test_what_cannot_be_measured_is_refused(options: ServingBenchmark, said: str) -> None:
    with pytest.raises(StageError, match=said):
        STAGE.refuse(options, context())


def test_the_spec_names_the_key_file_and_not_the_key() -> None:
    options = ServingBenchmark(concurrency=(8,), slo={"ttft": 2.0})
    private = ServiceEntry(url="https://x", model="m", api_key_file="/etc/key", ca_file="/etc/ca.pem", verify=False)
    invocation = STAGE.invocation(options, context(service=private), STAGE.cells(options, context()))
    spec = Spec.from_dict(json.loads(invocation.spec_json()))
    assert spec.api_key_file == "/etc/key"
    assert (spec.ca_file, spec.verify) == ("/etc/ca.pem", False)
    assert spec.cells == (CellSpec("concurrency=8", 8),)
    assert spec.slo == {"ttft": 2.0}
    assert invocation.limit == options.limit


@pytest.mark.parametrize("engine", ENGINES.values(), ids=lambda engine: engine.name)
def test_the_spec_names_the_metrics_of_every_engine(engine: Engine) -> None:
    spec = STAGE.invocation(ServingBenchmark(concurrency=(1,)), context(), ()).spec
    assert isinstance(spec, Spec)
    for role, names in spec.metrics.to_dict().items():
        assert set(getattr(engine.routes, role)) <= set(names), role
    assert set(engine.routes.version) <= set(spec.version)


@pytest.mark.parametrize("where", [nothing(), context(service=ServiceEntry(url="http://x"))])
def test_without_a_server_there_is_nothing_to_measure(where: object) -> None:
    with pytest.raises(StageError, match="wants a service that serves"):
        STAGE.invocation(ServingBenchmark(), where, ())  # type: ignore[arg-type]

import pytest

from opsctl.errors import StageError
from opsctl.results import State
from opsctl.stages.command import Command, CommandStage
from tests.stages.contexts import nothing

STAGE = CommandStage()
OPTIONS = Command(argv=("vllm", "bench", "serve"), figures={"tpot [ms]": "out.json#mean_tpot_ms"}, collect=("*.json",))


def test_one_cell_and_its_spec() -> None:
    cells = STAGE.cells(OPTIONS, nothing())
    assert [cell.id for cell in cells] == ["command"]
    invocation = STAGE.invocation(OPTIONS, nothing(), cells)
    assert invocation.spec.to_dict()["argv"] == ("vllm", "bench", "serve")
    assert invocation.limit > OPTIONS.limit
    assert invocation.collect == ("command.stdout", "command.stderr", "*.json")


@pytest.mark.parametrize("source", ["out.json", "#a.b", "out.json#"])
def test_a_figure_without_a_source(source: str) -> None:
    with pytest.raises(StageError, match=r"wanted FILE#path.to.number for `x`"):
        STAGE.refuse(Command(argv=("x",), figures={"x": source}), nothing())


def test_its_records_are_judged_as_any_others() -> None:
    records = [{"record": "cell", "id": "command", "state": "verified"}, {"record": "end", "state": "verified"}]
    assert STAGE.judge(OPTIONS, nothing(), STAGE.cells(OPTIONS, nothing()), records).state is State.VERIFIED

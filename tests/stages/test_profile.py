import json

import pytest

from opsctl.errors import StageError
from opsctl.payload.profile_spec import Spec
from opsctl.playbook.models import ServiceEntry
from opsctl.stages.profile import Profile, ProfileStage
from tests.stages.contexts import context, nothing
from tests.stages.test_models import TINY

STAGE = ProfileStage()


def test_cells_are_windows_of_each_concurrency() -> None:
    cells = STAGE.cells(Profile(concurrency=(1, 8), windows=2), context())
    assert [cell.id for cell in cells] == [
        "concurrency=1/window=1",
        "concurrency=1/window=2",
        "concurrency=8/window=1",
        "concurrency=8/window=2",
    ]


def test_the_spec_wants_a_file_of_every_rank() -> None:
    options = Profile()
    invocation = STAGE.invocation(options, context(), STAGE.cells(options, context()))
    spec = Spec.from_dict(json.loads(invocation.spec_json()))
    assert (spec.ranks, spec.trace_dir, spec.stop, spec.flush_limit) == (8, "/var/lib/traces", "/stop_profile", 45 * 60)


@pytest.mark.parametrize(("fetch", "takes"), [("all", 2), ("rank0", 4), ("none", 1)])
def test_what_is_fetched(fetch: str, takes: int) -> None:
    invocation = STAGE.invocation(Profile(fetch=fetch), context(), ())
    assert len(invocation.collect) == takes
    assert "trace-*.json" in invocation.collect


@pytest.mark.parametrize(
    ("where", "said"),
    [
        (nothing(), "wants a service that serves"),
        (context(trace_dir=None), "has no folder for traces"),
        (context(service=ServiceEntry(url="http://x", model="m")), "number of ranks of vllm-kimi is not known"),
    ],
)
def test_what_cannot_be_profiled_says_why(where: object, said: str) -> None:
    with pytest.raises(StageError, match=said):
        STAGE.invocation(Profile(), where, ())  # type: ignore[arg-type]


def test_what_a_step_should_hold_goes_along_where_the_model_is_known() -> None:
    def spec(**where: object) -> Spec:
        return Spec.from_dict(json.loads(STAGE.invocation(Profile(), context(**where), ()).spec_json()))

    known = spec(model_config={**TINY, "num_key_value_heads": 8})
    assert known.expected == {"all_reduce": 9, "all_gather": 1}
    assert known.token_bytes == 1024
    assert spec().expected is None
    assert spec(model_config={"hidden_size": 5}).expected is None


def test_profiled_numbers_are_marked() -> None:
    assert STAGE.judge(Profile(), context(), STAGE.cells(Profile(), context()), []).profiled

"""Whatever stands where something else should: the answer is a list of problems, never a traceback."""

from __future__ import annotations

import copy
import json
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from opsctl.errors import DefinitionError
from opsctl.playbook.inventory import LoadedInventory, load_inventory
from opsctl.playbook.loading import LoadedPlaybook, load_playbooks
from opsctl.playbook.source import parse_document
from tests.playbook.files import INVENTORY, inventory_at
from tests.playbook.test_loading import PLAYBOOK

ODD = st.recursive(
    st.sampled_from([None, True, 0, -1, 1.5, "", "x", "{{ vars.rounds }}", "{{ vars", "5s", "nothing", "prod", 10**30]),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from(["a", "name", "gemm", "<"]), inner),
    max_leaves=4,
)


def places(value: Any, at: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Return every place in a document, the top apart."""
    keys = list(value) if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ()
    return [place for key in keys for place in [(*at, key), *places(value[key], (*at, key))]]


def changed(document: Any, place: tuple[Any, ...], odd: Any, action: str) -> str:
    """Return the document with one place replaced, removed or renamed, as JSON (which is YAML)."""
    document = copy.deepcopy(document)
    parent = document
    for key in place[:-1]:
        parent = parent[key]
    if action == "remove":
        del parent[place[-1]]
    elif action == "rename" and isinstance(parent, dict):
        parent[f"{place[-1]}x"] = parent.pop(place[-1])
    else:
        parent[place[-1]] = odd
    return json.dumps(document)


PLAYBOOK_DATA = parse_document(PLAYBOOK, "p").data
INVENTORY_DATA = parse_document(INVENTORY, "i").data
ACTIONS = st.sampled_from(["replace", "replace", "remove", "rename"])
QUICK = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.fixture(scope="module")
def inventory() -> LoadedInventory:
    with tempfile.TemporaryDirectory() as folder:
        return inventory_at(Path(folder))


@given(place=st.sampled_from(places(PLAYBOOK_DATA)), odd=ODD, action=ACTIONS)
@QUICK
def test_any_playbook(
    inventory: LoadedInventory, tmp_path: Path, place: tuple[Any, ...], odd: Any, action: str
) -> None:
    path = tmp_path / "p.yml"
    path.write_text(changed(PLAYBOOK_DATA, place, odd, action))
    try:
        assert isinstance(load_playbooks(path, inventory), LoadedPlaybook)
    except DefinitionError as error:
        if not error.problems:
            raise


@given(place=st.sampled_from(places(INVENTORY_DATA)), odd=ODD, action=ACTIONS)
@QUICK
def test_any_inventory(tmp_path: Path, place: tuple[Any, ...], odd: Any, action: str) -> None:
    path = tmp_path / "i.yml"
    path.write_text(changed(INVENTORY_DATA, place, odd, action))
    try:
        loaded = load_inventory(path)
    except DefinitionError as error:
        if not error.problems:
            raise
    else:
        # What is fit holds no name that leads nowhere.
        for host in loaded.inventory.hosts:
            loaded.services_of(host)
            loaded.production_of(host)
        for group in loaded.inventory.groups:
            assert loaded.hosts_of(group)

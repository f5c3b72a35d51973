"""Loading a playbook for a host: read, evaluate, validate, check against the inventory; every problem at once.

Here the errors of YAML, expressions and pydantic have become Problems already (source.py, expressions.py,
problems.py): what leaves this module is a Playbook or a DefinitionError.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from opsctl.errors import DefinitionError, Problem, UnfitError
from opsctl.nearest import suggestion
from opsctl.playbook.expressions import ExpressionError, has_expression
from opsctl.playbook.inventory import LoadedInventory
from opsctl.playbook.inventory_checks import check_var_names
from opsctl.playbook.playbook_checks import check_playbook, named_hosts, slug, steps_in
from opsctl.playbook.problems import Findings
from opsctl.playbook.source import Document, Key, kind_of, parse_document, read_document
from opsctl.playbook.steps import Playbook, Step
from opsctl.playbook.variables import Variables, gather, unused_names
from opsctl.stages import STAGES

_LITERAL = ("name", "hosts", "description")
"""Keys of a playbook that may not depend on vars: vars may differ from host to host."""
_FOLDER = "playbooks"


@dataclass(frozen=True)
class LoadedPlaybook:
    """A playbook for each of its hosts: they differ only where vars do."""

    path: Path
    by_host: Mapping[str, Playbook]
    unused_vars: tuple[str, ...] = ()
    """Vars that the inventory gives and this playbook does not have."""

    @property
    def name(self) -> str:
        """The playbook's own name."""
        return next(iter(self.by_host.values())).name

    @property
    def hosts(self) -> tuple[str, ...]:
        """The hosts, sorted: the order in which they are armed."""
        return tuple(self.by_host)


def find_playbook(name: str, folder: Path | None = None) -> Path:
    """Return the file of a playbook: as given, then in ``playbooks/``; with or without .yml. Raises UnfitError."""
    base = folder or Path()
    names = [name] if Path(name).suffix in {".yml", ".yaml"} else [name, f"{name}.yml", f"{name}.yaml"]
    tried = [base / place / each for place in ("", _FOLDER) for each in names]
    for path in tried:
        if path.is_file():
            return path
    there = sorted(
        path.name for place in (base, base / _FOLDER) for path in place.glob("*.y*ml") if path.stem != "inventory"
    )
    raise UnfitError(
        f"no playbook `{name}`{suggestion(Path(name).name, there)}",
        seen=f"looked for {', '.join(dict.fromkeys(map(str, tried)))}",
    )


def load_playbook(
    path: Path | str, inventory: LoadedInventory, host: str | None = None, overrides: Iterable[str] = ()
) -> Playbook:
    """Load a playbook as it is for one host (None: with no host's own vars). Raises DefinitionError.

    ``overrides`` are ``NAME=VALUE`` texts as ``--var`` takes them; the value is YAML.
    """
    return _load(read_document(Path(path)), inventory, host, tuple(overrides))


def load_playbooks(path: Path | str, inventory: LoadedInventory, overrides: Iterable[str] = ()) -> LoadedPlaybook:
    """Load a playbook for all of its hosts. Raises DefinitionError with the problems of all of them, once each."""
    path, overrides = Path(path), tuple(overrides)
    document = read_document(path)
    hosts = named_hosts(document.data, inventory)
    playbooks: dict[str, Playbook] = {}
    problems: dict[Problem, None] = {}
    for host in hosts or (None,):
        try:
            playbooks[host or ""] = _load(document, inventory, host, overrides)
        except DefinitionError as error:
            problems.update(dict.fromkeys(error.problems))
    if problems:
        raise DefinitionError(list(problems))
    known = next(iter(playbooks.values())).vars
    return LoadedPlaybook(path, playbooks, unused_names(inventory, hosts, known))


def _load(document: Document, inventory: LoadedInventory, host: str | None, overrides: tuple[str, ...]) -> Playbook:
    findings = Findings(document)
    check_var_names(findings, ("vars",), document.data.get("vars"))
    variables = gather(findings, inventory, host, overrides)
    data = _evaluated(findings, variables)
    _note_unused(findings, variables)
    options = _options(findings, data)
    playbook = findings.validated(Playbook, _without_steps(data))
    check_playbook(findings, data, options, inventory)
    if playbook is None or findings.problems:
        raise DefinitionError(findings.problems)
    phases = tuple(
        phase.model_copy(update={"steps": _steps(data["phases"][index], index, options)})
        for index, phase in enumerate(playbook.phases)
    )
    return playbook.model_copy(update={"phases": phases, "vars": variables.values()})


def _evaluated(findings: Findings, variables: Variables) -> dict[str, Any]:
    """Return the playbook with its expressions evaluated; where one cannot be, it is noted and the text stays."""

    def walk(value: Any, key: Key) -> Any:
        if isinstance(value, dict):
            return {name: walk(item, (*key, name)) for name, item in value.items()}
        if isinstance(value, list):
            return [walk(item, (*key, index)) for index, item in enumerate(value)]
        if not isinstance(value, str) or not has_expression(value):
            return value
        if key[0] in _LITERAL:
            findings.add(key, f"wanted plain text for `{key[0]}`, found an expression")
            return value
        try:
            result, used = variables.text(value)
        except ExpressionError as error:
            findings.add(key, str(error))
            return value
        if used:
            findings.origins[key] = ", ".join(variables.origin(name) for name in sorted(used))
        return result

    return {name: item if name == "vars" else walk(item, (name,)) for name, item in findings.document.data.items()}


def _options(findings: Findings, data: Mapping[str, Any]) -> dict[Key, Any]:
    """Return the options of every step that has valid ones, by the key of the step."""
    options: dict[Key, Any] = {}
    for key, step in steps_in(data):
        found = _step_options(findings, key, step)
        if found is not None:
            options[key] = found[1]
    return options


def read_step(text: str) -> tuple[str, Any]:
    """Return (stage, options) of one step as a playbook has it; a stage's name alone takes its defaults.

    Raises DefinitionError.
    """
    document = parse_document(text if ":" in text else f"{text}: {{}}", "STEP")
    findings = Findings(document)
    found = _step_options(findings, (), document.data)
    if found is not None:
        for option, message in STAGES[found[0]].problems(found[1], ()):
            findings.add((found[0], option) if option else (found[0],), message, on_key=not option)
    if found is None or findings.problems:
        raise DefinitionError(findings.problems)
    return found


def _step_options(findings: Findings, key: Key, step: Any) -> tuple[str, Any] | None:
    """Return a step's stage and options; None where they are not valid, which is noted."""
    if not isinstance(step, dict):
        names = ", ".join(STAGES)
        findings.add(key, f"wanted a step such as `gemm: {{…}}` (one of {names}), found {kind_of(step)}")
        return None
    stages = [name for name in step if name in STAGES]
    for name in step:
        if name not in STAGES and name != "name":
            findings.add((*key, name), f"unknown stage `{name}`{suggestion(name, STAGES)}", on_key=True)
    if not isinstance(step.get("name", ""), str):
        findings.add((*key, "name"), f"wanted text, found {kind_of(step['name'])}")
    if len(stages) > 1:
        findings.add((*key, stages[1]), f"wanted one stage a step, found {' and '.join(stages)}", on_key=True)
    elif stages:
        given = {} if step[stages[0]] is None else step[stages[0]]
        made = findings.validated(STAGES[stages[0]].options, given, (*key, stages[0]))
        return None if made is None else (stages[0], made)
    elif not step.keys() - {"name"}:
        findings.add(key, f"wanted a stage (one of {', '.join(STAGES)}), found none")
    return None


def _note_unused(findings: Findings, variables: Variables) -> None:
    """Note each var of the playbook that no expression uses: it has no effect, and is often a typing error.

    Beside an expression that failed nothing is said: it may have meant that var.
    """
    if findings.problems:
        return
    defaults = findings.document.data.get("vars")
    for name in defaults if isinstance(defaults, dict) else ():
        if name not in variables.used:
            message = f"var `{name}` is used nowhere in this playbook: write {{{{ vars.{name} }}}} where it belongs"
            findings.add(("vars", name), message, on_key=True)


def _without_steps(data: Mapping[str, Any]) -> dict[str, Any]:
    """Return the playbook with its phases emptied of steps, which are validated one by one."""
    phases = data.get("phases")
    if not isinstance(phases, list):
        return dict(data)
    emptied = [
        {**phase, "steps": []} if isinstance(phase, dict) and isinstance(phase.get("steps"), list) else phase
        for phase in phases
    ]
    return {**data, "phases": emptied}


def _steps(phase: Mapping[str, Any], number: int, options: Mapping[Key, Any]) -> tuple[Step, ...]:
    made = []
    for index, step in enumerate(phase.get("steps") or ()):
        stage = next(name for name in step if name in STAGES)
        made.append(
            Step(
                id=f"{slug(phase['name'])}/{index + 1}-{stage}",
                stage=stage,
                name=step.get("name") or stage,
                options=options[("phases", number, "steps", index)],
            )
        )
    return tuple(made)

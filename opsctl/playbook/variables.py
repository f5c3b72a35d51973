"""``vars``: defaults in the playbook, overridden by inventory, host and ``--var``, each knowing where it came from."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from opsctl.errors import DefinitionError, Problem
from opsctl.nearest import suggestion
from opsctl.playbook.expressions import ExpressionError, Names, evaluate, has_expression, names_used
from opsctl.playbook.inventory import LoadedInventory
from opsctl.playbook.problems import Findings
from opsctl.playbook.source import Document, Key, parse_document

COMMAND_LINE = "--var"


@dataclass(frozen=True)
class Given:
    """A value as it was written, and the place that a message about it names."""

    value: Any
    place: str
    document: Document | None = None
    key: Key = ()


class Variables:
    """The effective vars of one host. A var may use other vars; each is evaluated once, when it is first asked for."""

    def __init__(self, given: Mapping[str, Given]) -> None:
        self.given = given
        self.used: set[str] = set()
        """Names that some expression asked for."""
        self._values: dict[str, Any] = {}
        self._at_work: list[str] = []

    def __contains__(self, name: str) -> bool:
        return name in self.given

    def value(self, name: str) -> Any:
        """Return the value of a var. Raises ExpressionError, which names the var that is at fault."""
        if name in self._values:
            return self._values[name]
        if name in self._at_work:
            raise ExpressionError(f"vars.{name} uses itself: {' → '.join([*self._at_work, name])}")
        self._at_work.append(name)
        try:
            self._values[name] = self.rendered(self.given[name].value)
        finally:
            self._at_work.pop()
        return self._values[name]

    def values(self) -> dict[str, Any]:
        """Return every var with its value. Raises ExpressionError."""
        return {name: self.value(name) for name in self.given}

    def rendered(self, value: Any) -> Any:
        """Return a value with every expression in it evaluated. Raises ExpressionError."""
        if isinstance(value, str):
            return self.text(value)[0]
        if isinstance(value, list):
            return [self.rendered(item) for item in value]
        if isinstance(value, dict):
            return {name: self.rendered(item) for name, item in value.items()}
        return value

    def text(self, text: str) -> tuple[Any, frozenset[str]]:
        """Return what a text stands for, and the vars that it used. Raises ExpressionError."""
        if not has_expression(text):
            return text, frozenset()
        used = names_used(text, self.given)
        self.used |= used
        return evaluate(text, Names(self.value)), used

    def origin(self, name: str) -> str:
        """Return where a var's value was given, for a message."""
        return f"vars.{name} from {self.given[name].place}"


def gather(findings: Findings, inventory: LoadedInventory, host: str | None, overrides: Iterable[str]) -> Variables:
    """Lay the layers over each other: playbook, inventory, host, command line. Unknown names given to --var are noted.

    Names that only the inventory has are no error: it serves many playbooks. ``unused_names`` finds them.
    """
    defaults = findings.document.data.get("vars")
    known = defaults if isinstance(defaults, dict) else {}
    given = {
        name: Given(value, _place(findings.document, ("vars", name)), findings.document, ("vars", name))
        for name, value in known.items()
    }
    for key in (("vars",), *([("hosts", host, "vars")] if host is not None else [])):
        layer = inventory.inventory.vars if host is None or key == ("vars",) else inventory.host(host).vars
        for name, value in layer.items():
            if name in known:
                given[name] = Given(value, _place(inventory.document, (*key, name)), inventory.document, (*key, name))
    for name, value in _command_line(findings, overrides, known).items():
        given[name] = Given(value, COMMAND_LINE)
    variables = Variables(given)
    for name, source in given.items():
        try:
            variables.value(name)
        except ExpressionError as error:
            _note(findings, source, str(error) if source.document is findings.document else f"vars.{name}: {error}")
    return variables


def unused_names(inventory: LoadedInventory, hosts: Iterable[str], known: Iterable[str]) -> tuple[str, ...]:
    """Return the vars of the inventory that a playbook does not have: perhaps typing errors."""
    names = set(inventory.inventory.vars)
    for host in hosts:
        names |= set(inventory.host(host).vars)
    return tuple(sorted(names - set(known)))


def _note(findings: Findings, source: Given, message: str) -> None:
    if source.document is findings.document:
        findings.add(source.key, message)
    elif source.document is not None:
        findings.problems.append(source.document.problem(source.key, message))
    else:
        findings.problems.append(Problem(COMMAND_LINE, 1, 1, message))


def _command_line(findings: Findings, overrides: Iterable[str], known: Mapping[str, Any]) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for index, override in enumerate(overrides, start=1):
        name, equals, text = override.partition("=")
        if not equals or not name:
            message = f"wanted NAME=VALUE, found `{override}`"
            findings.problems.append(Problem(COMMAND_LINE, index, 1, message))
        elif name not in known:
            message = f"unknown var `{name}`{suggestion(name, known)}"
            findings.problems.append(Problem(COMMAND_LINE, index, 1, message))
        else:
            try:
                values[name] = parse_document(text, COMMAND_LINE).data
            except DefinitionError as error:
                findings.problems.extend(
                    Problem(COMMAND_LINE, index, len(name) + 1 + problem.column, problem.message)
                    for problem in error.problems
                )
    return values


def _place(document: Document, key: Key) -> str:
    position = document.value_at(key)
    return f"{document.file}:{position.line}:{position.column}"

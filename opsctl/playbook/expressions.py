"""``{{ vars.x }}`` in values: Jinja2's sandbox, narrowed to what is bounded. The only module that knows Jinja2.

A value that is one whole expression keeps its type (a list stays a list); in the middle of text the
result is put in as text. Statements, method calls and unlisted filters are refused before anything is
evaluated, and no result may grow beyond a bound, so that a playbook cannot hang or fill the controller.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable
from typing import Any

import jinja2
import jinja2.nodes
import jinja2.sandbox

from opsctl.nearest import suggestion
from opsctl.playbook.source import UNPRINTABLE

TEXT_LIMIT = 64 * 1024
LIST_LIMIT = 10_000
_BITS_LIMIT = 256

_FILTERS = (
    "abs",
    "bool",
    "first",
    "float",
    "int",
    "join",
    "last",
    "length",
    "list",
    "lower",
    "max",
    "min",
    "round",
    "sort",
    "string",
    "sum",
    "unique",
    "upper",
)
_NODES = (
    jinja2.nodes.Template,
    jinja2.nodes.Output,
    jinja2.nodes.TemplateData,
    jinja2.nodes.Name,
    jinja2.nodes.Const,
    jinja2.nodes.List,
    jinja2.nodes.Tuple,
    jinja2.nodes.Dict,
    jinja2.nodes.Pair,
    jinja2.nodes.Getattr,
    jinja2.nodes.Getitem,
    jinja2.nodes.Slice,
    jinja2.nodes.BinExpr,
    jinja2.nodes.UnaryExpr,
    jinja2.nodes.Compare,
    jinja2.nodes.Operand,
    jinja2.nodes.Concat,
    jinja2.nodes.CondExpr,
    jinja2.nodes.Filter,
    jinja2.nodes.Call,
    jinja2.nodes.Keyword,
)


class ExpressionError(ValueError):
    """An expression is not one, is not allowed, or has no value. ``str()`` is the message for a person."""


class Names:
    """What ``vars`` is inside an expression: names only, nothing else to get at."""

    __slots__ = ("_lookup",)

    def __init__(self, lookup: Callable[[str], Any]) -> None:
        self._lookup = lookup

    def __getitem__(self, name: str) -> Any:
        return self._lookup(name)


def has_expression(text: str) -> bool:
    """Whether a text holds an expression, or a statement, which is refused."""
    return "{{" in text or "{%" in text


def names_used(text: str, known: Iterable[str]) -> frozenset[str]:
    """Return the vars that a text uses. Raises ExpressionError when it may not be evaluated."""
    if "{%" in text:
        raise ExpressionError("wanted an expression such as {{ vars.x }}, found a template statement {% … %}")
    tree = _parsed(text)
    known = tuple(known)
    used: set[str] = set()
    for node in _walk(tree):
        if not isinstance(node, _NODES):
            raise ExpressionError(f"`{type(node).__name__.lower()}` is not allowed in an expression")
        _check_call(node)
        name = _var_named(node)
        if name is not None:
            if name not in known:
                raise ExpressionError(f"`vars.{name}` is not defined{suggestion(name, known)}")
            used.add(name)
    return frozenset(used)


def evaluate(text: str, names: Names) -> Any:
    """Return the value of a text that ``names_used`` let through. Raises ExpressionError."""
    try:
        inner = _whole_expression(text)
        if inner is not None:
            value = _ENVIRONMENT.compile_expression(inner, undefined_to_none=False)(vars=names)
        else:
            value = _ENVIRONMENT.from_string(text).render(vars=names)
    except ExpressionError:
        raise
    except (jinja2.TemplateError, ArithmeticError, TypeError, ValueError, LookupError, AttributeError) as error:
        raise ExpressionError(f"cannot be evaluated: {error}") from error
    return _plain(value)


def _parsed(text: str) -> jinja2.nodes.Template:
    try:
        return _ENVIRONMENT.parse(text)
    except jinja2.TemplateSyntaxError as error:
        raise ExpressionError(f"not an expression: {error.message}") from error
    except RecursionError as error:
        raise ExpressionError("wanted a simpler expression, found one nested too deeply") from error


def _walk(tree: jinja2.nodes.Node) -> Iterable[jinja2.nodes.Node]:
    yield tree
    for child in tree.iter_child_nodes():
        yield from _walk(child)


def _check_call(node: jinja2.nodes.Node) -> None:
    """Refuse every call but ``range(…)``, every filter that is not listed and every name but ``vars``."""
    if isinstance(node, jinja2.nodes.Filter) and node.name not in _FILTERS:
        raise ExpressionError(f"unknown filter `{node.name}`{suggestion(node.name, _FILTERS)}")
    if isinstance(node, jinja2.nodes.Call) and not (
        isinstance(node.node, jinja2.nodes.Name) and node.node.name == "range"
    ):
        raise ExpressionError("wanted no calls other than range(…)")
    if isinstance(node, jinja2.nodes.Name) and node.name not in {"vars", "range"}:
        # `vars.input-tokens` reads as a subtraction.
        hint = "" if node.name.startswith("_") else " (names in `vars` are written with `_`, not `-`)"
        raise ExpressionError(f"unknown name `{node.name}`; wanted `vars.NAME`{hint}")


def _var_named(node: jinja2.nodes.Node) -> str | None:
    """Return NAME of ``vars.NAME`` or ``vars["NAME"]``; None for any other node."""
    if not isinstance(node, jinja2.nodes.Getattr | jinja2.nodes.Getitem):
        return None
    if not isinstance(node.node, jinja2.nodes.Name) or node.node.name != "vars":
        return None
    if isinstance(node, jinja2.nodes.Getattr):
        return node.attr
    if isinstance(node.arg, jinja2.nodes.Const) and isinstance(node.arg.value, str):
        return node.arg.value
    raise ExpressionError("wanted a name as text inside vars[…]")


def _whole_expression(text: str) -> str | None:
    """Return what is between the braces when the text is one expression and nothing else."""
    stripped = text.strip()
    body = _ENVIRONMENT.parse(stripped).body
    if len(body) != 1 or not isinstance(body[0], jinja2.nodes.Output) or len(body[0].nodes) != 1:
        return None
    if isinstance(body[0].nodes[0], jinja2.nodes.TemplateData) or not stripped.startswith("{{"):
        return None
    # `{{-` and `-}}` only say what becomes of the space around.
    return stripped[2:-2].removeprefix("-").removesuffix("-")


def _plain(value: Any) -> Any:
    """Return the value as YAML could have held it. Raises ExpressionError for anything else, or for too much."""
    if isinstance(value, jinja2.Undefined):
        raise ExpressionError("has no value: " + (value._undefined_message or "undefined"))  # noqa: SLF001 - its only text
    if isinstance(value, Names):
        raise ExpressionError("wanted `vars.NAME`, found `vars` alone")
    if isinstance(value, tuple | range) or type(value).__name__ == "generator":
        value = _bounded(value)
    try:
        size = len(json.dumps(value, allow_nan=False))
    except (TypeError, ValueError) as error:
        raise ExpressionError(f"wanted text, a number, a list or a mapping as result: {error}") from error
    if any(UNPRINTABLE.search(text) for text in _texts(value)):
        raise ExpressionError("wanted printable text as result")
    if size > TEXT_LIMIT:
        raise ExpressionError(f"wanted a result of at most {TEXT_LIMIT} characters, found {size}")
    return value


def _texts(value: Any) -> Iterable[str]:
    """Yield every text in a plain value."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for key, item in value.items():
            yield str(key)
            yield from _texts(item)
    elif isinstance(value, list):
        for item in value:
            yield from _texts(item)


def _bounded(items: Iterable[Any]) -> list[Any]:
    kept = []
    for item in items:
        kept.append(item)
        if len(kept) > LIST_LIMIT:
            raise ExpressionError(f"wanted a list of at most {LIST_LIMIT} entries, found more")
    return kept


def _range(*bounds: int) -> list[int]:
    return _bounded(range(*bounds))


def _join(items: Iterable[Any], separator: str = "") -> str:
    texts = [str(item) for item in _bounded(items)]
    if sum(map(len, texts)) + len(separator) * len(texts) > TEXT_LIMIT:
        raise ExpressionError(f"wanted joined text of at most {TEXT_LIMIT} characters, found more")
    return separator.join(texts)


class _Environment(jinja2.sandbox.ImmutableSandboxedEnvironment):
    """The sandbox with arithmetic that cannot grow without bound."""

    intercepted_binops = frozenset({"*", "**", "%", "+"})

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        if operator in {"*", "**", "%"} and not (_is_number(left) and _is_number(right)):
            raise ExpressionError(f"wanted numbers on both sides of `{operator}`")
        if operator == "**" and abs(right) * max(1.0, math.log2(abs(left) + 1)) > _BITS_LIMIT:
            raise ExpressionError("wanted a smaller power")
        result = super().call_binop(context, operator, left, right)
        if isinstance(result, int) and result.bit_length() > _BITS_LIMIT:
            raise ExpressionError("wanted a smaller number")
        if isinstance(result, str | list) and len(result) > TEXT_LIMIT:
            raise ExpressionError(f"wanted a result of at most {TEXT_LIMIT} characters, found {len(result)}")
        return result


def _is_number(value: object) -> bool:
    return isinstance(value, int | float)


def _environment() -> _Environment:
    # NUL cannot stand in a document: so there are no statements and no comments, and ${#x} of a shell is text.
    environment = _Environment(
        undefined=jinja2.StrictUndefined,
        autoescape=False,
        block_start_string="\0%",
        block_end_string="%\0",
        comment_start_string="\0#",
        comment_end_string="#\0",
    )
    known = environment.filters
    environment.filters = {name: known[name] for name in _FILTERS if name in known}
    environment.filters["join"] = _join
    environment.filters["bool"] = bool
    environment.globals = {"range": _range}
    # Constants are folded while parsing otherwise, before the bounds above are asked.
    environment.optimized = False
    return environment


_ENVIRONMENT = _environment()

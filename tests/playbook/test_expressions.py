from __future__ import annotations

import contextlib
import time
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from opsctl.playbook.expressions import ExpressionError, Names, evaluate, has_expression, names_used

VARS: dict[str, Any] = {
    "sizes": [1, 2, 4],
    "n": 5,
    "name": "kimi",
    "slo": {"ttft": "2s", "items": 3},
    "input_tokens": 7,
}


def value_of(text: str) -> Any:
    names_used(text, VARS)
    return evaluate(text, Names(VARS.__getitem__))


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("{{ vars.sizes }}", [1, 2, 4]),
        ("{{vars.n}}", 5),
        ("{{- vars.n -}}", 5),
        ("  {{ vars.n }}  ", 5),
        ("{{ vars['n'] }}", 5),
        ("{{ -vars.n }}", -5),
        ("{{ vars.n * 2 + 1 }}", 11),
        ("{{ vars.n // 2 }}", 2),
        ("{{ vars.n ** 2 }}", 25),
        ("{{ vars.sizes | max }}", 4),
        ("{{ vars.sizes[:2] + [8] }}", [1, 2, 8]),
        ("{{ vars.sizes | join(',') }}", "1,2,4"),
        ("{{ vars.sizes | unique }}", [1, 2, 4]),
        ("{{ range(1, 4) }}", [1, 2, 3]),
        ("{{ (vars.n, 2) }}", [5, 2]),
        ("{{ vars.n if vars.n > 3 else 1 }}", 5),
        ("{{ vars.n > 3 }}", True),
        ("{{ vars.slo.ttft }}", "2s"),
        ("{{ {'a': vars.n} }}", {"a": 5}),
        ("x-{{ vars.n }}-y", "x-5-y"),
        ("{{ vars.n }}{{ vars.n }}", "55"),
        ("{{ '{{' }}", "{{"),
        ("a ${#array} {# text #} {{ vars.n }}", "a ${#array} {# text #} 5"),
        # HTML means nothing here.
        ("<{{ vars.name }}>", "<kimi>"),
    ],
)
def test_values(text: str, value: object) -> None:
    found = value_of(text)
    assert found == value
    assert type(found) is type(value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{{ vars.siezs }}", "`vars.siezs` is not defined; nearest: `sizes`"),
        ("{{ vars.input-tokens }}", "`vars.input` is not defined"),
        ("{{ vars.n - tokens }}", "unknown name `tokens`; wanted `vars.NAME` (names in `vars` are written with `_`"),
        ("{{ n }}", "unknown name `n`"),
        ("{{ vars }}", "wanted `vars.NAME`, found `vars` alone"),
        ("{{ vars[0] }}", "wanted a name as text inside vars[…]"),
        ("{{ vars.n", "not an expression"),
        ("{{ }}", "not an expression"),
        ("{% for x in vars.sizes %}{% endfor %}", "found a template statement"),
        ("{{ vars.sizes.append(3) }}", "wanted no calls other than range(…)"),
        ("{{ vars.name.format(1) }}", "wanted no calls"),
        ("{{ vars.sizes | map('upper') }}", "unknown filter `map`; nearest: `max`"),
        ("{{ vars.n is defined }}", "not allowed in an expression"),
        ("{{ ''.__class__ }}", "unsafe"),
        ("{{ vars.n.__class__.__mro__ }}", "unsafe"),
        ("{{ vars._lookup }}", "`vars._lookup` is not defined"),
        ("{{ vars.slo.items }}", "wanted text, a number, a list or a mapping"),
        ("{{ vars.sizes[9] }}", "has no value"),
        ("{{ vars.slo.tpot }}", "has no value"),
        ("{{ vars.n / 0 }}", "division by zero"),
        ("{{ ['a\\x00'] }}", "wanted printable text as result"),
        ("{{ vars.name + 1 }}", "cannot be evaluated"),
        ("{{ vars.n | int('x', 0) ** 'a' }}", "wanted numbers on both sides of `**`"),
    ],
)
def test_what_is_wrong_is_said(text: str, message: str) -> None:
    with pytest.raises(ExpressionError) as caught:
        value_of(text)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    "text",
    [
        "{{ 'a' * 10**9 }}",
        "{{ [0] * 10**9 }}",
        "{{ 10**9 * 'a' }}",
        "{{ 9**9**9 }}",
        "{{ 2**100000 }}",
        "{{ 2.0 ** 5000 }}",
        "{{ range(10**12) }}",
        "{{ range(9999) | join('a') + range(9999) | join('aaaaaaaaaaaaaaaaaaaa') }}",
        "{{ '%999999999d' % 1 }}",
        "{{ '{:>999999999}'.format(1) }}",
        "{{ " + "(" * 3000 + "1" + ")" * 3000 + " }}",
        "{{ 1e308 * 10 }}",
    ],
)
def test_nothing_grows_or_runs_without_bound(text: str) -> None:
    began = time.monotonic()
    with pytest.raises(ExpressionError):
        value_of(text)
    assert time.monotonic() - began < 2


@given(st.text(alphabet="{}%# vars.n[]()|+-*'\"0129:,~", max_size=40))
@settings(max_examples=300, deadline=None)
def test_any_text_has_a_value_or_an_error(text: str) -> None:
    if not has_expression(text):
        return
    with contextlib.suppress(ExpressionError):
        assert isinstance(value_of(text), str | int | float | list | dict | None)


def test_the_names_used_are_told() -> None:
    assert names_used("{{ vars.n + vars['sizes'][0] }} {{ vars.n }}", VARS) == {"n", "sizes"}

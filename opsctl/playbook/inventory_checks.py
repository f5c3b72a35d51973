"""What types cannot say of an inventory: names that must exist, roles that must fit, one restore target a host.

The checks read the document's plain values, so that they speak beside errors of type, not after them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any
from urllib.parse import urlsplit

from opsctl.nearest import suggestion
from opsctl.playbook.models import NOTHING
from opsctl.playbook.problems import Findings
from opsctl.playbook.source import Key

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
_UNIT = re.compile(r"[A-Za-z0-9:_.\\-]+(?:@[A-Za-z0-9:_.\\-]+)?")
# user@, [v6], :port and ssh:// are what people write; a v6 address without brackets has two colons.
_ADDRESS = re.compile(
    r"(?=.*[@\[]|[^:]*:\d+/?$|ssh://)(?:ssh://)?(?:([^@\s]+)@)?(?:\[([0-9A-Fa-f:.%\w]+)\]|([^\[\]@/\s]+?))(?::(\d{1,5}))?/?"
)
VAR_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]*")
_ONLY_VARIANTS = ("profiler", "args", "env", "exec-prefix", "limits")
_ONLY_PRODUCTION = ("traffic",)

Services = Mapping[str, Mapping[str, Any]]
Expand = Callable[[str], tuple[str, ...]]
"""From a host's or group's name to its hosts; "" stands for every host."""


def check_inventory(findings: Findings) -> None:
    """Note every contradiction of an inventory."""
    data = findings.document.data
    hosts = _mappings(data.get("hosts"))
    services = _mappings(data.get("services"))
    groups = data.get("groups") if isinstance(data.get("groups"), dict) else {}
    _check_names(findings, ("hosts", "groups", "services"), data)
    for key in (("vars",), *((("hosts", name, "vars")) for name in hosts)):
        check_var_names(findings, key, _at(data, key))
    for name, host in hosts.items():
        _check_address(findings, ("hosts", name, "address"), host.get("address"))
    members = _check_groups(findings, hosts, groups)
    for name, service in services.items():
        _check_service(findings, name, service, services, {*hosts, *members})

    def expand(name: str) -> tuple[str, ...]:
        return tuple(hosts) if name == "" else members.get(name, (name,) if name in hosts else ())

    on = {
        name: placed_on(service.get("on"), services.get(str(service.get("of")), {}).get("on"), expand)
        for name, service in services.items()
    }
    _check_variants(findings, services, on)
    _check_units(findings, services, on)
    _check_restore_target(findings, hosts, services, on)
    _check_expressions(findings, data, ())


def placed_on(own: object, production: object, expand: Expand) -> tuple[str, ...]:
    """Return the hosts of a service from its ``on``, else its production's, else all (``expand("")``)."""
    on = production if own is None else own
    return expand(on) if isinstance(on, str) else expand("")


def check_var_names(findings: Findings, key: Key, names: object) -> None:
    """Note vars whose names an expression could not spell."""
    if not isinstance(names, dict):
        return
    for name in names:
        if not VAR_NAME.fullmatch(name):
            better = re.sub(r"[^A-Za-z0-9_]", "_", name).lstrip("_0123456789") or "x"
            message = f"wanted a name of letters, digits and `_`, found `{name}`; nearest: `{better}`"
            findings.add((*key, name), message, on_key=True)


def _check_names(findings: Findings, sections: Iterable[str], data: Mapping[str, Any]) -> None:
    for section in sections:
        for name in _keys(data.get(section)):
            if not _NAME.fullmatch(name):
                message = f"wanted a name of letters, digits, `.`, `_`, `-` (at most 63), found `{name}`"
                findings.add((section, name), message, on_key=True)
            if name == NOTHING:
                findings.add((section, name), f"`{NOTHING}` is what `serve:` calls free GPUs; take another name")
    for name in _keys(data.get("groups")):
        if name in _keys(data.get("hosts")):
            findings.add(("groups", name), f"`{name}` is a host already: a group needs another name", on_key=True)


def _check_address(findings: Findings, key: Key, address: object) -> None:
    """Note an address that holds more than a name or an address: user, port, brackets, a scheme."""
    match = _ADDRESS.fullmatch(address) if isinstance(address, str) else None
    if match is None:
        return
    user, bracketed, plain, port = match.groups()
    parts = {"address": bracketed or plain, "user": user, "port": port}
    better = ", ".join(f"{name}: {value}" for name, value in parts.items() if value)
    findings.add(key, f"wanted a name or an address alone, found `{address}`; write {better}")


def _check_groups(
    findings: Findings, hosts: Mapping[str, Any], groups: Mapping[str, Any]
) -> dict[str, tuple[str, ...]]:
    """Note unknown members, cycles and empty groups; return the hosts of each group."""
    resolved: dict[str, tuple[str, ...]] = {}
    for name, members in groups.items():
        if not isinstance(members, list):
            continue
        for index, member in enumerate(members):
            if isinstance(member, str) and member not in hosts and member not in groups:
                known = suggestion(member, [*hosts, *groups])
                findings.add(("groups", name, index), f"unknown host or group `{member}`{known}")
        cycle = _cycle(name, groups)
        if cycle:
            findings.add(("groups", name), f"the group holds itself: {' → '.join(cycle)}", on_key=True)
        resolved[name] = tuple(sorted(_group_hosts(name, hosts, groups, frozenset())))
        if not resolved[name] and not members:
            findings.add(("groups", name), "wanted at least one host in the group, found none", on_key=True)
    return resolved


def _cycle(name: str, groups: Mapping[str, Any]) -> tuple[str, ...]:
    """Return a path of groups from ``name`` back to it, or ()."""
    seen: set[str] = set()
    open_paths: list[tuple[str, ...]] = [(name,)]
    while open_paths:
        path = open_paths.pop()
        members = groups.get(path[-1])
        for member in members if isinstance(members, list | tuple) else ():
            if member == name:
                return (*path, name)
            if isinstance(member, str) and member in groups and member not in seen:
                seen.add(member)
                open_paths.append((*path, member))
    return ()


def _group_hosts(
    name: str, hosts: Mapping[str, Any], groups: Mapping[str, Any], above: frozenset[str]
) -> frozenset[str]:
    found: set[str] = set()
    members = groups.get(name)
    for member in members if isinstance(members, list) else ():
        if not isinstance(member, str):
            continue
        if member in hosts:
            found.add(member)
        elif member in groups and member not in above:
            found |= _group_hosts(member, hosts, groups, above | {name})
    return frozenset(found)


def _check_service(
    findings: Findings, name: str, service: Mapping[str, Any], services: Services, places: set[str]
) -> None:
    key: Key = ("services", name)
    on, of, role = service.get("on"), service.get("of"), service.get("role")
    if isinstance(on, str) and on not in places:
        findings.add((*key, "on"), f"unknown host or group `{on}`{suggestion(on, places)}")
    unit = service.get("unit")
    if isinstance(unit, str) and not _UNIT.fullmatch(unit):
        findings.add((*key, "unit"), f"wanted a systemd unit such as vllm-kimi-k25-int4.service, found `{unit}`")
    _check_url(findings, (*key, "url"), service.get("url"))
    key_file = service.get("api-key-file")
    if isinstance(key_file, str) and not key_file.startswith("/"):
        findings.add((*key, "api-key-file"), "wanted an absolute path on the host, not the key itself")
    ca_file, verify, url = service.get("ca-file"), service.get("verify"), service.get("url")
    if isinstance(ca_file, str) and not ca_file.startswith("/"):
        findings.add((*key, "ca-file"), "wanted an absolute path on the host, of a file of certificates in PEM")
    if ca_file is not None and verify is False:
        findings.add(
            (*key, "ca-file"), "`verify: false` trusts any certificate: wanted one of the two keys", on_key=True
        )
    for word in ("ca-file", "verify"):
        if word in service and isinstance(url, str) and url.startswith("http:"):
            findings.add((*key, word), f"`{word}` is for an https url: this service's is `{url}`", on_key=True)
    if of is None and role == "variant":
        findings.add(key, "wanted the key `of` (the production service that a variant derives from)", on_key=True)
    elif of is None:
        for needed in ("url", "model"):
            if service.get(needed) is None:
                findings.add(key, f"wanted the key `{needed}`, found none", on_key=True)
    _check_fitting_keys(findings, key, service)
    if isinstance(of, str):
        _check_of(findings, key, of, role, services)


def _check_fitting_keys(findings: Findings, key: Key, service: Mapping[str, Any]) -> None:
    is_variant = _is_variant(service)
    for wrong in _ONLY_PRODUCTION if is_variant else _ONLY_VARIANTS:
        if wrong in service:
            kind = "production" if is_variant else "variants"
            why = "it alone is in the load balancer" if is_variant else "production runs as its own unit says"
            findings.add((*key, wrong), f"`{wrong}` is for {kind} only: {why}", on_key=True)


def _is_variant(service: Mapping[str, Any]) -> bool:
    return service.get("of") is not None or service.get("role") == "variant"


def _check_of(findings: Findings, key: Key, of: str, role: object, services: Services) -> None:
    productions = [other for other, entry in services.items() if not _is_variant(entry)]
    if role == "production":
        findings.add((*key, "role"), "wanted role variant, since `of` is given, found production")
    if of not in services:
        findings.add((*key, "of"), f"unknown service `{of}`{suggestion(of, productions)}")
    elif of not in productions:
        findings.add((*key, "of"), f"`{of}` is a variant itself: a variant derives from production")


def _check_url(findings: Findings, key: Key, url: object) -> None:
    if not isinstance(url, str):
        return
    try:
        parts = urlsplit(url)
        fine = parts.scheme in {"http", "https"} and bool(parts.hostname) and parts.port != 0
    except ValueError:
        fine = False
        parts = None
    if not fine or parts is None:
        findings.add(key, f"wanted a URL such as http://127.0.0.1:8000, found `{url}`")
    elif parts.username or parts.password:
        findings.add(key, "wanted a URL without a user or password: put a key into a file (api-key-file)")
    elif parts.query or parts.fragment or parts.path.rstrip("/").endswith("/v1"):
        findings.add(key, f"wanted the server's own address, without /v1 or a query, found `{url}`")


def _check_variants(findings: Findings, services: Services, on: Mapping[str, tuple[str, ...]]) -> None:
    for name, service in services.items():
        of = service.get("of")
        if not isinstance(of, str) or of not in on:
            continue
        missing = sorted(set(on[name]) - set(on[of]))
        if missing:
            findings.add(
                ("services", name, "on"),
                f"a variant runs where its production `{of}` does: not on {', '.join(missing)}",
            )


def _check_units(findings: Findings, services: Services, on: Mapping[str, tuple[str, ...]]) -> None:
    taken: dict[tuple[str, str], str] = {}
    for name, service in services.items():
        unit = str(service.get("unit") or name).removesuffix(".service")
        for host in on[name]:
            first = taken.setdefault((host, unit), name)
            if first != name:
                findings.add(
                    ("services", name, "unit") if "unit" in service else ("services", name),
                    f"unit {unit}.service is service `{first}` on host {host} already",
                    on_key="unit" not in service,
                )


def _check_restore_target(
    findings: Findings, hosts: Mapping[str, Any], services: Services, on: Mapping[str, tuple[str, ...]]
) -> None:
    for host, entry in hosts.items():
        productions = [name for name in services if host in on[name] and not _is_variant(services[name])]
        chosen = entry.get("production")
        if chosen is None and len(productions) > 1:
            findings.add(
                ("hosts", host),
                f"several production services are on this host ({', '.join(productions)}): say with "
                f"`production: [{productions[0]}]` which of them a campaign takes down and brings back",
                on_key=True,
            )
        for index, name in enumerate(chosen if isinstance(chosen, list) else ()):
            if isinstance(name, str) and name not in productions:
                message = f"`{name}` is no production service of this host{suggestion(name, productions)}"
                findings.add(("hosts", host, "production", index), message)


def _check_expressions(findings: Findings, value: object, key: Key) -> None:
    """Refuse ``{{ vars.x }}`` here: it would be taken as text, silently."""
    if isinstance(value, str) and re.search(r"\{\{-?\s*vars\b", value):
        findings.add(key, "expressions are for playbooks: an inventory gives the values of vars")
    elif isinstance(value, dict):
        for name, item in value.items():
            _check_expressions(findings, item, (*key, name))
    elif isinstance(value, list):
        for index, item in enumerate(value):
            _check_expressions(findings, item, (*key, index))


def _mappings(section: object) -> dict[str, dict[str, Any]]:
    """Return the entries of a section; one that is not a mapping (an error of type already) counts as empty."""
    if not isinstance(section, dict):
        return {}
    return {name: entry if isinstance(entry, dict) else {} for name, entry in section.items()}


def _keys(section: object) -> tuple[str, ...]:
    return tuple(section) if isinstance(section, dict) else ()


def _at(data: object, key: Key) -> object:
    for part in key:
        data = data.get(part) if isinstance(data, dict) else None
    return data

"""Variants derived from units as a real systemd has loaded them, and checked by it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest

from opsctl.errors import JobFailed, LoadFailed, PreflightStop, UnfitError, UnitNotFound
from opsctl.host.guard import GUARD_PATH
from opsctl.host.protocol import Host
from opsctl.lab.hosts import LabHost
from opsctl.lab.spec import HostSpec
from opsctl.lab.units import Standin
from opsctl.playbook.models import ArgumentEdits, Role
from opsctl.playbook.resolved import ResolvedService
from opsctl.serving import readiness
from opsctl.serving.launch import variants
from opsctl.serving.launch.variants import Variant
from tests.serving.conftest import limit, service_for

pytestmark = pytest.mark.lab

PRODUCTION = Standin()
TRACES = "/var/lib/opsctl/runs/r1/traces"


def variant_service(**changes: Any) -> ResolvedService:
    described: dict[str, Any] = {
        "name": "vllm-kimi-k25-int4-profiler",
        "unit": "vllm-kimi-k25-int4-profiler.service",
        "role": Role.VARIANT,
        "of": PRODUCTION.unit,
        **changes,
    }
    return service_for(PRODUCTION, **described)


@pytest.fixture
def host(fresh_lab_host: LabHost, reach: Callable[..., Host]) -> Host:
    # The real guard is tested elsewhere: here only that its answer decides.
    fresh_lab_host.write_file(GUARD_PATH, '#!/bin/sh\n[ "$1" = holds ] && [ "$2" = "$(cat /run/token)" ]\n', 0o755)
    fresh_lab_host.write_file("/run/token", "7\n")
    return reach(fresh_lab_host)


@pytest.fixture
def derive(
    fresh_lab_host: LabHost, host: Host, standin_unit: Callable[..., None]
) -> Callable[[Standin, ResolvedService], Variant]:
    def make(production: Standin, service: ResolvedService) -> Variant:
        standin_unit(fresh_lab_host, production, start=False)
        status = host.systemd().status(production.service_name, deadline=limit())
        return variants.derive(host, service, status, token=7, run="r1", trace_dir=TRACES, version="0.32.0")

    return make


def verify(lab_host: LabHost, unit: str) -> str:
    """Return what systemd-analyze says against a unit; "" is nothing."""
    done = lab_host.exec("systemd-analyze", "verify", f"/run/systemd/system/{unit}", check=False)
    return done.stderr.strip() + ("" if done.returncode == 0 else f" (status {done.returncode})")


def test_a_profiler_variant_is_derived_installed_started_and_removed(
    fresh_lab_host: LabHost, host: Host, derive: Callable[..., Variant]
) -> None:
    service = variant_service(profiler="torch", limits={"LimitMEMLOCK": "infinity"})
    variant = derive(Standin(service=("Restart=always", "OOMScoreAdjust=-500")), service)
    assert variant.argv[: len(PRODUCTION.argv())] == PRODUCTION.argv()
    assert variant.argv[-2] == "--profiler-config"
    assert variant.differences[0].startswith("profiler: vLLM 0.32.0: --profiler-config")
    assert [line[0] for line in variant.differences[1:]] == ["+", "+"]

    variants.install(host, variant, systemd=host.systemd(), deadline=limit(30))
    assert verify(fresh_lab_host, service.unit) == ""
    loaded = host.systemd().status(service.unit, deadline=limit())
    assert loaded.exec_start == (variant.argv,)
    assert (loaded.slice, loaded.properties["Restart"]) == ("opsctl.slice", "no")
    assert loaded.unit_file_state in {"static", "transient", "runtime"}
    assert fresh_lab_host.exec("stat", "-c", "%a", TRACES).stdout.strip() == "755"

    host.systemd().start(service.unit, deadline=limit(30))
    ready = readiness.await_ready(
        host, service, deadline=limit(60), started=host.systemd().status(service.unit, deadline=limit())
    )
    assert ready.version == "0.32.0"
    started = fresh_lab_host.exec(
        "curl", "-s", "-o", "/dev/null", "-w", "%{http_code}", "-X", "POST", f"{service.url}/start_profile"
    )
    assert started.stdout == "200", "the profiler is on"

    host.systemd().stop(service.unit, deadline=limit(30))
    variants.remove(host, service.unit, systemd=host.systemd(), deadline=limit())
    assert not fresh_lab_host.exists(f"/run/systemd/system/{service.unit}")
    assert host.systemd().status(service.unit, deadline=limit()).load_state == "not-found"


def test_a_variant_does_not_start_without_the_lease(
    fresh_lab_host: LabHost, host: Host, derive: Callable[..., Variant]
) -> None:
    variant = derive(PRODUCTION, variant_service())
    variants.install(host, variant, systemd=host.systemd(), deadline=limit(30))
    fresh_lab_host.write_file("/run/token", "8\n")
    with suppress(JobFailed):  # systemd calls a start that its condition refused done
        host.systemd().start(variant.unit, deadline=limit(30))
    started = host.systemd().status(variant.unit, deadline=limit())
    with pytest.raises(LoadFailed, match=r"did not start|not allowed to start") as raised:
        readiness.await_ready(host, variant_service(), deadline=limit(30), started=started)
    assert "token" in str(raised.value.hint)


def test_production_keeps_running_while_a_variant_is_refused(
    fresh_lab_host: LabHost, host: Host, derive: Callable[..., Variant]
) -> None:
    variant = derive(Standin(unit_section=("Conflicts=other.service",)), variant_service())
    assert "Conflicts" not in variant.text
    variants.install(host, variant, systemd=host.systemd(), deadline=limit(30))
    host.systemd().start(PRODUCTION.service_name, deadline=limit(30))
    fresh_lab_host.write_file("/run/token", "8\n")
    fresh_lab_host.systemctl("start", variant.unit, check=False)
    assert fresh_lab_host.systemctl("is-active", PRODUCTION.service_name) == "active"


DANGEROUS = (
    "OnFailure=alarm.service",
    "Upholds=other.service",
    "Conflicts=other.service",
    "FailureAction=reboot",
    "RefuseManualStart=yes",
    "PropagatesStopTo=other.service",
)


def test_what_would_touch_others_is_dropped(derive: Callable[..., Variant]) -> None:
    variant = derive(Standin(unit_section=DANGEROUS, service=("Restart=always", "Slice=llm.slice")), variant_service())
    for setting in (*DANGEROUS, "Restart=always", "Slice=llm.slice", "[Install]", "WantedBy"):
        assert setting not in variant.text
    assert "Restart=no" in variant.text


@pytest.mark.parametrize(("mode", "kept"), [("process", False), ("none", False), ("mixed", True)])
def test_nothing_of_a_variant_outlives_its_stop(derive: Callable[..., Variant], mode: str, kept: bool) -> None:
    variant = derive(Standin(service=(f"KillMode={mode}",)), variant_service())
    modes = [line for line in variant.text.splitlines() if line.startswith("KillMode=")]
    assert modes[-1] == ("KillMode=mixed" if kept else "KillMode=control-group")


def test_drop_ins_count_once_and_truncated_names_are_masked(
    fresh_lab_host: LabHost, host: Host, derive: Callable[..., Variant]
) -> None:
    """``vllm-.service.d`` applies to production and, by its own name, to the variant as well."""
    fresh_lab_host.write_file(
        "/etc/systemd/system/vllm-.service.d/10-pre.conf",
        "[Service]\nExecStartPre=/bin/sh -c 'echo once >>/run/pre'\nEnvironment=FROM=truncated\n",
    )
    fresh_lab_host.write_file(
        "/etc/systemd/system/vllm-kimi-k25-int4.service.d/20-own.conf",
        "[Service]\nExecStart=\n"
        "ExecStart=/opt/vllm/bin/vllm serve /models/kimi-k2.5-int4 \\\n  --served-model-name kimi-k2.5 -tp 2\n",
    )
    variant = derive(PRODUCTION, variant_service(args=ArgumentEdits(replace={"--tensor-parallel-size": 1})))
    assert variant.argv[-2:] == ("-tp", "1")
    assert variant.differences == ("~ -tp 2 → -tp 1",)
    variants.install(host, variant, systemd=host.systemd(), deadline=limit(30))
    loaded = host.systemd().status(variant.unit, deadline=limit())
    assert all(path.startswith("/run/systemd/system.control/") for path in loaded.drop_in_paths)
    host.systemd().start(variant.unit, deadline=limit(30))
    assert fresh_lab_host.read_file("/run/pre") == "once\n"
    assert verify(fresh_lab_host, variant.unit) == ""


def test_a_drop_in_that_appears_later_is_seen(
    fresh_lab_host: LabHost, host: Host, derive: Callable[..., Variant]
) -> None:
    variant = derive(PRODUCTION, variant_service())
    variants.install(host, variant, systemd=host.systemd(), deadline=limit(30))
    fresh_lab_host.write_file(
        "/etc/systemd/system/vllm-.service.d/99.conf", "[Service]\nExecStart=\nExecStart=/bin/sleep 9\n"
    )
    fresh_lab_host.systemctl("daemon-reload")
    with pytest.raises(PreflightStop, match="did not load") as raised:
        variants.check_loaded(host.systemd(), variant, deadline=limit())
    assert "/bin/sleep 9" in str(raised.value.seen)


def test_specifiers_are_those_of_production(
    fresh_lab_host: LabHost, host: Host, derive: Callable[..., Variant]
) -> None:
    production = Standin(
        unit="vllm@kimi\\x2dk2.5",
        arguments=("--max-num-seqs", "1%%i"),
        service=("Environment=UNIT=%n NAME=%N PREFIX=%p INSTANCE=%i PLAIN=%I HOST=%H", "SyslogIdentifier=%N"),
        enabled=False,
    )
    variant = derive(production, variant_service(of=production.unit))
    variants.install(host, variant, systemd=host.systemd(), deadline=limit(30))
    loaded = host.systemd().status(variant.unit, deadline=limit())
    original = host.systemd().status(production.service_name, deadline=limit())
    assert loaded.exec_start == original.exec_start
    assert loaded.environment == original.environment
    assert loaded.properties["SyslogIdentifier"] == original.properties["SyslogIdentifier"]


def test_words_that_need_quoting_arrive(host: Host, derive: Callable[..., Variant]) -> None:
    nasty = ("--x", "a b", '{"q": "$HOME %n"}', "back\\slash", "'", "", "100%", "ünï")
    variant = derive(PRODUCTION, variant_service(args=ArgumentEdits(add=nasty), env={"NASTY": 'a "b" $HOME %n \\ c'}))
    variants.install(host, variant, systemd=host.systemd(), deadline=limit(30))
    loaded = host.systemd().status(variant.unit, deadline=limit())
    assert loaded.exec_start[0][-len(nasty) :] == tuple(word.replace("$", "$$") for word in nasty)
    assert 'NASTY=a "b" $HOME %n \\ c' in loaded.environment


def test_an_environment_file_of_production_does_not_outrank_the_variant(
    fresh_lab_host: LabHost, host: Host, derive: Callable[..., Variant]
) -> None:
    fresh_lab_host.write_file("/etc/vllm.env", "STANDIN_VERSION=0.12.0\nKEPT=yes\n")
    production = Standin(service=("EnvironmentFile=/etc/vllm.env",))
    value = 'quote " dollar $ back \\ tick `'
    variant = derive(production, variant_service(env={"STANDIN_VERSION": "0.30.1", "VLLM_X_TOKEN": value}))
    assert "+ env VLLM_X_TOKEN=[redacted]" in variant.differences
    assert "dollar" not in variant.text
    variants.install(host, variant, systemd=host.systemd(), deadline=limit(30))
    host.systemd().start(variant.unit, deadline=limit(30))
    pid = host.systemd().status(variant.unit, deadline=limit()).main_pid
    environment = fresh_lab_host.exec("cat", f"/proc/{pid}/environ").stdout.split("\0")
    assert {"STANDIN_VERSION=0.30.1", "KEPT=yes", f"VLLM_X_TOKEN={value}"} <= set(environment)
    companion = f"/run/systemd/system/{variant.unit}.opsctl-environment"
    assert fresh_lab_host.exec("stat", "-c", "%a", companion).stdout.strip() == "600"
    variants.remove(host, variant.unit, systemd=host.systemd(), deadline=limit())
    assert not fresh_lab_host.exists(companion)


def test_a_prefix_stands_before_the_command(derive: Callable[..., Variant]) -> None:
    prefix = ("/usr/bin/nsys", "profile", "-o", "/tmp/x")
    variant = derive(PRODUCTION, variant_service(exec_prefix=prefix))
    assert variant.argv == (*prefix, *PRODUCTION.argv())


def test_a_user_scope_has_its_own_folder(
    make_lab_host: Callable[..., LabHost], reach: Callable[..., Host], standin_unit: Callable[..., None]
) -> None:
    lab_host = make_lab_host(HostSpec(linger=("root",)))
    production = Standin(scope="user")
    standin_unit(lab_host, production, start=False)
    host = reach(lab_host, scope="user")
    host.systemd().daemon_reload(deadline=limit())
    status = host.systemd().status(production.service_name, deadline=limit())
    variant = variants.derive(host, variant_service(), status, token=7, run="r1")
    assert "ExecCondition=/bin/sh %h/" in variant.text
    variants.install(host, variant, systemd=host.systemd(), deadline=limit(30))
    path = f"/run/user/0/systemd/user/{variant.unit}"
    assert host.systemd().status(variant.unit, deadline=limit()).fragment_path == path
    variants.remove(host, variant.unit, systemd=host.systemd(), deadline=limit())
    assert not lab_host.exists(path)


TELLS_WHO = """\
#!/bin/sh
for last; do :; done
folder=$(printf %s "$last" | sed 's/.*"torch_profiler_dir":"\\([^"]*\\)".*/\\1/')
id -un >"$folder/who" && exec sleep 600
"""


def test_a_server_of_another_user_may_start_and_write_its_traces(
    fresh_lab_host: LabHost, host: Host, derive: Callable[..., Variant]
) -> None:
    fresh_lab_host.exec("useradd", "--system", "vllm")
    fresh_lab_host.exec("chmod", "600", "/run/token")
    fresh_lab_host.write_file("/opt/tells/vllm", TELLS_WHO, 0o755)
    sandbox = ("User=vllm", "ProtectSystem=strict", "ExecStart=", "ExecStart=/opt/tells/vllm serve /m")
    variant = derive(Standin(service=sandbox), variant_service(profiler="torch"))
    variants.install(host, variant, systemd=host.systemd(), deadline=limit(30))
    host.systemd().start(variant.unit, deadline=limit(30))
    seen = fresh_lab_host.exec(
        "sh", "-c", f"until [ -s {TRACES}/who ]; do sleep 0.05; done; cat {TRACES}/who", timeout=20
    )
    assert seen.stdout == "vllm\n"


def test_a_variant_may_be_started_as_often_as_a_playbook_says(
    fresh_lab_host: LabHost, host: Host, derive: Callable[..., Variant]
) -> None:
    limits = ("StartLimitIntervalSec=1h", "StartLimitBurst=2")
    variant = derive(Standin(unit_section=limits), variant_service())
    variants.install(host, variant, systemd=host.systemd(), deadline=limit(30))
    for _ in range(4):
        host.systemd().start(variant.unit, deadline=limit(30))
        host.systemd().stop(variant.unit, deadline=limit(30))


def test_a_closed_unit_stays_closed(fresh_lab_host: LabHost, host: Host, derive: Callable[..., Variant]) -> None:
    path = f"/etc/systemd/system/{PRODUCTION.service_name}"
    derive(PRODUCTION, variant_service())
    fresh_lab_host.exec("chmod", "600", path)
    status = host.systemd().status(PRODUCTION.service_name, deadline=limit())
    again = variants.derive(host, variant_service(), status, token=7, run="r1")
    assert again.mode == 0o600


@pytest.mark.parametrize(
    ("service", "words"),
    [
        ({"args": ArgumentEdits(remove=("--tensor-paralel-size",))}, "cannot be removed"),
        ({"limits": {"ExecStartPre": "/bin/true"}}, "cannot set ExecStartPre"),
        ({"limits": {"Restart": "always"}}, "cannot set Restart"),
        ({"limits": {"Nice": "1\nUser=root"}}, "one line"),
    ],
)
def test_edits_that_do_not_fit_are_refused(derive: Callable[..., Variant], service: dict[str, Any], words: str) -> None:
    with pytest.raises(UnfitError, match=words):
        derive(PRODUCTION, variant_service(**service))


def test_a_line_that_hides_its_server_is_refused(derive: Callable[..., Variant]) -> None:
    production = Standin(service=("ExecStart=", "ExecStart=/bin/sh -c 'exec $SERVER --port 1'"))
    with pytest.raises(UnfitError, match=r"no variant .* known only when it runs") as raised:
        derive(production, variant_service(args=ArgumentEdits(add=("--x",))))
    assert "ExecStart=" in str(raised.value.hint)


def test_an_edit_that_was_not_loaded_stops(fresh_lab_host: LabHost, host: Host, derive: Callable[..., Variant]) -> None:
    derive(PRODUCTION, variant_service())
    fresh_lab_host.exec("sh", "-c", f"echo '# edited' >>/etc/systemd/system/{PRODUCTION.service_name}")
    status = host.systemd().status(PRODUCTION.service_name, deadline=limit())
    with pytest.raises(UnfitError, match="not loaded since"):
        variants.derive(host, variant_service(), status, token=7, run="r1")


def test_a_unit_without_a_file_has_no_variants(host: Host) -> None:
    status = host.systemd().status("none.service", deadline=limit())
    with pytest.raises(UnitNotFound):
        variants.derive(host, variant_service(), status, token=7, run="r1")


def test_a_unit_of_somebody_else_is_never_removed(fresh_lab_host: LabHost, host: Host) -> None:
    fresh_lab_host.write_file("/run/systemd/system/theirs.service", "[Service]\nExecStart=/bin/true\n")
    with pytest.raises(UnfitError, match="not written by opsctl"):
        variants.remove(host, "theirs.service", systemd=host.systemd(), deadline=limit())
    assert fresh_lab_host.exists("/run/systemd/system/theirs.service")
    variants.remove(host, "none.service", systemd=host.systemd(), deadline=limit())

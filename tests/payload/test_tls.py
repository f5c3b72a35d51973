"""A benchmark of an https server whose certificate a private authority signed: with real TLS, from a payload."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.payload.pacing import cells, paced_server, run_payload
from tests.payload.test_serving_benchmark import spec


def signed(folder: Path, name: str) -> tuple[str, str]:
    """Return the paths of a server's key and certificate in one file, and of the certificate alone."""
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=private",
         "-addext", f"subjectAltName={name}", "-keyout", folder / "key", "-out", folder / "ca.pem"],
        check=True, capture_output=True,
    )  # fmt: skip
    (folder / "both.pem").write_text((folder / "key").read_text() + (folder / "ca.pem").read_text())
    return str(folder / "both.pem"), str(folder / "ca.pem")


def ended(url: str, folder: Path, **trust: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the end record of a benchmark, and its cells."""
    records = run_payload("serving-benchmark", spec(url, requests=4, rounds=1, **trust), folder)
    return records[-1], cells(records)


def test_a_private_authority_is_trusted_by_its_file_alone(tmp_path: Path) -> None:
    both, authority = signed(tmp_path, "IP:127.0.0.1")
    with paced_server("--tls", both) as plain:
        url = plain.replace("http:", "https:")
        end, found = ended(url, tmp_path / "trusted", ca_file=authority)
        assert (end["state"], found["concurrency=2"]["detail"]["failed"]) == ("verified", 0), end
        end, _ = ended(url, tmp_path / "unverified", verify=False)
        assert end["state"] == "verified", end
        end, found = ended(url, tmp_path / "unknown")
        assert end["state"] == "failed"
        assert "CERTIFICATE_VERIFY_FAILED" in end["reason"]
        assert "set ca-file of the service" in end["reason"]
        assert not any(cell["state"] == "verified" for cell in found.values())


def test_the_name_is_checked_too(tmp_path: Path) -> None:
    both, authority = signed(tmp_path, "DNS:elsewhere.example")
    with paced_server("--tls", both) as plain:
        end, _ = ended(plain.replace("http:", "https:"), tmp_path, ca_file=authority)
    assert end["state"] == "failed"
    assert "IP address mismatch" in end["reason"]


@pytest.mark.parametrize(("content", "said"), [(None, "No such file"), ("no certificate", "cannot be used")])
def test_a_bad_ca_file_is_named(tmp_path: Path, content: str | None, said: str) -> None:
    file = tmp_path / "ca.pem"
    if content is not None:
        file.write_text(content)
    end, _ = ended("https://127.0.0.1:9", tmp_path, ca_file=str(file))
    assert end["state"] == "failed"
    assert f"the ca-file {file} cannot be used" in end["reason"]
    assert said in end["reason"]

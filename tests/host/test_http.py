from __future__ import annotations

import subprocess
import threading
import time
from collections.abc import Callable, Iterator

import httpx
import pytest

from opsctl.errors import DeadlineExceeded, TransportLost, UnfitError
from opsctl.host.protocol import Host
from opsctl.lab.hosts import LabHost
from tests.host.conftest import limit

pytestmark = pytest.mark.lab

SERVER = r"""
import http.server, sys, time
class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def do_GET(self):
        if self.path == "/drip":
            self.send_response(200); self.send_header("Content-Length", "1000"); self.end_headers()
            for _ in range(1000):
                self.wfile.write(b"x"); self.wfile.flush(); time.sleep(0.05)
        elif self.path == "/mute":
            time.sleep(100)
        elif self.path == "/cut":
            self.send_response(200); self.send_header("Content-Length", "1000"); self.end_headers()
            self.wfile.write(b"half"); self.close_connection = True
        else:
            body = b"y" * 3_000_000 if self.path == "/large" else self.headers.get("X-Key", "-").encode()
            self.send_response(200); self.send_header("Content-Length", str(len(body))); self.end_headers()
            self.wfile.write(body)
    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(200); self.send_header("Content-Length", str(len(body))); self.end_headers()
        self.wfile.write(body)
    def log_message(self, *_): pass
http.server.ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"""
URL = "http://127.0.0.1:8977"


def serve(lab_host: LabHost) -> None:
    lab_host.write_file("/root/server.py", SERVER)
    lab_host.exec("systemd-run", "--quiet", "--unit=webserver", "python3", "/root/server.py", "8977")
    patience = limit()
    while lab_host.exec("sh", "-c", "ss -ltn | grep -q :8977", check=False).returncode != 0:
        patience.check(seen="the test's server does not listen")
        time.sleep(0.05)


@pytest.fixture(scope="module")
def client(host: Host, lab_host: LabHost) -> Iterator[httpx.Client]:
    serve(lab_host)
    with host.http(URL, headers={"X-Key": "k"}) as opened:
        yield opened


def test_the_hosts_loopback_is_reached_with_headers(client: httpx.Client) -> None:
    assert client.get("/").text == "k"


def test_large_bodies_both_ways(client: httpx.Client) -> None:
    assert len(client.get("/large").content) == 3_000_000
    body = bytes(range(256)) * 8000
    assert client.post("/", content=body).content == body


def test_connections_are_kept_and_used_by_threads(client: httpx.Client) -> None:
    seen: list[str] = []
    threads = [threading.Thread(target=lambda: seen.append(client.get("/").text)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert seen == ["k"] * 8


def test_nobody_listens(host: Host) -> None:
    with host.http("http://127.0.0.1:9") as nobody, pytest.raises(httpx.ConnectError, match=r"127\.0\.0\.1:9"):
        nobody.get("/")


def test_an_answer_that_drips_is_ended_by_the_requests_deadline(client: httpx.Client) -> None:
    started = time.monotonic()
    with pytest.raises(DeadlineExceeded):
        client.get("/drip", extensions={"deadline": limit(1.0)})
    assert 0.8 < time.monotonic() - started < 3


def test_so_is_a_stream(client: httpx.Client) -> None:
    got = 0
    late = pytest.raises(DeadlineExceeded)
    with client.stream("GET", "/drip", extensions={"deadline": limit(1.0)}) as response, late:
        for piece in response.iter_raw():
            got += len(piece)
    assert got > 3


def test_no_answer_at_all(client: httpx.Client) -> None:
    with pytest.raises(DeadlineExceeded):
        client.get("/mute", extensions={"deadline": limit(0.5)})
    with pytest.raises(httpx.ReadTimeout):
        client.get("/mute", timeout=0.5)


def test_an_answer_that_is_cut_is_https_own_error(client: httpx.Client) -> None:
    with pytest.raises(httpx.RemoteProtocolError):
        client.get("/cut")


@pytest.fixture(scope="module")
def certificate(lab_host: LabHost, tmp_path_factory: pytest.TempPathFactory, host: Host) -> str:
    """An https server on the host's port 8978 whose certificate names 127.0.0.1 alone; returns it as PEM."""
    folder = tmp_path_factory.mktemp("tls")
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=lab",
         "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", folder / "key", "-out", folder / "pem"],
        check=True, capture_output=True,
    )  # fmt: skip
    pem = (folder / "pem").read_text()
    lab_host.write_file("/root/tls.pem", (folder / "key").read_text() + pem)
    wrapped = SERVER.replace(
        'http.server.ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()',
        'import ssl; server = http.server.ThreadingHTTPServer(("", int(sys.argv[1])), Handler)\n'
        'context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER); context.load_cert_chain("/root/tls.pem")\n'
        "server.socket = context.wrap_socket(server.socket, server_side=True); server.serve_forever()",
    )
    lab_host.write_file("/root/secure.py", wrapped)
    lab_host.exec("systemd-run", "--quiet", "--unit=secureserver", "python3", "/root/secure.py", "8978")
    patience = limit()
    while lab_host.exec("sh", "-c", "ss -ltn | grep -q :8978", check=False).returncode != 0:
        patience.check(seen="the test's server does not listen")
        time.sleep(0.05)
    return pem


SECURE = "https://127.0.0.1:8978"


def test_a_certificate_that_nothing_vouches_for_is_refused(host: Host, certificate: str) -> None:
    with host.http(SECURE) as client, pytest.raises(httpx.ConnectError, match="TLS: self-signed certificate"):
        client.get("/")


def test_the_inventorys_certificate_is_trusted_and_bodies_cross_whole(host: Host, certificate: str) -> None:
    with host.http(SECURE, ca_pem=certificate, headers={"X-Key": "k"}) as client:
        assert client.get("/").text == "k"
        assert len(client.get("/large").content) == 3_000_000
        body = bytes(range(256)) * 8000
        assert client.post("/", content=body).content == body


def test_the_certificate_must_name_the_host_of_the_url(host: Host, certificate: str) -> None:
    elsewhere = SECURE.replace("127.0.0.1", "localhost")
    with host.http(elsewhere, ca_pem=certificate) as client, pytest.raises(httpx.ConnectError, match=r"TLS: .*ostname"):
        client.get("/")


def test_verify_false_takes_any_certificate(host: Host, certificate: str) -> None:
    with host.http(SECURE, verify=False) as client:
        assert client.get("/").text == "-"


def test_an_answer_through_tls_keeps_the_requests_deadline(host: Host, certificate: str) -> None:
    with host.http(SECURE, ca_pem=certificate) as client, pytest.raises(DeadlineExceeded):
        client.get("/mute", extensions={"deadline": limit(0.5)})


def test_a_ca_file_without_a_certificate_is_unfit(host: Host) -> None:
    with pytest.raises(UnfitError, match="ca-file"):
        host.http(SECURE, ca_pem="no certificate")


def test_a_link_that_dies_in_the_middle_of_an_answer(fresh_lab_host: LabHost, reach: Callable[..., Host]) -> None:
    host = reach(fresh_lab_host)
    serve(fresh_lab_host)
    with host.http(URL) as client:
        assert client.get("/").text == "-"
        threading.Timer(0.5, fresh_lab_host.cut).start()
        started = time.monotonic()
        with pytest.raises(TransportLost):
            client.get("/mute", extensions={"deadline": limit(60)})
        assert time.monotonic() - started < 15
        fresh_lab_host.heal()
        host.reconnect(deadline=limit())
        assert client.get("/").text == "-", "the same client goes on over the new link"

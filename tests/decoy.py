"""A server that answers as production does, to anybody, and writes down what it was sent."""

from __future__ import annotations

from opsctl.lab.hosts import LabHost

PATH, LOG = "/usr/local/bin/decoy.py", "/var/lib/decoy/log"

_SOURCE = """
import http.server, json, sys
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.note(b"")
        self.answer({"data": [{"id": sys.argv[2]}]})
    def do_POST(self):
        self.note(self.rfile.read(int(self.headers["content-length"])))
        self.answer({"choices": [{"text": " ok"}], "usage": {"completion_tokens": 2}})
    def note(self, body):
        with open("/var/lib/decoy/log", "a") as log:
            print(self.path, dict(self.headers), body, file=log, flush=True)
    def answer(self, document):
        data = json.dumps(document).encode()
        self.send_response(200)
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)
http.server.ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"""


def put(host: LabHost) -> None:
    """Put it on a host: ``/usr/bin/python3 PATH PORT MODEL``."""
    host.write_file(PATH, _SOURCE, 0o755)
    host.exec("sh", "-c", f"install -d -o nobody /var/lib/decoy; touch {LOG}; chown nobody {LOG}")


def received(host: LabHost) -> str:
    """Return all that it was sent."""
    return host.read_file(LOG)


def listens(host: LabHost, port: int = 8000) -> bool:
    """Whether anybody listens on a port."""
    return f":{port} " in host.exec("ss", "-Hltn").stdout

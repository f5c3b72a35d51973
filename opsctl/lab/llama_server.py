"""``llama-server`` for tests: llama.cpp's own C++ server, from the package xllamacpp, behind the flags that tests use.

Run with the llama.cpp environment's Python (``script/llama-cpp`` installs it there as a program); this project's has
not what it imports.
"""

from __future__ import annotations

import argparse
import signal

import xllamacpp  # type: ignore[import-not-found]


def main() -> None:
    """Serve until SIGTERM. A model that cannot be loaded ends it with an error."""
    parser = argparse.ArgumentParser(prog="llama-server", allow_abbrev=False)
    parser.add_argument("-m", "--model", required=True)
    parser.add_argument("-a", "--alias")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8080)
    parser.add_argument("-c", "--ctx-size", type=int, default=4096)
    parser.add_argument("-np", "--parallel", type=int, default=4)
    parser.add_argument("-t", "--threads", type=int, default=1)
    parser.add_argument("--metrics", action="store_true")
    given = parser.parse_args()
    params = xllamacpp.CommonParams()
    params.model.path = given.model
    params.model_alias = {given.alias or given.model}
    params.hostnames, params.port = [given.host], given.port
    params.n_ctx, params.n_parallel = given.ctx_size, given.parallel
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = given.threads
    params.endpoint_metrics = given.metrics
    params.n_gpu_layers, params.fit_params, params.verbosity = 0, False, 3
    stop = {signal.SIGTERM, signal.SIGINT}
    signal.pthread_sigmask(signal.SIG_BLOCK, stop)
    server = xllamacpp.Server(params)
    signal.sigwait(stop)
    del server


if __name__ == "__main__":
    main()

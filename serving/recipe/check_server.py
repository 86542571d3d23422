"""Serve a saved model with this package's server, and compare its predictions over REST with the right ones.

Standard library only.
"""

from __future__ import annotations

import argparse
import json
import math
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

SERVER, MODEL, VERSION = "tensorflow_model_server", "checked", "3"
SECONDS = 300  # for the start, on a machine that does much else
INPUTS = [0.0, 1.0, -2.5]
# What is not compiled by ptxas is left to the driver, which may be older than the PTX.
WITHOUT_PTXAS = "Relying on driver to perform ptx compilation"


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--compile", action="store_true", help="also ask for a function that XLA must compile")
    parser.add_argument("--gpu", action="store_true", help="require that a GPU of this machine is used")
    options = parser.parse_args()
    said = subprocess.run([SERVER, "--version"], stdout=subprocess.PIPE, check=True)
    name = said.stdout.decode().splitlines()[0]
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder, "log")
        flags = ["--xla_gpu_compilation_enabled=true"] if options.compile else []
        with running(Path(folder), log, flags) as address:
            check(address, "serving_default", [3 * x - 1 for x in INPUTS])
            if options.compile:
                check(address, "compiled", [math.expm1(x) for x in INPUTS])
            check_refusal(address)
        gpu = check_gpu(log.read_text(errors="replace")) if options.gpu else "not asked for"
    compiled = ", also of a compiled function" if options.compile else ""
    sys.stdout.write(f"{name}: the predictions of a saved model are right{compiled}; GPU: {gpu}\n")


@contextmanager
def running(folder: Path, log: Path, flags: list[str]) -> Iterator[str]:
    """Run the server with the model; yield the model's address."""
    place = folder / MODEL / VERSION
    place.mkdir(parents=True)
    shutil.copy(Path(__file__).with_name("saved_model.pbtxt"), place)
    grpc, rest = free_ports(2)
    arguments = [f"--port={grpc}", f"--rest_api_port={rest}", f"--model_name={MODEL}"]
    with log.open("wb") as output:
        command = [SERVER, *arguments, f"--model_base_path={place.parent}", *flags]
        server = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)
    try:
        address = f"http://localhost:{rest}/v1/models/{MODEL}"
        wait(server, address)
        yield address
    except BaseException:
        sys.stderr.write(f"the server's last messages:\n{log.read_text(errors='replace')[-8000:]}\n")
        raise
    finally:
        server.terminate()
        server.wait()


def free_ports(count: int) -> list[int]:
    """Return ports that nothing listens on."""
    sockets = [socket.create_server(("localhost", 0)) for _ in range(count)]
    ports = [item.getsockname()[1] for item in sockets]
    for item in sockets:
        item.close()
    return ports


def wait(server: subprocess.Popen[bytes], address: str) -> None:
    """Return once the model can be asked."""
    end = time.monotonic() + SECONDS
    state: Any = None
    while time.monotonic() < end:
        assert server.poll() is None, f"the server ended with {server.returncode}"
        try:
            status, state = ask(address)
        except OSError:  # it does not listen yet
            status = 0
        if status == 200 and state["model_version_status"][0]["state"] == "AVAILABLE":
            assert state["model_version_status"][0]["version"] == VERSION, state
            return
        time.sleep(0.1)
    raise AssertionError(f"the model was not loaded in {SECONDS} seconds: {state}")


def ask(address: str, question: object = None) -> tuple[int, Any]:
    """Return the HTTP status and the content of an answer; a question is posted."""
    data = json.dumps(question).encode() if question else None
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(address, data, timeout=SECONDS) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode(errors="replace")


def check(address: str, signature: str, expected: list[float]) -> None:
    """Check the predictions of a signature."""
    status, answer = ask(f"{address}:predict", {"signature_name": signature, "inputs": {"x": INPUTS}})
    assert status == 200, (signature, status, answer)
    predictions = answer["outputs"]
    near = [math.isclose(*pair, rel_tol=1e-5, abs_tol=1e-6) for pair in zip(predictions, expected, strict=True)]
    assert all(near), (signature, predictions, expected)


def check_refusal(address: str) -> None:
    """Check that a model that is not there is refused."""
    status, answer = ask(f"{address}_another:predict", {"inputs": {"x": INPUTS}})
    assert status == 404, (status, answer)


def check_gpu(log: str) -> str:
    """Check the use of a GPU by the server's messages; return what was found in words."""
    if not Path("/dev/nvidiactl").exists():
        return "skipped, this machine has no NVIDIA GPU (/dev/nvidiactl does not exist)"
    assert "device:GPU:0" in log, f"the machine has a GPU, but the server does not use it:\n{log[-8000:]}"
    assert WITHOUT_PTXAS not in log, f"the server does not find ptxas:\n{log[-8000:]}"
    return "used"


if __name__ == "__main__":
    main()

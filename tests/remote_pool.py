"""A stand-in for the pool's program: it admits clients by their certificates and speaks the first frame of HTTP/2.

It runs no actions. Its root file system has this machine's own Python, and takes the place of both images of the pool.
"""

from __future__ import annotations

import io
import subprocess
import tarfile
from pathlib import Path

PYTHON = Path("/usr/bin/python3")
IMAGE, ACTIONS = "localhost/pool:test", "localhost/actions:test"
PROGRAM = r"""#!/usr/bin/python3
import json, socket, ssl, sys, time

SETTINGS = b"\0\0\0\x04\0\0\0\0\0"
FOLDER = "/etc/kiln-pool"
kind, file = sys.argv[1:]
known = json.load(open(file))

def context(purpose, name):
    made = ssl.create_default_context(purpose, cafile=FOLDER + "/ca.pem")
    made.load_cert_chain(f"{FOLDER}/{name}.pem", f"{FOLDER}/{name}.key")
    made.verify_mode = ssl.CERT_REQUIRED
    return made

def serve():
    host, _, port = known["servers"][0]["listener"]["http"]["socket_address"].partition(":")
    secured = context(ssl.Purpose.CLIENT_AUTH, "server")
    with socket.create_server((host, int(port))) as listener:
        while True:
            plain, _ = listener.accept()
            plain.settimeout(5)
            try:
                with secured.wrap_socket(plain, server_side=True) as client:
                    names = dict(pair[0] for pair in client.getpeercert()["subject"])
                    client.sendall(SETTINGS)
                    with open("/data/peers", "a") as peers:
                        print(names["commonName"], file=peers)
            except OSError as error:
                print(error, file=sys.stderr)

def work():
    local = known["workers"][0]["local"]
    address, _, port = local["worker_api_endpoint"]["uri"].removeprefix("grpcs://").partition(":")
    secured = context(ssl.Purpose.SERVER_AUTH, "client")
    while True:
        try:
            with socket.create_connection((address, int(port)), timeout=5) as plain:
                with secured.wrap_socket(plain, server_hostname=address) as server:
                    with open("/data/answered", "w") as file:
                        print(server.recv(9) == SETTINGS, local["max_inflight_tasks"], file=file)
        except OSError as error:
            print(error, file=sys.stderr)
        time.sleep(1)

serve() if kind == "server" else work()
"""


def root_file_system(archive: Path) -> dict[str, object]:
    """Make an archive of Python and the stand-in; return the variables that make it the fleet's pool."""
    words = (
        PYTHON,
        "-I",
        "-c",
        "import ssl, _ssl, os, sys; print(sys.executable, os.path.dirname(os.__file__), _ssl.__file__)",
    )
    program, library, binding = subprocess.run(words, check=True, capture_output=True, text=True).stdout.split()
    linked = subprocess.run(("ldd", program, binding), check=True, capture_output=True, text=True).stdout.split()
    libraries = {word for word in linked if word.startswith("/") and not word.endswith(":")}
    with tarfile.open(archive, "w") as packed:
        packed.add(Path(program).resolve(), str(PYTHON).lstrip("/"))
        packed.add(library, library.lstrip("/"), filter=_without_tests)
        for file in sorted(libraries):
            packed.add(Path(file).resolve(), file.lstrip("/"))
        script = tarfile.TarInfo("bin/pool")
        script.size, script.mode = len(PROGRAM.encode()), 0o755
        packed.addfile(script, io.BytesIO(PROGRAM.encode()))
    return {
        "kiln_pool_properties": {"container-image": f"docker://{ACTIONS}", "Pool": "default"},
        "kiln_pool_server_image": IMAGE,
        "kiln_pool_server_archive": str(archive),
        "kiln_pool_archive": str(archive),
        "kiln_pool_server_arguments": ["/bin/pool", "server", "/etc/kiln-pool/server.json"],
        "kiln_pool_program": "/bin/pool",
        "kiln_pool_arguments": ["worker", "/etc/kiln-pool/worker.json"],
    }


def _without_tests(member: tarfile.TarInfo) -> tarfile.TarInfo | None:
    """Leave out what is large and not needed."""
    parts = set(Path(member.name).parts)
    return None if parts & {"test", "tests", "__pycache__", "idlelib", "dist-packages", "config"} else member

#!/usr/bin/python
"""Start, list and end virtual machines on this computer: word is one QEMU process, and nothing else.

A machine's tags are in its command line, where the guest finds them too (SMBIOS), and its disk is unlinked as soon as
QEMU has opened it. So a machine leaves nothing behind, however it ends, and listing machines needs no files: the list
of processes is the truth.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import select
import signal
import socket
import subprocess
import uuid
from pathlib import Path
from typing import Any

DOCUMENTATION = """
---
module: kiln_qemu
short_description: Start, list and end virtual machines on this computer
description:
  - C(started) starts QEMU for a machine that was seeded in the run's folder; it ends when the machine shuts down.
  - C(listed) lists the machines of this user by their processes.
  - C(ended) ends the machines with the given ids.
options:
  state:
    description: The action.
    type: str
    required: true
    choices: [started, listed, ended]
  folder:
    description: The run's folder, an absolute path.
    type: path
  tags:
    description: The machine's tags; kiln-worker is its name.
    type: dict
    default: {}
  image:
    description: The folder that C(kiln image disk) has written.
    type: path
  cores:
    description: The machine's processors.
    type: int
    default: 2
  memory:
    description: Its memory in GB.
    type: int
    default: 4
  disk:
    description: Its disk in GB; it takes the space of what is written.
    type: int
    default: 20
  accelerator:
    description: The accelerator; C(auto) is KVM if available and not nested and slow.
    type: str
    default: auto
    choices: [auto, kvm, tcg]
  options:
    description: Further arguments of QEMU.
    type: list
    elements: str
    default: []
  ids:
    description: The machines to end.
    type: list
    elements: str
    default: []
author:
  - kiln (@kiln)
"""

EXAMPLES = """
- name: Start a machine
  kiln_qemu:
    state: started
    folder: /home/me/feedstock/build_artifacts/fleet/one
    tags:
      kiln-worker: kiln-one-1
    image: /home/me/kiln/build_artifacts/images/kiln-disk-bookworm
"""

RETURN = """
id:
  description: The machine that was started.
  returned: when it was started
  type: str
machines:
  description: The machines that run, or that were ended.
  returned: listed, ended
  type: list
  elements: dict
"""

QEMU, IMG, ISO = "qemu-system-x86_64", "qemu-img", "xorrisofs"
DISK, SEED = "disk.qcow2", "seed.iso"
PACKAGES = {QEMU: "qemu-system-x86", IMG: "qemu-utils", ISO: "xorriso"}  # Debian's
KVM = Path("/dev/kvm")
NESTED = Path("/sys/module/kvm_pvm")  # a KVM for cloud guests, on which a machine boots slower than emulated
TRIES = 5  # ports: a free one may be used before QEMU opens it
TAKEN = "Could not set up host forwarding rule"
SECONDS = 60  # until a process that was killed is gone
TAG = re.compile(r"[A-Za-z0-9_.=-]+")
FORWARDED = re.compile(r"hostfwd=tcp:127\.0\.0\.1:(\d+)-:22$")


class Refused(Exception):
    """A machine cannot be started or ended."""


def accelerator(request: str, *, kvm: bool, nested: bool) -> tuple[str, str]:
    """Return the accelerator, and a warning if it is slow."""
    if request != "auto":
        return request, ""
    if kvm and not nested:
        return "kvm", ""
    why = f"{KVM} is nested, which is slower" if kvm else f"{KVM} cannot be used"
    return "tcg", f"the machine's processor is emulated, and slow: {why}"


def argv(request: dict[str, Any], *, accel: str, port: int, identity: str) -> list[str]:
    """Return QEMU's command line for a machine; ``port`` of this computer is forwarded to its ssh."""
    tags, image, folder = request["tags"], Path(request["image"]), seed(request)
    return [
        *(QEMU, "-daemonize", "-no-user-config", "-nodefaults", "-display", "none"),
        *("-sandbox", "on,resourcecontrol=deny"),  # what else it denies is what -daemonize does
        *("-name", tags["kiln-worker"], "-uuid", identity),
        *("-smbios", ",".join(("type=11", *(f"value={name}={value}" for name, value in tags.items())))),
        *("-machine", f"q35,accel={accel}", "-cpu", "host" if accel == "kvm" else "max"),
        *("-smp", str(request["cores"]), "-m", f"{request['memory']}G"),
        *("-kernel", str(image / "vmlinuz"), "-initrd", str(image / "initrd.img")),
        *("-append", "root=/dev/vda rw console=ttyS0"),
        # Its writes belong to this machine only and are deleted with it: no need to flush them.
        *("-drive", f"if=virtio,format=qcow2,cache=unsafe,discard=unmap,file={_in_option(folder / DISK)}"),
        *("-drive", f"if=virtio,format=raw,readonly=on,file={_in_option(folder / SEED)}"),
        *("-device", "virtio-rng-pci"),
        *("-device", "virtio-net-pci,netdev=user,romfile="),
        *("-serial", f"file:{console(request)}"),
        *request["options"],
        *("-netdev", f"user,id=user,hostfwd=tcp:127.0.0.1:{port}-:22"),
    ]


def seed(request: dict[str, Any]) -> Path:
    """Return the folder of a machine's first-boot data."""
    return Path(request["folder"]) / "seed" / str(request["tags"]["kiln-worker"])


def console(request: dict[str, Any]) -> Path:
    """Return the path of a machine's console log."""
    return Path(request["folder"]) / "console" / f"{request['tags']['kiln-worker']}.log"


def disk_argv(request: dict[str, Any]) -> list[str]:
    """Return the command line that creates a machine's disk, which only stores differences to the image."""
    base = ("-b", str(Path(request["image"]) / "disk.raw"), "-F", "raw")
    return [IMG, "create", "-q", "-f", "qcow2", *base, str(seed(request) / DISK), f"{request['disk']}G"]


def seed_argv(request: dict[str, Any]) -> list[str]:
    """Return the command line that creates the volume for cloud-init, which finds it by its label."""
    files = [str(seed(request) / name) for name in ("user-data", "meta-data")]
    return [ISO, "-quiet", "-volid", "CIDATA", "-joliet", "-rational-rock", "-o", str(seed(request) / SEED), *files]


def machine(words: list[str]) -> dict[str, Any] | None:
    """Return the machine of a command line; None if it is not one of kiln's."""
    if not words or Path(words[0]).name != QEMU:
        return None
    options = dict(itertools.pairwise(words))
    values = [word.removeprefix("value=") for word in options.get("-smbios", "").split(",")]
    tags = dict(word.split("=", 1) for word in values[1:] if "=" in word)
    forwarded = FORWARDED.search(options.get("-netdev", ""))
    if tags.get("kiln-fleet") != "true" or forwarded is None or "-uuid" not in options:
        return None
    accel = options.get("-machine", "").rpartition("accel=")[2]
    return {"id": options["-uuid"], "tags": tags, "port": int(forwarded[1]), "accelerator": accel}


def processes(proc: Path = Path("/proc")) -> list[tuple[int, dict[str, Any]]]:
    """Return this user's processes that are machines; a starting machine has two for a moment."""
    machines = []
    for entry in proc.glob("[0-9]*"):
        with contextlib.suppress(OSError):
            guest = machine((entry / "cmdline").read_bytes().decode(errors="replace").split("\0"))
            if guest is not None and entry.stat().st_uid == os.geteuid():
                machines.append((int(entry.name), guest))
    return machines


def listed(proc: Path = Path("/proc")) -> list[dict[str, Any]]:
    """Return the machines that run."""
    return list({guest["id"]: guest for _, guest in processes(proc)}.values())


def ended(ids: list[str]) -> list[dict[str, Any]]:
    """End machines, and return those that ran. Raises Refused for one that does not end."""
    processes_to_end = [(pid, guest) for pid, guest in processes() if guest["id"] in ids]
    for pid, guest in processes_to_end:
        with contextlib.suppress(ProcessLookupError):
            _kill(pid, guest)
    return list({guest["id"]: guest for _, guest in processes_to_end}.values())


def _kill(pid: int, guest: dict[str, Any]) -> None:
    """Kill one process, and no other that has got its number; wait until it is gone."""
    handle = os.pidfd_open(pid)
    try:
        if (pid, guest) not in processes():
            return
        signal.pidfd_send_signal(handle, signal.SIGKILL)
        if not select.select([handle], [], [], SECONDS)[0]:
            raise Refused(f"the process {pid} of {guest['tags']['kiln-worker']} was killed and is still there")
    finally:
        os.close(handle)


def started(request: dict[str, Any]) -> tuple[str, str]:
    """Start a machine; return its id, and a warning. Raises Refused with the reason."""
    if bad := [word for word in (*request["tags"], *request["tags"].values()) if not TAG.fullmatch(word)]:
        raise Refused(f"{bad[0]!r} is not a valid tag")
    if not Path(request["image"], "disk.raw").exists():
        raise Refused(f"no disk in {request['image']}; 'kiln image disk' makes it")
    accel, warning = accelerator(request["accelerator"], kvm=os.access(KVM, os.R_OK | os.W_OK), nested=NESTED.exists())
    console(request).parent.mkdir(mode=0o700, exist_ok=True)
    try:
        _run(disk_argv(request))
        _run(seed_argv(request))
        return _start(request, accel), warning
    finally:
        for name in (DISK, SEED):  # QEMU has them open, or has failed
            (seed(request) / name).unlink(missing_ok=True)


def _start(request: dict[str, Any], accel: str) -> str:
    """Start QEMU on a free port, and retry with another if that is used meanwhile."""
    for retries in reversed(range(TRIES)):
        identity = str(uuid.uuid4())
        try:
            _run(argv(request, accel=accel, port=free_port(), identity=identity))
        except Refused as refused:
            if TAKEN not in str(refused) or not retries:
                raise
        else:
            break
    return identity


def free_port() -> int:
    """Return a free port of this computer's loopback address."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _run(words: list[str]) -> None:
    """Run a program without this environment, which may hold secrets and the mark of processes that end with a run."""
    env = {"PATH": os.environ.get("PATH", os.defpath), "LC_ALL": "C.UTF-8"}
    try:
        process = subprocess.run(words, env=env, cwd="/", stdin=subprocess.DEVNULL, capture_output=True, check=False)
    except FileNotFoundError as missing:
        raise Refused(f"{words[0]} is not installed; Debian's package is {PACKAGES[words[0]]}") from missing
    if process.returncode:
        output = process.stderr.decode(errors="replace").strip()
        raise Refused(f"{words[0]} ended with exit code {process.returncode}: {output[-500:]}")


def _in_option(path: Path) -> str:
    """Return a path as part of an option, in which commas are doubled."""
    return str(path).replace(",", ",,")


def main() -> None:
    """Run the module."""
    from ansible.module_utils.basic import AnsibleModule

    module = AnsibleModule(
        argument_spec={
            "state": {"required": True, "choices": ["started", "listed", "ended"]},
            "folder": {"type": "path"},
            "tags": {"type": "dict", "default": {}},
            "image": {"type": "path"},
            "cores": {"type": "int", "default": 2},
            "memory": {"type": "int", "default": 4},
            "disk": {"type": "int", "default": 20},
            "accelerator": {"default": "auto", "choices": ["auto", "kvm", "tcg"]},
            "options": {"type": "list", "elements": "str", "default": []},
            "ids": {"type": "list", "elements": "str", "default": []},
        },
        required_if=[("state", "started", ("folder", "tags", "image"))],
    )
    try:
        if module.params["state"] == "listed":
            module.exit_json(changed=False, machines=listed())
        if module.params["state"] == "ended":
            gone = ended(module.params["ids"])
            module.exit_json(changed=bool(gone), machines=gone)
        tags = {str(name): str(value) for name, value in module.params["tags"].items()}
        identity, warning = started({**module.params, "tags": tags})
    except (Refused, OSError) as failure:
        module.fail_json(msg=str(failure))
    if warning:
        module.warn(warning)
    module.exit_json(changed=True, id=identity)


if __name__ == "__main__":
    main()

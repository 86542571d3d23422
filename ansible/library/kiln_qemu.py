#!/usr/bin/python
"""Virtual machines on this computer: QEMU's processes, of which each is a machine and all that there is of it.

A machine's tags stand in its command line, where the machine finds them too (SMBIOS), and its disk loses its name as
soon as QEMU has opened it. So however a machine ends, nothing of it is left, and whoever looks for machines needs no
files: the list of processes is the truth.
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
short_description: Bring up, find and end virtual machines on this computer
description:
  - C(started) starts QEMU for a machine that was seeded in the run's folder; it ends when the machine shuts down.
  - C(listed) finds the machines of this user by their processes.
  - C(ended) ends machines by their ids, those that are there.
options:
  state:
    description: What to do.
    type: str
    required: true
    choices: [started, listed, ended]
  folder:
    description: The run's folder, an absolute path.
    type: path
  tags:
    description: The machine's tags; kiln-machine is its name.
    type: dict
    default: {}
  image:
    description: The folder that C(kiln image disk) has made.
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
    description: Its disk in GB, of which what is written takes room here.
    type: int
    default: 20
  accelerator:
    description: What runs the machine's processor; C(auto) is KVM where it is there and not a slow nested one.
    type: str
    default: auto
    choices: [auto, kvm, tcg]
  options:
    description: Further arguments of QEMU's.
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
- name: Bring up a machine
  kiln_qemu:
    state: started
    folder: /home/me/feedstock/build_artifacts/fleet/one
    tags:
      kiln-machine: kiln-one-1
    image: /home/me/kiln/build_artifacts/images/kiln-disk-bookworm
"""

RETURN = """
id:
  description: The machine that was started.
  returned: when it was started
  type: str
machines:
  description: The machines that there are, or that were ended.
  returned: listed, ended
  type: list
  elements: dict
"""

QEMU, IMG, ISO = "qemu-system-x86_64", "qemu-img", "xorrisofs"
DISK, SEED = "disk.qcow2", "seed.iso"
PACKAGES = {QEMU: "qemu-system-x86", IMG: "qemu-utils", ISO: "xorriso"}  # Debian's
KVM = Path("/dev/kvm")
NESTED = Path("/sys/module/kvm_pvm")  # a KVM for guests of a cloud, on which a machine boots slower than emulated
TRIES = 5  # ports: one that is free may be taken before QEMU takes it
TAKEN = "Could not set up host forwarding rule"
SECONDS = 60  # until a process that was killed is gone
TAG = re.compile(r"[A-Za-z0-9_.=-]+")
FORWARDED = re.compile(r"hostfwd=tcp:127\.0\.0\.1:(\d+)-:22$")


class Refused(Exception):
    """A machine cannot be started, or not ended."""


def accelerator(asked: str, *, kvm: bool, nested: bool) -> tuple[str, str]:
    """Return what runs the processor, and a word on it where it is slow."""
    if asked != "auto":
        return asked, ""
    if kvm and not nested:
        return "kvm", ""
    why = f"{KVM} is one inside a virtual machine, and slower" if kvm else f"{KVM} cannot be used"
    return "tcg", f"the machine's processor is emulated, and slow: {why}"


def argv(asked: dict[str, Any], *, accel: str, port: int, identity: str) -> list[str]:
    """Return QEMU's command line for a machine that was asked for; ``port`` of this computer leads to its ssh."""
    tags, image, made = asked["tags"], Path(asked["image"]), seed(asked)
    return [
        *(QEMU, "-daemonize", "-no-user-config", "-nodefaults", "-display", "none"),
        *("-sandbox", "on,resourcecontrol=deny"),  # what else it denies is what -daemonize does
        *("-name", tags["kiln-machine"], "-uuid", identity),
        *("-smbios", ",".join(("type=11", *(f"value={name}={value}" for name, value in tags.items())))),
        *("-machine", f"q35,accel={accel}", "-cpu", "host" if accel == "kvm" else "max"),
        *("-smp", str(asked["cores"]), "-m", f"{asked['memory']}G"),
        *("-kernel", str(image / "vmlinuz"), "-initrd", str(image / "initrd.img")),
        *("-append", "root=/dev/vda rw console=ttyS0"),
        # What it writes is for this machine alone and goes with it: no need to wait until it is on the disk.
        *("-drive", f"if=virtio,format=qcow2,cache=unsafe,discard=unmap,file={_in_option(made / DISK)}"),
        *("-drive", f"if=virtio,format=raw,readonly=on,file={_in_option(made / SEED)}"),
        *("-device", "virtio-rng-pci"),
        *("-device", "virtio-net-pci,netdev=user,romfile="),
        *("-serial", f"file:{console(asked)}"),
        *asked["options"],
        *("-netdev", f"user,id=user,hostfwd=tcp:127.0.0.1:{port}-:22"),
    ]


def seed(asked: dict[str, Any]) -> Path:
    """The folder with what a machine is told at its first boot."""
    return Path(asked["folder"]) / "seed" / str(asked["tags"]["kiln-machine"])


def console(asked: dict[str, Any]) -> Path:
    """The file with what a machine says on its console."""
    return Path(asked["folder"]) / "console" / f"{asked['tags']['kiln-machine']}.log"


def disk_argv(asked: dict[str, Any]) -> list[str]:
    """Return the command line that makes a machine's disk, of which only what differs from the image takes room."""
    base = ("-b", str(Path(asked["image"]) / "disk.raw"), "-F", "raw")
    return [IMG, "create", "-q", "-f", "qcow2", *base, str(seed(asked) / DISK), f"{asked['disk']}G"]


def seed_argv(asked: dict[str, Any]) -> list[str]:
    """Return the command line that makes what cloud-init reads at the first boot, as it looks for it by its label."""
    files = [str(seed(asked) / name) for name in ("user-data", "meta-data")]
    return [ISO, "-quiet", "-volid", "CIDATA", "-joliet", "-rational-rock", "-o", str(seed(asked) / SEED), *files]


def machine(words: list[str]) -> dict[str, Any] | None:
    """Read a command line back into a machine, if it is one of kiln's."""
    if not words or Path(words[0]).name != QEMU:
        return None
    options = dict(itertools.pairwise(words))
    values = [each.removeprefix("value=") for each in options.get("-smbios", "").split(",")]
    tags = dict(each.split("=", 1) for each in values[1:] if "=" in each)
    forwarded = FORWARDED.search(options.get("-netdev", ""))
    if tags.get("kiln-fleet") != "true" or forwarded is None or "-uuid" not in options:
        return None
    accel = options.get("-machine", "").rpartition("accel=")[2]
    return {"id": options["-uuid"], "tags": tags, "port": int(forwarded[1]), "accelerator": accel}


def processes(proc: Path = Path("/proc")) -> list[tuple[int, dict[str, Any]]]:
    """This user's processes that are machines; of one that begins there are two for a moment."""
    found = []
    for entry in proc.glob("[0-9]*"):
        with contextlib.suppress(OSError):
            known = machine((entry / "cmdline").read_bytes().decode(errors="replace").split("\0"))
            if known is not None and entry.stat().st_uid == os.geteuid():
                found.append((int(entry.name), known))
    return found


def listed(proc: Path = Path("/proc")) -> list[dict[str, Any]]:
    """The machines that run."""
    return list({known["id"]: known for _, known in processes(proc)}.values())


def ended(ids: list[str]) -> list[dict[str, Any]]:
    """End machines, and return those that were there. Raises Refused for one that stays."""
    doomed = [(pid, known) for pid, known in processes() if known["id"] in ids]
    for pid, known in doomed:
        with contextlib.suppress(ProcessLookupError):
            _kill(pid, known)
    return list({known["id"]: known for _, known in doomed}.values())


def _kill(pid: int, known: dict[str, Any]) -> None:
    """Kill one process, and no other that came to have its number; wait until it is gone."""
    handle = os.pidfd_open(pid)
    try:
        if (pid, known) not in processes():
            return
        signal.pidfd_send_signal(handle, signal.SIGKILL)
        if not select.select([handle], [], [], SECONDS)[0]:
            raise Refused(f"the process {pid} of {known['tags']['kiln-machine']} was killed and is still there")
    finally:
        os.close(handle)


def started(asked: dict[str, Any]) -> tuple[str, str]:
    """Start a machine; returns its id, and a word on how it runs. Raises Refused with the reason."""
    if bad := [each for each in (*asked["tags"], *asked["tags"].values()) if not TAG.fullmatch(each)]:
        raise Refused(f"{bad[0]!r} is no tag")
    if not Path(asked["image"], "disk.raw").exists():
        raise Refused(f"there is no disk in {asked['image']}; 'kiln image disk' makes it")
    accel, word = accelerator(asked["accelerator"], kvm=os.access(KVM, os.R_OK | os.W_OK), nested=NESTED.exists())
    console(asked).parent.mkdir(mode=0o700, exist_ok=True)
    try:
        _run(disk_argv(asked))
        _run(seed_argv(asked))
        return _start(asked, accel), word
    finally:
        for name in (DISK, SEED):  # QEMU has them open, or nobody wants them
            (seed(asked) / name).unlink(missing_ok=True)


def _start(asked: dict[str, Any], accel: str) -> str:
    """Start QEMU on a port that is free, and on another where somebody was quicker."""
    for left in reversed(range(TRIES)):
        identity = str(uuid.uuid4())
        try:
            _run(argv(asked, accel=accel, port=free_port(), identity=identity))
        except Refused as refused:
            if TAKEN not in str(refused) or not left:
                raise
        else:
            break
    return identity


def free_port() -> int:
    """A port of this computer's own address that is free now."""
    with socket.socket() as asked:
        asked.bind(("127.0.0.1", 0))
        return int(asked.getsockname()[1])


def _run(words: list[str]) -> None:
    """Run a program without the asking one's environment: it may hold secrets, and the mark of what ends with a run."""
    env = {"PATH": os.environ.get("PATH", os.defpath), "LC_ALL": "C.UTF-8"}
    try:
        done = subprocess.run(words, env=env, cwd="/", stdin=subprocess.DEVNULL, capture_output=True, check=False)
    except FileNotFoundError as missing:
        raise Refused(f"{words[0]} is not on this computer; Debian's package is {PACKAGES[words[0]]}") from missing
    if done.returncode:
        said = done.stderr.decode(errors="replace").strip()
        raise Refused(f"{words[0]} ended with exit code {done.returncode}: {said[-500:]}")


def _in_option(path: Path) -> str:
    """A path as part of an option, in which a comma stands doubled."""
    return str(path).replace(",", ",,")


def main() -> None:
    """Do what the playbook asks for."""
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
        identity, word = started({**module.params, "tags": tags})
    except (Refused, OSError) as failure:
        module.fail_json(msg=str(failure))
    if word:
        module.warn(word)
    module.exit_json(changed=True, id=identity)


if __name__ == "__main__":
    main()

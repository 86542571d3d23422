#!/usr/bin/python
"""Keep the folder of a run on the controller: keys, first-boot data, and what is known of each machine.

One module in the place of a dozen tasks for each machine: it takes milliseconds where they take seconds, and what it
writes is a value that a test compares.
"""

from __future__ import annotations

import hashlib
import json
import secrets
import shlex
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any

DOCUMENTATION = """
---
module: kiln_run
short_description: Keep the folder of a run of kiln's fleet on the controller
description:
  - C(seeded) makes the folder, the run's ssh key and the password of its cache, and for each machine a host key and
    cloud-init's user data.
  - C(recorded) writes for each machine how ssh and Ansible reach it.
  - C(refused) notes the machines that a provider refused, and why.
  - C(forgotten) closes the connections to machines and removes what is written about them; without O(names), about
    all of them, the run's key and password.
options:
  folder:
    description: The run's folder, an absolute path.
    type: path
    required: true
  state:
    description: What to do.
    type: str
    required: true
    choices: [seeded, recorded, refused, forgotten]
  machines:
    description: The machines, each a dictionary with at least a name.
    type: list
    elements: dict
    default: []
  names:
    description: The names of the machines to forget.
    type: list
    elements: str
    default: []
  user:
    description: Who logs in.
    type: str
    default: fleet
  files:
    description: Files that a machine is born with, from path on the machine to path on the controller.
    type: dict
    default: {}
  lease:
    description: The first lease in seconds.
    type: int
    default: 3600
  expires:
    description: The end of the machines' life, in seconds since the epoch.
    type: int
    default: 0
  ssh_options:
    description: Further options of ssh.
    type: dict
    default: {}
author:
  - kiln (@kiln)
"""

EXAMPLES = """
- name: Prepare the run
  kiln_run:
    folder: /home/me/feedstock/build_artifacts/fleet/one
    state: seeded
    machines:
      - name: kiln-one-1
"""

RETURN = """
machines:
  description: The names of the machines that were written about or forgotten.
  returned: always
  type: list
  elements: str
"""

FOLDERS = ("keys", "ssh", "seed", "inventory", "refused", "collected")


def sockets(folder: Path) -> Path:
    """Where ssh keeps the sockets of shared connections: their names may not be long, the run's folder may be."""
    return Path(tempfile.gettempdir(), f"kiln-ssh-{hashlib.sha256(str(folder).encode()).hexdigest()[:12]}")


def user_data(*, user: str, run_key: str, host_key: str, host_public: str, files: dict[str, str]) -> str:
    """Return what cloud-init does at a machine's first boot; JSON is YAML in which nothing needs quoting."""
    config = {
        "locale": "C.UTF-8",
        "ssh_pwauth": False,
        "disable_root": True,
        "ssh_deletekeys": True,
        "ssh_genkeytypes": [],
        "ssh_keys": {"ed25519_private": host_key, "ed25519_public": host_public},
        "users": [
            {
                "name": user,
                "shell": "/bin/bash",
                "lock_passwd": True,
                "sudo": "ALL=(ALL) NOPASSWD:ALL",
                "ssh_authorized_keys": [run_key],
            }
        ],
        "write_files": [
            {"path": path, "content": text, "permissions": "0755" if "/sbin/" in path else "0644"}
            for path, text in files.items()
        ],
        "runcmd": [["systemctl", "daemon-reload"], ["systemctl", "enable", "--now", "kiln-lease.timer"]],
    }
    return "#cloud-config\n" + json.dumps(config, indent=1) + "\n"


def lease(*, first: int, last: int, at_the_end: str) -> str:
    """Return the settings of a machine's lease."""
    return f"# Read by kiln-lease.\nFIRST={first}\nLAST={last}\nAT_THE_END={at_the_end}\n"


def ssh_config(machine: dict[str, Any], *, folder: Path, user: str, options: dict[str, Any]) -> str:
    """Return how ssh reaches a machine: the run's key alone, the known host key alone, nothing forwarded."""
    name = machine["name"]
    settings = {
        "HostName": machine["address"],
        "Port": machine.get("port", 22),
        "User": machine.get("user", user),
        "IdentityFile": f'"{machine.get("key") or folder / "keys" / "run"}"',
        "IdentitiesOnly": "yes",
        "IdentityAgent": "none",
        "HostKeyAlias": name,
        "UserKnownHostsFile": f'"{folder / "keys" / name}.known_hosts"',
        "GlobalKnownHostsFile": "/dev/null",
        "StrictHostKeyChecking": "yes",
        "UpdateHostKeys": "no",
        "ForwardAgent": "no",
        "ForwardX11": "no",
        "PasswordAuthentication": "no",
        "KbdInteractiveAuthentication": "no",
        "BatchMode": "yes",
        "ConnectTimeout": 15,
        "ServerAliveInterval": 15,
        "ServerAliveCountMax": 4,
        "ControlMaster": "auto",
        "ControlPersist": 60,
        "ControlPath": f"{sockets(folder)}/%C",
        **options,
    }
    return "Host *\n" + "".join(f"    {key} {value}\n" for key, value in settings.items())


def host_vars(machine: dict[str, Any], *, folder: Path, user: str) -> dict[str, Any]:
    """Return how Ansible reaches a machine: by ssh as configured, over the connection that others share."""
    shared = f"-o ControlMaster=auto -o ControlPersist=60 -o ControlPath={sockets(folder)}/%C"
    return {
        "ansible_host": machine["name"],
        "ansible_connection": "ssh",
        "ansible_user": machine.get("user", user),
        "ansible_ssh_common_args": f"-F {shlex.quote(str(folder / 'ssh' / machine['name']))}.config",
        "ansible_ssh_args": shared,
        "ansible_pipelining": True,
        "ansible_python_interpreter": machine.get("python", "/usr/bin/python3"),
        "kiln_machine": machine,
    }


class Folder:
    """The folder of a run."""

    def __init__(self, path: Path, *, user: str, options: dict[str, Any]) -> None:
        self.path = path
        self.user = user
        self.options = options

    def make(self) -> None:
        """Make the folders, which are their owner's alone."""
        for each in (self.path, *(self.path / name for name in FOLDERS), sockets(self.path)):
            each.mkdir(parents=True, exist_ok=True)
            each.chmod(0o700)  # refused where the folder is somebody else's

    def write(self, name: str, text: str) -> None:
        """Write a file whole: others may read the folder meanwhile."""
        target = self.path / name
        target.parent.mkdir(exist_ok=True)
        beside = target.with_name(f".{target.name}.new")
        beside.touch(mode=0o600)
        beside.write_text(text, encoding="utf-8")
        beside.replace(target)

    def key(self, name: str, comment: str) -> tuple[str, str]:
        """Return an ssh key pair, made when it is not there."""
        path = self.path / "keys" / name
        if not path.with_name(f"{name}.pub").exists():
            path.unlink(missing_ok=True)
            argv = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", comment, "-f", str(path)]
            subprocess.run(argv, check=True, stdin=subprocess.DEVNULL, capture_output=True)
        return path.read_text(), path.with_name(f"{name}.pub").read_text().strip()

    def password(self, name: str) -> None:
        """Make a password where there is none; it lies in the folder, as keys do, and on machines that need it."""
        if not (self.path / "keys" / name).exists():
            self.write(f"keys/{name}", secrets.token_hex(24))

    def seed(self, machine: dict[str, Any], files: dict[str, str]) -> None:
        """Write what a machine is told at its first boot, and expect the host key that it gets."""
        name = machine["name"]
        _, run_key = self.key("run", self.path.name)
        host_key, host_public = self.key(f"{name}.host", name)
        self.write(f"keys/{name}.known_hosts", f"{name} {host_public}\n")  # of one that was there before, none holds
        told = user_data(user=self.user, run_key=run_key, host_key=host_key, host_public=host_public, files=files)
        self.write(f"seed/{name}/user-data", told)
        self.write(f"seed/{name}/meta-data", json.dumps({"instance-id": name, "local-hostname": name}) + "\n")

    def record(self, machine: dict[str, Any]) -> None:
        """Write how a machine is reached; its inventory comes last, for that is what others look for."""
        name = machine["name"]
        if machine.get("known_hosts"):
            self.write(f"keys/{name}.known_hosts", f"{name} {machine['known_hosts']}\n")
        self.write(f"ssh/{name}.config", ssh_config(machine, folder=self.path, user=self.user, options=self.options))
        hosts = {name: host_vars(machine, folder=self.path, user=self.user)}
        self.write(f"inventory/{name}.json", json.dumps({"kiln_machines": {"hosts": hosts}}, indent=1) + "\n")
        (self.path / "refused" / f"{name}.json").unlink(missing_ok=True)

    def forget(self, name: str) -> None:
        """Close the connection to a machine, and remove what is written about it."""
        config = self.path / "ssh" / f"{name}.config"
        if config.exists():
            argv = ["ssh", "-F", str(config), "-O", "exit", name]
            subprocess.run(argv, check=False, stdin=subprocess.DEVNULL, capture_output=True)
        (self.path / "inventory" / f"{name}.json").unlink(missing_ok=True)
        config.unlink(missing_ok=True)
        shutil.rmtree(self.path / "seed" / name, ignore_errors=True)
        for suffix in ("host", "host.pub", "known_hosts"):
            (self.path / "keys" / f"{name}.{suffix}").unlink(missing_ok=True)

    def forget_all(self) -> list[str]:
        """Forget every machine and the run's key."""
        names = sorted(
            {file.stem for place in ("inventory", "ssh", "seed") for file in self.path.glob(f"{place}/[!.]*")}
        )
        for name in names:
            self.forget(name)
        for name in ("keys/run", "keys/run.pub", "keys/cache", "cache.json"):
            (self.path / name).unlink(missing_ok=True)
        shutil.rmtree(sockets(self.path), ignore_errors=True)
        return names


def act(parameters: dict[str, Any]) -> list[str]:
    """Do what was asked for, and return the names of the machines that it was done for."""
    folder = Folder(Path(parameters["folder"]), user=parameters["user"], options=parameters["ssh_options"])
    machines = parameters["machines"]
    if parameters["state"] == "forgotten":
        for name in parameters["names"]:
            folder.forget(name)
        return parameters["names"] or folder.forget_all()
    folder.make()
    files = {path: Path(source).read_text(encoding="utf-8") for path, source in parameters["files"].items()}
    files["/etc/kiln-lease"] = lease(first=parameters["lease"], last=parameters["expires"], at_the_end="poweroff")
    folder.key("run", folder.path.name)
    folder.password("cache")
    for machine in machines:
        if parameters["state"] == "seeded":
            folder.seed(machine, files)
        elif parameters["state"] == "recorded":
            folder.record(machine)
        else:
            folder.write(f"refused/{machine['name']}.json", json.dumps(machine, indent=1) + "\n")
    return [machine["name"] for machine in machines]


def main() -> None:
    """Do what the playbook asks for."""
    from ansible.module_utils.basic import AnsibleModule

    module = AnsibleModule(
        argument_spec={
            "folder": {"type": "path", "required": True},
            "state": {"required": True, "choices": ["seeded", "recorded", "refused", "forgotten"]},
            "machines": {"type": "list", "elements": "dict", "default": []},
            "names": {"type": "list", "elements": "str", "default": []},
            "user": {"default": "fleet"},
            "files": {"type": "dict", "default": {}},
            "lease": {"type": "int", "default": 3600},
            "expires": {"type": "int", "default": 0},
            "ssh_options": {"type": "dict", "default": {}},
        }
    )
    try:
        names = act(module.params)
    except (OSError, subprocess.SubprocessError) as failure:
        module.fail_json(msg=f"cannot keep the run's folder {module.params['folder']}: {failure}")
    module.exit_json(changed=bool(names), machines=names)


if __name__ == "__main__":
    main()

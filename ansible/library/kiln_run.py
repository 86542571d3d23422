#!/usr/bin/python
"""Maintain the folder of a run on the controller: keys, first-boot data, and the inventory of the workers.

One module instead of a dozen tasks for each worker: it takes milliseconds instead of seconds, and tests can compare the
texts that it writes.
"""

from __future__ import annotations

import contextlib
import json
import secrets
import shlex
import shutil
import subprocess
from pathlib import Path
from typing import Any

from ansible.module_utils import kiln_ssh

DOCUMENTATION = """
---
module: kiln_run
short_description: Maintain the folder of a run of kiln's fleet on the controller
description:
  - C(seeded) creates the folder, the run's ssh key and the password of its cache, and for each worker a host key and
    cloud-init's user data.
  - C(recorded) writes the settings of ssh and Ansible for each worker; of two of the same name, those of the one that
    was recorded before.
  - C(refused) records the workers that a provider refused, with the reasons.
  - C(unanswered) returns the names of the workers whose request the provider may not have answered - the playbook that
    requested them was killed, or the provider did not list them.
  - C(forgotten) closes the connections to workers and deletes their records; without O(names), those of all workers,
    the run's key and the password.
options:
  folder:
    description: The run's folder, an absolute path.
    type: path
    required: true
  state:
    description: The action.
    type: str
    required: true
    choices: [seeded, recorded, refused, unanswered, forgotten]
  machines:
    description: The workers, each a dictionary with at least a name.
    type: list
    elements: dict
    default: []
  names:
    description: The names of the workers to forget.
    type: list
    elements: str
    default: []
  user:
    description: The user of ssh.
    type: str
    default: fleet
  files:
    description: Files of the first boot, from path on the worker to path on the controller.
    type: dict
    default: {}
  lease:
    description: The first lease in seconds.
    type: int
    default: 3600
  expires:
    description: The expiry of the workers, in seconds since the epoch.
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
- name: Create the run's folder
  kiln_run:
    folder: /home/me/feedstock/build_artifacts/fleet/one
    state: seeded
    machines:
      - name: kiln-one-1
"""

RETURN = """
machines:
  description: The names of the workers whose records were written or deleted.
  returned: always
  type: list
  elements: str
"""

ARGUMENTS: dict[str, dict[str, Any]] = {
    "folder": {"type": "path", "required": True},
    "state": {"required": True, "choices": ["seeded", "recorded", "refused", "unanswered", "forgotten"]},
    "machines": {"type": "list", "elements": "dict", "default": []},
    "names": {"type": "list", "elements": "str", "default": []},
    "user": {"default": "fleet"},
    "files": {"type": "dict", "default": {}},
    "lease": {"type": "int", "default": 3600},
    "expires": {"type": "int", "default": 0},
    "ssh_options": {"type": "dict", "default": {}},
}
FOLDERS = ("keys", "ssh", "seed", "inventory", "refused", "collected")


class MissingProgram(Exception):
    """A program is not installed."""


def user_data(*, user: str, run_key: str, host_key: str, host_public: str, files: dict[str, str]) -> str:
    """Return cloud-init's user data for a worker's first boot; JSON is YAML in which nothing needs quoting."""
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
    """Return the settings of a worker's lease."""
    return f"# Read by kiln-lease.\nFIRST={first}\nLAST={last}\nAT_THE_END={at_the_end}\n"


def ssh_config(machine: dict[str, Any], *, folder: Path, user: str, options: dict[str, Any]) -> str:
    """Return the settings of ssh for a worker: only the run's key and the known host key, no forwarding."""
    name = machine["name"]
    settings = {
        "HostName": machine["address"],
        **kiln_ssh.settings(
            user=machine.get("user", user),
            port=machine.get("port", 22),
            key=machine.get("key") or folder / "keys" / "run",
            known_hosts=f"{folder / 'keys' / name}.known_hosts",
            alias=name,
        ),
        "UpdateHostKeys": "no",
        "ForwardAgent": "no",
        "ForwardX11": "no",
        "PasswordAuthentication": "no",
        "KbdInteractiveAuthentication": "no",
        **kiln_ssh.shared(folder),
        **options,
    }
    return "Host *\n" + "".join(f"    {key} {value}\n" for key, value in settings.items())


def host_vars(machine: dict[str, Any], *, folder: Path, user: str) -> dict[str, Any]:
    """Return the settings of Ansible for a worker: ssh as configured, over the shared connection."""
    shared = " ".join(f"-o {key}={value}" for key, value in kiln_ssh.shared(folder).items())
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
        """Create the folders, which only their owner can read."""
        for folder in (self.path, *(self.path / name for name in FOLDERS), kiln_ssh.sockets(self.path)):
            folder.mkdir(parents=True, exist_ok=True)
            folder.chmod(0o700)  # fails if another user owns the folder

    def write(self, name: str, text: str) -> bool:
        """Write a file atomically, for others may read the folder meanwhile; return whether it was another before."""
        target = self.path / name
        target.parent.mkdir(exist_ok=True)
        with contextlib.suppress(FileNotFoundError):
            if target.read_text(encoding="utf-8") == text:
                return False
        part = target.with_name(f".{target.name}.new")
        part.touch(mode=0o600)
        part.write_text(text, encoding="utf-8")
        part.replace(target)
        return True

    def key(self, name: str, comment: str) -> tuple[str, str]:
        """Return an ssh key pair, generated if it is missing."""
        path = self.path / "keys" / name
        if not path.with_name(f"{name}.pub").exists():
            path.unlink(missing_ok=True)
            argv = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", comment, "-f", str(path)]
            _run(argv)
        return path.read_text(), path.with_name(f"{name}.pub").read_text().strip()

    def password(self, name: str) -> None:
        """Generate a password if it is missing; it is stored in the folder, and on the workers that need it."""
        if not (self.path / "keys" / name).exists():
            self.write(f"keys/{name}", secrets.token_hex(24))

    def seed(self, machine: dict[str, Any], files: dict[str, str]) -> None:
        """Write a worker's first-boot data, and accept the host key in it."""
        name = machine["name"]
        _, run_key = self.key("run", self.path.name)
        host_key, host_public = self.key(f"{name}.host", name)
        self.write(f"keys/{name}.known_hosts", f"{name} {host_public}\n")  # keys of an earlier worker have expired
        text = user_data(user=self.user, run_key=run_key, host_key=host_key, host_public=host_public, files=files)
        self.write(f"seed/{name}/user-data", text)
        self.write(f"seed/{name}/meta-data", json.dumps({"instance-id": name, "local-hostname": name}) + "\n")

    def record(self, machine: dict[str, Any]) -> bool:
        """Write a worker's settings, the inventory last, for others wait for it; return whether one is new."""
        name = machine["name"]
        config = ssh_config(machine, folder=self.path, user=self.user, options=self.options)
        hosts = {name: host_vars(machine, folder=self.path, user=self.user)}
        known = machine.get("known_hosts")
        texts = {
            **({f"keys/{name}.known_hosts": f"{name} {known}\n"} if known else {}),
            f"ssh/{name}.config": config,
            f"inventory/{name}.json": json.dumps({"kiln_machines": {"hosts": hosts}}, indent=1) + "\n",
        }
        changes = [self.write(path, text) for path, text in texts.items()]
        (self.path / "refused" / f"{name}.json").unlink(missing_ok=True)
        return any(changes)

    def one_of_each_name(self, machines: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Return the workers without those whose name another one has: the recorded one counts, else the first."""
        chosen: dict[str, dict[str, Any]] = {}
        for machine in machines:
            name = machine["name"]
            if name not in chosen or machine.get("id") == self._recorded_id(name):
                chosen[name] = machine
        return list(chosen.values())

    def _recorded_id(self, name: str) -> str:
        try:
            inventory = json.loads((self.path / "inventory" / f"{name}.json").read_text(encoding="utf-8"))
            return str(inventory["kiln_machines"]["hosts"][name]["kiln_machine"]["id"])
        except (FileNotFoundError, ValueError, KeyError, TypeError):
            return ""

    def unanswered(self) -> list[str]:
        """Return the workers that have first-boot data, but are neither recorded nor refused for certain."""
        names = sorted(file.parent.name for file in self.path.glob("seed/*/user-data"))
        return [
            name
            for name in names
            if not (self.path / "inventory" / f"{name}.json").exists() and not self._is_refused(name)
        ]

    def _is_refused(self, name: str) -> bool:
        try:
            refusal = json.loads((self.path / "refused" / f"{name}.json").read_text(encoding="utf-8"))
        except (FileNotFoundError, ValueError):
            return False
        return not refusal.get("unlisted")

    def forget(self, name: str) -> bool:
        """Close the connection to a worker, and delete its records; return whether there were some."""
        config = self.path / "ssh" / f"{name}.config"
        known = any(
            path.exists() for path in (config, self.path / "inventory" / f"{name}.json", self.path / "seed" / name)
        )
        if config.exists():
            argv = ["ssh", "-F", str(config), "-O", "exit", name]
            with contextlib.suppress(MissingProgram):  # without ssh there is no connection
                _run(argv, check=False)
        (self.path / "inventory" / f"{name}.json").unlink(missing_ok=True)
        config.unlink(missing_ok=True)
        shutil.rmtree(self.path / "seed" / name, ignore_errors=True)
        keys = self.path / "keys"
        files = [keys / f"{name}.{suffix}" for suffix in ("host", "host.pub", "known_hosts")]
        for file in (*files, *keys.glob(f"{name}.*.delete-server")):
            file.unlink(missing_ok=True)
        return known

    def forget_all(self) -> list[str]:
        """Forget every worker and the run's key."""
        names = sorted(
            {file.stem for place in ("inventory", "ssh", "seed") for file in self.path.glob(f"{place}/[!.]*")}
        )
        for name in names:
            self.forget(name)
        for name in ("keys/run", "keys/run.pub", "keys/cache", "cache.json"):
            (self.path / name).unlink(missing_ok=True)
        shutil.rmtree(kiln_ssh.sockets(self.path), ignore_errors=True)
        return names


def _run(argv: list[str], *, check: bool = True) -> None:
    """Run a program of OpenSSH. Raises MissingProgram when it is not installed."""
    try:
        subprocess.run(argv, check=check, stdin=subprocess.DEVNULL, capture_output=True)
    except FileNotFoundError as missing:
        packages = "openssh-client on Debian and Ubuntu, openssh-clients on Fedora"
        raise MissingProgram(f"{argv[0]} is not installed; the package is {packages}") from missing


def act(parameters: dict[str, Any]) -> list[str]:
    """Run the action of a playbook, and return the names of the workers for which something changed."""
    folder = Folder(Path(parameters["folder"]), user=parameters["user"], options=parameters["ssh_options"])
    machines = parameters["machines"]
    if parameters["state"] == "forgotten":
        names = parameters["names"]
        return [name for name in names if folder.forget(name)] if names else folder.forget_all()
    if parameters["state"] == "unanswered":
        return folder.unanswered()
    folder.make()
    files = {path: Path(source).read_text(encoding="utf-8") for path, source in parameters["files"].items()}
    files["/etc/kiln-lease"] = lease(first=parameters["lease"], last=parameters["expires"], at_the_end="poweroff")
    folder.key("run", folder.path.name)
    folder.password("cache")
    if parameters["state"] == "recorded":
        return [machine["name"] for machine in folder.one_of_each_name(machines) if folder.record(machine)]
    for machine in machines:
        if parameters["state"] == "seeded":
            folder.seed(machine, files)
        else:
            folder.write(f"refused/{machine['name']}.json", json.dumps(machine, indent=1) + "\n")
    return [machine["name"] for machine in machines]


def result(parameters: dict[str, Any]) -> dict[str, Any]:
    """Return the result of a task; the action plugin of this name calls it with its validated parameters."""
    try:
        names = act(parameters)
    except MissingProgram as missing:
        return {"failed": True, "msg": str(missing)}
    except (OSError, subprocess.SubprocessError) as failure:
        return {"failed": True, "msg": f"cannot write the run's folder {parameters['folder']}: {failure}"}
    return {"changed": bool(names) and parameters["state"] != "unanswered", "machines": names}

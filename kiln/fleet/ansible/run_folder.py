"""The folder of a run on the controller: keys, first-boot data, and the inventory of the workers.

The states of the action kiln_run, besides those of kiln_static:

- ``seeded`` creates the folder, the run's ssh key and the password of its cache, and for each worker a host key and
  cloud-init's user data.
- ``recorded`` writes the settings of ssh and Ansible for each worker; of two of the same name, those of the one that
  was recorded before.
- ``refused`` records the workers that a provider refused, with the reasons.
- ``unanswered`` returns the names of the workers whose request the provider may not have answered: the playbook that
  requested them was killed, or the provider did not list them.
- ``forgotten`` closes the connections to workers and deletes their records; without names, those of all workers, the
  run's key and the password.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shlex
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kiln.base import files, process
from kiln.base.errors import KilnError, MissingTool
from kiln.base.serialization import read_json_object
from kiln.fleet.ansible import ssh
from kiln.fleet.ansible.playbooks import recorded_machine, ssh_config_file

if TYPE_CHECKING:
    from collections.abc import Mapping

FOLDERS = ("keys", "ssh", "seed", "inventory", "refused", "collected")


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


def ssh_config(machine: Mapping[str, Any], *, folder: Path, user: str, options: Mapping[str, Any]) -> str:
    """Return the settings of ssh for a worker: only the run's key and the known host key, no forwarding."""
    name = machine["name"]
    settings = {
        "HostName": machine["address"],
        **ssh.settings(
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
        **ssh.shared(folder),
        **options,
    }
    return "Host *\n" + "".join(f"    {key} {value}\n" for key, value in settings.items())


def host_vars(machine: Mapping[str, Any], *, folder: Path, user: str) -> dict[str, Any]:
    """Return the settings of Ansible for a worker: ssh as configured, over the shared connection."""
    shared = " ".join(f"-o {key}={value}" for key, value in ssh.shared(folder).items())
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

    def __init__(self, path: Path, *, user: str, options: Mapping[str, Any]) -> None:
        self.path = path
        self.user = user
        self.options = options

    def make(self) -> None:
        """Create the folders, which only their owner can read."""
        for folder in (self.path, *(self.path / name for name in FOLDERS), ssh.sockets(self.path)):
            folder.mkdir(parents=True, exist_ok=True)
            folder.chmod(0o700)  # fails if another user owns the folder

    def write(self, name: str, text: str) -> bool:
        """Write a file atomically, for others may read the folder meanwhile; return whether it was another before."""
        target = self.path / name
        is_new = files.text_or_empty(target) != text
        if is_new:
            target.parent.mkdir(exist_ok=True)
            files.write_text(target, text, mode=0o600)
        return is_new

    def key(self, name: str, comment: str) -> tuple[str, str]:
        """Return an ssh key pair, generated if it is missing."""
        path = self.path / "keys" / name
        if not path.with_name(f"{name}.pub").exists():
            path.unlink(missing_ok=True)
            ssh.create_key_pair(path, comment, os.environ)
        public = path.with_name(f"{name}.pub").read_text(encoding="utf-8").strip()
        return path.read_text(encoding="utf-8"), public

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
        with contextlib.suppress(KeyError, TypeError):
            return str(recorded_machine(self.path, name)["id"])
        return ""

    def unanswered(self) -> list[str]:
        """Return the workers that have first-boot data, but are neither recorded nor refused for certain."""
        refusals = {path.stem: read_json_object(path) for path in self.path.glob("refused/*.json")}
        answered = {path.stem for path in self.path.glob("inventory/*.json")}
        answered |= {name for name, refusal in refusals.items() if refusal and not refusal.get("unlisted")}
        return sorted({path.parent.name for path in self.path.glob("seed/*/user-data")} - answered)

    def forget(self, name: str) -> bool:
        """Close the connection to a worker, and delete its records; return whether there were some."""
        keys, config = self.path / "keys", ssh_config_file(self.path, name)
        records = (self.path / "inventory" / f"{name}.json", config, self.path / "seed" / name)
        known = any(path.exists() for path in records)
        if config.exists():
            with contextlib.suppress(MissingTool):  # without ssh there is no connection
                process.capture(("ssh", "-F", config, "-O", "exit", name), env=os.environ)
        own_keys = (keys / f"{name}.{suffix}" for suffix in ("host", "host.pub", "known_hosts"))
        for path in (*records, *own_keys, *keys.glob(f"{name}.*.delete-server")):
            files.remove(path)
        return known

    def forget_all(self) -> list[str]:
        """Forget every worker and the run's key."""
        names = sorted(
            {file.stem for place in ("inventory", "ssh", "seed") for file in self.path.glob(f"{place}/[!.]*")}
        )
        for name in names:
            self.forget(name)
        for name in ("keys/run", "keys/run.pub", "keys/cache", "cache.json"):
            files.remove(self.path / name)
        shutil.rmtree(ssh.sockets(self.path), ignore_errors=True)
        return names


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
    except MissingTool as missing:
        return {"failed": True, "msg": str(missing)}
    except (OSError, KilnError) as failure:
        return {"failed": True, "msg": f"cannot write the run's folder {parameters['folder']}: {failure}"}
    return {"changed": bool(names) and parameters["state"] != "unanswered", "machines": names}

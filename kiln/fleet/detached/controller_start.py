"""Start a detached run: a machine is provisioned and prepared as a worker is, and becomes the controller."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kiln import process_runner
from kiln.errors import CredentialsRefused, MachinesUnknown, ProvisionRefused, SystemFault
from kiln.fleet.detached.attach_key import OPTIONS, ConfigInputHashes, RunKey
from kiln.fleet.playbook_runner import PlaybookRunner, PlaybookSite, read_json_object, ssh_config_file
from kiln.fleet.provider_playbook_runs import CREDENTIALS

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from kiln.fleet.detached.settings_sent_to_controller import ControllerSettings

SECONDS = 300.0
PLAYBOOKS = {"prepare.yml": "preparing it as a worker", "controller.yml": "making it the controller"}


def controller_run_name(run: str) -> str:
    """Return the name of the run that a controller belongs to: not that of its workers, which it terminates."""
    return f"{run}-controller"


def controller_machine_name(run: str) -> str:
    """Return the name of a controller."""
    return f"kiln-{run}-controller"


def create_ssh_key_pair(folder: Path, run: str, environment: Mapping[str, str]) -> tuple[str, str]:
    """Return a new pair of keys for a run, the private one first; no file of it remains."""
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    path = folder / "new-key"
    public = path.with_name("new-key.pub")
    try:
        path.unlink(missing_ok=True)
        argv = ("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", f"kiln-{run}", "-f", path)
        result = process_runner.capture(argv, env=environment)
        if not result.ok:
            raise SystemFault("ssh-keygen has made no key", why=result.tail)
        return path.read_text(encoding="utf-8"), public.read_text(encoding="utf-8").strip()
    finally:
        path.unlink(missing_ok=True)
        public.unlink(missing_ok=True)


def provision_controller(site: PlaybookSite, run: str, *, kind: str, say: Callable[[str], None]) -> None:
    """Create the controller's machine of a type, or claim an existing one, and prepare it.

    Raises:
        ProvisionRefused: when the provider has none.
        CredentialsRefused: when the provider does not accept the credentials.
        SystemFault: when it cannot be prepared.
    """
    playbooks, name = PlaybookRunner(site), controller_machine_name(run)
    request = {"name": name, "type": kind, "spot": False, "zone": ""}
    say("provisioning the controller")
    result = playbooks.run_playbook("provision.yml", variables={"kiln_machines": [request]})
    if not result.ok:
        refusal = read_json_object(site.folder / "refused" / f"{name}.json").get("reason", "")
        reason = str(refusal) or result.failure_reason("localhost")
        if CREDENTIALS.search(reason):
            raise CredentialsRefused("the provider does not accept the credentials", why=reason)
        raise ProvisionRefused("the provider refused the controller's machine", why=reason)
    for playbook, step in PLAYBOOKS.items():
        say(step)
        result = playbooks.run_playbook(playbook, worker=name)
        if not result.ok:
            raise SystemFault(
                "the controller could not be prepared", why=result.failure_reason(name), hint="see playbooks.log"
            )


def run_key_of_prepared_controller(
    site: PlaybookSite, run: str, private: str, inputs: Mapping[str, ConfigInputHashes], build_options: tuple[str, ...]
) -> RunKey:
    """Return the key of a run whose controller is prepared."""
    name = controller_machine_name(run)
    text = ssh_config_file(site.folder, name).read_text(encoding="utf-8")
    options = {words[0]: words[1].strip() for line in text.splitlines() if len(words := line.split(None, 1)) == 2}
    host_key = (site.folder / "keys" / f"{name}.known_hosts").read_text(encoding="utf-8")
    return RunKey(
        run=run,
        provider=str(site.variables["kiln_provider"]),
        machine=name,
        address=options["HostName"],
        port=int(options.get("Port", 22)),
        host_key=host_key.split(None, 1)[1].strip(),
        private_key=private,
        options={key: text for key, text in options.items() if key in OPTIONS - {"Port"}},
        inputs=inputs,
        build_options=build_options,
    )


def start_run_on_controller(site: PlaybookSite, settings: ControllerSettings) -> None:
    """Send the settings over standard input, never as arguments, and start the run.

    Raises:
        MachinesUnknown: when the controller cannot be reached.
    """
    name = controller_machine_name(settings.run)
    words = ("ssh", "-F", str(ssh_config_file(site.folder, name)), name, "sudo kiln-controller install")
    secrets = (*site.secrets, *settings.secrets)
    result = process_runner.run(
        words, env=site.marked_environment, stdin=settings.as_json(), timeout=SECONDS, secrets=secrets
    )
    if not result.ok:
        raise MachinesUnknown("the run could not be started on its controller", why=result.tail[-500:])

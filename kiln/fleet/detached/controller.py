"""The controller of a detached run: started with what it needs, and asked over ssh with the run's key."""

from __future__ import annotations

import contextlib
import json
import re
import shlex
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kiln.base import files as base_files
from kiln.base import process, serialization
from kiln.base.errors import (
    BrokenPackage,
    MachinesUnknown,
    ProvisionRefused,
    SystemFault,
    UsageError,
)
from kiln.base.serialization import from_json_values, read_json_object, to_json
from kiln.fleet.ansible import ssh
from kiln.fleet.ansible.fetch import size_limited_command
from kiln.fleet.ansible.playbooks import PlaybookRunner, PlaybookSite, ssh_config_file
from kiln.fleet.ansible.sessions import NO_CONNECTION
from kiln.fleet.answers import AnswerKind, classify, credentials_error
from kiln.fleet.state import FAULTS, RETRY

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from kiln.recipe.feedstock import Feedstock


HOME = "/var/lib/kiln/controller"
# The variables of each provider's modules; whoever runs the workers needs no others, and no token for publishing.
# Those of AWS are named one by one, since the prefix is that of its other services' tokens, too, such as Bedrock's.
CREDENTIALS = {
    "aws": re.compile(
        r"AWS_(?:ACCESS_KEY_ID|SECRET_ACCESS_KEY|SESSION_TOKEN|SECURITY_TOKEN|CREDENTIAL_EXPIRATION|REGION"
        r"|DEFAULT_REGION|URL|ENDPOINT_URL(?:_EC2|_STS)?|CA_BUNDLE|USE_FIPS_ENDPOINT|USE_DUALSTACK_ENDPOINT"
        r"|STS_REGIONAL_ENDPOINTS|MAX_ATTEMPTS|RETRY_MODE)"
    ),
    "openstack": re.compile(r"OS_\w+"),
    "static": re.compile(r"(?!)"),
}
REQUIRED = {"aws": ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"), "openstack": ("OS_AUTH_URL",), "static": ()}
HINTS = {
    "aws": 'eval "$(aws configure export-credentials --format env)" sets them from your profile',
    "openstack": "source the RC file of your project; clouds.yaml is not sent",
}
CERTIFICATES = frozenset({"OS_CACERT", "AWS_CA_BUNDLE"})  # whose values are files
# Their values are files, or names in files, that the controller does not have.
ELSEWHERE = frozenset(
    {
        *("AWS_PROFILE", "AWS_DEFAULT_PROFILE", "AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"),
        *("AWS_WEB_IDENTITY_TOKEN_FILE", "OS_CLOUD", "OS_CLIENT_CONFIG_FILE"),
    }
)
LARGEST = 1 << 20  # bytes of a file that is sent with the settings


@dataclass(frozen=True, slots=True, kw_only=True)
class ControllerSettings:
    """The data that a controller gets over its standard input.

    ``arguments`` are those of kiln, ``environment`` its variables, credentials among them; ``files`` are in the
    controller's own folder, ``feedstock`` in that of the feedstock. ``key`` is the public key of the run, ``keep`` the
    seconds for which results wait there.
    """

    run: str
    arguments: tuple[str, ...]
    key: str
    keep: float
    environment: Mapping[str, str] = field(repr=False)
    files: Mapping[str, str] = field(default_factory=dict, repr=False)
    feedstock: Mapping[str, str] = field(default_factory=dict)

    def as_json(self) -> str:
        """Return the settings as `kiln-controller install` reads them."""
        return json.dumps(to_json(self))

    @property
    def secrets(self) -> tuple[str, ...]:
        """The contents of the files, which may be keys or passwords, for the mask."""
        return tuple(text for text in self.files.values() if "PRIVATE KEY" in text)


def credentials_to_send(provider: str, environment: Mapping[str, str]) -> tuple[dict[str, str], dict[str, str]]:
    """Return the variables that the workers' provider needs, and the files of certificates that they name.

    Raises:
        UsageError: when the credentials are not in the environment.
    """
    missing = [name for name in REQUIRED[provider] if not environment.get(name)]
    if missing:
        raise UsageError(
            f"--detach needs the credentials of {provider} in the environment",
            why=f"{', '.join(missing)} is not set, and files of your home are not sent",
            hint=HINTS[provider],
        )
    credentials = {
        name: text
        for name, text in environment.items()
        if CREDENTIALS[provider].fullmatch(name) and name not in ELSEWHERE and text
    }
    names = CERTIFICATES & set(credentials)
    certificates = {f"certificates/{name}": read_file_to_send(Path(credentials[name])) for name in names}
    return {**credentials, **{name: f"{HOME}/certificates/{name}" for name in names}}, certificates


def read_file_to_send(path: Path) -> str:
    """Return the text of a file that is sent.

    Raises:
        UsageError: when it cannot be read, or is too large.
    """
    try:
        if path.stat().st_size > LARGEST:
            raise UsageError(f"{path} is too large to be sent to the controller", why=f"{LARGEST >> 20} MB at most")
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} cannot be sent to the controller", why=str(error)) from error


NAME = "key.json"
USER = "kiln"
RUN = re.compile(r"[a-z0-9][a-z0-9-]{0,19}")
ADDRESS = re.compile(r"[A-Za-z0-9_.:\[\]%-]+")
# Of ssh's options those that say how a host is reached; others could run commands here. ssh writes ProxyJump into the
# command line of a shell.
OPTIONS = frozenset({"ProxyJump", "Port", "AddressFamily"})
VALUE = re.compile(r'"?[\w.:\[\]@/%+~][\w.:\[\]@/%+~,-]*"?', re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigInputHashes:
    """The hashes of a config's inputs when the run began, and the configs that share its compile."""

    group: str
    shared: str
    key: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RunKey:
    """The access to a run's controller: ``private_key`` allows what ``kiln-controller gate`` does, and nothing else.

    ``provider`` and ``machine`` are the controller's, ``options`` are further ones of ssh. ``inputs`` are those of
    each config that the run builds, with the ``build_options`` of ``kiln build``.
    """

    run: str
    provider: str
    machine: str
    address: str
    port: int
    host_key: str
    private_key: str = field(repr=False)
    options: Mapping[str, str] = field(default_factory=dict)
    inputs: Mapping[str, ConfigInputHashes] = field(default_factory=dict)
    build_options: tuple[str, ...] = ()

    def write_key_file(self, path: Path) -> None:
        """Write the file, which its owner alone can read."""
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        base_files.write_text(path, json.dumps(to_json(self), indent=1) + "\n", mode=0o600)


def read_run_key(path: Path) -> RunKey:
    """Read the key of a run from its file, or from the run's folder.

    Raises:
        UsageError: when it cannot be read, or is invalid.
    """
    path = path / NAME if path.is_dir() else path
    try:
        key = from_json_values(RunKey, json.loads(path.read_text(encoding="utf-8")), (ConfigInputHashes,))
    except (OSError, ValueError, TypeError) as error:
        raise UsageError(
            f"{path} is not the key of a detached run",
            why=str(error),
            hint=f"kiln fleet run --detach writes it: build_artifacts/fleet/RUN/{NAME}",
        ) from error
    if fault := _invalid_key_reason(key):
        raise UsageError(f"{path} is not the key of a detached run", why=fault)
    return key


def _invalid_key_reason(key: RunKey) -> str:
    """Return why a key is invalid: its fields become arguments of ssh, and names of files."""
    if not RUN.fullmatch(key.run):
        return f"invalid run {key.run!r}"
    if not ADDRESS.fullmatch(key.address) or key.address.startswith("-"):
        return f"invalid address {key.address!r}"
    if "\n" in key.host_key.strip():
        return "the host key is not one line"
    if unknown := set(key.options) - OPTIONS:
        return f"unknown options of ssh: {', '.join(sorted(unknown))}"
    for name, text in key.options.items():
        if not VALUE.fullmatch(text):
            return f"invalid {name} {text!r}"
    return ""


def find_run_keys(feedstock: Feedstock) -> tuple[RunKey, ...]:
    """Return the keys of a feedstock's detached runs, those that are collected excepted."""
    keys = []
    for path in sorted(feedstock.artifacts.glob(f"fleet/*/{NAME}")):
        with contextlib.suppress(UsageError):
            keys.append(read_run_key(path))
    return tuple(keys)


def key_of_run(feedstock: Feedstock, run: str | None) -> RunKey:
    """Return the key of a feedstock's detached run; without a name, of the only one.

    Raises:
        UsageError: when none exists, or several and none was named.
    """
    keys = find_run_keys(feedstock)
    matches = [key for key in keys if run in {None, key.run}]
    if len(matches) == 1:
        return matches[0]
    names = ", ".join(key.run for key in keys)
    if matches:
        raise UsageError("no RUN given, and several fleet runs are detached", hint=f"name one of {names}")
    what = "this feedstock has no detached fleet run" if run is None else f"no detached fleet run {run!r} here"
    raise UsageError(
        what, hint=f"there is {names}" if names else "kiln fleet run --detach starts one; elsewhere use --key FILE"
    )


def remove_run_key(folder: Path) -> None:
    """Delete the key of a run that is collected."""
    base_files.remove(folder / NAME)


START_SECONDS = 300.0
PLAYBOOKS = {"prepare.yml": "preparing it as a worker", "controller.yml": "making it the controller"}


def controller_run_name(run: str) -> str:
    """Return the name of the run that a controller belongs to: not that of its workers, which it terminates."""
    return f"{run}-controller"


def controller_machine_name(run: str) -> str:
    """Return the name of a controller."""
    return f"kiln-{run}-controller"


def create_ssh_key_pair(run: str, environment: Mapping[str, str]) -> tuple[str, str]:
    """Return a new pair of keys for a run, the private one first; no file of it remains."""
    with tempfile.TemporaryDirectory(prefix="kiln-key-") as folder:
        path = Path(folder) / "key"
        ssh.create_key_pair(path, f"kiln-{run}", environment)
        return path.read_text(encoding="utf-8"), path.with_name("key.pub").read_text(encoding="utf-8").strip()


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
    for delay in (*(RETRY * 2**number for number in range(FAULTS - 1)), None):
        result = playbooks.run_playbook("provision.yml", variables={"kiln_machines": [request]})
        if result.ok:
            break
        refusal = read_json_object(site.folder / "refused" / f"{name}.json").get("reason", "")
        reason = str(refusal) or result.failure_reason("localhost")
        if classify(reason).kind is AnswerKind.TRANSIENT and delay is not None:
            say(f"the provider cannot at the moment, asking again in {delay:.0f} s: {reason}")
            base_files.remove(site.folder / "refused" / f"{name}.json")
            time.sleep(delay)
            continue
        if (answer := classify(reason)).refuses_credentials:
            raise credentials_error(reason)
        raise ProvisionRefused("the provider refused the controller's machine", why=reason, hint=answer.cure)
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
    result = process.run(
        words, env=site.marked_environment, stdin=settings.as_json(), timeout=START_SECONDS, secrets=secrets
    )
    if not result.ok:
        raise MachinesUnknown("the run could not be started on its controller", why=result.tail[-500:])


ANSWER_SECONDS = 120.0  # for an answer
LONGEST_LOG = 64 << 20  # bytes of a log, and of the run's state
LONGEST_ANSWER = 64 << 20  # bytes, of which a run of a thousand configs needs a few millions


class ControllerClient:
    """A run's controller; ``words`` is the command line of ssh that reaches it."""

    def __init__(self, key: RunKey, words: Sequence[str], environment: Mapping[str, str]) -> None:
        self.key = key
        self.words = tuple(words)
        self.environment = environment

    def run_state(self) -> dict[str, Any]:
        """Return the state of the run."""
        return self._request_json("state")

    def export_results_on_controller(self) -> dict[str, Any]:
        """Have the results gathered for `fetch_exported_files`, and return the state of the run."""
        return self._request_json("export")

    def send_request(self, request: str) -> process.ProcessResult:
        """Have something done, such as the run stopped (``stop``), and return the answer; raises MachinesUnknown."""
        return self._require_success(
            process.capture((*self.words, request), env=self.environment, timeout=ANSWER_SECONDS, most=LONGEST_ANSWER)
        )

    def confirm_collected(self) -> bool:
        """Say that all is collected, which ends the controller; return whether it waits for others who fetch it."""
        return serialization.decode(self.send_request("collected").stdout.strip() or "{}") == {"waits": True}

    def is_answering(self) -> bool:
        """Return whether the controller still lets the run's key in."""
        return process.capture((*self.words, "state"), env=self.environment, timeout=ANSWER_SECONDS).ok

    def stream_config_log(self, config: str, on_line: Callable[[str], None]) -> None:
        """Send the lines of a config's latest log; raises MachinesUnknown."""
        self._require_success(
            process.run((*self.words, f"log {shlex.quote(config)}"), env=self.environment, on_line=on_line)
        )

    def stream_run_messages(self, on_message: Callable[[dict[str, Any]], None]) -> process.ProcessResult:
        """Send the messages of the run as they arrive, until the run or the connection ends."""

        def pass_on_message(line: str) -> None:
            message = serialization.decode(line)
            if message is not None and "kind" in message:
                on_message(message)

        return process.run((*self.words, "follow"), env=self.environment, on_line=pass_on_message)

    def fetch_exported_files(self, folder: Path, files: Mapping[str, int | None]) -> None:
        """Copy what was exported into a folder; a copy that was interrupted goes on.

        ``files`` are the announced ones by their paths, with the bytes of packages; others are not fetched. One that is
        longer than each package, and than a log may be, is left out; the system stops a sender that sends more.

        Raises:
            DiskFull: the packages would fill the disk.
            MachinesUnknown: when it failed.
        """
        sizes = [size for size in files.values() if size is not None]
        limit = max((LONGEST_LOG, *sizes))
        base_files.require_disk_space(folder, sum(sizes) + LONGEST_LOG, for_what="collecting the packages")
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        shell, host = shlex.join(self.words[:-1]), self.words[-1]
        options = ("--times", "--partial", "--timeout=120", f"--max-size={limit}", f"--rsh={shell}")
        listed = ("--files-from=-", "--ignore-missing-args")
        argv = size_limited_command(("rsync", *options, *listed, f"{host}:export/", f"{folder}/"), limit)
        self._require_success(process.capture(argv, env=self.environment, stdin="".join(f"{name}\n" for name in files)))

    def _request_json(self, request: str) -> dict[str, Any]:
        try:
            answer = json.loads(self.send_request(request).stdout)
        except ValueError as error:
            what = f"the controller of the run {self.key.run} sent an invalid answer"
            raise BrokenPackage(what, why=str(error)) from error
        if not isinstance(answer, dict):
            raise BrokenPackage(f"the controller of the run {self.key.run} sent an invalid answer")
        return answer

    def _require_success(self, result: process.ProcessResult) -> process.ProcessResult:
        if result.ok:
            return result
        where = f"{self.key.address}:{self.key.port}"
        if result.exit_code in NO_CONNECTION:
            what = f"the controller of the run {self.key.run} cannot be reached ({where})"
            hint = "see whether it still exists: it ends some time after the run, and when its packages are collected"
            raise MachinesUnknown(what, why=result.tail[-500:], hint=hint)
        raise MachinesUnknown(f"the controller of the run {self.key.run} ({where}) refused", why=result.tail[-500:])


@contextlib.contextmanager
def controller_connection(key: RunKey, environment: Mapping[str, str]) -> Iterator[ControllerClient]:
    """Yield a run's controller; its private key is in a folder of its own meanwhile."""
    with tempfile.TemporaryDirectory(prefix="kiln-key-") as name:
        folder = Path(name)
        private, hosts = folder / "key", folder / "known_hosts"
        base_files.write_text(private, key.private_key, mode=0o600)
        hosts.write_text(f"{key.machine} {key.host_key.strip()}\n", encoding="utf-8")
        yield ControllerClient(key, ssh_command_line(key, private=private, hosts=hosts), environment)


def ssh_command_line(key: RunKey, *, private: Path, hosts: Path) -> tuple[str, ...]:
    """Return the command line of ssh: one key, one host key, nothing from the user's own files."""
    settings = ssh.settings(user=USER, port=key.port, key=private, known_hosts=hosts, alias=key.machine)
    options = {**settings, **key.options, "UpdateHostKeys": "no", "ControlPath": "none"}
    words = ("ssh", "-F", "/dev/null", "-T", "-x", "-a", *(f"-o{name}={text}" for name, text in options.items()))
    return (*words, key.address)

"""Spot workers that are taken back: the whole path of a notice, from the instance's metadata to the next worker.

Two configs are compiled by Bazel on two workers, containers that boot as machines do. One worker is in its compile, the
other in the last step, when both read in their metadata that they end in a while; then they are killed.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from kiln.base import files
from kiln.container.engine import choose_engine
from kiln.fleet.model import JobState
from kiln.image import worker as image_worker
from kiln.image.worker import AFTER, BEFORE, UNPACK
from tests import instance_metadata, shared_inputs
from tests.integration.fleet.helpers import containers, ledgered
from tests.trials.fleet import packages
from tests.trials.kills import ENVIRONMENT, ROOT
from tests.waiting import until

if TYPE_CHECKING:
    import random
    from collections.abc import Iterator, Mapping, Sequence

NAME = "spot notices by the metadata's own address"
IMAGE = "localhost/kiln-worker-bazel:bookworm"
BAZEL = ("bazel-bootstrap", "bazel-rules-cc", "bazel-rules-java", "bazel-rules-proto")
ADDRESS = "169.254.169.254"  # of EC2's metadata, in the network of each worker
NOTICE = 60  # seconds between a notice and the worker's end: AWS gives 120
CONFIGS, ACTIONS = ("linux_64_halfone", "linux_64_halftwo"), 8
SEEN = "/seen"  # a folder of this computer on all workers: `events` has what they do, `held-*` name those that wait
HOLD = f"while grep -qsx $(hostname) {SEEN}/held-%s; do sleep 0.2; done"
META = """\
package: {name: counted, version: '1'}
source: {path: source}
outputs:
  - name: counted-first
    script: first.sh
    build: {string: "{{ half }}"}
  - name: counted-last
    script: last.sh
    build: {string: "{{ half }}"}
"""
BUILD = f"""\
set -e
echo "$(hostname) $half compile" >>{SEEN}/events
bazel() {{ command bazel --output_user_root="$SRC_DIR/bazel" "$@"; }}
trap 'bazel shutdown' EXIT
bazel build --disk_cache="$BAZEL_DISK_CACHE" --build_event_json_file="$BAZEL_BUILD_EVENTS" --jobs=1 \\
    --spawn_strategy=local --action_env=HALF="$half" //:all
mkdir dist
cp bazel-bin/*.txt dist
"""
# In the first config's compile, and in the last step of the second, a worker waits while it is held.
ACTION = f"""\
echo $$(hostname) $$HALF begin-part%d >>{SEEN}/events; sleep 0.5; \
if [ $$HALF = one ]; then {HOLD.replace("$", "$$") % "one"}; fi; \
echo %d >$@; echo $$(hostname) $$HALF end-part%d >>{SEEN}/events"""
RULES = f"""\
[genrule(
    name = "part%d" % part,
    outs = ["part%d.txt" % part],
    cmd = {json.dumps(ACTION)} % (part, part, part),
) for part in range({ACTIONS})]
"""
PACK = f"""\
set -e
echo "$(hostname) $half STEP" >>{SEEN}/events
if [ STEP-$half = last-two ]; then {HOLD % "two"}; fi
mkdir -p "$PREFIX/STEP" && cp "$SRC_DIR"/dist/*.txt "$PREFIX/STEP"
"""
# Only AWS has spot workers: the command for other providers refuses the option.
SPOT = """\
import sys
from kiln.cli.fleet import options
options.OPTIONS_OF["spot"] = ("aws", "local")
from kiln.__main__ import main
main()
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenEvent:
    """A worker's action: it began or ended an action of a config's half, or began a step."""

    worker: str
    half: str
    what: str


def feedstock(folder: Path) -> Path:
    """Write the feedstock, whose actions and steps report that they run."""
    contents = {
        "recipe/meta.yaml": META,
        "recipe/build.sh": BUILD,
        "recipe/first.sh": PACK.replace("STEP", "first"),
        "recipe/last.sh": PACK.replace("STEP", "last"),
        "recipe/source/WORKSPACE": "",
        "recipe/source/BUILD": RULES,
        "conda-forge.yml": "provider: {linux_64: github_actions}\n",
        **{f".ci_support/{name}.yaml": f"half:\n- {name[-3:]}\ntarget_platform:\n- linux-64\n" for name in CONFIGS},
    }
    for name, text in contents.items():
        files.write_text(folder / name, text)
    return folder


def provide_image() -> None:
    """Have the image of workers with Debian's Bazel, which takes some minutes once."""
    engine = choose_engine("docker", env={**ENVIRONMENT}).engine
    assert engine is not None
    below = image_worker.worker_recipe()
    recipe = replace(
        below, name="kiln-worker-bazel", packages=BAZEL, below=below, setup=(UNPACK, BEFORE), hooks=AFTER[:2]
    )
    shared_inputs.provide_image(engine, recipe, IMAGE)


def variables(seen: Path) -> str:
    """Return the variables of the playbooks: workers with Bazel and ``seen``, which have metadata as EC2's have."""
    seen.mkdir(mode=0o777)
    seen.chmod(0o777)
    (seen / "events").touch()
    (seen / "events").chmod(0o666)
    told = {"kiln_local_image": IMAGE, "kiln_local_options": [f"--volume={seen}:{SEEN}"]}
    path = seen.with_name("vars.json")
    path.write_text(json.dumps({**told, "kiln_metadata_address": f"http://{ADDRESS}"}))
    return str(path)


@contextmanager
def metadata_of(worker: str, notice: Path) -> Iterator[None]:
    """Serve a worker its metadata at their usual address, within its own network; ``notice`` is in ``SEEN``."""
    serve = f"ip address add {ADDRESS}/32 dev lo && exec python3 /metadata.py {ADDRESS} 80 {SEEN}/{notice.name}"
    program = Path(instance_metadata.__file__)
    words = (
        "docker",
        "run",
        "--detach",
        "--rm",
        "--pull=never",
        f"--network=container:{worker}",
        "--cap-add=NET_ADMIN",
    )
    mounts = (f"--volume={program}:/metadata.py:ro", f"--volume={notice.parent}:{SEEN}:ro")
    begun = (*words, *mounts, "--entrypoint=sh", image_worker.worker_recipe().tag, "-c", serve)
    name = subprocess.run(begun, check=True, capture_output=True, text=True).stdout.strip()
    try:
        yield
    finally:
        subprocess.run(("docker", "rm", "--force", name), check=False, capture_output=True)


def events(seen: Path) -> list[SeenEvent]:
    """Return what the workers did so far."""
    lines = [line.split() for line in (seen / "events").read_text().splitlines()]
    return [SeenEvent(worker=worker, half=half, what=what) for worker, half, what in lines]


def ended_actions(seen: Path, half: str) -> int:
    """Return how many actions of a config have ended."""
    return sum(event.half == half and event.what.startswith("end") for event in events(seen))


def hold(seen: Path, half: str, workers: Sequence[str]) -> None:
    """Have workers wait in what they do for a config."""
    files.write_text(seen / f"held-{half}", "".join(f"{worker}\n" for worker in workers))


def run_words(root: Path, told: str, *more: str) -> tuple[str, ...]:
    """Return the command that builds the feedstock on two spot workers."""
    words = (sys.executable, "-c", SPOT, "-C", str(root), "fleet", "run", *CONFIGS, "--provider", "local", "--spot")
    return (*words, "--workers", "2", "--container", "none", "--vars", told, *more)


def undisturbed(place: Path) -> Mapping[str, str]:
    """Return the packages of a run without notices."""
    root = feedstock(place / "counted")
    words = run_words(root, variables(place / "seen"))
    ended = subprocess.run(words, cwd=ROOT, env=ENVIRONMENT, check=False, capture_output=True, text=True, timeout=600)
    assert ended.returncode == 0, ended.stderr
    return packages(root)


@dataclass(frozen=True, slots=True, kw_only=True)
class SpotOutcome:
    """The end of a run with notices: the feedstock, the second of the notices, the exit code, and what went wrong."""

    root: Path
    moment: float
    code: int
    expected: Mapping[str, str]
    problem: str


def spot_trial(place: Path, dice: random.Random) -> SpotOutcome:
    """Run without notices, then with them."""
    provide_image()
    expected, root, seen = undisturbed(place / "undisturbed"), feedstock(place / "counted"), place / "seen"
    words = run_words(root, variables(seen), "--poll", "1s", "--unreachable-timeout", "10s")
    log, began = place / "output.txt", time.monotonic()
    with log.open("w") as file, subprocess.Popen(words, cwd=ROOT, env=ENVIRONMENT, stdout=file, stderr=file) as process:
        try:
            doomed, killed = disturbed(root, seen, process, dice)
            moment = time.monotonic() - began - NOTICE
            code = process.wait(timeout=600)
        finally:
            process.kill()
    jobs = [job for run in ledgered(root) for job in run.jobs]
    reclaimed = sorted(job.worker for job in jobs if job.reclaimed and job.state is JobState.LOST)
    problems = faults(events(seen), doomed)
    problems += [f"the ledger has {reclaimed}"] if reclaimed != doomed else []
    problems += [f"expected were {sorted(expected)}"] if len(expected) != 2 * len(CONFIGS) else []
    problems += [log.read_text()[-3000:]] if code or problems else []
    terminated = len(doomed) - len(killed)
    print(f"{len(killed)} killed, {terminated} terminated before; {quantities(events(seen), doomed)}", file=sys.stderr)
    return SpotOutcome(root=root, moment=moment, code=code, expected=expected, problem="\n".join(problems))


def quantities(done: Sequence[SeenEvent], doomed: Sequence[str]) -> str:
    """Return how many actions of each config ended before and after the notices."""
    texts = []
    for half in ("one", "two"):
        ends = [event.worker in doomed for event in done if event.half == half and event.what.startswith("end")]
        texts.append(f"{half}: {sum(ends)} actions before, {len(ends) - sum(ends)} after")
    return ", ".join(texts)


def disturbed(
    root: Path, seen: Path, process: subprocess.Popen[bytes], dice: random.Random
) -> tuple[list[str], list[str]]:
    """Give both workers notice while one compiles and one is in its last step, and kill them at their end."""
    until(lambda: len(containers(root)) == 2, "two workers", process, pause=0.5)
    doomed = sorted(containers(root))
    actions = dice.randint(1, ACTIONS - 2)
    with ExitStack() as stack:
        for worker in doomed:
            stack.enter_context(metadata_of(worker, seen / f"notice-{worker}"))

        hold(seen, "two", doomed)
        until(lambda: ended_actions(seen, "one") >= actions, f"{actions} actions", process)
        hold(seen, "one", doomed)
        until(lambda: any(event.half == "two" and event.what == "last" for event in events(seen)), "a step", process)
        when = time.time() + NOTICE
        text = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(when))
        for worker in doomed:
            files.write_text(seen / f"notice-{worker}", json.dumps({"action": "terminate", "time": text}))
        while time.time() < when and set(doomed) & set(containers(root)):
            time.sleep(0.5)
        kills = [subprocess.run(("docker", "kill", worker), check=False, capture_output=True) for worker in doomed]
    return doomed, [worker for worker, kill in zip(doomed, kills, strict=True) if not kill.returncode]


def faults(done: Sequence[SeenEvent], doomed: Sequence[str]) -> list[str]:
    """Return what was done twice, or not at all."""
    problems = []
    before = [event for event in done if event.worker in doomed]
    after = [event for event in done if event.worker not in doomed]
    for event in before:
        ended = event.what.startswith("end") or (event.half, event.what) in {("two", "compile"), ("two", "first")}
        again = event.what.replace("end-", "begin-")
        if ended and any((other.half, other.what) == (event.half, again) for other in after):
            problems.append(f"{event.half}: {again} again")
    for half in ("one", "two"):
        ends = {event.what for event in done if event.half == half and event.what.startswith("end")}
        if len(ends) != ACTIONS or not any(event.half == half and event.what == "last" for event in after):
            problems.append(f"{half} was not continued: {[event for event in after if event.half == half]}")
    return problems

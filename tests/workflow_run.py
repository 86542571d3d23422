"""A run of a workflow without GitHub: each job on a machine of its own, its scripts in order, artifacts as folders.

It does what GitHub's documentation says of conditions, matrices, called workflows, outputs, artifacts and caches, as
far as the workflows that kiln writes use them; whatever else is in a workflow is an error. Nothing of a script is
replaced: a machine differs from GitHub's by the programs in its PATH.
"""

from __future__ import annotations

import itertools
import os
import re
import shutil
import subprocess
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kiln.base import yaml
from tests.workflow_expressions import Contexts, as_text, holds, value_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

SUCCESS, FAILURE, SKIPPED = "success", "failure", "skipped"
SECONDS = 300  # the longest time of a step here
FORBIDDEN = re.compile(r'[":<>|*?\r\n\\/]')  # in the name of an artifact
TYPES = {"string": str, "number": int, "boolean": bool}
JOB_KEYS = {
    *("name", "runs-on", "timeout-minutes", "strategy", "env", "steps", "needs", "if", "outputs"),
    *("permissions", "environment"),
}
STEP_KEYS = {"name", "id", "if", "uses", "with", "run", "env", "timeout-minutes"}


@dataclass(slots=True, kw_only=True)
class WorkflowRun:
    """A run on a commit of a repository: ``secrets`` by environment, the repository's own under no name.

    ``identity`` are the variables of jobs with ``id-token: write``. ``machine`` prepares the checkout of each job,
    ``before_step`` may change a step's variables and the machine's folder for temporary files.
    """

    folder: Path
    repository: Path
    variables: Mapping[str, str]
    secrets: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    identity: Mapping[str, str] = field(default_factory=dict)
    event: str = "push"
    ref: str = "refs/heads/main"
    machine: Callable[[Path], None] = lambda _: None
    before_step: Callable[[str, dict[str, str], Path], None] = lambda *_: None
    logs: list[str] = field(default_factory=list)
    results: dict[str, str] = field(default_factory=dict)
    summaries: list[str] = field(default_factory=list)
    output: dict[str, str] = field(default_factory=dict)

    def run(self, name: str) -> str:
        """Run a workflow, and return its result."""
        secrets = dict(self.secrets.get("", {}))
        return self._workflow(name, path="", inputs={}, secrets=secrets, rights={"contents": "read"})

    def log(self) -> str:
        """Return what each step came to, and the last lines of each script."""
        parts = (f"--- {name}\n{text[-3000:]}" for name, text in self.output.items() if text)
        return "\n".join([*self.logs, *parts, str(self.results)])

    def artifacts(self) -> list[str]:
        """Return the names of all artifacts."""
        return sorted(path.name for path in (self.folder / "artifacts").iterdir())

    # Workflows and jobs

    def _workflow(self, name: str, *, path: str, inputs: dict[str, Any], secrets: dict[str, str], rights: Any) -> str:
        text = (self.repository / ".github" / "workflows" / name).read_text()
        whole = yaml.load(text)
        assert set(whole) <= {"name", True, "permissions", "concurrency", "jobs"}, set(whole)
        assert whole["permissions"] == rights, "a called workflow cannot have more rights"
        for value in whole.get("concurrency", {}).values():
            assert value_of(value, Contexts(values={"github": self._github()})) != ""
        if path:
            self._check_call(whole[True], inputs, secrets)
        jobs: dict[str, Any] = dict(whole["jobs"])
        done: dict[str, str] = {}
        outputs: dict[str, dict[str, str]] = {}
        while jobs:
            job_id = next(each for each in jobs if set(_needs(jobs[each])) <= done.keys())
            job = jobs.pop(job_id)
            needs = {each: {"result": done[each], "outputs": outputs[each]} for each in _needs(job)}
            ancestors = _ancestors(job_id, whole["jobs"])
            values = {"github": self._github(), "needs": needs, "inputs": inputs, "secrets": secrets}
            status = _status({done[each] for each in ancestors} | self._skipped_in(path, ancestors))
            if not holds(job.get("if"), Contexts(values=values, status=status)):
                done[job_id], outputs[job_id] = SKIPPED, {}
            else:
                done[job_id], outputs[job_id] = self._matrix(f"{path}{job_id}", job, values)
            self.results[f"{path}{job_id}"] = done[job_id]
        return FAILURE if FAILURE in done.values() else SUCCESS

    def _skipped_in(self, path: str, ancestors: set[str]) -> set[str]:
        """Return the results of the jobs in called workflows: GitHub looks at these, too, for ``success()``."""
        prefixes = tuple(f"{path}{each}/" for each in ancestors)
        return {result for name, result in self.results.items() if name.startswith(prefixes)}

    def _check_call(self, triggers: Any, inputs: dict[str, Any], secrets: dict[str, str]) -> None:
        declared = (triggers["workflow_call"] or {}).get("inputs", {})
        assert set(inputs) <= set(declared), "an unknown input"
        for name, declaration in declared.items():
            assert name in inputs or not declaration["required"], f"the input {name} is missing"
            assert type(inputs[name]) is TYPES[declaration["type"]], f"{name}: {inputs[name]!r}"
        assert set(secrets) <= set((triggers["workflow_call"] or {}).get("secrets", {})), "an unknown secret"

    def _matrix(self, name: str, job: dict[str, Any], values: dict[str, Any]) -> tuple[str, dict[str, str]]:
        strategy = job.get("strategy", {"matrix": {"include": [{}]}, "fail-fast": False})
        assert strategy["fail-fast"] is False
        assert len(strategy["matrix"]["include"]) <= 256
        results: list[str] = []
        outputs: dict[str, str] = {}
        for number, combination in enumerate(strategy["matrix"]["include"], 1):
            contexts = {**values, "matrix": combination}
            label = f"{name}/{number}" if "strategy" in job else name
            result, outputs = self._call(label, job, contexts) if "uses" in job else self.job(label, job, contexts)
            results.append(result)
        return (FAILURE if FAILURE in results else SUCCESS), outputs

    def _call(self, name: str, job: dict[str, Any], values: dict[str, Any]) -> tuple[str, dict[str, str]]:
        assert set(job) <= {"name", "needs", "strategy", "uses", "with", "secrets", "if"}, set(job)
        contexts = Contexts(values=values)
        inputs = {key: value_of(value, contexts) for key, value in job.get("with", {}).items()}
        secrets = {key: value_of(value, contexts) for key, value in job.get("secrets", {}).items()}
        file = job["uses"].removeprefix("./.github/workflows/")
        rights = {"contents": "read"}
        return self._workflow(file, path=f"{name}/", inputs=inputs, secrets=secrets, rights=rights), {}

    def job(self, name: str, job: dict[str, Any], values: dict[str, Any]) -> tuple[str, dict[str, str]]:
        """Run the steps of a job on a new machine; return its result and its outputs."""
        assert set(job) <= JOB_KEYS, set(job) - JOB_KEYS
        workspace, temporary = self.folder / "work" / "repo", self.folder / "temporary"
        for folder in (workspace, temporary):  # each job has a new machine, with the same paths
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(parents=True)
        secrets = {**values["secrets"], **self.secrets.get(job.get("environment", ""), {})}
        machine = _Machine(
            run=self,
            name=name,
            workspace=workspace,
            temporary=temporary,
            values={**values, "secrets": secrets, "steps": {}},
            variables=self._variables(workspace, temporary, job),
        )
        contexts = machine.contexts()
        assert value_of(job["runs-on"], contexts)
        machine.variables |= {key: as_text(value_of(value, contexts)) for key, value in job.get("env", {}).items()}
        for step in job["steps"]:
            machine.step(step)
        machine.end()
        outputs = {key: as_text(value_of(value, machine.contexts())) for key, value in job.get("outputs", {}).items()}
        return (SUCCESS if machine.status["success"] else FAILURE), outputs

    def _github(self) -> dict[str, Any]:
        return {
            "event_name": self.event,
            "event": {"pull_request": None},
            "ref": self.ref,
            "ref_name": self.ref.removeprefix("refs/heads/"),
            "repository": "owner/feedstock",
            "run_id": 4711,
            "server_url": "https://example.org",
            "sha": self.sha,
            "workflow": "build",
        }

    @property
    def sha(self) -> str:
        """The commit of the repository."""
        words = ("git", "rev-parse", "HEAD")
        return subprocess.run(words, cwd=self.repository, text=True, capture_output=True, check=True).stdout.strip()

    def _variables(self, workspace: Path, temporary: Path, job: dict[str, Any]) -> dict[str, str]:
        home = self.folder / "home"
        home.mkdir(exist_ok=True)
        context = self._github()
        identity = self.identity if job.get("permissions", {}).get("id-token") == "write" else {}
        return {
            **self.variables,
            **identity,
            "CI": "true",
            "GITHUB_ACTIONS": "true",
            "GITHUB_EVENT_NAME": context["event_name"],
            "GITHUB_REF": context["ref"],
            "GITHUB_REF_NAME": context["ref_name"],
            "GITHUB_REPOSITORY": context["repository"],
            "GITHUB_RUN_ID": str(context["run_id"]),
            "GITHUB_SERVER_URL": context["server_url"],
            "GITHUB_SHA": context["sha"],
            "GITHUB_WORKSPACE": str(workspace),
            "HOME": str(home),
            "RUNNER_OS": "Linux",
            "RUNNER_TEMP": str(temporary),
        }


@dataclass(slots=True, kw_only=True)
class _Machine:
    """The machine of one job."""

    run: WorkflowRun
    name: str
    workspace: Path
    temporary: Path
    values: dict[str, Any]
    variables: dict[str, str]
    failed: bool = False
    saves: list[tuple[str, list[str]]] = field(default_factory=list)

    @property
    def status(self) -> dict[str, bool]:
        return {"success": not self.failed, "failure": self.failed, "cancelled": False, "always": True}

    def contexts(self) -> Contexts:
        return Contexts(values=self.values, status=self.status, workspace=self.workspace)

    def step(self, step: dict[str, Any]) -> None:
        assert set(step) <= STEP_KEYS, set(step) - STEP_KEYS
        if not holds(step.get("if"), self.contexts()):
            self.log(f"{step['name']}: skipped")
            return
        contexts = self.contexts()
        own = {key: as_text(value_of(value, contexts)) for key, value in step.get("env", {}).items()}
        outputs: dict[str, str] = _Outputs()
        if "run" in step:
            good, outputs = self.script(step, {**self.variables, **own})
        else:
            inputs = {key: as_text(value_of(value, contexts)) for key, value in step.get("with", {}).items()}
            action = step["uses"].partition("@")[0]
            good = getattr(self, re.sub(r"\W", "_", action.removeprefix("actions/")))(inputs)
        self.failed = self.failed or not good
        if "id" in step:
            self.values["steps"][step["id"]] = {"outputs": outputs, "outcome": SUCCESS if good else FAILURE}
        self.log(f"{step['name']}: {SUCCESS if good else FAILURE}")

    def log(self, line: str) -> None:
        self.run.logs.append(f"{self.name}: {line}")

    def script(self, step: dict[str, Any], variables: dict[str, str]) -> tuple[bool, dict[str, str]]:
        """Run a script as GitHub does where no shell is named: ``bash -e``."""
        files = {name: self.temporary / f"_{name}" for name in ("OUTPUT", "ENV", "STEP_SUMMARY")}
        for name, path in files.items():
            path.write_text("")
            variables[f"GITHUB_{name}"] = str(path)
        self.run.before_step(step["name"], variables, self.temporary)
        (self.temporary / "script.sh").write_text(step["run"])
        ended = subprocess.run(
            ("bash", "-e", str(self.temporary / "script.sh")),
            cwd=self.workspace,
            env=variables,
            text=True,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=SECONDS,
            check=False,
        )
        self.run.output[f"{self.name}: {step['name']}"] = ended.stdout
        self.run.summaries.append(files["STEP_SUMMARY"].read_text())
        self.variables |= _assignments(files["ENV"].read_text())
        return ended.returncode == 0, _Outputs(_assignments(files["OUTPUT"].read_text()))

    def end(self) -> None:
        """Save caches after a job that succeeded, as their action does."""
        if not self.failed:
            for key, paths in self.saves:
                self._save(key, paths)

    # Actions

    def checkout(self, inputs: dict[str, str]) -> bool:
        assert inputs["persist-credentials"] == "false"
        subprocess.run(("git", "clone", "-q", self.run.repository, self.workspace), check=True)
        self.run.machine(self.workspace)
        return True

    def cache(self, inputs: dict[str, str]) -> bool:
        if not self.cache_restore(inputs):
            self.saves.append((inputs["key"], inputs["path"].split()))
        return True

    def cache_restore(self, inputs: dict[str, str]) -> bool:
        caches = self.run.folder / "caches"
        keys = sorted(path.name for path in caches.glob("*"))
        prefixes = inputs.get("restore-keys", "").split()
        close = [key for prefix in prefixes for key in keys if key.startswith(prefix)]
        for key in [key for key in keys if key == inputs["key"]] or close[:1]:
            for number, path in enumerate(inputs["path"].split()):
                if (caches / key / str(number)).exists():
                    shutil.copytree(caches / key / str(number), self._place(path), dirs_exist_ok=True, symlinks=True)
        return True

    def cache_save(self, inputs: dict[str, str]) -> bool:
        self._save(inputs["key"], inputs["path"].split())
        return True

    def _save(self, key: str, paths: list[str]) -> None:
        folder = self.run.folder / "caches" / key
        for number, path in enumerate(paths):
            if self._place(path).exists() and not (folder / str(number)).exists():
                shutil.copytree(self._place(path), folder / str(number), symlinks=True)

    def _place(self, path: str) -> Path:
        home = self.variables["HOME"]
        return self.workspace / path.replace("~", home, 1)

    def upload_artifact(self, inputs: dict[str, str]) -> bool:
        """Keep files without their modes, below the deepest folder of all patterns; hidden ones stay out."""
        assert not FORBIDDEN.search(inputs["name"]), inputs["name"]
        patterns = inputs["path"].split()
        roots = [self.workspace / _before_wildcards(pattern) for pattern in patterns]
        root = roots[0] if len(roots) == 1 else _common(roots)
        paths = sorted({path for pattern in patterns for path in self._matches(pattern)})
        if not paths:
            return inputs["if-no-files-found"] != "error"
        folder = self.run.folder / "artifacts" / inputs["name"]
        if folder.exists():
            assert inputs.get("overwrite") == "true", f"{inputs['name']} exists"
            shutil.rmtree(folder)
        for path in paths:
            place = folder / path.relative_to(root)
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(path.read_bytes())
        return True

    def _matches(self, pattern: str) -> Iterator[Path]:
        for path in self.workspace.glob(pattern.rstrip("/")):
            for file in path.rglob("*") if path.is_dir() else [path]:
                if file.is_file() and not any(part.startswith(".") for part in file.relative_to(self.workspace).parts):
                    yield file

    def download_artifact(self, inputs: dict[str, str]) -> bool:
        artifacts, target = self.run.folder / "artifacts", self.workspace / inputs["path"]
        if "name" in inputs:
            if not (artifacts / inputs["name"]).is_dir():
                return False
            shutil.copytree(artifacts / inputs["name"], target, dirs_exist_ok=True)
            return True
        for folder in artifacts.glob(inputs["pattern"]):
            shutil.copytree(folder, target / folder.name, dirs_exist_ok=True)
        return True


class _Outputs(dict[str, str]):
    def __missing__(self, _: str) -> str:
        return ""


def _needs(job: dict[str, Any]) -> list[str]:
    needs = job.get("needs", [])
    return [needs] if isinstance(needs, str) else list(needs)


def _ancestors(job_id: str, jobs: dict[str, Any]) -> set[str]:
    direct = set(_needs(jobs[job_id]))
    return direct.union(*(_ancestors(each, jobs) for each in direct)) if direct else set()


def _status(results: set[str]) -> dict[str, bool]:
    """Return the status functions of a job: ``success()`` is false also after a job that was skipped."""
    return {"success": results <= {SUCCESS}, "failure": FAILURE in results, "cancelled": False, "always": True}


def _assignments(text: str) -> dict[str, str]:
    lines = text.splitlines()
    assert all(re.fullmatch(r"\w+=.*", line) for line in lines), lines
    return dict(line.split("=", 1) for line in lines)


def _before_wildcards(pattern: str) -> str:
    return "/".join(itertools.takewhile(lambda part: "*" not in part, pattern.rstrip("/").split("/")))


def _common(paths: list[Path]) -> Path:
    return Path(os.path.commonpath(paths))

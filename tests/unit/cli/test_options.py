"""The options of a build come from the command line and from conda-forge's variables."""

from __future__ import annotations

import argparse
import base64
import dataclasses
import io
import time
from functools import partial
from pathlib import Path

import pytest

from kiln.base import masking
from kiln.base.errors import RecipeFault, UnknownConfig, UnsupportedPlatform, UsageError
from kiln.build.job.job import BuildOptions, RunOptions
from kiln.build.rehearsal.python_search import DEFAULT_CHANNEL
from kiln.cli import main
from kiln.cli import options as cli_options
from kiln.cli.arguments import add_arguments
from kiln.recipe.feedstock import Feedstock
from kiln.state.results import ConfigState
from tests import builders
from tests.git_repositories import git

META = "package:\n  name: small\n  version: '1'\n"

EXTERNAL = {
    *("configs", "command", "image", "fetch", "caller_variables", "client", "script_values", "build"),
    *("remote_url", "ci_url", "workflow"),
    *("executable", "run_arguments", "debug"),
    *("deadline", "least_reserve", "action_limit"),  # of --budget
}


def options_of(folder: Path, *words: str, forge: str = builders.LINUX_ONLY) -> RunOptions:
    feedstock = builders.feedstock(folder, META, forge=forge)
    parser, _ = main.command_parser_and_module("build")
    return cli_options.run_options(feedstock, parser.parse_args(words), ("a",))


@pytest.fixture(autouse=True)
def _plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (
        "BAZEL_REMOTE_CACHE",
        "BAZEL_REMOTE_EXECUTOR",
        "BAZEL_REMOTE_CREDENTIALS",
        "DOCKER_IMAGE",
        "DOCKER_EXECUTABLE",
        "CONDA_FORGE_DOCKER_RUN_ARGS",
        "GITHUB_SERVER_URL",
        "remote_url",
    ):
        monkeypatch.delenv(name, raising=False)


def test_arguments_reach_the_fields_of_their_names(tmp_path: Path) -> None:
    words = (
        "--memory",
        "16GB",
        "--stall",
        "5",
        "--cache-size",
        "1GB",
        "--rehearse",
        "-j",
        "3",
        "--distdir",
        str(tmp_path),
    )
    options = options_of(tmp_path / "feedstock", *words, "--mirror", "https://m.example.org/x", "--dry-run", "--debug")
    assert (options.memory, options.build.stall, options.cache_bound) == (16 * 10**9, 300, 10**9)
    assert (options.build.rehearsal, options.jobs, options.build.distdir) == (True, 3, tmp_path)
    assert options.build.mirror == "https://m.example.org/x"
    assert (options.configs, options.fetch, options.build.debug) == (("a",), False, None)


def test_the_time_of_a_budget_begins_now(tmp_path: Path) -> None:
    before = time.time()
    build = options_of(tmp_path, "--budget", "100s").build
    assert build.deadline is not None
    assert before + 100 <= build.deadline <= time.time() + 100
    assert (build.least_reserve, build.action_limit, build.has_budget) == (10.0, None, True)


def test_a_budget_of_actions_has_no_time(tmp_path: Path) -> None:
    build = options_of(tmp_path, "--budget", "5 actions").build
    assert (build.deadline, build.action_limit, build.has_budget) == (None, 5, True)


def test_the_defaults_are_those_of_the_fields(tmp_path: Path) -> None:
    options = options_of(tmp_path)
    defaults = RunOptions(configs=("a",), command="")
    assert defaults.python_channel == DEFAULT_CHANNEL
    for record, expected in ((options, defaults), (options.build, defaults.build)):
        for field in dataclasses.fields(record):
            if field.name not in EXTERNAL:
                assert getattr(record, field.name) == getattr(expected, field.name), field.name


def test_every_field_has_an_argument_or_another_source() -> None:
    parser, _ = main.command_parser_and_module("build")
    fields = {field.name for record in (RunOptions, BuildOptions) for field in dataclasses.fields(record)}
    assert fields - EXTERNAL <= vars(parser.parse_args([])).keys()


def test_a_remote_cache_of_the_environment_is_checked_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BAZEL_REMOTE_CACHE", "https://u:p@cache.example.org")
    assert options_of(tmp_path / "a").remote_cache == "https://u:p@cache.example.org"
    assert options_of(tmp_path / "b", "--remote-cache", "grpc://c").remote_cache == "grpc://c"
    monkeypatch.setenv("BAZEL_REMOTE_CACHE", "cache.example.org")
    with pytest.raises(UsageError, match="invalid URL of a remote cache"):
        options_of(tmp_path / "c")


def test_a_remote_executor_of_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BAZEL_REMOTE_EXECUTOR", "grpcs://e.example.org/one")
    monkeypatch.setenv("BAZEL_REMOTE_CREDENTIALS", str(tmp_path))
    options = options_of(tmp_path / "a")
    assert (options.remote_executor, options.remote_credentials) == ("grpcs://e.example.org/one", tmp_path)
    assert options_of(tmp_path / "b", "--remote-executor", "grpc://e").remote_executor == "grpc://e"
    content = base64.b64encode(b'{"headers": [["authorization", "Bearer t0ken"]]}').decode()
    monkeypatch.setenv("BAZEL_REMOTE_CREDENTIALS", content)
    options = options_of(tmp_path / "d")
    assert options.remote_credentials == content, "as a fleet passes it"
    assert content not in repr(options)
    monkeypatch.setenv("BAZEL_REMOTE_CREDENTIALS", str(tmp_path / "none"))
    with pytest.raises(UsageError, match="folder not found"):
        options_of(tmp_path / "c")


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("-C", "/f", "build", "--all"), "kiln -C /f build --all"),
        (
            ("--called", "build-locally.py", "-C", "/f", "build", "--calling-python", "/p/python", "--filter", "*a b*"),
            "build-locally.py --filter '*a b*'",
        ),
        (("--called", "build-locally.py", "-C", "/f", "build", "--calling-python", "/p"), "build-locally.py"),
    ],
)
def test_the_recorded_command_is_the_typed_one(words: tuple[str, ...], expected: str) -> None:
    assert cli_options.command_as_typed(words) == expected


def test_the_page_of_a_ci_reaches_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("SERVER_URL", "https://github.example"), ("REPOSITORY", "some/x"), ("RUN_ID", "5")):
        monkeypatch.setenv(f"GITHUB_{name}", value)
    options = options_of(tmp_path)
    assert options.remote_url == "https://github.example/some/x"
    assert options.ci_url == "https://github.example/some/x/actions/runs/5"


def test_containers_are_those_of_conda_forge_yml_unless_the_user_chooses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    of = partial(options_of, tmp_path, forge="docker: {executable: podman, run_args: --shm-size=2g}\n")
    assert (of().container, of().build.run_arguments) == ("podman", ("--shm-size=2g",))
    assert of("--container", "none").container == "none"
    assert of("--rehearse").container is None
    monkeypatch.setenv("CONDA_FORGE_DOCKER_RUN_ARGS", "-v /data:/data")
    assert of().build.run_arguments == ("-v", "/data:/data")
    monkeypatch.setenv("DOCKER_EXECUTABLE", "/opt/docker")
    assert (of().container, of().build.executable) == (None, "/opt/docker")


def test_settings_of_containers_that_the_user_replaces_are_not_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    of = partial(options_of, tmp_path, forge="docker: {executable: /opt/docker, run_args: --privileged}\n")
    with pytest.raises(RecipeFault, match=r"docker\.executable"):
        of()
    with pytest.raises(RecipeFault, match="--privileged"):
        of("--container", "docker")
    monkeypatch.setenv("CONDA_FORGE_DOCKER_RUN_ARGS", "--privileged")
    with pytest.raises(RecipeFault, match=r"docker\.executable"):
        of()
    assert of("--container", "docker").build.run_arguments == ("--privileged",)
    monkeypatch.setenv("DOCKER_EXECUTABLE", "/opt/docker")
    assert of().build.executable == "/opt/docker"


def test_secrets_of_conda_forge_yml_are_masked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UPLOAD_CODE", "correct-horse-battery")
    options = options_of(tmp_path, forge="secrets: [UPLOAD_CODE]\n")
    assert "correct-horse" not in masking.masked("it is correct-horse-battery")
    assert "UPLOAD_CODE" not in options.client  # only script_env brings it to a script


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def feedstock(tmp_path: Path) -> Feedstock:
    names = ("a11", "a12", "b11")
    builders.write_files(tmp_path, {f".ci_support/{name}.yaml": "target_platform:\n- linux-64\n" for name in names})
    return Feedstock(root=tmp_path)


def options(*words: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    return parser.parse_args(words)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("a11",), ("a11",)),
        (("a11.yaml", ".ci_support/a12.yaml", "a11"), ("a11", "a12")),
        (("--all",), ("a11", "a12", "b11")),
        (("--all", "--filter", "*11"), ("a11", "b11")),
        (("--filter", "b*"), ("b11",)),
        (("a11", "b11", "--filter", "b*"), ("b11",)),
    ],
)
def test_named_and_filtered_configs_are_selected(
    feedstock: Feedstock, words: tuple[str, ...], expected: tuple[str, ...]
) -> None:
    assert cli_options.selected_configs(feedstock, options(*words)) == expected


def test_configs_that_this_machine_cannot_build_are_left_out_with_one_line_unless_they_are_named(
    feedstock: Feedstock, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("w11", "w12"):
        (feedstock.config_folder / f"{name}.yaml").write_text("target_platform:\n- win-64\n")
    assert cli_options.selected_configs(feedstock, options("--all")) == ("a11", "a12", "b11")
    assert capsys.readouterr().err == ("left out: 2 configs for win-64, which this machine (linux-64) cannot build\n")
    with pytest.raises(UnsupportedPlatform, match="w12 cannot be built on this machine"):
        cli_options.selected_configs(feedstock, options("--filter", "w*"))
    assert cli_options.selected_configs(feedstock, options("w11")) == ("w11",)  # refused by the run's plan


def test_without_a_terminal_a_config_must_be_named(feedstock: Feedstock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("1\n"))
    with pytest.raises(UsageError, match="no config selected, 3 are available"):
        cli_options.selected_configs(feedstock, options())
    with pytest.raises(UsageError, match=r"2 configs match '\*11'(?s:.*)add --all"):
        cli_options.selected_configs(feedstock, options("--filter", "*11"))


def test_a_menu_selects_a_config_by_number(feedstock: Feedstock, monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr("sys.stderr", terminal)
    monkeypatch.setattr("sys.stdin", Terminal("2\n"))
    assert cli_options.selected_configs(feedstock, options("--filter", "*11")) == ("b11",)
    assert "1. a11\n2. b11\n" in terminal.getvalue()


def test_an_empty_line_selects_the_default(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("\n"))
    assert cli_options.prompt_for_config(("a", "b"), "b") == "b"
    assert capsys.readouterr().err.endswith("number [2]> ")


@pytest.mark.parametrize("answer", ["", "0\n", "3\n", "x\n", "-1\n"])
def test_an_answer_outside_the_menu_is_refused(answer: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(answer))
    with pytest.raises(UsageError, match="expected a number from 1 to 2"):
        cli_options.prompt_for_config(("a", "b"), "a")


def test_a_pattern_without_matches_is_an_error(feedstock: Feedstock) -> None:
    with pytest.raises(UnknownConfig, match="no config matches 'x'"):
        cli_options.selected_configs(feedstock, options("--all", "--filter", "x"))
    with pytest.raises(UnknownConfig, match="no config of a11 matches") as caught:
        cli_options.selected_configs(feedstock, options("a11", "--filter", "b*"))
    assert caught.value.hint == "a pattern of a11"


def test_a_revision_without_changed_is_refused(feedstock: Feedstock) -> None:
    with pytest.raises(UsageError, match="--since goes with --changed"):
        cli_options.selected_configs(feedstock, options("--all", "--since", "HEAD~1"))


def test_failed_configs_include_interrupted_ones() -> None:
    states = {
        "a": ConfigState.FAILED,
        "b": ConfigState.DONE,
        "c": ConfigState.INTERRUPTED,
        "d": ConfigState.CACHED,
        "e": ConfigState.OUT_OF_MEMORY,
        "f": ConfigState.DISK_FULL,
    }
    assert cli_options.failed_configs(("a", "b", "c", "d", "e", "f", "never"), states) == ("a", "c", "e", "f")


GITHUB = {
    "GITHUB_SERVER_URL": "https://github.example",
    "GITHUB_REPOSITORY": "some/x-feedstock",
    "GITHUB_RUN_ID": "123",
}


def test_a_run_knows_its_repository_and_its_page_on_github() -> None:
    repository = "https://github.example/some/x-feedstock"
    assert cli_options.repository_and_run_urls(GITHUB) == (repository, f"{repository}/actions/runs/123")
    assert cli_options.repository_and_run_urls({**GITHUB, "remote_url": "https://me:secret@git.example/x.git"}) == (
        "https://git.example/x.git",
        f"{repository}/actions/runs/123",
    )
    assert cli_options.repository_and_run_urls({}) == ("", "")


@pytest.mark.parametrize(
    "url", ["git@github.com:some/x.git", "javascript:alert(1)", "https://h/?token=secret", "file:///x"]
)
def test_only_a_web_page_without_parameters_is_recorded(url: str) -> None:
    assert cli_options.repository_and_run_urls({"remote_url": url}) == ("", "")
    assert cli_options.repository_and_run_urls({**GITHUB, "GITHUB_RUN_ID": "1?x=secret"})[1] == ""


@pytest.mark.parametrize(
    ("variables", "uri"),
    [
        (
            {
                "GITHUB_SERVER_URL": "https://github.com",
                "GITHUB_WORKFLOW_REF": "a/b/.github/workflows/c.yml@refs/heads/d",
            },
            "https://github.com/a/b/.github/workflows/c.yml@refs/heads/d",
        ),
        (
            {"CI_CONFIG_REF_URI": "gitlab.com/a/b//.gitlab-ci.yml@refs/heads/d"},
            "https://gitlab.com/a/b//.gitlab-ci.yml@refs/heads/d",
        ),
        ({"GITHUB_SERVER_URL": "https://me:secret@github.com", "GITHUB_WORKFLOW_REF": "a/b@c"}, ""),
        ({"GITHUB_WORKFLOW_REF": "a/b@c"}, ""),
        ({}, ""),
    ],
)
def test_a_workflow_is_named_as_in_the_certificates_of_sigstore(variables: dict[str, str], uri: str) -> None:
    assert cli_options.workflow_uri(variables) == uri


def test_secrets_reach_neither_builds_nor_engines() -> None:
    variables = {"PATH": "/bin", "GITHUB_TOKEN": "hidden", "DOCKER_HOST": "tcp://d", "DOCKER_IMAGE": "i", "CI": "1"}
    assert cli_options.container_client_variables(variables) == {"PATH": "/bin", "DOCKER_HOST": "tcp://d"}
    assert cli_options.conda_forge_build_variables(
        Feedstock(root=Path("/f")), {**variables, "sha": "1", "https_proxy": "p"}
    ) == {"CI": "1", "sha": "1", "https_proxy": "p"}


@pytest.mark.processes
@pytest.mark.needs("git")
def test_changed_configs_are_those_that_differ_since_a_revision(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    configs = {"linux_64_a": "zlib:\n- '1'\n", "linux_64_b": "zlib:\n- '2'\n"}
    recipe = f"{META}requirements:\n  host:\n    - zlib\n"
    feedstock = builders.feedstock(tmp_path, recipe, configs=configs)
    for words in (("init", "-q"), ("add", "-A"), ("commit", "-q", "-m", "one")):
        git(tmp_path, *words)

    def selected(*words: str) -> tuple[str, ...]:
        parser, _ = main.command_parser_and_module("build")
        return cli_options.selected_configs(feedstock, parser.parse_args(words))

    assert selected("--changed") == ()
    (tmp_path / ".ci_support" / "linux_64_b.yaml").write_text("zlib:\n- '3'\n")
    assert selected("--changed") == ("linux_64_b",)
    assert selected("--changed", "linux_64_a") == ()
    git(tmp_path, "commit", "-q", "-a", "-m", "two")
    assert selected("--changed") == ()
    assert selected("--changed", "--since", "HEAD~1") == ("linux_64_b",)
    feedstock.meta.write_text(recipe.replace("'1'", "'2'"))
    assert selected("--changed") == ("linux_64_a", "linux_64_b")
    assert "2 of 2 configs differ since HEAD" in capsys.readouterr().err

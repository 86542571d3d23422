"""A fleet's compiles use a remote executor, whose address and credentials go to the builds alone."""

from __future__ import annotations

import base64
import json
from argparse import ArgumentParser, Namespace
from pathlib import Path

import pytest

from kiln.base.errors import UsageError
from kiln.cli.fleet import site
from kiln.cli.fleet.arguments import add_arguments
from kiln.recipe.feedstock import load
from tests import small_tensorflow

URL = "grpcs://e.example.org:443/main"
ROOT = Path(__file__).parents[4]
SERVING = ROOT / "serving"


def options_of(*words: str) -> Namespace:
    parser = ArgumentParser()
    add_arguments(parser)
    return parser.parse_args(("run", "--provider", "aws", "--all", *words))


@pytest.mark.parametrize(
    ("words", "fault"),
    [
        (("--remote-jobs", "4"), "--remote-jobs requires --remote-executor"),
        (("--remote-fallback",), "--remote-fallback requires --remote-executor"),
        (("--remote-executor", URL, "--cache", "compute-8"), "--cache cannot be used with --remote-executor"),
        (("--remote-executor", "grpcs://u:p$'w@e"), "characters that cannot be passed"),
    ],
)
def test_options_without_effect_are_refused(words: tuple[str, ...], fault: str) -> None:
    with pytest.raises(UsageError, match=fault) as error:
        site.check_options(options_of(*words), {})
    assert "p$'w" not in str(error.value)


def test_builds_get_the_address_and_the_content_of_the_credentials_as_secrets(tmp_path: Path) -> None:
    (tmp_path / "headers").write_text("authorization: Bearer t0ken\n")
    (tmp_path / "headers").chmod(0o600)
    options = options_of("--remote-executor", URL, "--remote-credentials", str(tmp_path), "--remote-jobs", "64")
    site.check_options(options, {})
    secrets = site.executor_secret_variables(options, {})
    assert secrets["BAZEL_REMOTE_EXECUTOR"] == URL
    credentials = json.loads(base64.b64decode(secrets["BAZEL_REMOTE_CREDENTIALS"]))
    assert credentials == {"headers": [["authorization", "Bearer t0ken"]]}
    assert site.executor_job_options(options) == ("--remote-jobs", "64")
    assert site.executor_secret_variables(options_of(), secrets) == secrets, "a controller has them as variables"
    assert site.executor_secret_variables(options_of(), {}) == {}


def test_a_feedstock_whose_recipe_has_no_use_for_an_executor_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("BAZEL_REMOTE_EXECUTOR", raising=False)
    feedstock = load(SERVING)
    names = [path.stem for path in sorted((SERVING / ".ci_support").glob("*.yaml"))][:1]
    site.require_recipe_support(feedstock, names, options_of())
    with pytest.raises(UsageError, match="--remote-executor"):
        site.require_recipe_support(feedstock, names, options_of("--remote-executor", URL))
    small = load(small_tensorflow.FIXTURE)
    config = next(path.stem for path in sorted((small_tensorflow.FIXTURE / ".ci_support").glob("*.yaml")))
    site.require_recipe_support(small, [config], options_of("--remote-executor", URL))

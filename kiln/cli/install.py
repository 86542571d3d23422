"""``kiln install`` and ``kiln test``: packages installed into a prefix, or into clean ones to run their tests."""

from __future__ import annotations

import json
import os
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from kiln.base.errors import UnsupportedPlatform, UsageError
from kiln.base.system import user
from kiln.base.text import first_of
from kiln.cli import arguments
from kiln.cli.options import variables_passed_to_builds
from kiln.conda.specs import invalid_spec_reason, package_name, strict_rattler_spec

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator, Mapping, Sequence

    from kiln.conda.diagnosis import TargetMachine
    from kiln.conda.install import InstallPlan, InstallRequest, PackageChange, RequiredSigners
    from kiln.state.results import TestReport


def add_test_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of ``kiln test``."""
    parser.add_argument(
        "packages",
        nargs="+",
        metavar="PACKAGE",
        type=Path,
        help="package files to test; other packages of their channel are used too",
    )
    arguments.add_channel_arguments(parser, default="the channels that the recipe names")
    parser.add_argument("--gpu", action="store_true", help="require a GPU on this machine, and name it in the report")
    parser.add_argument("--json", action="store_true", help="print the reports as JSON")


def run_test(options: argparse.Namespace, root: Path) -> int:
    """Test the packages and print the results.

    Raises:
        UsageError: when a package file does not exist.
        UnsupportedPlatform: with ``--gpu``, when this machine has no GPU.
    """
    from kiln.base import process_table
    from kiln.build.test import tester
    from kiln.conda.solve import machine_virtual_packages
    from kiln.recipe import feedstock as recipe_feedstock

    if absent := [str(path) for path in options.packages if not path.is_file()]:
        raise UsageError(f"no such file: {', '.join(absent)}")
    gpus = _require_gpus() if options.gpu else None
    feedstock, machine = recipe_feedstock.load(root), machine_virtual_packages(os.environ)
    with process_table.termination_as_interrupt():
        reports = tester.install_and_test_packages(
            feedstock,
            [path.absolute() for path in options.packages],
            channels=tuple(options.channels),
            machine=machine,
            environment=variables_passed_to_builds(os.environ),
            on_package=lambda name: print(f"test {name}", file=sys.stderr),
        )
    if options.json:
        print(json.dumps([report_of_tests_as_data(report, gpus) for report in reports], indent=2))
    else:
        print("\n".join([tester.summarize_test_reports(reports), *(gpus or ())]))
    return 0


def _require_gpus() -> tuple[str, ...]:
    """Return the GPUs of this machine."""
    from kiln.compat import machine as compat_machine

    gpus, notes = compat_machine.gpu_descriptions(os.environ)
    if not gpus:
        raise UnsupportedPlatform(
            "this machine has no GPU to test on",
            why="; ".join(notes) or "the driver lists none",
            hint="'kiln fleet test --gpu' tests on a worker that has one; without --gpu, tests run here",
        )
    return gpus


def report_of_tests_as_data(report: TestReport, gpus: Sequence[str] | None = None) -> dict[str, object]:
    """Return a report as JSON values, with the GPUs if one was required."""
    return {
        **({} if gpus is None else {"gpus": list(gpus)}),
        "package": report.package,
        "verdict": report.verdict.value,
        "tests": report.commands,
        "seconds": report.seconds,
        "notes": list(report.notes),
        "log": str(report.log) if report.log else None,
    }


SIGNS = {"new": "+", "changed": "~", "kept": " ", "removed": "-"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of ``kiln install``."""
    parser.add_argument(
        "specs",
        nargs="+",
        metavar="SPEC",
        help="match specs of packages, in any form of conda's: tensorflow, 'tensorflow-gpu 2.21.*', python=3.12, "
        "'tensorflow=2.21=cuda*', conda-forge::six, \"six[build='py*']\"",
    )
    place = parser.add_mutually_exclusive_group(required=True)
    place.add_argument(
        "-p", "--prefix", metavar="DIR", type=Path, help="install into this prefix; a missing one is created"
    )
    place.add_argument(
        "-n",
        "--name",
        metavar="NAME",
        help="install into the environment of this name, where conda and mamba find it; a missing one is created",
    )
    arguments.add_channel_arguments(parser, default="conda-forge")
    parser.add_argument(
        "--flexible",
        action="store_true",
        help="take packages from channels of lower priority if those of higher priority do not solve",
    )
    arguments.add_attestation_arguments(parser, of_a_channel=True)
    parser.add_argument("--dry-run", action="store_true", help="show the packages to install, and exit")
    parser.add_argument(
        "--cache", metavar="DIR", type=Path, help="cache downloaded packages in this folder (default: rattler's cache)"
    )
    parser.add_argument("--verbose", action="store_true", help="show the solver's complete report if it fails")
    parser.add_argument("--json", action="store_true", help="print the installed packages as JSON")


def run(options: argparse.Namespace, root: Path) -> int:  # noqa: ARG001 - an installation needs no feedstock
    """Solve, install the packages unless this is a dry run, and print them.

    Raises:
        ProvenanceBroken: naming each package to install that no required signer attests.
    """
    from kiln.base import files, process_table
    from kiln.base.text import count_text
    from kiln.cli.output import command_steps_view, print_notes
    from kiln.conda import install

    steps, rules = command_steps_view(), _required_signers(options)
    with process_table.termination_as_interrupt():
        with steps.step("solve"):
            plan = install.plan_install(install_request(options))
        if plan.packages_without_sha256:
            print_notes([f"the index has an MD5 alone, or no hash, of {first_of(plan.packages_without_sha256, 1)}"])
        print_notes(plan.notes)
        if not options.json:
            print("\n".join(_package_change_lines(plan)), flush=True)  # before what standard error says of it
        if rules is not None and plan.packages_to_link:
            with steps.step(f"verify the attestations of {count_text(len(plan.packages_to_link), 'package')}"):
                install.verify_attestations(plan.packages_to_link, rules)
        if not options.dry_run:
            title = f"install {count_text(len(plan.records), 'package')} into {plan.request.prefix}"
            cache = (options.cache or _default_package_cache(os.environ)).absolute()
            if plan.is_up_to_date:
                install.execute_install_plan(plan, cache=cache)
            else:
                with steps.step(title) as step:
                    install.execute_install_plan(plan, cache=cache, on_received=step.show_received)
            if not plan.exists and any((folder / ".git").exists() for folder in plan.request.prefix.parents):
                files.write_text(plan.request.prefix / ".gitignore", "*\n")  # as venv: never committed with a feedstock
            if not options.json:
                print(activation_commands(plan.request.prefix, options.name))
    if options.json:
        print(json.dumps(_install_plan_as_data(plan, dry=options.dry_run), indent=2))
    return 0


def install_request(options: argparse.Namespace) -> InstallRequest:
    """Return the request of the command line and the environment."""
    from kiln.base import http
    from kiln.conda import install
    from kiln.conda.install import prefix_of_environment

    for spec in options.specs:
        if why := invalid_spec_reason(spec) or (
            "the name of a package has no asterisk" if "*" in package_name(spec) else ""
        ):
            raise UsageError(f"{spec!r} is not a match spec", why=why, hint="'numpy <2', python=3.12, 'six=1.17=py*'")
    prefix = options.prefix or prefix_of_environment(options.name, env=os.environ, home=Path.home())
    return install.InstallRequest(
        prefix=prefix.absolute().resolve(),
        specs=tuple(map(strict_rattler_spec, options.specs)),
        channels=http.register_credentials(options.channels or ["conda-forge"]),
        machine=target_machine_of_environment(os.environ),
        priority="flexible" if options.flexible else "strict",
        verbose=options.verbose,
    )


def _required_signers(options: argparse.Namespace) -> RequiredSigners | None:
    """Return the signers that the command line requires; None without any."""
    from kiln.conda.install import RequiredSigners

    if not options.require_attestation:
        return None
    channels = options.channels or ["conda-forge"]
    return RequiredSigners.parse(
        options.require_attestation,
        channel_of=lambda text: next(
            (name for name in channels if name in {text, _parsed_channel_or_empty(text)}), None
        ),
        signers=lambda text: arguments.trusted_attestation_signers(options, [text]),
    )


def _parsed_channel_or_empty(text: str) -> str:
    """Return a channel as ``--from`` takes it; empty for a text that it refuses."""
    try:
        return arguments.parse_channel(text)
    except UsageError:
        return ""


def activation_commands(prefix: Path, name: str | None = None) -> str:
    """Return the commands that make the programs of a prefix available in a shell, with conda and without."""
    without_conda = f"export PATH={shlex.quote(f'{prefix}/bin')}:$PATH"
    return f"activate  conda activate {shlex.quote(name or str(prefix))}\n      or  {without_conda}"


def _default_package_cache(environment: Mapping[str, str]) -> Path:
    """Return rattler's and pixi's folder of unpacked packages, which rattler 0.28 does not expose."""
    if folder := environment.get("RATTLER_CACHE_DIR"):
        return Path(folder) / "pkgs"
    return user.user_cache_folder(environment) / "rattler" / "cache" / "pkgs"


def target_machine_of_environment(environment: Mapping[str, str]) -> TargetMachine:
    """Return this machine, with the overrides of conda's variables (CONDA_OVERRIDE_...)."""
    from kiln.compat import machine as compat_machine
    from kiln.conda.diagnosis import TargetMachine
    from kiln.conda.solve import OVERRIDES, machine_virtual_packages

    return TargetMachine(
        virtual_packages=machine_virtual_packages(environment),
        overridden=frozenset(
            name
            for name, variable in (("__cuda", OVERRIDES["cuda"]), (compat_machine.NAME, compat_machine.OVERRIDE))
            if variable in environment
        ),
        driver=lambda: compat_machine.driver_version(environment),
    )


def _package_change_lines(plan: InstallPlan) -> Iterator[str]:
    from kiln.base.files import human_readable_size
    from kiln.base.text import count_text

    rows = [_package_change_columns(change) for change in plan.changes]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)] if rows else []
    for row in rows:
        yield "  ".join(f"{text:<{width}}" for text, width in zip(row, widths, strict=True)).rstrip()
    if plan.is_up_to_date:
        yield f"{plan.request.prefix} is up to date"
        return
    changes = [change for change in plan.changes if change.action.value in {"new", "changed"}]
    size = human_readable_size(sum(change.size for change in changes))
    yield f"{count_text(len(changes), 'package')}, {size}, {plan.request.prefix}"


def _package_change_columns(change: PackageChange) -> tuple[str, ...]:
    was = f"was {change.was}" if change.was else ""
    place = change.channel.rstrip("/").rpartition("/")[2]
    return (SIGNS[change.action.value], change.name, change.version, change.build, place, was)


def _install_plan_as_data(plan: InstallPlan, *, dry: bool) -> dict[str, object]:
    from kiln.base.serialization import to_json

    return {
        "prefix": str(plan.request.prefix),
        "installed": not dry,
        "notes": list(plan.notes),
        "virtual_packages": {name: list(value) for name, value in plan.request.machine.virtual_packages.items()},
        "packages": to_json(plan.changes),
    }

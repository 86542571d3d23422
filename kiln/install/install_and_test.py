"""Test package files: install each into a clean prefix, and run the recipe's current tests."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kiln import emulation, expand, files, limits, render
from kiln.console.text import count_text
from kiln.errors import UnsupportedPlatform, UsageError
from kiln.job.required_channels_and_network import channels_needed_by_config
from kiln.local_channel import LocalChannel
from kiln.name_rules import is_channel_subdir
from kiln.package_test.tester import PackageTester
from kiln.store.layout import ArtifactLayout
from kiln.variants.cuda_version import virtual_packages_with_cuda

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from kiln.model.build_results import TestReport
    from kiln.model.feedstock import Feedstock
    from kiln.model.rendered import Output, RenderedConfig
    from kiln.virtual_packages import VirtualPackages


def install_and_test_packages(
    feedstock: Feedstock,
    packages: Sequence[Path],
    *,
    channels: tuple[str, ...],
    machine: VirtualPackages,
    environment: Mapping[str, str],
    on_package: Callable[[str], None],
) -> tuple[TestReport, ...]:
    """Test every package, in order, with the packages of ``channels``, by default those that the recipe names.

    Raises:
        UsageError: when no config of the feedstock renders one of them.
        UnsupportedPlatform: when this machine cannot run the programs of one of them.
        SolveFailed, TestsFailed: for the first that fails; the others are not tested.
        AlreadyRunning: while another process tests packages of the same feedstock.
    """
    outputs = [(path, *find_output_of_package(feedstock, path)) for path in packages]
    for path, _, output in outputs:
        require_runnable_package(path, output.subdir)
    root = ArtifactLayout.for_feedstock(feedstock).safe_path("check")
    with files.held_lock_file(root.with_suffix(".lock")):
        files.remove(root)
        staged = LocalChannel(root=root / "channel")
        staged.add((path, output.subdir) for path, _, output in outputs)
        reports = []
        for path, rendered, output in outputs:
            on_package(path.name)
            tester = make_package_tester(
                rendered,
                output,
                feedstock,
                folder=root,
                channels=(
                    staged.url,
                    *channel_containing_package(path),
                    *(channels or channels_needed_by_config(rendered)),
                ),
                machine=machine,
            )
            reports.append(tester.run_tests(tester.plan_tests(output), environment=environment))
        return tuple(reports)


def channel_containing_package(package: Path) -> tuple[str, ...]:
    """Return the URL of the channel whose folder contains a package, for the packages that it requires."""
    folder = package.resolve().parent
    if not is_channel_subdir(folder.name) or not any(folder.glob("repodata*.json*")):
        return ()
    return (folder.parent.as_uri(),)


def require_runnable_package(package: Path, subdir: str) -> None:
    """Raise UnsupportedPlatform for a package whose programs this machine cannot run."""
    if not emulation.can_run_platform(subdir, in_container=False):
        raise UnsupportedPlatform(
            f"{package.name} cannot be tested on this machine",
            why=f"it is for {subdir}, this machine is {emulation.machine_subdir()}",
            hint=f"test it on {subdir}, or register qemu-user for it with the kernel (Debian: apt-get install "
            "qemu-user-static binfmt-support)",
        )


def find_output_of_package(feedstock: Feedstock, package: Path) -> tuple[RenderedConfig, Output]:
    """Return the config and the output that render a package's file name, for the subdir in its path if it has one.

    Raises:
        UsageError: when none does.
    """
    return limits.run_bounded(lambda: _find_rendered_output(feedstock, package))


def _find_rendered_output(feedstock: Feedstock, package: Path) -> tuple[RenderedConfig, Output]:
    name, subdir = package.name, package.absolute().parent.name
    for config in feedstock.config_names:
        rendered = render.close_static_pins(render.render(feedstock, expand.read_config(feedstock, config)))
        for output in rendered.outputs:
            there = not is_channel_subdir(subdir) or output.subdir == subdir
            if there and not output.skip and output.package_file_name == name:
                return rendered, output
    raise UsageError(
        f"no config of {feedstock.root} renders {name}",
        why="a package's tests are those of the current recipe",
        hint="kiln render lists the packages; -C DIR names another feedstock",
    )


def make_package_tester(
    rendered: RenderedConfig,
    output: Output,
    feedstock: Feedstock,
    *,
    folder: Path,
    channels: tuple[str, ...],
    machine: VirtualPackages,
) -> PackageTester:
    """Return the tester of a package as its recipe renders now."""
    tester = PackageTester(
        recipe=feedstock.recipe,
        folder=folder,
        channels=channels,
        cache=folder / "cache",
        machine=virtual_packages_with_cuda(machine, rendered.config),
    )
    return tester if output.subdir == "noarch" else tester.for_platform(output.subdir)


def summarize_test_reports(reports: Sequence[TestReport]) -> str:
    """Return a summary in one line."""
    tests = count_text(sum(report.commands for report in reports), "test")
    return f"{count_text(len(reports), 'package')}, {tests} passed"

"""Packages that lie there: each installed into a clean prefix, and the tests run that its recipe has for it now."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from kiln import check, expand, files, render
from kiln.channel import Channel
from kiln.errors import UsageError
from kiln.pipeline.cuda import offered
from kiln.pipeline.layout import Layout
from kiln.pipeline.outline import channels_for, file_name

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from kiln.channel import VirtualPackages
    from kiln.model.artifact import TestReport
    from kiln.model.feedstock import Feedstock
    from kiln.model.rendered import Output, Rendered


@dataclass(frozen=True, slots=True, kw_only=True)
class Checking:
    """Which packages, with what else from which channels, as a machine sees them; no channels are those of the cell."""

    feedstock: Feedstock
    packages: tuple[Path, ...]
    channels: tuple[str, ...]
    machine: VirtualPackages
    environment: Mapping[str, str]


def execute(checking: Checking, on_package: Callable[[str], None]) -> tuple[TestReport, ...]:
    """Test every package, in the order given.

    Raises:
        UsageError: when no cell of the feedstock renders one of them.
        SolveFailed, TestsFailed: of the first that fails; the others are not tested.
        AlreadyRunning: while another process checks packages of the same feedstock.
    """
    found = [(path, *rendered_as(checking.feedstock, path.name)) for path in checking.packages]
    root = Layout.of(checking.feedstock).root / "check"
    with files.locked(root.with_suffix(".lock")):
        files.remove(root)
        staged = Channel(root=root / "channel")
        staged.add((path, output.subdir) for path, _, output in found)
        reports = []
        for path, rendered, output in found:
            on_package(path.name)
            reports.append(_one(checking, rendered, output, root, staged))
        return tuple(reports)


def rendered_as(feedstock: Feedstock, name: str) -> tuple[Rendered, Output]:
    """Return the cell and the output that render a package's file name.

    Raises:
        UsageError: when there is none.
    """
    for file in sorted(feedstock.configs.glob("*.yaml")):
        rendered = render.finalise(render.render(feedstock, expand.read(feedstock, file.stem)))
        for output in rendered.outputs:
            if not output.skip and file_name(output) == name:
                return rendered, output
    raise UsageError(
        f"no cell of {feedstock.root} renders {name}",
        why="a package's tests are those that the recipe has for it now",
        hint="kiln render shows what it renders; -C DIR names another feedstock",
    )


def _one(checking: Checking, rendered: Rendered, output: Output, root: Path, staged: Channel) -> TestReport:
    name = f"{output.name}-{output.build_string}"
    step = check.plan(
        output, recipe_folder=checking.feedstock.recipe, folder=root / f"test-{name}", prefix=root / "prefixes" / name
    )
    return check.execute(
        step,
        channels=(staged.url, *(checking.channels or channels_for(rendered))),
        cache=root / "cache",
        virtual_packages=offered(checking.machine, rendered.cell),
        environment=checking.environment,
        log=root / f"test-{name}.log",
    )


def total(reports: Sequence[TestReport]) -> str:
    """Return what was tested, in a line."""
    return f"{len(reports)} packages, {sum(report.commands for report in reports)} tests passed"

"""What a cell's build consists of and needs, from what was rendered: its steps, its packages' names, its channels."""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from kiln import build, render
from kiln.errors import UsageError, nearest
from kiln.matchspec import package_name

if TYPE_CHECKING:
    from collections.abc import Iterable

    from kiln.model.cell import Cell
    from kiln.model.feedstock import Feedstock
    from kiln.model.rendered import Output, Rendered


def titles(rendered: Rendered) -> tuple[str, ...]:
    """Return the names of a cell's steps, in their order; outputs of one name share theirs."""
    outputs = [output.name for output in build.in_order(rendered.outputs)]
    compiling = () if build.is_single(rendered) else ("compile",)
    every = ("render", *compiling, *(f"build {name}" for name in outputs), *(f"test {name}" for name in outputs))
    return tuple(dict.fromkeys(every))


def require_step(feedstock: Feedstock, cells: Iterable[Cell], step: str, *, engine: str) -> None:
    """Refuse to begin at a step that a cell does not have.

    Raises:
        UsageError: with the steps that it has, those most like it first.
    """
    if engine != "rattler-build":
        raise UsageError(f"{engine} makes a cell in one step, so none can be chosen", hint="leave --from-step")
    for cell in cells:
        known = titles(render.finalise(render.render(feedstock, cell)))
        if step not in known:
            raise UsageError(
                f"{cell.name} has no step {step!r}",
                why=f"its steps are {', '.join(map(repr, known))}",
                hint=nearest(step, known) or "name one of these",
            )


def matching(rendered: Rendered, pattern: str) -> Output:
    """Return the one output whose name, or package's file name, a pattern matches; the only one without a pattern.

    Raises:
        UsageError: when there is none, or more than one.
    """
    outputs = build.in_order(rendered.outputs)
    found = [
        each for each in outputs if any(fnmatchcase(name, pattern or "*") for name in (each.name, file_name(each)))
    ]
    if len(found) == 1:
        return found[0]
    names = [output.name for output in outputs]
    what = f"{len(found)} outputs match {pattern!r}" if found else f"no output matches {pattern!r}"
    told = ", ".join(sorted({output.name for output in found})) if found else ", ".join(names)
    raise UsageError(
        what, why=f"{'they' if found else 'the outputs'} are {told}", hint=nearest(pattern, names) or "--output-id NAME"
    )


def file_name(output: Output) -> str:
    """Return the name of an output's package file."""
    return f"{output.name}-{output.version}-{output.build_string}.conda"


def channels_for(rendered: Rendered) -> tuple[str, ...]:
    """Return the variant's channels, conda-forge when it names none; none when nothing of theirs is needed."""
    own = {output.name for output in rendered.outputs}
    outputs = [each for each in rendered.outputs if not each.skip]
    sections = [rendered.compile_requirements, *(output.requirements for output in outputs)]
    specs = [spec for needs in sections for spec in (*needs.build, *needs.host, *needs.run)]
    specs += [spec for output in outputs for spec in output.tests.requires]
    names = {package_name(spec) for spec in specs}
    if not {name for name in names - own if not name.startswith("__")}:
        return ()
    return channel_sources(rendered.cell)


def channel_sources(cell: Cell) -> tuple[str, ...]:
    """Return the channels that a cell's variant names, the most wanted first."""
    named = cell.variant.get("channel_sources", ("conda-forge",))[0]
    return tuple(name for part in named.split(",") if (name := part.strip()))


def needs_network(rendered: Rendered) -> bool:
    """Whether a cell's build needs anything that is not on this machine."""
    remote = [name for name in channels_for(rendered) if not name.startswith(("file:", "/"))]
    return bool(remote or rendered.network or any(source.url or source.git_url for source in rendered.sources))

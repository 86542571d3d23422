"""The steps, package names and channels of a config's build, from its rendered outputs."""

from __future__ import annotations

import re
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from kiln import build, channel_credentials, render
from kiln.errors import UsageError, nearest
from kiln.matchspec_notation import package_name
from kiln.package_test import required_specs

if TYPE_CHECKING:
    from collections.abc import Iterable

    from kiln.model.build_config import BuildConfig
    from kiln.model.feedstock import Feedstock
    from kiln.model.rendered import Output, Rendered, Staging


def titles(rendered: Rendered) -> tuple[str, ...]:
    """Return the names of a config's steps, in their order; outputs of one name share theirs."""
    outputs = [output.name for output in build.in_order(rendered.outputs)]
    compiling = (staging.title for staging in rendered.stagings)
    every = ("render", *compiling, *(f"build {name}" for name in outputs), *(f"test {name}" for name in outputs))
    return tuple(dict.fromkeys(every))


def require_step(feedstock: Feedstock, configs: Iterable[BuildConfig], step: str, *, engine: str) -> None:
    """Refuse to start at a step that a config does not have.

    Raises:
        UsageError: with the valid steps, the most similar ones first.
    """
    if engine != "rattler-build":
        raise UsageError(
            f"--from-step requires --engine rattler-build: {engine} has one step only", hint="remove --from-step"
        )
    for config in configs:
        names = titles(render.finalise(render.render(feedstock, config)))
        if step not in names:
            raise UsageError(
                f"{config.name} has no step {step!r}",
                why=f"its steps are {', '.join(map(repr, names))}",
                hint=nearest(step, names) or "name one of these",
            )


def staging_matching(rendered: Rendered, pattern: str) -> Staging | None:
    """Return the build step that outputs share whose name matches a pattern; without one, the only or first one."""
    stagings = [staging for staging in rendered.stagings if fnmatchcase(staging.name, pattern or "*")]
    return stagings[0] if stagings else None


def matching(rendered: Rendered, pattern: str) -> Output:
    """Return the output whose name, or package's file name, matches a pattern; without one, the only output.

    Raises:
        UsageError: when none matches, or several do.
    """
    outputs = build.in_order(rendered.outputs)
    matches = [
        output
        for output in outputs
        if any(fnmatchcase(name, pattern or "*") for name in (output.name, package_file_name(output)))
    ]
    if len(matches) == 1:
        return matches[0]
    names = [*(staging.name for staging in rendered.stagings), *dict.fromkeys(output.name for output in outputs)]
    problem = f"{len(matches)} outputs match {pattern!r}" if matches else f"no output matches {pattern!r}"
    listing = ", ".join(sorted({output.name for output in matches})) if matches else ", ".join(names)
    raise UsageError(
        problem,
        why=f"{'they' if matches else 'the outputs'} are {listing}",
        hint=nearest(pattern, names) or "--output-id NAME",
    )


def package_file_name(output: Output) -> str:
    """Return the name of an output's package file."""
    return f"{output.name}-{output.version}-{output.build_string}.conda"


def channels_for(rendered: Rendered) -> tuple[str, ...]:
    """Return the variant's channels, or conda-forge; empty when no package from outside is required."""
    own_names = {output.name for output in rendered.outputs}
    outputs = [output for output in rendered.outputs if not output.skip]
    sections = [*(staging.requirements for staging in rendered.stagings), *(output.requirements for output in outputs)]
    specs = [spec for needs in sections for spec in (*needs.build, *needs.host, *needs.run)]
    tests = [test for output in outputs for test in output.tests]
    specs += [spec for test in tests for spec in (*required_specs(test), *test.downstreams)]
    names = {package_name(spec) for spec in specs}
    if not {name for name in names - own_names if not name.startswith("__")}:
        return ()
    return channel_sources(rendered.config)


def channel_sources(config: BuildConfig) -> tuple[str, ...]:
    """Return the channels that a config's variant names, by priority; see `kiln.channel_credentials` for theirs."""
    channels = config.variant.get("channel_sources", ("conda-forge",))[0]
    return channel_credentials.register(name for part in channels.split(",") if (name := part.strip()))


def pythons_of(config: BuildConfig) -> frozenset[str]:
    """Return the minor versions of Python in a config's variant, ``3.11``."""
    values = config.variant.get("python", ())
    return frozenset(match[0] for value in values if (match := re.match(r"3\.\d+", value)))


def needs_network(rendered: Rendered) -> bool:
    """Return whether a config's build needs packages or sources that are not on this machine."""
    remote = [name for name in channels_for(rendered) if not name.startswith(("file:", "/"))]
    return bool(
        remote
        or rendered.network
        or any(source.url or source.git_url or source.checkout for source in rendered.sources)
    )

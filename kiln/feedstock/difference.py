"""What differs between two trees of a feedstock: the outputs of each config that a build would make otherwise."""

from __future__ import annotations

import shutil
import tempfile
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from kiln.base import files, git
from kiln.base.errors import UnsupportedPython, UsageError
from kiln.feedstock import config_file, settings
from kiln.recipe import render
from kiln.recipe.feedstock import is_v1, load

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Set

    from kiln.recipe.feedstock import Feedstock
    from kiln.recipe.rendered import Output, RenderedConfig, Staging

TREE = ("recipe", "conda-forge.yml", ".ci_support")  # the files that define a matrix, and what each config builds
# Read by a rendering: their effect is in its result.
_RENDERED = frozenset({"meta.yaml", "recipe.yaml", "conda_build_config.yaml", "variants.yaml"})


@contextmanager
def extracted_git_revision(root: Path, revision: str, *, env: Mapping[str, str]) -> Iterator[Path]:
    """Provide a temporary tree of the files that define the matrix at a git revision; ``env`` is git's environment.

    Raises:
        UsageError: the revision has no recipe.
        UnsupportedPython: this Python cannot unpack it safely.
    """
    import tarfile

    if not hasattr(tarfile, "data_filter"):
        raise UnsupportedPython("this Python cannot unpack a revision safely", hint="3.10.12, 3.11.4 or newer can")

    def output(*words: str) -> str:
        return git.output(root, *words, env=env)

    with tempfile.TemporaryDirectory(prefix="kiln-matrix-") as folder:
        archive, tree = Path(folder, "tree.tar"), Path(folder, "tree")
        commit = output("rev-parse", "--verify", "--end-of-options", f"{revision}^{{commit}}").strip()
        names = [name for name in output("ls-tree", "--name-only", commit).splitlines() if name in TREE]
        if "recipe" not in names:
            raise UsageError(f"{revision} has no recipe in {root}")
        output("archive", "--format=tar", "-o", str(archive), commit, *names)
        with tarfile.open(archive) as file:
            file.extractall(tree, filter="data")
        yield tree


@contextmanager
def with_recipe_text(feedstock: Feedstock, text: str) -> Iterator[Feedstock]:
    """Provide a temporary copy of a feedstock whose recipe has another text."""
    with tempfile.TemporaryDirectory(prefix="kiln-recipe-") as folder:
        for name in TREE:
            path = feedstock.root / name
            if path.is_dir():
                shutil.copytree(path, Path(folder, name), symlinks=True)
            elif path.is_file():
                shutil.copyfile(path, Path(folder, name))
        copy = load(Path(folder))
        files.write_text(copy.recipe_v1 if is_v1(copy) else copy.meta, text)
        yield copy


def changed_outputs(before: Feedstock, after: Feedstock) -> Mapping[str, tuple[str, ...]]:
    """Return the names of the outputs that differ from an earlier tree, by config; without configs that have none.

    Files of the recipe that no output names, such as what a script reads, and settings count for all outputs.

    Raises:
        KilnError: a recipe or a config of one of the trees is invalid.
    """
    earlier = set(before.config_names)
    renderings = [
        (_rendered(before, name) if name in earlier else None, _rendered(after, name)) for name in after.config_names
    ]
    changed = _changed_recipe_files(before.recipe, after.recipe)
    named = {name for _, new in renderings for output in new.outputs for name in _named_files(new, output)}
    old_settings, new_settings = (settings.read_document(tree.conda_forge_yml).value for tree in (before, after))
    all_differ = old_settings != new_settings or any(not _is_named(file, named) for file in changed)
    result = {}
    for old, new in renderings:
        former = [] if old is None else [_built_from(old, output) for output in old.outputs]
        names = [
            output.name
            for output in new.outputs
            if all_differ
            or _built_from(new, output) not in former
            or any(_is_named(file, set(_named_files(new, output))) for file in changed)
        ]
        if names:
            result[new.config.name] = tuple(dict.fromkeys(names))
    return result


def _rendered(feedstock: Feedstock, name: str) -> RenderedConfig:
    return render.render(feedstock, config_file.read_config(feedstock, name))


def _built_from(rendered: RenderedConfig, output: Output) -> tuple[Output, Staging | None]:
    """Return what an output is built from: no sections of other outputs, and no keys that it does not use."""
    own = {name: values for name, values in output.sections.items() if name != "outputs"}
    return replace(output, sections=own, all_keys={}), rendered.staging_of_output(output)


def _named_files(rendered: RenderedConfig, output: Output) -> Iterator[str]:
    """Yield the files of the recipe that an output, or the build step that it shares, names."""
    staging = rendered.staging_of_output(output)
    steps: list[Output | Staging] = [output] if staging is None else [output, staging]
    scripts = [*(step.script for step in steps), *(test.script for test in output.tests)]
    yield from (script.file for script in scripts if script.file)
    for test in output.tests:
        yield from test.scripts.values()
    for source in (source for step in steps for source in step.sources):
        yield from source.patches
        yield from [source.path] if source.path else ()


def _is_named(file: str, named: Set[str]) -> bool:
    """Return whether a file, or a folder that it is in, is named."""
    return not named.isdisjoint([file, *(str(parent) for parent in PurePosixPath(file).parents if str(parent) != ".")])


def _changed_recipe_files(before: Path, after: Path) -> tuple[str, ...]:
    """Return the files of a recipe's folder that differ, except those that a rendering reads."""
    old, new = (_hashes_of_files(folder) for folder in (before, after))
    return tuple(sorted(name for name in old.keys() | new.keys() if old.get(name) != new.get(name)))


def _hashes_of_files(folder: Path) -> Mapping[str, str]:
    paths = (path for path in folder.rglob("*") if path.is_file() and not path.is_symlink())
    found = {str(path.relative_to(folder)): path for path in paths}
    return {name: files.sha256(path) for name, path in found.items() if name not in _RENDERED}

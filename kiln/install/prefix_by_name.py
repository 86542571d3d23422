"""The prefix of an environment that is given by its name, in the folders where conda and mamba look for it.

Source: conda/base/context.py (``envs_dirs``, ``locate_prefix_by_name``): the folders of CONDA_ENVS_DIRS or
CONDA_ENVS_PATH, those of ``envs_dirs`` in .condarc, then ``envs`` of the installation and ``~/.conda/envs``, the latter
first where the installation is read-only. mamba has the same below MAMBA_ROOT_PREFIX.
"""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from kiln.errors import NotWritable, UsageError
from kiln.model.source_position import Place
from kiln.operating_system.file_operations import nearest_existing_path
from kiln.yamltext import ScalarInterpretation, parse_document, read_text

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

_INVALID = re.compile(r"[/ :#\x00-\x1f]")
_BASE = ("base", "root")


def prefix_of_environment(name: str, *, env: Mapping[str, str], home: Path) -> Path:
    """Return the prefix of a name: the environment that exists, else its path in the first folder that can be written.

    Raises:
        UsageError: the name is invalid, or that of conda's own environment.
        NotWritable: none of the folders can be written.
        KilnError: a .condarc is malformed.
    """
    if not name or name in {".", ".."} or _INVALID.search(name):
        raise UsageError(f"{name!r} cannot be the name of an environment", why="it has no '/', ':', '#' and no blank")
    if name in _BASE:
        why = "it contains conda itself, which a failed change could break"
        raise UsageError(f"kiln does not install into conda's environment {name}", why=why, hint="-n NAME, or -p DIR")
    folders = environment_folders(env, home)
    if existing := next((folder / name for folder in folders if (folder / name).is_dir()), None):
        return existing
    if writable := next((folder / name for folder in folders if _is_folder_writable(folder)), None):
        return writable
    raise NotWritable(
        f"no folder for the environment {name} can be written", why=", ".join(map(str, folders)), hint="-p DIR"
    )


def environment_folders(env: Mapping[str, str], home: Path) -> tuple[Path, ...]:
    """Return the folders of environments, in the order in which a name is looked up."""
    root = _conda_root(env)
    value = env.get("CONDA_ENVS_DIRS") or env.get("CONDA_ENVS_PATH") or ""
    given = [*filter(None, value.split(os.pathsep)), *_condarc_envs_dirs(env, home, root)]
    own, shared = home / ".conda" / "envs", [root / "envs"] if root else []
    fixed = [*shared, own] if root and os.access(root, os.W_OK) else [own, *shared]
    return tuple(dict.fromkeys([*(_expand_path(text, env, home) for text in given), *fixed]))


def _conda_root(env: Mapping[str, str]) -> Path | None:
    """Return the folder in which conda or mamba is installed; None without them."""
    if program := env.get("CONDA_EXE") or shutil.which("conda", path=env.get("PATH", os.defpath)):
        root = Path(program).resolve().parents[1]
        if (root / "conda-meta").is_dir():
            return root
    return Path(env["MAMBA_ROOT_PREFIX"]) if env.get("MAMBA_ROOT_PREFIX") else None


def _condarc_envs_dirs(env: Mapping[str, str], home: Path, root: Path | None) -> Iterator[str]:
    """Yield ``envs_dirs`` of the user's settings, and then of the installation's."""
    given = [Path(env["CONDARC"])] if env.get("CONDARC") else []
    places = [*given, home / ".condarc", home / ".conda" / ".condarc", *([root / ".condarc"] if root else [])]
    for path in places:
        if path.is_file():
            yield from _read_envs_dirs(path)


def _read_envs_dirs(path: Path) -> Iterable[str]:
    document = parse_document(read_text(path, str(path)), str(path), ScalarInterpretation.TEXT)
    settings = document.value if isinstance(document.value, dict) else {}
    value = settings.get("envs_dirs", settings.get("envs_path", []))
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise UsageError("envs_dirs is not a list of folders", at=Place(file=str(path)), hint="-p DIR")
    return value


def _expand_path(text: str, env: Mapping[str, str], home: Path) -> Path:
    """Return a path of the settings, with ``~`` and variables replaced."""
    text = re.sub(r"\$\{?(\w+)\}?", lambda match: env.get(match[1], match[0]), text)
    return home / text[2:] if text.startswith("~/") else home if text == "~" else Path(text).absolute()


def _is_folder_writable(folder: Path) -> bool:
    existing = nearest_existing_path(folder)
    return existing.is_dir() and os.access(existing, os.W_OK)

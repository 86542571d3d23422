"""Print, as JSON, facts about this interpreter and the paths of its parts.

The probed interpreter runs this, which may be any Python 3: no other module of kiln can be imported here.
"""

import contextlib
import importlib
import json
import os
import platform
import site
import sys
import sysconfig
from pathlib import Path

# Extension modules whose shared libraries may belong to the interpreter and not to the system.
WITH_LIBRARIES = (
    "_bz2",
    "_ctypes",
    "_curses",
    "_dbm",
    "_decimal",
    "_elementtree",
    "_gdbm",
    "_hashlib",
    "_lzma",
    "_sqlite3",
    "_ssl",
    "_tkinter",
    "_uuid",
    "_zstd",
    "pyexpat",
    "readline",
    "zlib",
)


def mapped_files_after_imports() -> "list[str]":
    """Import the modules that exist, and return the files that are mapped then: every shared library in use."""
    for name in WITH_LIBRARIES:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    with Path("/proc/self/maps").open(encoding="utf-8", errors="surrogateescape") as maps:
        rows = [line.rstrip("\n").split(None, 5) for line in maps]
    return sorted({row[5] for row in rows if len(row) == 6 and row[5].startswith("/")})


def running_interpreter_facts() -> "dict[str, object]":
    """Return the facts that kiln.build.rehearsal.python_search needs."""
    base = sys.base_prefix
    mapped = mapped_files_after_imports() if sys.platform == "linux" else []
    return {
        "implementation": sys.implementation.name,
        "version": list(sys.version_info[:3]),
        "release": sys.version_info.releaselevel,
        "free_threaded": bool(sysconfig.get_config_var("Py_GIL_DISABLED")),
        "debug": hasattr(sys, "gettotalrefcount"),
        "system": sys.platform,
        "machine": platform.machine(),
        "bits": sys.maxsize.bit_length() + 1,
        "libc": platform.libc_ver()[0],
        "executable": os.path.realpath(getattr(sys, "_base_executable", None) or sys.executable),
        "virtual": sys.prefix != base,
        "base_prefix": os.path.realpath(base),
        "stdlib": os.path.realpath(str(Path(os.__file__).parent)),
        "lib_dynload": [os.path.realpath(path) for path in sys.path if Path(path).name == "lib-dynload"],
        "include": sysconfig.get_path("include", vars={"installed_base": base}),
        "site_packages": [os.path.relpath(path, base) for path in site.getsitepackages([base])],
        "scheme": sysconfig.get_path("purelib", vars={"base": base}),
        "mapped": [os.path.realpath(path) for path in mapped if ".so" in Path(path).name],
    }


if __name__ == "__main__":
    print(json.dumps(running_interpreter_facts()))  # noqa: T201 - the caller reads it

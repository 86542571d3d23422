"""The files of Bazel's flags for an executor, made by the recipe's own scripts."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

from tests import small_tensorflow

if TYPE_CHECKING:
    from pathlib import Path

RECIPE = small_tensorflow.FIXTURE / "recipe"
WRITE = """\
import os, sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
import compile_plan, remote_execution
executor = remote_execution.executor(compile_plan.read(Path(sys.argv[1]) / "compile.ini"), os.environ)
flags = [*executor.public_flags(), *compile_plan.places(executor.environment({"BAZEL_CACHE_KEY": "4f1c"}))]
lines = [*(compile_plan.line(flag) for flag in flags), f"import {executor.write(Path('remote').absolute())}"]
Path("bazelrc").write_text("".join(f"{line}\\n" for line in lines))
"""


def write(folder: Path, url: str, credentials: str) -> None:
    """Write ``bazelrc`` and the credentials' files into a folder, with nothing but the flags for an executor."""
    variables = {"BAZEL_REMOTE_EXECUTOR": url, "BAZEL_REMOTE_CREDENTIALS": credentials}
    words = (sys.executable, "-B", "-c", WRITE, str(RECIPE))
    subprocess.run(words, cwd=folder, env={**os.environ, **variables}, check=True)

"""How soon a matrix of twelve cells is recognised as finished: each with a package to look at, nothing to build."""

from __future__ import annotations

import tempfile
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from tests.bench.timing import build, median
from tests.feedstocks import LINUX_ONLY, written

if TYPE_CHECKING:
    from tests.bench.timing import Row

CELLS, MOST = 12, 2.0
RECIPE = """\
package:
  name: small
  version: 1
build:
  string: h{{ PKG_HASH }}_{{ letter }}
  script:
    - mkdir -p $PREFIX/share
    - echo {{ letter }} > $PREFIX/share/letter
"""


def rows() -> list[Row]:
    """Build the matrix, then time the same command again, in a process of its own."""
    names = [f"linux_64_letter{letter}" for letter in "abcdefghijkl"[:CELLS]]
    variants = {f".ci_support/{name}.yaml": f"letter:\n- {name[-1]}\ntarget_platform:\n- linux-64\n" for name in names}
    with tempfile.TemporaryDirectory(prefix="kiln-bench-") as folder:
        root = written(Path(folder), RECIPE, forge=LINUX_ONLY, files=variants).root
        again = partial(build, root, "--all", "--container", "none")
        again()
        took = median(again)
    return [(f"a finished matrix, {CELLS} cells", f"{took:.2f} s", f"{MOST:.0f} s")]

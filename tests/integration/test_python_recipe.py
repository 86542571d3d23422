"""A standard Python recipe, ``pip install .``: what it makes may be published."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

from kiln.base import files
from kiln.build.rehearsal import python_search
from kiln.build.rehearsal.packages import PackageTarget, convert_wheels
from kiln.build.rehearsal.python_package import write_python_packages
from kiln.conda import package_reader
from kiln.conda.channel import LocalChannel
from kiln.conda.package_writer import SUBDIR
from kiln.publish import gate
from tests import builders, warm

pytestmark = pytest.mark.sampled

ROOT = Path(__file__).parents[2]
META = """\
package:
  name: standard
  version: "1.0"
source:
  path: src
build:
  number: 0
  script: $PYTHON -m pip install . -vv
requirements:
  host:
    - python
    - pip
  run:
    - python
test:
  imports:
    - standard
about:
  license: MIT
  license_file: LICENSE
"""
PROJECT = """\
[build-system]
requires = []
build-backend = "backend"
backend-path = ["."]
"""
# A build backend of its own, so that nothing is fetched.
BACKEND = """\
import zipfile

def build_wheel(folder, config_settings=None, metadata_directory=None):
    info = "standard-1.0.dist-info"
    with zipfile.ZipFile(f"{folder}/standard-1.0-py3-none-any.whl", "w") as wheel:
        wheel.writestr("standard.py", "NAME = __name__\\n")
        wheel.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\\nName: standard\\nVersion: 1.0\\n")
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n")
        wheel.writestr(f"{info}/RECORD", f"standard.py,,\\n{info}/METADATA,,\\n{info}/WHEEL,,\\n{info}/RECORD,,\\n")
    return "standard-1.0-py3-none-any.whl"
"""


def pip_wheel() -> Path:
    import ensurepip

    return next((Path(ensurepip.__file__).parent / "_bundled").glob("pip-*.whl"))


@pytest.fixture(scope="module")
def channel(tmp_path_factory: pytest.TempPathFactory) -> LocalChannel:
    """A channel with this Python, and its own pip."""
    folder = tmp_path_factory.mktemp("python")
    interpreter = python_search.probe_interpreter(Path(sys.executable), env=os.environ)
    pip = pip_wheel()
    made = write_python_packages(interpreter, folder / "made", env=os.environ)
    target = PackageTarget(python=interpreter.minor_version)
    made += convert_wheels([(pip, files.sha256(pip))], folder / "made", target)
    channel = LocalChannel(root=folder / "channel")
    channel.add((package, SUBDIR) for package in made)
    return channel


def test_a_package_of_pip_install_has_no_path_of_its_build(channel: LocalChannel, tmp_path: Path) -> None:
    sources = {"pyproject.toml": PROJECT, "backend.py": BACKEND, "LICENSE": "free"}
    feedstock = builders.feedstock(
        tmp_path / "feedstock",
        META,
        f"channel_sources:\n  - {channel.url}\n",
        files={"outputs.txt": "standard\n"} | {f"recipe/src/{name}": text for name, text in sources.items()},
    )
    words = ("-C", str(feedstock.root))
    warm.kiln(*words, "rerender", "--no-pinning", check=True)
    ended = warm.kiln(*words, "build", "--all", "--container", "none")
    assert ended.returncode == 0, ended.stderr
    (package,) = (feedstock.root / "build_artifacts").glob("linux-64/standard-*.conda")
    read = gate.inspect_package(package, gate.forbidden_texts([str(feedstock.root), str(channel.root)]))
    assert [str(leak) for leak in read.leaks] == []
    assert any(path.endswith("site-packages/standard.py") for path in read.paths)
    assert any("__pycache__/standard." in path for path in read.paths)
    with package_reader.open_package_members(package) as members:
        records = [content.read().decode() for member, content in members if content and member.name.endswith("RECORD")]
    (record,) = records
    assert "standard.py," in record
    assert "direct_url" not in record + " ".join(read.paths)
    target = tmp_path / "published"
    ended = warm.kiln(*words, "publish", "--to", str(target))
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert [file.name for file in (target / "linux-64").glob("*.conda")] == [package.name]
    assert package.name in json.loads((target / "linux-64" / "repodata.json").read_text())["packages.conda"]

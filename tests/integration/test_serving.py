"""The Python API of TensorFlow Serving as a package: of upstream's wheel, installed with TensorFlow, and used."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from kiln import build, expand, feedstock_loader, render
from kiln.channel import Channel, machine_virtual_packages
from kiln.conda_package.reader import read_info
from kiln.model.build_results import TestVerdict
from kiln.package_test import PackageTester
from kiln.rehearse import wheels
from kiln.rehearse.locked_wheels import PYTHONS
from kiln.rehearse.rehearsal_plan import LockedWheel

ROOT = Path(__file__).parents[2]
SERVING = ROOT / "serving"
CONFIG = "linux_64_cuda_compiler_versionNoneserving_version2.20.0"
PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"
API = LockedWheel(
    name="tensorflow-serving-api",
    version="2.20.0",
    file="tensorflow_serving_api-2.20.0-py2.py3-none-any.whl",
    size=30396,
    sha256="35df992746c4bf6b43cba3ec03f51b497c73c9153a6ba3a8ff44c2f8b053bb9d",
    pythons=("3.10", "3.11", "3.12", "3.13"),
)

pytestmark = pytest.mark.skipif(PYTHON not in PYTHONS, reason=f"TensorFlow has no wheels for Python {PYTHON}")


@pytest.fixture(scope="session")
def tensorflow() -> Path:
    """A channel with this Python and TensorFlow: that of this clone's rehearsal, made now or found."""
    words = (sys.executable, "-m", "kiln", "-C", str(ROOT), "build", "--rehearse", "--json")
    ended = subprocess.run(words, cwd=ROOT, text=True, capture_output=True, check=False)
    assert ended.returncode == 0, ended.stderr
    (config,) = json.loads(ended.stdout)["configs"]
    return Path(config["packages"][0]["artifact"]["path"]).parents[1]


def test_the_api_is_packaged_installed_and_speaks_with_a_server(tensorflow: Path, tmp_path: Path) -> None:
    feedstock = feedstock_loader.find(SERVING)
    config = expand.read(feedstock, CONFIG)
    here = dataclasses.replace(config, variant={**config.variant, "python": (f"{PYTHON}.*",)})
    rendered = render.finalise(render.render(feedstock, here))
    (output,) = (item for item in rendered.outputs if item.name == "tensorflow-serving-api")
    # The license is in the sources, of which nothing is compiled here.
    about = {key: value for key, value in output.about.items() if key != "license_file"}
    output = dataclasses.replace(output, about=about)

    (wheel,) = wheels.fetch([API], tmp_path / "wheels", env=os.environ)
    (step,) = build.plan_rehearsal(
        dataclasses.replace(rendered, outputs=(output,)),
        recipe_folder=feedstock.recipe,
        folder=tmp_path / "work",
        channels=(Channel(root=tensorflow).url,),
        wheel=wheel,
    )
    package = build.execute(step, environment={**os.environ, "RATTLER_CACHE_DIR": str(tmp_path / "cache")}, log=None)
    index = read_info(package, "index.json")
    assert (index["name"], index["version"], index["noarch"]) == ("tensorflow-serving-api", "2.20.0", "python")
    assert "tensorflow >=2.20.0,<3" in index["depends"]
    paths = {entry["_path"] for entry in read_info(package, "paths.json")["paths"]}
    assert "site-packages/tensorflow_serving/apis/prediction_service_pb2_grpc.py" in paths

    own = Channel(root=tmp_path / "channel")
    own.add([(package, "noarch")])
    tester = PackageTester(
        recipe=feedstock.recipe,
        folder=tmp_path / "test",
        channels=(own.url, Channel(root=tensorflow).url),
        cache=tensorflow.parents[1] / "cache" / "pkgs",
        machine=machine_virtual_packages(),
    )
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    report = tester.run(tester.plan(output), environment=environment)
    assert report.verdict is TestVerdict.PASSED
    assert report.log is not None
    assert "the API of TensorFlow Serving works with a server and TensorFlow 2.21.0" in report.log.read_text()

"""The packages of TensorFlow Serving: the API of upstream's wheel, and the server around a stand-in; both used."""

from __future__ import annotations

import dataclasses
import os
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from kiln.build.engine.plan import plan_rehearsal
from kiln.build.engine.run import build_package
from kiln.build.rehearsal import wheel_download
from kiln.build.rehearsal.wheel_download import PYTHONS
from kiln.build.rehearsal.wheels import LockedWheel
from kiln.build.test.tester import PackageTester
from kiln.conda.channel import LocalChannel
from kiln.conda.package_reader import read_info_json
from kiln.conda.package_writer import PackageMetadata, write_metadata_only_package
from kiln.conda.solve import machine_virtual_packages
from kiln.feedstock import config_file
from kiln.recipe import feedstock as recipe_feedstock
from kiln.recipe import pins, render
from kiln.state.results import TestVerdict
from tests import shared_inputs

if TYPE_CHECKING:
    from kiln.recipe.rendered import Output

ROOT = Path(__file__).parents[2]
SERVING = ROOT / "serving"
CONFIG = "linux_64_cuda_compiler_versionNoneserving_version2.20.0"
CUDA_CONFIG = "linux_64_cuda_compiler_version12.9serving_version2.20.0"
PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"
API = LockedWheel(
    name="tensorflow-serving-api",
    version="2.20.0",
    file="tensorflow_serving_api-2.20.0-py2.py3-none-any.whl",
    size=30396,
    sha256="35df992746c4bf6b43cba3ec03f51b497c73c9153a6ba3a8ff44c2f8b053bb9d",
    pythons=("3.10", "3.11", "3.12", "3.13"),
)

pytestmark = [
    pytest.mark.slow("wheels are fetched, packaged and installed"),
    pytest.mark.sampled,
    pytest.mark.skipif(PYTHON not in PYTHONS, reason=f"TensorFlow has no wheels for Python {PYTHON}"),
]


STAND_IN = ROOT / "tests" / "fixtures" / "model_server.py"


@pytest.fixture(scope="session")
def tensorflow() -> Path:
    """A channel with this Python and TensorFlow: that of this clone's rehearsal, made now or found."""
    (config,) = shared_inputs.own_rehearsal()["configs"]
    return Path(config["packages"][0]["artifact"]["path"]).parents[1]


def packaged(
    name: str, file: Path, channels: tuple[str, ...], folder: Path, config_name: str = CONFIG
) -> tuple[Output, Path]:
    """Return an output and its package, made of a file in the place of the compile's."""
    feedstock = recipe_feedstock.load(SERVING)
    config = config_file.read_config(feedstock, config_name)
    here = dataclasses.replace(config, variant={**config.variant, "python": (f"{PYTHON}.*",)})
    rendered = pins.close_static_pins(render.render(feedstock, here))
    (output,) = (item for item in rendered.outputs if item.name == name)
    # The license is in the sources, of which nothing is compiled here.
    about = {key: value for key, value in output.about.items() if key != "license_file"}
    output = dataclasses.replace(output, about=about)
    (step,) = plan_rehearsal(
        dataclasses.replace(rendered, outputs=(output,)),
        recipe_folder=feedstock.recipe,
        folder=folder / "work",
        channels=channels,
        wheel=file,
    )
    environment = {**os.environ, "RATTLER_CACHE_DIR": str(folder / "cache")}
    return output, build_package(step, environment=environment)


def passed_tests(output: Output, package: Path, tensorflow: Path, folder: Path) -> str:
    """Return the log of the package's own tests, which must pass."""
    own = LocalChannel(root=folder / "channel")
    own.add([(package, "noarch" if output.noarch else "linux-64")])
    tester = PackageTester(
        recipe=SERVING / "recipe",
        folder=folder / "test",
        channels=(own.url, LocalChannel(root=tensorflow).url),
        cache=tensorflow.parents[1] / "cache" / "pkgs",
        machine=machine_virtual_packages(),
    )
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    report = tester.run_tests(tester.plan_tests(output), environment=environment)
    assert report.log is not None
    log = report.log.read_text()
    assert report.verdict is TestVerdict.PASSED, log
    return log


def test_the_api_is_packaged_installed_and_speaks_with_a_server(tensorflow: Path, tmp_path: Path) -> None:
    (wheel,) = wheel_download.fetch_wheels([API], tmp_path / "wheels", env=os.environ)
    output, package = packaged("tensorflow-serving-api", wheel, (LocalChannel(root=tensorflow).url,), tmp_path)
    index = read_info_json(package, "index.json")
    assert (index["name"], index["version"], index["noarch"]) == ("tensorflow-serving-api", "2.20.0", "python")
    assert "tensorflow >=2.20.0,<3" in index["depends"]
    paths = {entry["_path"] for entry in read_info_json(package, "paths.json")["paths"]}
    assert "site-packages/tensorflow_serving/apis/prediction_service_pb2_grpc.py" in paths
    log = passed_tests(output, package, tensorflow, tmp_path)
    assert "the API of TensorFlow Serving works with a server and TensorFlow 2.21.0" in log


def stand_in(folder: Path) -> Path:
    """Return the stand-in by the name of the program."""
    (folder / "dist").mkdir()
    return Path(shutil.copy(STAND_IN, folder / "dist" / "tensorflow_model_server"))


def host_packages(folder: Path) -> LocalChannel:
    """Return a channel with the host requirements of the CUDA config, without files; one has run exports."""
    feedstock = recipe_feedstock.load(SERVING)
    rendered = pins.close_static_pins(render.render(feedstock, config_file.read_config(feedstock, CUDA_CONFIG)))
    channel, packages = LocalChannel(root=folder / "host"), []
    (folder / "packages").mkdir()
    for name in (spec.split()[0] for spec in rendered.outputs[0].requirements.host):
        exports = {"weak": ("libcublas >=99.1,<100.0a0",)} if name == "libcublas-dev" else {}
        version = "12.9" if name == "cuda-version" else "99.1"
        facts = PackageMetadata(name=name, version=version, build="0", run_exports=exports)
        packages.append((write_metadata_only_package(folder / "packages", facts), "linux-64"))
    channel.add(packages)
    return channel


def test_the_package_for_cuda_leads_the_server_to_the_compilers_of_other_packages(tmp_path: Path) -> None:
    """They are not there while the package is made, and must not be packaged in their place."""
    channels = (host_packages(tmp_path).url,)
    _, package = packaged("tensorflow-serving", stand_in(tmp_path), channels, tmp_path, CUDA_CONFIG)
    depends = read_info_json(package, "index.json")["depends"]
    assert {"libcublas >=99.1,<100.0a0", "_x86_64-microarch-level >=2", "cuda-version >=12.9,<13"} <= set(depends)
    paths = {entry["_path"]: entry["path_type"] for entry in read_info_json(package, "paths.json")["paths"]}
    root = "bin/tensorflow_model_server.runfiles/cuda_nvcc"
    files = ("bin/fatbinary", "bin/nvlink", "bin/ptxas", "nvvm/libdevice/libdevice.10.bc")
    assert paths == {
        "bin/tensorflow_model_server": "hardlink",
        **{f"{root}/{file}": "softlink" for file in files},
    }


def test_the_servers_package_serves_a_saved_model(tensorflow: Path, tmp_path: Path) -> None:
    """With a stand-in for the program, which needs hours to compile; the stand-in says that it is one."""
    program = stand_in(tmp_path)
    output, package = packaged("tensorflow-serving", program, (), tmp_path)
    assert [entry["_path"] for entry in read_info_json(package, "paths.json")["paths"]] == [
        "bin/tensorflow_model_server"
    ]
    # The stand-in predicts with TensorFlow's Python package.
    tests = tuple(dataclasses.replace(item, requires=(*item.requires, "tensorflow")) for item in output.tests)
    log = passed_tests(dataclasses.replace(output, tests=tests), package, tensorflow, tmp_path)
    assert "(a stand-in of kiln's tests, made of TensorFlow's Python package): the predictions of a saved" in log
    assert "are right, also of a compiled function; GPU: not asked for" in log

"""Slim images: made of packages twice the same, loaded into real engines, and running there."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import tarfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from kiln.base import process
from kiln.base.errors import BuildFailed
from kiln.conda.channel import LocalChannel
from kiln.conda.package_writer import PackageMetadata, write_package
from kiln.container import engine as container_engine
from kiln.container import images
from kiln.image import apt, contents, slim
from tests import shared_inputs
from tests.integration.test_rehearsal import kiln, report  # noqa: F401 - a fixture
from tests.waiting import CEILING, until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kiln.container.engine import Engine

ROOT = Path(__file__).parents[2]
WORK = ROOT / "build_artifacts" / "images"
SERVER = ROOT / "tests" / "fixtures" / "model-server.c"
HEALTH = "/usr/bin/models-are-served"
pytestmark = [
    pytest.mark.slow("an image is made of TensorFlow's rehearsal, or of packages with libraries of Debian"),
    pytest.mark.sampled,
    pytest.mark.needs("mmdebstrap"),
    pytest.mark.needs("gcc"),
]


@pytest.fixture(scope="session")
def channel(tmp_path_factory: pytest.TempPathFactory) -> LocalChannel:
    """A channel with a package like TensorFlow Serving's, around the stand-in for its program."""
    folder = tmp_path_factory.mktemp("serving")
    facts = PackageMetadata(name="tensorflow-serving", version="2.20.0", build="cpu_h0_0", license="Apache-2.0")
    subprocess.run(("gcc", "-Wall", "-Werror", "-o", folder / "server", SERVER), check=True)
    with write_package(folder, facts) as archive:
        archive.add_bytes("bin/tensorflow_model_server", (folder / "server").read_bytes(), executable=True)
        archive.add_bytes("include/serving.h", b"// for compilers")
        archive.add_bytes("lib/libserving.a", b"!<arch>")
    made = LocalChannel(root=folder / "channel")
    made.add([(folder / f"{facts.stem}.conda", "linux-64")])
    return made


def quiet(title: str) -> Any:
    from io import StringIO

    from kiln.base.text import CommandStepsView

    return CommandStepsView(StringIO(), animated=False).step(title)


def serving(channel: LocalChannel, **more: Any) -> contents.ImageRequest:
    chosen = contents.read_image_kind("serving")
    said: dict[str, Any] = {"specs": chosen.specs, "suite": "bookworm", **more}
    return contents.ImageRequest(kind=chosen, channels=(channel.url,), **said)


def make(request: contents.ImageRequest, output: Path) -> slim.SlimImage:
    tag = f"localhost/kiln-test-serving:{os.getpid()}"
    with shared_inputs.turn("images"):  # the folder is the clone's, where kiln refuses a second process
        return slim.make_slim_image(request, output, tag=tag, work=WORK, env=os.environ, step=quiet)


@pytest.fixture(scope="session")
def archive(channel: LocalChannel, tmp_path_factory: pytest.TempPathFactory) -> slim.SlimImage:
    return make(serving(channel), tmp_path_factory.mktemp("image") / "serving.tar")


@pytest.fixture
def loaded(engine: Engine, base_image: str, archive: slim.SlimImage) -> Iterator[Engine]:
    """The engine, as it works here, with the image in it."""
    images.load_archive(engine, archive.path)
    yield container_engine.workable_engine(engine, base_image)
    engine.run_command("rmi", "--force", archive.tag)


def test_the_same_packages_give_the_same_image(channel: LocalChannel, archive: slim.SlimImage, tmp_path: Path) -> None:
    again = make(serving(channel), tmp_path / "again.tar")
    assert again.digest == archive.digest
    assert again.path.read_bytes() == archive.path.read_bytes()


def test_nothing_to_build_or_install_with_is_inside(archive: slim.SlimImage) -> None:
    paths = [member.name for member in members(archive.path)]
    assert "opt/conda/bin/tensorflow_model_server" in paths
    programs = {Path(path).name for path in paths if Path(path).parent.name in {"bin", "sbin"}}
    assert not programs & {"apt", "apt-get", "dpkg", "rpm", "pip", "conda", "mamba", "gcc", "cc", "ld", "make", "cmake"}
    assert not {Path(path).name for path in paths} & {"serving.h", "libserving.a"}


def members(archive: Path) -> Iterator[tarfile.TarInfo]:
    """All files of an image, layer by layer."""
    with tarfile.open(archive) as file:
        listed = file.extractfile("manifest.json")
        assert listed is not None
        for name in json.load(listed)[0]["Layers"]:
            with tarfile.open(fileobj=file.extractfile(name)) as layer:
                yield from layer


def test_a_scanner_finds_what_is_installed(archive: slim.SlimImage) -> None:
    paths = {member.name for member in members(archive.path)}
    assert "opt/conda/conda-meta/tensorflow-serving-2.20.0-cpu_h0_0.json" in paths
    assert {"etc/os-release", "usr/lib/os-release"} <= paths
    system = {Path(path).name for path in paths if path.startswith("var/lib/dpkg/status.d/")}
    assert system == {*contents.SYSTEM, *contents.read_image_kind("serving").debian}


def test_nobody_gains_rights_by_a_file_and_no_link_leads_nowhere(archive: slim.SlimImage) -> None:
    result = {f"/{member.name}": member for member in members(archive.path)}
    assert [path for path, member in result.items() if member.mode & 0o6000] == []
    writable = {path: member for path, member in result.items() if member.mode & 0o002 and not member.issym()}
    assert {path: oct(member.mode) for path, member in writable.items()} == {"/tmp": "0o1777", "/var/tmp": "0o1777"}
    links = {path: member.linkname for path, member in result.items() if member.issym()}
    assert {path for path in links if followed(path, links) not in result} == set()


def followed(path: str, links: dict[str, str]) -> str:
    """Return the target of a path after following every link on the way."""
    seen = "/"
    for part in Path(path).parts[1:]:
        seen = os.path.normpath(Path(seen, part))
        while seen in links:
            seen = followed(os.path.normpath(Path(seen).parent / links[seen]), links)
    return seen


EXPECTED = (
    *("--port=8500", "--rest_api_port=8501", "--model_name=half_plus_two"),
    *("--model_base_path=/models/half_plus_two", "--enable_batching=true"),
    *("--batching_parameters_file=/models/batching", "--grpc_max_threads=4"),
)


@pytest.mark.parametrize("user", ["65532", "1000650000"])
def test_the_server_starts_as_any_plain_user_is_found_well_and_ends_when_asked(
    loaded: Engine, archive: slim.SlimImage, user: str
) -> None:
    named = f"kiln-test-{os.getpid()}-{user}"
    words = ("--name", named, *loaded.options, "--network", "none", "--cap-drop", "all", "--read-only")
    as_user = () if user == "65532" else ("--user", f"{user}:0")
    settings = ("--env", "MODEL_NAME=half_plus_two", "--env", "BATCHING_PARAMETERS_FILE=/models/batching")
    started = loaded.run_command("run", "--detach", *words, *as_user, *settings, archive.tag, "--grpc_max_threads=4")
    assert started.ok, started.tail
    try:
        until(lambda: loaded.run_command("exec", named, HEALTH).ok, "models are served", pause=0.2)
        until(lambda: len(loaded.run_command("logs", named).stdout.split()) >= len(EXPECTED), "the engine has the log")
        assert tuple(loaded.run_command("logs", named).stdout.split()) == EXPECTED
        shell = 'while read -r key value _; do [[ $key != Uid: ]] || echo "$value"; done </proc/1/status'
        asked = loaded.run_command("exec", named, "/usr/bin/bash", "-c", shell)
        assert asked.stdout.strip() == user
        # Killed after half a minute, it would have another exit code than that of the signal that asks it to end.
        assert loaded.run_command("stop", "--time", "30", named).ok
        (state,) = json.loads(loaded.run_command("inspect", named).stdout)
        assert state["State"]["ExitCode"] == 128 + signal.SIGTERM
    finally:
        loaded.run_command("rm", "--force", named)


def test_all_models_of_a_file_are_served_and_an_unknown_one_is_named(
    loaded: Engine, archive: slim.SlimImage, tmp_path: Path
) -> None:
    """With the stand-in, which knows the models that it was started with."""
    file = tmp_path / "models.config"
    models = (f'config {{ name: "{name}" base_path: "/models/{name}" }}' for name in ("half", "third"))
    file.write_text(f"model_config_list {{ {' '.join(models)} }}\n")
    file.chmod(0o644)
    named = f"kiln-test-{os.getpid()}-models"
    words = ("--name", named, *loaded.options, "--network", "none", "--cap-drop", "all", "--read-only")
    given = ("--volume", f"{file}:/etc/models.config:ro", "--env", "MODEL_CONFIG_FILE=/etc/models.config")
    started = loaded.run_command("run", "--detach", *words, *given, archive.tag)
    assert started.ok, started.tail
    try:
        until(lambda: loaded.run_command("exec", named, HEALTH).ok, "models are served", pause=0.2)
        other = loaded.run_command("exec", "--env", "MODEL_CONFIG_FILE=", "--env", "MODEL_NAME=typo", named, HEALTH)
        assert not other.ok
        assert "typo: HTTP/1.1 404 Not Found" in other.stdout
        log = loaded.run_command("logs", named).stdout
        assert "--model_config_file=/etc/models.config" in log
        assert "--model_name" not in log
    finally:
        loaded.run_command("rm", "--force", named)


def test_the_image_says_what_it_is(loaded: Engine, archive: slim.SlimImage) -> None:
    told = images.inspect_image(loaded, archive.tag)
    assert told is not None
    assert told["Config"]["Labels"]["org.opencontainers.image.version"] == "2.20.0"
    assert set(told["Config"]["ExposedPorts"]) == {"8500/tcp", "8501/tcp"}
    assert told["Config"]["User"] == "65532:65532"
    assert str(told["Id"]).removeprefix("sha256:") == archive.config_digest.removeprefix("sha256:")


def test_an_image_for_gpus_is_made_of_the_cuda_build_and_names_its_driver(tmp_path: Path) -> None:
    """The channel has both builds; without a GPU the same request gets the other one."""
    made = LocalChannel(root=tmp_path / "channel")
    for build, depends in (("cpu_h0_0", ()), ("cuda129h0_200", ("__cuda >=12",))):
        facts = PackageMetadata(
            name="tensorflow-serving",
            version="2.20.0",
            build=build,
            build_number=int(build.rpartition("_")[2]),
            license="Apache-2.0",
            depends=depends,
        )
        with write_package(tmp_path, facts) as archive:
            archive.add_bytes("bin/tensorflow_model_server", build.encode(), executable=True)
        made.add([(tmp_path / f"{facts.stem}.conda", "linux-64")])
    result = {}
    for cuda in ("", "12.9"):
        image = make(serving(made, cuda=cuda), tmp_path / f"image{cuda}.tar")
        with tarfile.open(image.path) as file:
            content = file.extractfile(f"blobs/{image.config_digest.replace(':', '/')}")
            assert content is not None
            result[cuda] = json.load(content)["config"]
    assert result[""]["Labels"]["kiln.package"] == "tensorflow-serving-2.20.0-cpu_h0_0.conda"
    assert "kiln.cuda" not in result[""]["Labels"]
    labels = result["12.9"]["Labels"]
    assert labels["kiln.package"] == "tensorflow-serving-2.20.0-cuda129h0_200.conda"
    assert (labels["kiln.cuda"], labels["kiln.cuda.driver"]) == ("12", ">=525.60.13")
    assert "NVIDIA_REQUIRE_CUDA=cuda>=12" in result["12.9"]["Env"]


def test_a_library_that_no_package_brings_is_named(tmp_path: Path) -> None:
    folder = tmp_path / "packages"
    folder.mkdir()
    (tmp_path / "none.c").write_text("int nothing(void) { return 0; }")
    (tmp_path / "x.c").write_text("int nothing(void); int main(void) { return nothing(); }")
    library, program = tmp_path / "libkilnnowhere.so", tmp_path / "x"
    subprocess.run(("gcc", "-shared", "-fPIC", "-o", library, tmp_path / "none.c"), check=True)
    subprocess.run(("gcc", "-o", program, tmp_path / "x.c", library), check=True)
    facts = PackageMetadata(name="tensorflow-serving", version="1", build="0", license="MIT")
    with write_package(folder, facts) as archive:
        archive.add_bytes("bin/tensorflow_model_server", program.read_bytes(), executable=True)
    channel = LocalChannel(root=tmp_path / "channel")
    channel.add([(folder / f"{facts.stem}.conda", "linux-64")])
    with pytest.raises(BuildFailed) as caught:
        make(serving(channel), tmp_path / "x.tar")
    assert "/opt/conda/bin/tensorflow_model_server needs " in caught.value.why
    assert "libkilnnowhere.so" in caught.value.why
    assert not (tmp_path / "x.tar").exists()
    assert list(WORK.glob(".image-*")) == []


INFERENCE = """
import json, sys
import keras, numpy, tensorflow as tf
if sys.argv[1] == "save":
    model = keras.Sequential([keras.layers.Input((3,)), keras.layers.Dense(1, kernel_initializer="ones")])
    model.export("/models/sum", verbose=False)
else:
    from http.server import BaseHTTPRequestHandler, HTTPServer
    serve = tf.saved_model.load("/models/sum").signatures["serving_default"]
    class Predict(BaseHTTPRequestHandler):
        def do_POST(self):
            instances = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["instances"]
            (out,) = serve(tf.constant(instances, tf.float32)).values()
            data = json.dumps({"predictions": out.numpy().tolist()}).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)
    HTTPServer(("127.0.0.1", 8501), Predict).serve_forever()
"""
ASK = """
import json, urllib.request
data = json.dumps({"instances": [[1, 2, 3], [4, 5, 6]]}).encode()
print(urllib.request.urlopen("http://127.0.0.1:8501/v1/models/sum:predict", data, timeout=60).read().decode())
"""


@pytest.mark.needs("docker")
@pytest.mark.skipif(
    apt.debian_codename(process.os_release()) != "bookworm",
    reason="a rehearsal's Python needs the libraries of its own system",
)
def test_a_model_is_saved_and_served_by_the_rehearsals_packages(report: dict[str, Any], tmp_path: Path) -> None:  # noqa: F811
    engine = shared_inputs.docker_engine()
    tag, named = f"localhost/kiln-test-tensorflow:{os.getpid()}", f"kiln-test-tf-{os.getpid()}"
    words = ("image", "tensorflow", "--from", report["channel"], "--tag", tag, "--output", str(tmp_path / "tf.tar"))
    with shared_inputs.turn("images"):
        made = kiln(ROOT, *words, "--load", "docker", "--json")
    assert made.returncode == 0, made.stderr
    (tmp_path / "tf.tar").unlink()
    (tmp_path / "inference.py").write_text(INFERENCE)
    models = tmp_path / "models"
    models.mkdir()
    models.chmod(0o777)
    mounts = ("--volume", f"{models}:/models", "--volume", f"{tmp_path / 'inference.py'}:/inference.py:ro")
    safe = ("--network", "none", "--cap-drop", "all", "--read-only", "--tmpfs", "/tmp")
    try:
        # Longer than an engine's own answers may take: TensorFlow is imported, and a model is traced.
        save = (engine.executable, "run", "--rm", *safe, *mounts, tag, "/inference.py", "save")
        saved = process.capture(save, env=engine.environment, timeout=CEILING)
        assert saved.ok, saved.tail
        assert (models / "sum" / "saved_model.pb").is_file()
        assert (models / "sum" / "saved_model.pb").stat().st_uid == 65532
        started = engine.run_command("run", "--detach", "--name", named, *safe, *mounts, tag, "/inference.py", "serve")
        assert started.ok, started.tail
        answers: list[str] = []

        def answered() -> bool:
            (state,) = json.loads(engine.run_command("inspect", named).stdout)
            assert state["State"]["Running"], engine.run_command("logs", named).tail
            asked = engine.run_command("exec", named, "/opt/conda/bin/python", "-c", ASK)
            answers.append(asked.stdout if asked.ok else "")
            return asked.ok

        until(answered, "it answers", pause=0.2)
        assert json.loads(answers[-1]) == {"predictions": [[6.0], [15.0]]}
        assert (images.image_labels(engine, tag))["kiln.rehearsal"] == "true"
    finally:
        engine.run_command("rm", "--force", named)
        engine.run_command("rmi", "--force", tag)

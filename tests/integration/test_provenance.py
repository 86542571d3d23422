"""A feedstock built, published, verified and built again, all by the command."""

from __future__ import annotations

import io
import json
import os
import shutil
import subprocess
import tarfile
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from kiln.base import files
from kiln.base.errors import BrokenIndex, NotReproduced, NotWritable, ProvenanceBroken, ReleaseRefused, UsageError
from tests import publishing, warm

pytestmark = pytest.mark.slow("a release is built, published and rebuilt")

ROOT = Path(__file__).parents[2]
SMALL = ROOT / "tests" / "fixtures" / "small-feedstock"
CONFIGS = sorted(file.stem for file in (SMALL / ".ci_support").glob("*.yaml"))
CONFIG, OTHERS = CONFIGS[2], (*CONFIGS[:2], CONFIGS[3])


def kiln(root: Path, *words: str) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if name not in {"sha", "SOURCE_DATE_EPOCH"}}
    return warm.kiln("-C", str(root), *words, env=environment)


def done(ended: subprocess.CompletedProcess[str]) -> str:
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


@pytest.fixture(scope="module")
def feedstock(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The small feedstock, fit to be released, with one of its configs built on this machine."""
    return built_feedstock(tmp_path_factory.mktemp("feedstock") / "small")


def built_feedstock(root: Path) -> Path:
    shutil.copytree(SMALL, root)
    meta, script = root / "recipe" / "meta.yaml", root / "recipe" / "build.sh"
    archive = downloaded_source(root.with_name("engine.tar.gz"))
    source = (
        f"source:\n  - url: {archive.as_uri()}\n    sha256: {files.sha256(archive)}\n    folder: engine\n  - path: src"
    )
    text = (
        meta.read_text().replace("source:\n  path: src", source).replace("  patches:\n    -", "    patches:\n      -")
    )
    meta.write_text(text.replace("  summary:", "  license_file: LICENCE\n  summary:"))
    script.write_text(f"{script.read_text()}cp engine/LICENSES LICENCE\n")
    installer = root / "recipe" / "install-app.sh"
    installer.write_text(installer.read_text().replace('echo "do as you like" >LICENCE', ""))
    (root / "outputs.txt").write_text("small\nlibsmall  # both\n")
    done(kiln(root, "build", CONFIG, "--container", "none"))
    return root


def downloaded_source(archive: Path) -> Path:
    """An archive of the shape of TensorFlow's: its third parties in files for Bazel, and their collected licenses."""
    rule = "-" * 80
    texts = {
        "MODULE.bazel": 'bazel_dep(name = "protobuf", version = "31.1", repo_name = "com_google_protobuf")\n',
        "third_party/eigen3/workspace.bzl": (
            'def repo():\n    EIGEN = "3d90"\n    tf_http_archive(name = "eigen_archive", sha256 = "'
            + "ab" * 32
            + '",\n'
            '        urls = tf_mirror_urls("https://gitlab.com/libeigen/eigen/-/archive/{c}/eigen-{c}.tar.gz"'
            ".format(c = EIGEN)))\n"
        ),
        "LICENSES": "".join(
            f"{rule}\nBEGIN LICENSE FOR external/{name}/LICENSE\n{rule}\nfree\n{rule}\nEND LICENSE FOR {name}\n{rule}\n"
            for name in ("com_google_protobuf", "eigen_archive")
        ),
    }
    with tarfile.open(archive, "w:gz") as file:
        for name, text in texts.items():
            member = tarfile.TarInfo(f"engine-1/{name}")
            member.size = len(text)
            file.addfile(member, io.BytesIO(text.encode()))
    return archive


@pytest.fixture(scope="module")
def channel(feedstock: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A channel to which the config was published."""
    place = tmp_path_factory.mktemp("channels") / "channel"
    told = done(kiln(feedstock, *publish(place), "--json"))
    assert len(json.loads(told)["published"]) == 2
    return place


def publish(place: Path) -> tuple[str, ...]:
    return ("publish", "--to", str(place), *(word for config in OTHERS for word in ("--partial", config)))


def packages(channel: Path) -> list[str]:
    return sorted(str(path) for path in channel.glob("linux-64/*.conda"))


def test_a_matrix_with_configs_missing_is_refused_with_each_of_them(feedstock: Path, tmp_path: Path) -> None:
    refused = kiln(feedstock, "publish", "--to", str(tmp_path / "channel"))
    assert refused.returncode == ReleaseRefused.exit_code
    assert [config for config in CONFIGS if f"missing config: {config}" in refused.stderr] == sorted(OTHERS)
    assert not (tmp_path / "channel").exists()
    assert len(json.loads(done(kiln(feedstock, *publish(tmp_path / "channel"), "--check", "--json")))["ready"]) == 2
    assert not (tmp_path / "channel").exists()


def test_a_published_package_is_verified_and_built_again_byte_for_byte(
    feedstock: Path, channel: Path, tmp_path: Path
) -> None:
    library, app = packages(channel)
    for package, where in ((library, ()), (app, ("--into", str(tmp_path / "again")))):
        assert "the channel's index has the same hash" in done(kiln(feedstock, "verify", package))
        record = json.loads(done(kiln(feedstock, "verify", package, "--json")))
        assert record["config"] == CONFIG
        assert record["sources"][1]["digest"]
        again = done(kiln(feedstock, "rebuild", package, *where))
        assert files.sha256(Path(package)) in again
    assert not (feedstock / "build_artifacts" / "work" / CONFIG).exists()


@pytest.mark.sampled
def test_bills_have_the_third_parties_of_a_downloaded_source_and_run_dependencies_as_tested(
    feedstock: Path, channel: Path
) -> None:
    library, app = packages(channel)
    spdx = json.loads((channel / f"provenance/sbom/{files.sha256(Path(app))}.spdx.json").read_text())
    by_name = {package["name"]: package for package in spdx["packages"]}
    assert by_name["protobuf"]["externalRefs"][0]["referenceLocator"] == "pkg:bazel/protobuf@31.1"
    assert by_name["eigen"]["versionInfo"] == "3d90"
    assert by_name["eigen"]["downloadLocation"].startswith("https://gitlab.com/libeigen/eigen/")
    relations = [(item["relatedSpdxElement"], item["relationshipType"]) for item in spdx["relationships"]]
    assert (by_name["eigen"]["SPDXID"], "CONTAINS") in relations
    record = json.loads(done(kiln(feedstock, "verify", app, "--json")))
    (tested,) = record["tested_with"]
    assert tested["sha256"] == files.sha256(Path(library))
    assert tested["purl"].startswith("pkg:conda/libsmall@1.2?build=")
    cyclonedx = json.loads((channel / f"provenance/sbom/{files.sha256(Path(app))}.cdx.json").read_text())
    (part,) = [item for item in cyclonedx["components"] if item["bom-ref"].startswith("tested/")]
    assert (part["name"], part["hashes"][0]["content"]) == ("libsmall", files.sha256(Path(library)))


def test_later_changes_are_detected(channel: Path, feedstock: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(channel, tmp_path / "copy", symlinks=True))
    package = packages(copy)[0]
    (bill,) = copy.glob(f"provenance/sbom/{files.sha256(Path(package))}.spdx.json")
    before = bill.read_bytes()
    bill.write_bytes(before + b" ")
    assert "bill of materials" in broken(kiln(feedstock, "verify", package))
    bill.write_bytes(before)
    done(kiln(feedstock, "verify", package))
    index = (copy / "linux-64" / "repodata.json").resolve()
    before = index.read_bytes()
    index.write_bytes(before.replace(files.sha256(Path(package)).encode(), b"0" * 64))
    assert "the channel's index has another hash" in broken(kiln(feedstock, "verify", package))
    index.write_bytes(b'{"packages.conda": {"small": 1}}')
    assert kiln(feedstock, "verify", package).returncode == BrokenIndex.exit_code
    index.write_bytes(before)
    statement = copy / "provenance" / "linux-64" / f"{Path(package).name}.intoto.json"
    before = statement.read_bytes()
    statement.write_bytes(before.replace(b'"version":"1.2"', b'"version":"1.3"'))
    assert "and its record differ in version" in broken(kiln(feedstock, "verify", package))
    statement.write_bytes(before[:-1])
    assert "the channel's statement about" in broken(kiln(feedstock, "verify", package))
    statement.write_bytes(before)
    files.write_bytes(Path(package), Path(package).read_bytes() + b" ")
    assert "is not the package that was published" in broken(kiln(feedstock, "verify", package))


def broken(ended: subprocess.CompletedProcess[str]) -> str:
    assert ended.returncode == ProvenanceBroken.exit_code
    return ended.stderr


def test_a_bundle_holds_packages_logs_hashes_and_statements_that_can_be_verified(
    feedstock: Path, channel: Path, tmp_path: Path
) -> None:
    place = tmp_path / "bundle"
    done(kiln(feedstock, *publish(tmp_path / "nowhere"), "--bundle", str(place)))
    assert not (tmp_path / "nowhere").exists()
    subprocess.run(("sha256sum", "--check", "--strict", "--quiet", "SHA256SUMS"), cwd=place, check=True)
    listed = {line.split(maxsplit=1)[1] for line in (place / "SHA256SUMS").read_text().splitlines()}
    assert f"logs/{CONFIG}.log" in listed
    for package in packages(place):
        assert "the one of the channel's statement" in done(kiln(feedstock, "verify", package))
    assert kiln(feedstock, *publish(tmp_path / "c"), "--bundle", str(place)).returncode == NotWritable.exit_code
    done(kiln(feedstock, *publish(channel), "--bundle", str(tmp_path / "again")))  # after their publication
    assert sorted(map(str, (tmp_path / "again").rglob("*.json"))) == [
        str(tmp_path / "again" / path.relative_to(place)) for path in sorted(place.rglob("*.json"))
    ]


def test_a_published_package_can_be_signed_later(feedstock: Path, channel: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(channel, tmp_path / "copy", symlinks=True))
    key, public = tmp_path / "key.pem", tmp_path / "key.pub.pem"
    key.write_bytes(publishing.KEY.key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    public.write_bytes(publishing.public_pem(publishing.KEY))
    words = ("verify", packages(copy)[0], "--require-attestation", str(public))
    assert "--attest KEY signs it" in broken(kiln(feedstock, *words))
    told = json.loads(done(kiln(feedstock, *publish(copy), "--attest", str(key), "--json")))
    assert (told["published"], len(told["attested"])) == ([], 2)
    assert "the channel's statement is the attested one" in done(kiln(feedstock, *words))
    assert "attested" not in json.loads(done(kiln(feedstock, *publish(copy), "--attest", str(key), "--json")))


@pytest.mark.sampled
def test_a_bad_build_is_patched_or_withdrawn_and_its_name_is_not_taken_again(
    feedstock: Path, channel: Path, tmp_path: Path
) -> None:
    copy = Path(shutil.copytree(channel, tmp_path / "copy", symlinks=True))
    library, app = (Path(package).name for package in packages(copy))
    to = ("publish", "--to", str(copy))
    assert "patched" in done(kiln(feedstock, *to, "--yank", app, "--patch", '{"depends": []}'))
    assert index(copy)[app]["depends"] == []
    assert "yanked" in done(kiln(feedstock, *to, "--yank", library))
    assert "it was withdrawn there" in kiln(feedstock, *publish(copy), "--check").stderr
    assert "yanked" in done(kiln(feedstock, *to, "--yank", library, "--delete"))
    assert set(index(copy)) == {app}
    assert kiln(feedstock, *to, "--yank", "liibsmall").returncode == UsageError.exit_code
    assert "it was withdrawn there" in kiln(feedstock, *publish(copy)).stderr
    assert "nothing was aborted" in kiln(feedstock, *to, "--abort").stderr
    assert "read 0" in done(kiln(feedstock, *to, "--reindex"))
    assert set(index(copy)) == {app}
    done(kiln(feedstock, "verify", str(copy / "linux-64" / app)))
    withdrawn = shutil.copy(channel / "linux-64" / library, copy / "linux-64")
    assert "does not offer it: it was withdrawn" in done(kiln(feedstock, "verify", str(withdrawn)))


def index(channel: Path) -> dict[str, Any]:
    told: dict[str, Any] = json.loads((channel / "linux-64" / "repodata.json").read_text())["packages.conda"]
    return told


@pytest.mark.sampled
def test_another_recipe_or_a_build_that_depends_on_the_hour_is_not_the_same(tmp_path: Path) -> None:
    feedstock = built_feedstock(tmp_path / "small")
    done(kiln(feedstock, *publish(tmp_path / "before")))
    script = feedstock / "recipe" / "install-app.sh"
    script.write_text(f"{script.read_text()}date +%s%N >$PREFIX/when\n")
    assert "is not the one that" in broken(kiln(feedstock, "rebuild", packages(tmp_path / "before")[1]))
    done(kiln(feedstock, "build", CONFIG, "--container", "none"))
    done(kiln(feedstock, *publish(tmp_path / "channel")))
    other = kiln(feedstock, "rebuild", packages(tmp_path / "channel")[1])
    assert other.returncode == NotReproduced.exit_code
    assert "when: content" in other.stderr

"""Check TensorFlow's files in its prefix. Usage: check_install.py VERSION."""

import importlib.metadata
import os
import pathlib
import sys

import tensorflow as tf


def loaded(name: str) -> set[tuple[str, str]]:
    """Return device and inode of every file of this process's memory whose path contains a name."""
    lines = pathlib.Path("/proc/self/maps").read_text(encoding="utf-8").splitlines()
    return {(fields[3], fields[4]) for fields in map(str.split, lines) if name in fields[-1]}


def check_version(version: str) -> None:
    """Check that the module, its metadata and the tools that read it agree on name and version."""
    assert tf.__version__ == version, tf.__version__
    distribution = importlib.metadata.distribution("tensorflow")
    assert distribution.version == version, distribution.version
    assert distribution.metadata["Name"] == "tensorflow", distribution.metadata["Name"]
    assert (distribution.read_text("INSTALLER") or "").strip() == "conda"
    absent = [file for file in distribution.files or [] if not os.path.lexists(file.locate())]
    assert not absent, absent[:5]


def check_libraries() -> None:
    """Check that each library is loaded once, from the prefix's lib/."""
    for name in ("libtensorflow_framework", "libtensorflow_cc"):
        assert len(loaded(name)) == 1, f"{name} is loaded {len(loaded(name))} times"
        installed = pathlib.Path(tf.sysconfig.get_lib(), f"{name}.so.2")
        expected = pathlib.Path(os.environ.get("PREFIX", sys.prefix), "lib", f"{name}.so.2")
        assert installed.samefile(expected), f"{installed.resolve()} is not {expected}"


def check_headers() -> None:
    """Check that the paths of tf.sysconfig for custom operations exist."""
    include = pathlib.Path(tf.sysconfig.get_include())
    assert not include.is_symlink(), "conda leaves a link to a folder behind"
    for header in ("tensorflow/core/framework/op_kernel.h", "absl/status/status.h", "google/protobuf/message.h"):
        assert (include / header).is_file(), include / header
    folder, library = tf.sysconfig.get_link_flags()
    assert pathlib.Path(folder.removeprefix("-L"), library.removeprefix("-l:")).is_file(), (folder, library)


check_version(sys.argv[1])
check_libraries()
check_headers()
sys.stdout.write(f"TensorFlow {tf.__version__} is installed correctly in {tf.sysconfig.get_lib()}\n")

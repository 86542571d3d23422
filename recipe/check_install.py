"""Check TensorFlow's files in its prefix. Usage: check_install.py VERSION."""

import ctypes
import importlib.metadata
import os
import pathlib
import sys

import tensorflow as tf


def loaded(name: str) -> set[tuple[str, str]]:
    """Return device and inode of every file of this process's memory whose path contains a name."""
    if sys.platform == "darwin":
        dyld = ctypes.CDLL(None)
        path_of_image, images = dyld["_dyld_get_image_name"], dyld["_dyld_image_count"]
        path_of_image.restype = ctypes.c_char_p
        paths = (path_of_image(index).decode() for index in range(images()))
        files = (pathlib.Path(path).stat() for path in paths if name in path)
        return {(str(file.st_dev), str(file.st_ino)) for file in files}
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
        file = f"{name}.2.dylib" if sys.platform == "darwin" else f"{name}.so.2"
        installed = pathlib.Path(tf.sysconfig.get_lib(), file)
        expected = pathlib.Path(os.environ.get("PREFIX", sys.prefix), "lib", file)
        assert installed.samefile(expected), f"{installed.resolve()} is not {expected}"


def check_headers() -> None:
    """Check that the paths of tf.sysconfig for custom operations exist."""
    include = pathlib.Path(tf.sysconfig.get_include())
    assert not include.is_symlink(), "conda leaves a link to a folder behind"
    for header in ("tensorflow/core/framework/op_kernel.h", "absl/status/status.h", "google/protobuf/message.h"):
        assert (include / header).is_file(), include / header
    folder, library = tf.sysconfig.get_link_flags()
    file = f"lib{library[2:]}.dylib" if sys.platform == "darwin" else library.removeprefix("-l:")
    assert pathlib.Path(folder.removeprefix("-L"), file).is_file(), (folder, library)


check_version(sys.argv[1])
check_libraries()
check_headers()
sys.stdout.write(f"TensorFlow {tf.__version__} is installed correctly in {tf.sysconfig.get_lib()}\n")

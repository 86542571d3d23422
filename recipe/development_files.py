"""Writes the files by which pkg-config and CMake find a library of this recipe."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

# The folders of headers below include/, by library; "" is include/ itself.
FOLDERS = {"tensorflow": ("",), "tensorflow_cc": ("libtensorflow_cc", "")}
TITLES = {"tensorflow": "TensorFlow for C", "tensorflow_cc": "TensorFlow for C and C++"}

PKG_CONFIG = """\
prefix=${{pcfiledir}}/../..
libdir=${{prefix}}/lib
includedir=${{prefix}}/include
# Whether tensorflow::ClientSession is in the library; upstream's wheel, from which rehearsals are made, lacks it.
client_session={client_session}

Name: {name}
Description: {title}
Version: {version}
Libs: -L${{libdir}} -l{name} -ltensorflow_framework
Cflags: {flags}
"""

CMAKE = """\
# find_package({name}) defines the target {name}::{name}.
get_filename_component(_prefix "${{CMAKE_CURRENT_LIST_DIR}}/../../.." ABSOLUTE)
foreach(_library tensorflow_framework {name})
  if(NOT TARGET {name}::${{_library}})
    add_library({name}::${{_library}} SHARED IMPORTED)
    set_target_properties({name}::${{_library}} PROPERTIES
      IMPORTED_LOCATION "${{_prefix}}/lib/lib${{_library}}{full}"
      IMPORTED_SONAME "{rpath}lib${{_library}}{major_only}")
  endif()
endforeach()
set_target_properties({name}::{name} PROPERTIES
  INTERFACE_INCLUDE_DIRECTORIES "{folders}"
  INTERFACE_LINK_LIBRARIES {name}::tensorflow_framework)
{features}unset(_library)
unset(_prefix)
"""
FEATURES = "target_compile_features({name}::{name} INTERFACE cxx_std_17)\n"

# Upstream promises no binary interface from one release to the next, but sources stay valid within a major version.
CMAKE_VERSION = """\
set(PACKAGE_VERSION "{version}")
if(PACKAGE_FIND_VERSION VERSION_EQUAL PACKAGE_VERSION)
  set(PACKAGE_VERSION_EXACT TRUE)
endif()
if(PACKAGE_FIND_VERSION_MAJOR EQUAL {major} AND NOT PACKAGE_FIND_VERSION VERSION_GREATER PACKAGE_VERSION)
  set(PACKAGE_VERSION_COMPATIBLE TRUE)
endif()
"""


def write(prefix: Path, name: str, version: str, *, client_session: bool, macos: bool) -> int:
    """Write the files of a library into a prefix; return their number."""
    texts = texts_of(name, version, client_session=client_session, macos=macos)
    for path, text in texts.items():
        (prefix / path).parent.mkdir(parents=True, exist_ok=True)
        (prefix / path).write_text(text, encoding="utf-8")
    return len(texts)


def texts_of(name: str, version: str, *, client_session: bool, macos: bool) -> dict[str, str]:
    """Return the texts of the files by their paths in a prefix."""
    major = version.partition(".")[0]
    values = {
        "name": name,
        "title": TITLES[name],
        "version": version,
        "major": major,
        "full": f".{version}.dylib" if macos else f".so.{version}",
        "major_only": f".{major}.dylib" if macos else f".so.{major}",
        "rpath": "@rpath/" if macos else "",
        "client_session": "yes" if client_session else "no",
        "flags": " ".join(f"-I${{includedir}}/{folder}".rstrip("/") for folder in FOLDERS[name]),
        "folders": ";".join(f"${{_prefix}}/include/{folder}".rstrip("/") for folder in FOLDERS[name]),
        "features": FEATURES.format(name=name) if name == "tensorflow_cc" else "",
    }
    return {
        f"lib/pkgconfig/{name}.pc": PKG_CONFIG.format(**values),
        f"lib/cmake/{name}/{name}-config.cmake": CMAKE.format(**values),
        f"lib/cmake/{name}/{name}-config-version.cmake": CMAKE_VERSION.format(**values),
    }

"""Binaries, with all settings of how they are changed and checked."""

from __future__ import annotations

LINKED = """\
package:
  name: linked
  version: "1"
build:
  number: 0
  script: bash -e $RECIPE_DIR/compile.sh
  rpaths:
    - lib/
    - lib/own
  missing_dso_whitelist:
    - '*/libc.so.6'
  runpath_whitelist:
    - /opt/*
  error_overlinking: true
  error_overdepending: true
  detect_binary_files_with_prefix: false
  osx_is_app: false
  msvc_compiler: "14"
about:
  license: MIT
"""
LINKED_OUTPUTS = """\
package:
  name: links
  version: "1"
outputs:
  - name: untouched
    script: compile.sh
    build:
      binary_relocation: false
      missing_dso_allowlist:
        - '*/libc.so.6'
      overlinking_ignore_patterns:
        - bin/*
  - name: some
    script: compile.sh
    build:
      binary_relocation:
        - bin/main
      runpath_allowlist:
        - /opt/*
      error_overlinking: false
      string: some_{{ PKG_BUILDNUM }}
about:
  license: MIT
"""
COMPILE = """\
mkdir -p "$PREFIX/lib/own" "$PREFIX/bin" "$PREFIX/share"
printf 'int f(void) { return 0; }' >f.c
printf 'int f(void); int main(void) { return f(); }' >main.c
gcc -shared -fPIC f.c -o "$PREFIX/lib/own/libf.so" -Wl,-rpath,/usr/lib/nowhere
gcc main.c -o "$PREFIX/bin/main" "-L$PREFIX/lib/own" -lf "-Wl,-rpath,$PREFIX/lib/own:/opt/elsewhere"
printf 'a\\0%s\\0' "$PREFIX" >"$PREFIX/share/binary"
"""

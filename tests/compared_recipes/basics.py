"""A package with files of every kind, and outputs that share a build step."""

from __future__ import annotations

SINGLE = """\
{% set version = "1.5" %}
package:
  name: keys
  version: {{ version }}

source:
  path: src  # a comment
  patches:
    - fix.patch

build:
  number: 2
  has_prefix_files:
    - share/data
    - share/one
  binary_has_prefix_files:
    - share/two
  ignore_prefix_files:
    - share/ignored
  no_link:
    - share/one
  script_env:
    - FIXED=1
  run_exports:
    - {{ pin_subpackage("keys", max_pin="x") }}
  features:
    - fast
  track_features:
    - slow
  script:
    - mkdir -p $PREFIX/share $PREFIX/bin $PREFIX/lib $PREFIX/empty
    - echo $PREFIX $FIXED $flavour >$PREFIX/share/one
    - echo $PREFIX >$PREFIX/share/two
    - echo $PREFIX >$PREFIX/share/three
    - echo $PREFIX >$PREFIX/share/ignored
    - printf 'a\\0%s\\0' $PREFIX >$PREFIX/share/data
    - printf 'a\\0%s/x\\0%s/yy\\0' $PREFIX $PREFIX >$PREFIX/share/binary
    - echo plain >$PREFIX/share/plain
    - printf '#!/bin/sh\\necho hello\\n' >$PREFIX/bin/hello
    - chmod 755 $PREFIX/bin/hello
    - chmod 600 $PREFIX/share/plain
    - ln -s one $PREFIX/share/link
    - ln -s $PREFIX/share/one $PREFIX/share/absolute
    - ln -s ../share $PREFIX/bin/folder
    - ln -s nowhere $PREFIX/share/dangling
    - ln $PREFIX/share/plain $PREFIX/share/hard
    - cp file.txt $PREFIX/share/
    - printf 'int f(void) { return 0; }' >f.c
    - printf 'int f(void); int main(void) { return f(); }' >main.c
    - gcc -shared -fPIC f.c -o $PREFIX/lib/libf.so
    - gcc main.c -o $PREFIX/bin/main -L$PREFIX/lib -lf -Wl,-rpath,$PREFIX/lib

requirements:
  build:
    - tool
  host:
    - dep
    - other >=1
  run:
    - runner >=1.0,<2
    - {{ pin_compatible("other") }}
  run_constrained:
    - rival >=3

test:
  requires:
    - tool
  files:
    - '*.dat'
  source_files:
    - file.txt
    - tests
  commands:
    - test -f deep/x.dat
    - test -f $PREFIX/share/one
    - test -f file.txt
    - main
    - echo tested keys

about:
  home: https://example.org
  license: MIT
  license_file:
    - LICENSE
    - licenses/OTHER
  license_family: MIT
  summary: Tests keys
  description: |
    Long
    text.
  dev_url: https://dev.example.org
  doc_url: https://doc.example.org
  keywords:
    - a
    - b
  readme: docs/README.md
  prelink_message:
    - licenses/OTHER
    - ./deep/x.dat
  recipe_log_file: log.json

extra:
  recipe-maintainers:
    - abc
    - zed
  feedstock-name: keys
"""
SINGLE_FILES = {
    "recipe/src/file.txt": "old\n",
    "recipe/src/tests/one.txt": "t",
    "recipe/src/licenses/OTHER": "other",
    "recipe/LICENSE": "free",
    "recipe/fix.patch": "--- a/file.txt\n+++ b/file.txt\n@@ -1 +1 @@\n-old\n+new\n",
    "recipe/deep/x.dat": "dat",
    "recipe/src/docs/README.md": "read",
    "recipe/log.json": '{"a": 1}',
    "recipe/run_test.sh": "echo ran\n",
    "recipe/post-link.sh": "true\n",
    "recipe/.hidden": "h",
}
OUTPUTS = """\
package:
  name: top
  version: "1"
source:
  path: src
build:
  number: 1
outputs:
  - name: first
    script: first.sh
    test:
      script: check.sh
      files:
        - '*.dat'
    about:
      summary: First
    build:
      run_exports:
        strong:
          - {{ pin_subpackage("first", exact=True) }}
  - name: second
    build:
      noarch: generic
    script: second.sh
    requirements:
      host:
        - dep
      run:
        - {{ pin_subpackage("first", max_pin="x") }}
    test:
      commands:
        - test -f $PREFIX/share/second
        - echo tested second
      requires:
        - tool
  - name: third
    files:
      - share/third*
    test:
      commands:
        - echo tested third
  - name: pure
    build:
      noarch: python
      entry_points:
        - pure = pure:main
    script: pure.sh
    requirements:
      run:
        - python
about:
  home: https://example.org
  license: MIT
  license_file: LICENSE
  summary: Top
extra:
  recipe-maintainers:
    - zed
"""
OUTPUTS_FILES = {
    "recipe/build.sh": "mkdir -p $PREFIX/share; cd $PREFIX/share; echo $PREFIX >third; echo $flavour >third-x\n",
    "recipe/src/a": "a",
    "recipe/first.sh": "mkdir -p $PREFIX/share; echo first >$PREFIX/share/first\n",
    "recipe/second.sh": "mkdir -p $PREFIX/share; echo $PREFIX >$PREFIX/share/second\n",
    "recipe/pure.sh": 'sp="$PREFIX/lib/python3.11/site-packages"; mkdir -p "$sp"; echo "main = print" >"$sp/pure.py"\n',
    "recipe/check.sh": "test -f $PREFIX/share/first && echo tested first\n",
    "recipe/a.dat": "d",
    "recipe/LICENSE": "free",
}

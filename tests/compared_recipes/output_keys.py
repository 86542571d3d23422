"""The keys of outputs."""

from __future__ import annotations

ALL_OUTPUT_KEYS = """\
package:
  name: keyed
  version: "1"
build:
  number: 1
requirements:
  host:
    - strengths
outputs:
  - name: lists
    version: "2"
    number: 4
    features:
      - fast
    track_features:
      - slow
    script: lists.awk
    script_interpreter: awk -f
    run_exports:
      weak:
        - "{{ pin_subpackage('lists', max_pin='x') }}"
      strong:
        - one >=1
      noarch:
        - two
      weak_constrains:
        - three <4
      strong_constrains:
        - four
    requirements:
      host:
        - dep
  - name: stringed
    string: mine_5
    script: share.sh
    build:
      pre-link: linking
      post-link: linked
      pre-unlink: unlinking
      always_include_files:
        - share/dep
      skip: false
    requirements:
      host:
        - dep
  - name: empty
    noarch: generic
    entry_points: []
    requirements:
      run:
        - dep
  - name: own-string
    string: own_6
    script: share.sh
  - name: skipped
    script: share.sh
    build:
      skip: true
  - name: chosen
    files:
      include:
        - share/*
      exclude:
        - share/b
    requirements:
      host:
        - strengths
  - name: unpacked
    build:
      detect_binary_files_with_prefix: true
      binary_has_prefix_files:
        - share/binary
    script: binary.sh
about:
  license: MIT
"""
ALL_OUTPUT_KEYS_FILES = {
    "recipe/build.sh": "mkdir -p $PREFIX/share; cd $PREFIX/share; echo a >a; echo b >b\n",
    "recipe/lists.awk": 'BEGIN { system("mkdir -p $PREFIX/share; touch $PREFIX/share/lists") }\n',
    "recipe/share.sh": "mkdir -p $PREFIX/share; echo $PKG_NAME >$PREFIX/share/$PKG_NAME\n",
    "recipe/binary.sh": "mkdir -p $PREFIX/share; cd $PREFIX/share\nprintf 'a\\0%s\\0' $PREFIX | tee binary >c\n",
    **{f"recipe/{name}.sh": "true\n" for name in ("linking", "linked", "unlinking")},
}

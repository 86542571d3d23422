"""Sources of all kinds: ARCHIVE, REPOSITORY and so on stand for those of the run."""

from __future__ import annotations

from tests.compared_recipes.basics import SINGLE_FILES

SOURCES = """\
package:
  name: sources
  version: "1"
source:
  - url: ARCHIVE
    md5: MD5
    folder: unpacked
  - url: ARCHIVE
    sha256: SHA256
    fn: renamed
    folder: renamed
  - git_url: REPOSITORY
    git_tag: v1
    folder: tagged
  - git_url: REPOSITORY
    git_branch: side
    folder: branch
  - git_url: REPOSITORY
    git_rev: REVISION
    git_depth: -1
    folder: rev
  - path: src
    folder: local/deep
    patches:
      - fix.patch
build:
  string: own_string
  include_recipe: false
  activate_in_script: true
  script:
    - mkdir -p $PREFIX/share/sources
    - find [a-z]*/ -name .git -prune -o -type f -print | sort >$PREFIX/share/sources/list
    - cp -r unpacked renamed tagged branch rev local $PREFIX/share/sources
test:
  source_files:
    - unpacked/inside
    - local
  commands:
    - test -f unpacked/inside
    - test -f local/deep/file.txt
    - echo tested sources
about:
  license: MIT
  license_file: local/deep/LICENSE
"""
SOURCES_FILES = {
    "recipe/src/file.txt": "old\n",
    "recipe/src/LICENSE": "free\n",
    "recipe/fix.patch": SINGLE_FILES["recipe/fix.patch"],
}

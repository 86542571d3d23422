"""Packages of Python modules, with what conda-build changes or leaves out."""

from __future__ import annotations

PYTHON = """\
package:
  name: snake
  version: "1.0"
build:
  number: 3
  disable_pip: true
  skip_compile_pyc:
    - '*/skipped.py'
  entry_points:
    - snake = snake:main
  no_move_top_level_workdir_loops: true
  ignore_verify_codes:
    - C1115
  requires_features:
    blas: mkl
  provides_features:
    speed: high
  force_use_keys:
    - forced
  force_ignore_keys:
    - ignored
  python_site_packages_path: lib/python3.11/site-packages
  script: bash -e $RECIPE_DIR/install.sh {{ ignored }}
requirements:
  host:
    - python
  run:
    - python
test:
  imports:
    - snake
  downstreams:
    - absent
  commands:
    - snake
    - echo tested snake
about:
  home: https://example.org
  doc_source_url: https://docs.example.org/source
  license: MIT
  license_url: https://example.org/license
  identifiers:
    - doi:1
  tags:
    - a
    - b
  summary: A module
"""
PYTHON_INSTALL = """\
packages="$PREFIX/lib/python3.11/site-packages"
mkdir -p "$packages/snake" "$packages/odd-1.0-py3.11.egg/EGG-INFO" "$packages/odd-1.0-py3.11.egg/odd"
printf 'def main():\\n    print("hiss")\\n' >"$packages/snake/__init__.py"
echo 'skipped = 1' >"$packages/snake/skipped.py"
echo 'odd = 1' >"$packages/odd-1.0-py3.11.egg/odd/__init__.py"
echo 'Name: odd' >"$packages/odd-1.0-py3.11.egg/EGG-INFO/PKG-INFO"
echo zip >"$packages/flat-2.0-py3.11.egg"
echo ./odd-1.0-py3.11.egg >"$packages/easy-install.pth"
mkdir -p "$packages/snake-1.0.dist-info"
printf 'Metadata-Version: 2.1\\nName: snake\\nVersion: 1.0\\n' >"$packages/snake-1.0.dist-info/METADATA"
echo pip >"$packages/snake-1.0.dist-info/INSTALLER"
printf 'snake/__init__.py,,\\nsnake-1.0.dist-info/RECORD,,\\n' >"$packages/snake-1.0.dist-info/RECORD"
mkdir -p "$packages/snake/.git/objects" "$PREFIX/share/info" "$PREFIX/lib/deep" "$PREFIX/share/deep/conda-metadata"
echo git >"$packages/snake/.git/objects/x"
echo git >"$packages/snake/.gitignore"
echo index >"$PREFIX/share/info/dir"
echo libtool >"$PREFIX/lib/deep/libx.la"
echo desktop >"$PREFIX/share/.DS_Store"
echo trash >"$PREFIX/share/x.conda_trash"
echo trash >"$PREFIX/share/y.conda_trash_1"
echo old >"$packages/snake/old.pyo"
mkdir -p "$packages/snake/__pycache__"
echo old >"$packages/snake/__pycache__/__init__.cpython-311.opt-1.pyc"
printf '#!%s/bin/python\\nprint(1)\\n' "$PREFIX" >"$PREFIX/bin/own-script"
chmod 755 "$PREFIX/bin/own-script"
"""
PYTHON_OUTPUTS = """\
package:
  name: snakes
  version: "1.0"
outputs:
  - name: eggs
    script: egg.sh
    build:
      preserve_egg_dir: true
    requirements:
      host:
        - python
      run:
        - python
  - name: independent
    version: "4"
    python_version_independent: true
    script: independent.sh
    requirements:
      host:
        - python
      run:
        - python
  - name: independent-too
    build:
      python_version_independent: true
    script: independent.sh
    requirements:
      host:
        - python
      run:
        - python
  - name: pure
    number: 7
    build:
      noarch: python
      entry_points:
        - pure = pure:main
    script: pure.py
    requirements:
      host:
        - python
      run:
        - python
    test:
      imports:
        - pure
      commands:
        - echo tested pure
about:
  license: MIT
"""
PYTHON_OUTPUTS_FILES = {
    "recipe/egg.sh": 'egg="$PREFIX/lib/python3.11/site-packages/kept-1.0-py3.11.egg/kept"; mkdir -p "$egg"\n'
    'echo "kept = 1" >"$egg/__init__.py"\n',
    "recipe/independent.sh": 'packages="$PREFIX/lib/python3.11/site-packages"; mkdir -p "$packages"\n'
    'echo "any = 1" >"$packages/independent.py"\n',
    "recipe/pure.py": "import os, pathlib\n"
    'folder = pathlib.Path(os.environ["PREFIX"], "lib/python3.11/site-packages")\n'
    "folder.mkdir(parents=True, exist_ok=True)\n"
    '(folder / "pure.py").write_text("main = print\\n")\n'
    'script = pathlib.Path(os.environ["PREFIX"], "bin/pure-script")\n'
    "script.write_text(f\"#!{os.environ['PREFIX']}/bin/python\\nprint(1)\\n\")\n"
    "script.chmod(0o755)\n",
}

#!/bin/bash
set -euo pipefail

mkdir -p "$PREFIX/bin"
cp hello.sh "$PREFIX/bin/$PKG_NAME"
chmod 755 "$PREFIX/bin/$PKG_NAME"

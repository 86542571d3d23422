#!/usr/bin/env bash
# Fills $PREFIX with the output that $PKG_NAME names, from the one wheel in dist/.
set -euo pipefail
exec bash "$RECIPE_DIR/python.sh" split_wheel.py --output "$PKG_NAME" --version "$PKG_VERSION" \
    --wheels "$SRC_DIR/dist" --prefix "$PREFIX" --licenses "$SRC_DIR/licenses" ${SP_DIR:+--site-packages "$SP_DIR"}

#!/usr/bin/env bash
# Fills $PREFIX with the output that $PKG_NAME names, from the one wheel in dist/.
set -euo pipefail

for candidate in "${PYTHON:-}" "${BUILD_PREFIX:-}/bin/python" python3 python; do
    if [[ -n $candidate ]] && command -v "$candidate" >/dev/null; then
        exec "$candidate" -BEs "$RECIPE_DIR/split_wheel.py" --output "$PKG_NAME" --version "$PKG_VERSION" \
            --wheels "$SRC_DIR/dist" --prefix "$PREFIX" --licenses "$SRC_DIR/licenses" ${SP_DIR:+--site-packages "$SP_DIR"}
    fi
done
echo "split.sh: no Python to run split_wheel.py with" >&2
exit 1

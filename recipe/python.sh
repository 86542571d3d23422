#!/usr/bin/env bash
# Runs a script of this recipe with the first Python that runs here: the config's, which in a cross-compilation is that of
# another processor, the build's, the system's.
# Usage: python.sh SCRIPT [ARGUMENT ...]
set -euo pipefail
script=$1
shift
for candidate in "${PYTHON:-}" "${BUILD_PREFIX:-}/bin/python" python3 python; do
    if [[ -n $candidate ]] && "$candidate" -BEsSc "" 2>/dev/null; then
        exec "$candidate" -BEs "$RECIPE_DIR/$script" "$@"
    fi
done
echo "python.sh: no Python to run $script with" >&2
exit 1

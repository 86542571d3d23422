#!/usr/bin/env bash
# Fills $PREFIX with the output that $PKG_NAME names, from the files of the compile in dist/.
set -euo pipefail
case $PKG_NAME in
tensorflow-serving)
    install -D -m 755 "$SRC_DIR/dist/tensorflow_model_server" "$PREFIX/bin/tensorflow_model_server"
    ;;
tensorflow-serving-api)
    wheels=("$SRC_DIR"/dist/tensorflow_serving_api-"$PKG_VERSION"-*.whl)
    if ((${#wheels[@]} != 1)) || [[ ! -f ${wheels[0]} ]]; then
        echo "split.sh: dist must hold one wheel of the API of $PKG_VERSION, it has ${wheels[*]}" >&2
        exit 1
    fi
    "$PYTHON" -m pip install --no-deps --no-index --no-build-isolation --ignore-installed -vv "${wheels[0]}"
    ;;
*)
    echo "split.sh: no output is called $PKG_NAME" >&2
    exit 1
    ;;
esac

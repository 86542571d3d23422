#!/usr/bin/env bash
# Fills $PREFIX with the output that $PKG_NAME names, from the files of the compile in dist/.
set -euo pipefail
: "${cuda_compiler_version:?}" # a part of the config's variant
case $PKG_NAME in
tensorflow-serving)
    install -D -m 755 "$SRC_DIR/dist/tensorflow_model_server" "$PREFIX/bin/tensorflow_model_server"
    # The server is one program, and XLA in it looks for CUDA's tools in a folder beside the program, named after it. These
    # are the tools, and libdevice, that cuda-nvcc-tools installs. Links to single files: a link to a folder of the prefix
    # would lead programs that follow links round in circles.
    if [[ $cuda_compiler_version == 12.* ]]; then
        tools=$PREFIX/bin/tensorflow_model_server.runfiles/cuda_nvcc
        mkdir -p "$tools/bin" "$tools/nvvm/libdevice"
        for tool in ptxas nvlink fatbinary; do
            ln -s "../../../$tool" "$tools/bin/$tool"
        done
        ln -s ../../../../../nvvm/libdevice/libdevice.10.bc "$tools/nvvm/libdevice/libdevice.10.bc"
    fi
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

#!/usr/bin/env bash
# Compiles a C and a C++ program against the installed libraries and runs them. Usage: check_link.sh VERSION
set -euo pipefail
version=$1
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

# With pkg-config the flags are the package's own; without it they are written out.
if command -v pkg-config >/dev/null; then
    export PKG_CONFIG_PATH="$PREFIX/lib/pkgconfig${PKG_CONFIG_PATH:+:$PKG_CONFIG_PATH}"
    [[ $(pkg-config --modversion tensorflow_cc) == "$version" ]]
    read -ra flags <<<"$(pkg-config --cflags --libs tensorflow_cc)"
else
    flags=(-I"$PREFIX/include/libtensorflow_cc" -I"$PREFIX/include" -L"$PREFIX/lib" -ltensorflow_cc -ltensorflow_framework)
fi
# The compilers of conda find the rest in $CFLAGS and $LDFLAGS; those of a machine get the path for running here.
rpath=-Wl,-rpath,"$PREFIX/lib"

compile_and_run() {
    local language=$1 compiler=$2 source=$3
    shift 3
    if ! command -v "${compiler%% *}" >/dev/null; then
        echo "$language: skipped, there is no compiler on this machine ($compiler)"
        return
    fi
    # shellcheck disable=SC2086  # a compiler and its flags are several words
    $compiler ${CPPFLAGS:-} "$@" "$source" -o "$folder/program" ${LDFLAGS:-} "${flags[@]}" "$rpath"
    TF_CPP_MIN_LOG_LEVEL=2 "$folder/program" "$version"
}

# The C interface needs no flag but the folder of all conda headers.
compile_and_run C "${CC:-cc}" check_link.c -std=c11 -I"$PREFIX/include"
# -w: the headers use names that they themselves declare deprecated.
compile_and_run C++ "${CXX:-c++}" check_link.cc -std=c++17 -O1 -w

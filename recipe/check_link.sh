#!/usr/bin/env bash
# Compiles programs for C and C++ against an installed library and runs them, in each way that programs find it: with
# -I$PREFIX/include, by pkg-config and by CMake. Usage: check_link.sh LIBRARY VERSION, as in: tensorflow_cc 2.21.0
set -euo pipefail
library=$1 version=$2
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
export PKG_CONFIG_PATH="$PREFIX/lib/pkgconfig${PKG_CONFIG_PATH:+:$PKG_CONFIG_PATH}"
# The compilers of conda find the rest in $CPPFLAGS and $LDFLAGS; those of a machine get the path for running here.
rpath=-Wl,-rpath,"$PREFIX/lib"
by_hand=(-I"$PREFIX/include" -L"$PREFIX/lib" -l"$library" -ltensorflow_framework)

run() {
    TF_CPP_MIN_LOG_LEVEL=2 "$1" "$version"
}

# compile_and_run COMPILER SOURCE FLAG ...: -w, since the headers use names that they themselves declare deprecated.
compile_and_run() {
    local compiler=$1 source=$2
    shift 2
    if ! command -v "${compiler%% *}" >/dev/null; then
        echo "$source: skipped, there is no compiler on this machine ($compiler)"
        return
    fi
    # shellcheck disable=SC2086  # a compiler and its flags are several words
    $compiler ${CPPFLAGS:-} "$source" -w -o "$folder/program" ${LDFLAGS:-} "$@" "$rpath"
    run "$folder/program"
}

compile_and_run "${CC:-cc}" check_link.c -std=c11 "${by_hand[@]}"
if [[ $library == tensorflow_cc ]]; then
    compile_and_run "${CXX:-c++}" check_link.cc -std=c++17 -O1 "${by_hand[@]}"
    if grep -qx client_session=yes "$PREFIX/lib/pkgconfig/$library.pc"; then
        compile_and_run "${CXX:-c++}" check_client_session.cc -std=c++17 -O1 "${by_hand[@]}"
    else
        echo "check_client_session.cc: skipped, the library is that of a wheel, which has no tensorflow::ClientSession"
    fi
fi

if command -v pkg-config >/dev/null; then
    [[ $(pkg-config --modversion "$library") == "$version" ]]
    read -ra flags <<<"$(pkg-config --cflags --libs "$library")"
    compile_and_run "${CC:-cc}" check_link.c -std=c11 "${flags[@]}"
else
    echo "pkg-config: skipped, it is not on this machine"
fi

if command -v cmake >/dev/null && command -v make >/dev/null && command -v "${CC:-cc}" >/dev/null; then
    cp check_link.c "$folder"
    cat >"$folder/CMakeLists.txt" <<EOF
cmake_minimum_required(VERSION 3.16)
project(check_link C)
find_package($library $version EXACT REQUIRED)
add_executable(check_link check_link.c)
target_link_libraries(check_link PRIVATE $library::$library)
EOF
    cmake -S "$folder" -B "$folder/build" -DCMAKE_PREFIX_PATH="$PREFIX" >"$folder/log" || (cat "$folder/log" && false)
    cmake --build "$folder/build" >"$folder/log" || (cat "$folder/log" && false)
    run "$folder/build/check_link"
else
    echo "CMake: skipped, it is not on this machine, or make or a compiler is not"
fi

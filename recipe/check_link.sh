#!/usr/bin/env bash
# Compiles programs for C and C++ against an installed library and runs them. Usage: check_link.sh LIBRARY VERSION, as in:
# tensorflow_cc 2.21.0. Programs find a library in three ways. Since to link with one of a gigabyte takes 7 s of processor
# time, each program is linked once: by pkg-config those for C, by CMake those for C++, or for C where there are none. That
# -I$PREFIX/include alone finds the headers is seen by the preprocessor: to compile those for C++ takes 5 s.
set -euo pipefail
library=$1 version=$2
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
export PKG_CONFIG_PATH="$PREFIX/lib/pkgconfig${PKG_CONFIG_PATH:+:$PKG_CONFIG_PATH}"
# The compilers of conda find the rest in $CPPFLAGS and $LDFLAGS; those of a machine get the path for running here.
rpath=-Wl,-rpath,"$PREFIX/lib"
pc_file=$PREFIX/lib/pkgconfig/$library.pc
sources=() languages=()
# gold reads such a library in a third of the time of ld; not every compiler has it.
linker=()
if [[ $(${CC:-cc} -fuse-ld=gold -Wl,--version 2>/dev/null) == *gold* ]]; then
    linker=(-fuse-ld=gold)
fi

# compiler SOURCE: the compiler of its language, with its first flags.
compiler() {
    case $1 in
    *.c) echo "${CC:-cc}" ;;
    *) echo "${CXX:-c++}" ;;
    esac
}

# add LANGUAGE SOURCE ...: the programs of a language, where this machine has its compiler.
add() {
    local language=$1 words
    shift
    read -ra words <<<"$(compiler "$1")"
    if command -v "${words[0]}" >/dev/null; then
        sources+=("$@")
        languages+=("$language")
    else
        echo "$*: skipped, there is no compiler on this machine (${words[*]})"
    fi
}

# run HOW SOURCE PROGRAM
run() {
    echo "$2, found $1:"
    TF_CPP_MIN_LOG_LEVEL=2 "$3" "$version"
}

# compile SOURCE FLAG ...: -w, since the headers use names that they themselves declare deprecated.
compile() {
    local source=$1 standard=(-std=c11)
    shift
    [[ $source == *.c ]] || standard=(-std=c++17 -O1)
    # shellcheck disable=SC2046,SC2086  # a compiler and its flags are several words
    $(compiler "$source") ${CPPFLAGS:-} "${standard[@]}" "$source" -w "$@"
}

# link_and_run HOW SOURCE FLAG ...
link_and_run() {
    local how=$1 source=$2
    shift 2
    # shellcheck disable=SC2086
    compile "$source" -o "$folder/program" ${LDFLAGS:-} ${linker[@]+"${linker[@]}"} "$@" "$rpath"
    run "$how" "$source" "$folder/program"
}

# build_with_cmake SOURCE ...: CMake alone says where the library is found, and which standard of C++ it needs.
build_with_cmake() {
    cp "$@" "$folder"
    {
        echo "cmake_minimum_required(VERSION 3.16)"
        echo "project(check_link ${languages[*]})"
        echo "find_package($library $version EXACT REQUIRED)"
        for source in "$@"; do
            echo "add_executable(${source%.*}_${source##*.} $source)"
            echo "target_link_libraries(${source%.*}_${source##*.} PRIVATE $library::$library)"
        done
    } >"$folder/CMakeLists.txt"
    cmake -S "$folder" -B "$folder/build" -DCMAKE_PREFIX_PATH="$PREFIX" -DCMAKE_C_FLAGS=-w -DCMAKE_CXX_FLAGS=-w \
        -DCMAKE_EXE_LINKER_FLAGS="${LDFLAGS:-} ${linker[*]-}" &&
        cmake --build "$folder/build"
}

add C check_link.c
if [[ $library == tensorflow_cc ]]; then
    if grep -qx client_session=yes "$pc_file"; then
        add CXX check_link.cc check_client_session.cc
    else
        echo "check_client_session.cc: skipped, the library is that of a wheel, which has no tensorflow::ClientSession"
        add CXX check_link.cc
    fi
fi
if ((${#sources[@]} == 0)); then
    exit 0
fi

flags=(-I"$PREFIX/include" -L"$PREFIX/lib" -l"$library" -ltensorflow_framework) how="with -I\$PREFIX/include"
for source in "${sources[@]}"; do
    echo "$source, preprocessed $how"
    compile "$source" -E -o /dev/null -I"$PREFIX/include"
done

if command -v pkg-config >/dev/null; then
    [[ $(pkg-config --modversion "$library") == "$version" ]]
    read -ra flags <<<"$(pkg-config --cflags --libs "$library")"
    how="by pkg-config"
else
    echo "pkg-config: skipped, it is not on this machine"
fi
by_cmake=()
for source in "${sources[@]}"; do
    [[ $source != *.c ]] || link_and_run "$how" "$source" "${flags[@]}"
    [[ $source == *.c ]] || by_cmake+=("$source")
done

((${#by_cmake[@]} > 0)) || by_cmake=("${sources[@]}")
if command -v cmake >/dev/null && command -v make >/dev/null; then
    build_with_cmake "${by_cmake[@]}" >"$folder/log" 2>&1 || (cat "$folder/log" && false)
    for source in "${by_cmake[@]}"; do
        run "by CMake" "$source" "$folder/build/${source%.*}_${source##*.}"
    done
else
    echo "CMake: skipped, it is not on this machine, or make is not"
    for source in "${by_cmake[@]}"; do
        link_and_run "$how" "$source" "${flags[@]}"
    done
fi

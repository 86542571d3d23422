#!/usr/bin/env bash
# The compile step: from TensorFlow's sources in $SRC_DIR to exactly one wheel in $SRC_DIR/dist, and the libraries for C
# and C++ in $SRC_DIR/dist/libraries, hours of work for many cores. All outputs of this recipe are made from these
# (split.sh), wherever the wheel was built.
#
# Bazel's flags are in compile.ini; compile_plan.py derives them from it and from the config's variant
# (cuda_compiler_version, cudnn, python; microarch_level and cuda_compute_capabilities where the recipe has them). The
# caller may set: BAZEL_DISK_CACHE (a folder), BAZEL_REMOTE_CACHE (a URL), BAZEL_CACHE_KEY (divides a shared cache),
# BAZEL_BUILD_EVENTS (a file to write, JSON), BAZEL_PROFILE (another), BAZEL_CPUS, BAZEL_MEMORY_MB (what may be used, else
# the container's limits), BAZEL_DISTDIR (a folder of downloads), and the variables of remote_execution.py.
#
# Bazel brings its own Clang 18.1.8, sysroot, Python and CUDA ("hermetic" in upstream's words) and downloads them, so
# nothing of the conda compilers may reach it.
set -euo pipefail
unset CC CXX CPP AR AS LD NM RANLIB STRIP CFLAGS CXXFLAGS CPPFLAGS LDFLAGS

plan() {
    bash "$RECIPE_DIR/python.sh" compile_plan.py "$RECIPE_DIR/compile.ini" "$@"
}

# Bazel's own tree is next to the sources, so that it is removed with them.
run_bazel() {
    "$bazel" --output_user_root="$SRC_DIR/bazel" --bazelrc="$SRC_DIR/config.bazelrc" "$@"
}

bazel='' target='' wheel_folder='' nvcc_target='' nvcc_file='' library_targets='' library_folder='' flags=''
assignments=$(plan --bazelrc "$SRC_DIR/config.bazelrc")
eval "$assignments"
trap 'run_bazel shutdown; rm -rf "$SRC_DIR/remote"' EXIT # a remote executor's credentials
printf 'flags for Bazel:\n%s' "$flags"

# Check that the compiler of the kernels accepts the capabilities, before hours are spent.
if [[ -n $nvcc_target ]]; then
    run_bazel build --build_event_json_file= "$nvcc_target" # the events are those of the compile alone
    plan --nvcc "$(run_bazel info --build_event_json_file= output_base)/$nvcc_file"
fi
run_bazel build "$target"

mkdir -p "$SRC_DIR/dist"
cp "$wheel_folder"/*.whl "$SRC_DIR/dist/"
wheels=("$SRC_DIR"/dist/*.whl)
if ((${#wheels[@]} != 1)); then
    echo "build.sh: the compile must leave one wheel in dist, it left ${#wheels[@]}: ${wheels[*]}" >&2
    exit 1
fi
plan --wheel "${wheels[0]}"

# The next call of Bazel begins new files.
if [[ -e ${BAZEL_BUILD_EVENTS:-} ]]; then
    mv "$BAZEL_BUILD_EVENTS" "$BAZEL_BUILD_EVENTS.wheel"
fi
if [[ -e ${BAZEL_PROFILE:-} ]]; then
    mv "$BAZEL_PROFILE" "$BAZEL_PROFILE.wheel"
fi
read -ra targets <<<"$library_targets"
run_bazel build --config=libraries "${targets[@]}"
bash "$RECIPE_DIR/python.sh" library_files.py "$RECIPE_DIR/compile.ini" "$library_folder" "$SRC_DIR/dist/libraries"

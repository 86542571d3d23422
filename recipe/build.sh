#!/usr/bin/env bash
# The compile step: from TensorFlow's sources in $SRC_DIR to exactly one wheel in $SRC_DIR/dist, hours of work for many
# cores. Everything else that this recipe makes, it makes from that wheel (split.sh), whoever built it.
#
# Which flags Bazel gets stands in compile.ini; compile_plan.py makes them of it and of the cell's variant
# (cuda_compiler_version, cudnn, python; microarch_level and cuda_compute_capabilities where the recipe has them). The
# caller may say more: BAZEL_DISK_CACHE (a folder), BAZEL_REMOTE_CACHE (a URL), BAZEL_CACHE_KEY (divides a shared cache),
# BAZEL_BUILD_EVENTS (a file to write, JSON), BAZEL_CPUS, BAZEL_MEMORY_MB (what may be used, else the container's limits),
# BAZEL_DISTDIR (a folder of downloads).
#
# Bazel brings its own Clang 18.1.8, sysroot, Python and CUDA ("hermetic" in upstream's words) and downloads them, so
# nothing of the conda compilers may reach it.
set -euo pipefail
unset CC CXX CPP AR AS LD NM RANLIB STRIP CFLAGS CXXFLAGS CPPFLAGS LDFLAGS

plan() {
    bash "$RECIPE_DIR/python.sh" compile_plan.py "$RECIPE_DIR/compile.ini" "$@"
}

# Bazel's own tree lies beside the sources, for what it leaves goes with them.
run_bazel() {
    "$bazel" --output_user_root="$SRC_DIR/bazel" --bazelrc="$SRC_DIR/cell.bazelrc" "$@"
}

bazel='' target='' wheel_folder='' nvcc_target='' nvcc_file='' flags=''
assignments=$(plan --bazelrc "$SRC_DIR/cell.bazelrc")
eval "$assignments"
trap 'run_bazel shutdown' EXIT
printf 'flags for Bazel:\n%s' "$flags"

# The compiler of the kernels says itself what it accepts, before hours are spent.
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

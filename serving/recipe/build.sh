#!/usr/bin/env bash
# The compile step: from Serving's sources in $SRC_DIR to the server and the wheel of its Python API in $SRC_DIR/dist.
#
# The needs of a release and its CUDA are in releases.csv; cuda_compiler_version and microarch_level are the config's. The
# caller may set:
# BAZEL_DISK_CACHE (a folder), BAZEL_REMOTE_CACHE (a URL), BAZEL_CACHE_KEY (divides a shared cache), BAZEL_BUILD_EVENTS (a
# file to write, JSON), BAZEL_CPUS, BAZEL_MEMORY_MB (what may be used, else the machine's), BAZEL_DISTDIR (a folder of
# downloads).
set -euo pipefail
# A part of the config's variant, which a script gets when it names it.
: "${cuda_compiler_version:?}"
unset CC CXX CPP AR AS LD NM RANLIB STRIP CFLAGS CXXFLAGS CPPFLAGS LDFLAGS
MEGABYTES_PER_JOB=2000 # what a compiler process of this code base takes up to

fail() {
    echo "build.sh: $*" >&2
    exit 1
}

# The last field, the source, is for people and may hold commas.
release=$(grep "^$PKG_VERSION,$cuda_compiler_version," "$RECIPE_DIR/releases.csv") ||
    fail "releases.csv has no release $PKG_VERSION for CUDA $cuda_compiler_version"
IFS=, read -r _ _ _ tensorflow commit bazel config toolkit cudnn capabilities _ <<<"$release"
capabilities=${capabilities//:/,}

# The sources name the commit of the TensorFlow that they compile; it must be the one that the table was made for.
found=$(sed -n 's/^ *git_commit = "\([0-9a-f]\{40\}\)".*/\1/p' "$SRC_DIR/WORKSPACE" | head -n 1)
[[ $found == "$commit" ]] || fail "WORKSPACE has TensorFlow at ${found:-no commit}, releases.csv $commit ($tensorflow)"

version=$(bazel --version 2>/dev/null || bazel version 2>/dev/null | sed -n 's/^Build label: /bazel /p')
[[ $version == "bazel $bazel"* ]] || fail "Serving $PKG_VERSION is compiled by Bazel $bazel, this is '$version'"

cpus=${BAZEL_CPUS:-${CPU_COUNT:-$(nproc)}}
memory=${BAZEL_MEMORY_MB:-$(awk '/^MemTotal:/ {print int($2 / 1024)}' /proc/meminfo)}
fitting=$((memory / MEGABYTES_PER_JOB))
jobs=$((fitting < 1 ? 1 : fitting < cpus ? fitting : cpus))
usable=$((memory * 9 / 10)) # the rest is for Bazel itself

# What the processor must have. Upstream's "release" is SSE 4.2 and AVX, and nothing else.
case ${microarch_level:-2} in
1) flags=() ;;
2) flags=(--config=release) ;;
3) flags=(--config=release --copt=-march=haswell) ;;
4) flags=(--config=release --copt=-march=skylake-avx512) ;;
*) fail "microarch_level is '$microarch_level'; there are 1, 2, 3, 4" ;;
esac
flags+=(--verbose_failures "--jobs=$jobs")
case $bazel in
0.*) flags+=("--local_resources=$usable,$cpus,1.0") ;;
*) flags+=("--local_resources=memory=$usable" "--local_resources=cpu=$cpus" --incompatible_strict_action_env) ;;
esac
[[ $config == "" ]] || flags+=(--copt=-fPIC)
case $config in
"") ;;
cuda)
    flags+=(--config=cuda)
    # Asked of the environment, as upstream's image for this release sets it.
    export TF_NEED_CUDA=1 TF_CUDA_VERSION=$toolkit TF_CUDNN_VERSION=$cudnn TF_CUDA_COMPUTE_CAPABILITIES=$capabilities
    ;;
cuda_clang) flags+=(--config=cuda_clang) ;;
cuda_nvcc)
    # Serving has no configuration for nvcc: these are the settings of its TensorFlow's, and the rest of cuda_clang.
    flags+=(--config=cuda --action_env=TF_NVCC_CLANG=1 --@local_config_cuda//:cuda_compiler=nvcc)
    flags+=(--repo_env=TF_NEED_TENSORRT=0 --repo_env=HERMETIC_NVSHMEM_VERSION=3.2.5)
    ;;
*) fail "releases.csv has the configuration '$config', and this script has no flags for it" ;;
esac
if [[ $config == cuda_* ]]; then
    flags+=("--repo_env=HERMETIC_CUDA_VERSION=$toolkit" "--repo_env=HERMETIC_CUDNN_VERSION=$cudnn")
    flags+=("--repo_env=TF_CUDA_COMPUTE_CAPABILITIES=$capabilities")
fi
[[ -z ${BAZEL_DISK_CACHE:-} ]] || flags+=("--disk_cache=$BAZEL_DISK_CACHE")
[[ -z ${BAZEL_REMOTE_CACHE:-} ]] || flags+=("--remote_cache=$BAZEL_REMOTE_CACHE")
# The Bazel of old releases cannot divide a cache that many share by what their actions' keys do not hold.
[[ -z ${BAZEL_CACHE_KEY:-} || $bazel == 0.* ]] || flags+=("--remote_default_exec_properties=cache-silo-key=$BAZEL_CACHE_KEY")
[[ -z ${BAZEL_DISTDIR:-} ]] || flags+=("--distdir=$BAZEL_DISTDIR")
events=()
[[ -z ${BAZEL_BUILD_EVENTS:-} ]] || events=("--build_event_json_file=$BAZEL_BUILD_EVENTS" --bes_outerr_buffer_size=256)

run_bazel() {
    bazel --output_user_root="$SRC_DIR/bazel" "$@"
}
trap 'run_bazel shutdown' EXIT
cd "$SRC_DIR"
mkdir -p dist

run_bazel build "${flags[@]}" "${events[@]}" tensorflow_serving/model_servers:tensorflow_model_server
cp bazel-bin/tensorflow_serving/model_servers/tensorflow_model_server dist/

# The API is the same for every CUDA, and made once.
if [[ $cuda_compiler_version != 12.* ]]; then
    run_bazel build "${flags[@]}" tensorflow_serving/tools/pip_package:build_pip_package
    bazel-bin/tensorflow_serving/tools/pip_package/build_pip_package "$SRC_DIR/wheels"
    cp "$SRC_DIR"/wheels/tensorflow_serving_api-*.whl dist/
fi

#!/usr/bin/env bash
# The compile step: from TensorFlow's sources in $SRC_DIR to exactly one wheel in $SRC_DIR/dist, hours of work for many
# cores. Everything else that this recipe makes, it makes from that wheel (split.sh), whoever built it.
#
# Bazel brings its own Clang 18.1.8, sysroot, Python and CUDA ("hermetic" in upstream's words) and downloads them, so
# nothing of the conda compilers may reach it.
set -euo pipefail
# From the cell: which CUDA and which cuDNN.
: "${cuda_compiler_version:?}" "${cudnn:?}" "${PY_VER:?}"
unset CC CXX CPP AR AS LD NM RANLIB STRIP CFLAGS CXXFLAGS CPPFLAGS LDFLAGS

# One compiler process of this code base takes up to about two gigabytes.
gigabytes_per_job=2

# Prints the memory in gigabytes that this build may use: the limit of its container, or else what the machine has.
memory() {
    local limit total
    total=$(awk '/^MemTotal:/ { print int($2 / 1024 / 1024) }' /proc/meminfo)
    limit=$(cat /sys/fs/cgroup/memory.max 2>/dev/null || cat /sys/fs/cgroup/memory/memory.limit_in_bytes 2>/dev/null || echo max)
    if [[ $limit == max ]] || ((limit / 1024 ** 3 > total)); then
        echo "$total"
    else
        echo $((limit / 1024 ** 3))
    fi
}

# Prints how many actions may run at once: as many as there are cores, if the memory is enough for that.
job_count() {
    local cores=${CPU_COUNT:-$(nproc)} fitting
    fitting=$(($(memory) / gigabytes_per_job))
    ((fitting > 0)) || fitting=1
    echo $((cores < fitting ? cores : fitting))
}

# Prints the flags that the cell's variant decides, one to a line.
variant_flags() {
    echo "--repo_env=HERMETIC_PYTHON_VERSION=$PY_VER"
    case $cuda_compiler_version in
    None)
        echo "--repo_env=WHEEL_NAME=tensorflow_cpu"
        ;;
    12.5)
        # Upstream's own choice: Clang compiles the kernels too. Machine code for each architecture, and PTX of the
        # newest for those still to come; so for 12.9 as well.
        cuda_flags cuda_clang 12.5.1 sm_60,sm_70,sm_75,sm_80,sm_86,sm_89,sm_90,compute_90
        ;;
    12.9)
        # Clang 18 knows no GPU newer than sm_90, so nvcc compiles the kernels, with Clang for the host's part.
        cuda_flags cuda_nvcc 12.9.1 sm_60,sm_70,sm_75,sm_80,sm_86,sm_89,sm_90,sm_100,sm_120,compute_120
        ;;
    *)
        echo "build.sh: no flags are known for CUDA $cuda_compiler_version" >&2
        return 1
        ;;
    esac
}

# Prints the flags of a CUDA build. Usage: cuda_flags CONFIG FULL_VERSION CAPABILITIES
cuda_flags() {
    # Upstream's configurations set the versions as well, so they come before ours: the last one counts.
    echo "--config=cuda"
    echo "--config=$1"
    # The wheel names NVIDIA's libraries, and does not contain them.
    echo "--config=cuda_wheel"
    echo "--repo_env=WHEEL_NAME=tensorflow"
    # Hermetic versions must be complete.
    echo "--repo_env=HERMETIC_CUDA_VERSION=$2"
    echo "--repo_env=HERMETIC_CUDNN_VERSION=$cudnn.0"
    echo "--repo_env=HERMETIC_CUDA_COMPUTE_CAPABILITIES=$3"
}

flags=$(variant_flags)
mapfile -t flags <<<"$flags"
bazel --output_user_root="$SRC_DIR/bazel" build \
    --config=avx_linux \
    --jobs="$(job_count)" \
    --local_resources=memory="$(($(memory) * 900))" \
    --repo_env=USE_PYWRAP_RULES=True \
    "${flags[@]}" \
    //tensorflow/tools/pip_package:wheel

mkdir -p "$SRC_DIR/dist"
cp bazel-bin/tensorflow/tools/pip_package/wheel_house/*.whl "$SRC_DIR/dist/"
bazel --output_user_root="$SRC_DIR/bazel" shutdown

wheels=("$SRC_DIR"/dist/*.whl)
if ((${#wheels[@]} != 1)); then
    echo "build.sh: the compile must leave one wheel in dist, it left ${#wheels[@]}: ${wheels[*]}" >&2
    exit 1
fi

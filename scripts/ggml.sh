#!/bin/sh
# Builds ggml in VENV/ggml: `ggml.sh VENV`. bench/peers/ggml.txt names the source. llama.cpp's own CMake files build it
# for this CPU, without OpenMP. pip needs scikit-build-core in VENV to unpack it. Obeys $CC and $CXX.
# A second call builds only where the list has changed.
set -eu
venv=$1 list=$(dirname "$0")/../bench/peers/ggml.txt
to=$venv/ggml source=$venv/ggml-source
! cmp -s "$list" "$to/installed" || exit 0

echo "ggml: builds in $to, its log is $to.log" >&2
rm -rf "$to" "$source"
mkdir -p "$source"
{
  "$venv/bin/pip" download --disable-pip-version-check --no-input --no-deps --require-hashes --no-build-isolation \
    -d "$source" -r "$list"
  tar -xzf "$source"/*.tar.gz -C "$source" --strip-components 1
  cmake -S "$source/vendor/llama.cpp" -B "$to" -G Ninja -DGGML_OPENMP=OFF -DLLAMA_BUILD_COMMON=OFF \
    -DLLAMA_BUILD_TESTS=OFF -DLLAMA_BUILD_TOOLS=OFF -DLLAMA_BUILD_EXAMPLES=OFF -DLLAMA_BUILD_SERVER=OFF \
    -DLLAMA_BUILD_APP=OFF
  cmake --build "$to" --target ggml
} > "$to.log" 2>&1 || { tail -n 8 "$to.log" | sed 's/^/ggml:   /' >&2; exit 1; }
rm -rf "$source"
cp "$list" "$to/installed"

#!/usr/bin/env bash
# Builds the wheel with the Python $1, installs it into an empty environment, and runs gpumon from there, away from
# the source: what a user gets must not lean on the checkout.
set -euo pipefail
python=$(realpath --no-symlinks "$1")
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

"$python" -m build --wheel --outdir "$scratch/dist" . >"$scratch/build.log" 2>&1 || { cat "$scratch/build.log" >&2; exit 1; }
"$python" -m venv "$scratch/venv"
"$scratch/venv/bin/python" -m pip install --quiet "$scratch"/dist/*.whl

cd "$scratch"
gpumon=$scratch/venv/bin/gpumon
"$gpumon" --version
"$gpumon" metrics >metrics.txt
grep -q '^gpumon_build_info' metrics.txt
"$gpumon" config >config.yaml
"$gpumon" config --config config.yaml | cmp - config.yaml
"$gpumon" run --help >/dev/null
"$gpumon" simulate demo --for 2 >/dev/null
"$scratch/venv/bin/python" -m gpumon --version >/dev/null
echo "wheel: $(basename "$scratch"/dist/*.whl) works"

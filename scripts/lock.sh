#!/usr/bin/env bash
# Writes deploy/image/{requirements,build}.lock: what the image installs, each file by its hash. Keeps the versions that
# are there as long as pyproject.toml allows them; with --upgrade takes the newest. Needs Python 3.11, the image's, and
# the network.
#
# By pip-compile of pip-tools (BSD-3-Clause, of the project that maintains pip's neighbours): it resolves with pip itself
# and its configuration, so the lock is what the image's pip would have chosen, from wherever this machine's pip takes
# packages. It is needed here alone, so it comes into an environment of its own and goes with it.
set -euo pipefail
cd "$(dirname "$0")/.."
python=${PYTHON:-python3.11}
folder=deploy/image
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

"$python" -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))' || { echo "Set PYTHON to a Python 3.11." >&2; exit 1; }
"$python" -m venv "$scratch/venv"
"$scratch/venv/bin/python" -m pip install --quiet 'pip-tools>=7.5'

# Which index served them is nobody's business: --no-emit-options. Only versions that have a wheel, because the image
# takes nothing else.
compile() {
  local lock=$folder/$1 source=$2
  shift 2
  if [ -e "$lock" ]; then cp "$lock" "$scratch/out.txt"; else rm -f "$scratch/out.txt"; fi
  "$scratch/venv/bin/pip-compile" --quiet --generate-hashes --strip-extras --allow-unsafe --no-header --no-emit-options \
    --pip-args '--only-binary :all:' --output-file "$scratch/out.txt" "$@" "$source"
  {
    echo "# Written by scripts/lock.sh from pyproject.toml: do not edit."
    # The name of a scratch file says nothing to anybody.
    sed -e "s|-r $source|pyproject.toml|" "$scratch/out.txt"
  } >"$lock"
}

"$python" - >"$scratch/build.in" <<'PYTHON'
import tomllib
with open("pyproject.toml", "rb") as file:
    print("\n".join(tomllib.load(file)["build-system"]["requires"]))
PYTHON
compile requirements.lock pyproject.toml "$@"
compile build.lock "$scratch/build.in" "$@"

#!/usr/bin/env bash
# Makes the virtual environment $1 with gpumon and its development tools in it. PYTHON names the interpreter, if any.
# Where packages come from is pip's own configuration.
set -euo pipefail
target=$1

for python in "${PYTHON:-}" python3.11 python3; do
  if [ -n "$python" ] && "$python" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
    "$python" -m venv --clear "$target"
    "$target/bin/python" -m pip install --quiet --upgrade pip
    "$target/bin/python" -m pip install --quiet --editable '.[dev]'
    exit 0
  fi
done
echo "There is no Python 3.11 or newer with venv. Set PYTHON to one." >&2
exit 1

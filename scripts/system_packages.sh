#!/usr/bin/env bash
# Installs what the tests need from the system and is missing: a Python that can make a virtual environment, a C
# compiler for the fake NVML library, Prometheus, which brings promtool, and Alertmanager, which brings amtool. As root
# on Debian; else says what to do. Arguments: more of its packages that are wanted, each called as its program.
set -euo pipefail

have_python() {
  local python
  for python in "${PYTHON:-}" python3.11 python3; do
    if [ -n "$python" ] && "$python" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
      return 0
    fi
  done
  return 1
}

missing=()
have_python || missing+=(python3 python3-venv)
command -v gcc >/dev/null || missing+=(gcc libc6-dev)
command -v prometheus >/dev/null && command -v promtool >/dev/null || missing+=(prometheus)
# Debian's name for it, then its own.
{ command -v prometheus-alertmanager || command -v alertmanager; } >/dev/null && command -v amtool >/dev/null ||
  missing+=(prometheus-alertmanager)
for program in "$@"; do
  command -v "$program" >/dev/null || missing+=("$program")
done
[ ${#missing[@]} -gt 0 ] || exit 0

if [ "$(id -u)" -ne 0 ] || ! command -v apt-get >/dev/null; then
  echo "These packages are missing: ${missing[*]} (Debian's names). Install them, then run make again." >&2
  exit 1
fi

# Debian starts what it installs. A Prometheus on port 9090 is not what anybody asked for here: policy-rc.d forbids it,
# for as long as this script runs. One that is there already is somebody's decision and stays.
policy=/usr/sbin/policy-rc.d
if [ ! -e "$policy" ]; then
  printf '#!/bin/sh\nexit 101\n' >"$policy"
  chmod 755 "$policy"
  trap 'rm -f "$policy"' EXIT
fi

export DEBIAN_FRONTEND=noninteractive
apt-get update -q
apt-get install -y -q --no-install-recommends "${missing[@]}"
have_python || { echo "There is no Python 3.11 or newer. Set PYTHON to one." >&2; exit 1; }

#!/usr/bin/env bash
# Everything that only a GPU can settle, in under five minutes: the tests marked gpu, what each field and call of
# NVML answers and costs, GPM and XID events as root and as nobody, what sampling costs a CUDA load, whether measured
# activity is what the load must cause, and a recording of the port to NVML for fixtures.
#
# Usage: OUT=folder tests/gpu/check.sh [STEP...]
#
# Needs this repository, Python 3.11, nvidia-ml-py and torch; as root, for the other users' permissions. Installs and
# downloads nothing: where a package is missing, the step that wants it says so and the rest goes on.
# Results are JSON files in OUT (./gpu-check by default), the table printed last is summary.txt there. Exit status 1
# when a step failed or a measured value is not what it must be.
#
# PYTHON (python3): the interpreter. PYTHONPATH: where further packages are. LOAD=cpu: a stand-in load on the CPU, to
# rehearse without a GPU. CHECK_SCALE (1): factor on all durations. NVML_LIB: the library to load.
set -euo pipefail
cd "$(dirname "$0")/../.."

OUT=${OUT:-gpu-check}
case $OUT in /*) ;; *) OUT=$PWD/$OUT ;; esac
export OUT PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1
export PYTHONPATH="$PWD${PYTHONPATH:+:$PYTHONPATH}"
python=${PYTHON:-python3}
mkdir -p "$OUT/logs" "$OUT/rows"

# Step and its limit in seconds: what it takes on a sound machine, doubled. Cheap and telling ones first.
limits="environment=45 permissions=60 fields=45 calls=60 gpm=45 samples=20 activity=110 overhead=120 wrap=40 gpu_tests=90"

results=()
for entry in $limits; do
  step=${entry%%=*}
  if (($# > 0)) && [[ " $* " != *" $step "* ]]; then
    continue
  fi
  rm -f "$OUT/rows/$step.json"
  status=0
  timeout -k 5 "${entry##*=}" "$python" -m "tests.gpu.$step" >"$OUT/logs/$step.txt" 2>&1 || status=$?
  results+=("$step=$status")
  tail -n 1 "$OUT/logs/$step.txt"
done
echo
exec "$python" -m tests.gpu.summary "${results[@]}"

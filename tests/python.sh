#!/bin/sh
# Run one pytest file: with the Python of build/venv if there is one, else with $MHA_PYTHON.
# Exits with 77 (skipped) where pytest or a package that the whole file needs is missing.
set -u
root=$(cd "$(dirname "$0")/.." && pwd)
python=$root/build/venv/bin/python
[ -x "$python" ] || python=${MHA_PYTHON:-python3}
if ! "$python" -c 'import pytest' 2>/dev/null; then
    echo "skipped: $python has no pytest (.ci/run makes build/venv, which has it)"
    exit 77
fi
# ctest runs several files at once: threads of torch's and NumPy's own would wait for each other.
export OMP_NUM_THREADS="${OMP_NUM_THREADS:-1}" OPENBLAS_NUM_THREADS="${OPENBLAS_NUM_THREADS:-1}"
output=$(mktemp)
trap 'rm -f "$output"' EXIT
PYTHONDONTWRITEBYTECODE=1 "$python" -m pytest -q -rfEs -s -p no:cacheprovider "$1" >"$output" 2>&1
status=$?
cat "$output"
# 5: nothing collected, which is what a file-wide importorskip gives.
[ $status -eq 5 ] && exit 77
if [ $status -eq 0 ] && ! grep -Eq '[0-9]+ passed' "$output"; then exit 77; fi
exit $status

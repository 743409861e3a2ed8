#!/bin/sh
# Run pytest files with the Python of build/venv if it exists, else with $MHA_PYTHON.
# Exits with 77 (skipped) if pytest, or a package that every file needs, is missing.
set -u
root=$(cd "$(dirname "$0")/.." && pwd)
python=$root/build/venv/bin/python
[ -x "$python" ] || python=${MHA_PYTHON:-python3}
if ! "$python" -c 'import pytest' 2>/dev/null; then
    echo "skipped: $python has no pytest (.ci/run makes build/venv, which has it)"
    exit 77
fi
export PYTHONDONTWRITEBYTECODE=1
# After 15 minutes, print where a test hangs; ctest ends it.
exec "$python" -m pytest -q -rfEs -s -p no:cacheprovider -o faulthandler_timeout=900 "$@"

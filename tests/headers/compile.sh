#!/bin/sh
# Usage: compile.sh c99|c11|c17|c++17. Compiles each public header by itself, twice included, with
# strict warnings as errors: with $CC (default cc) as C, with $CXX or c++ as C++.
set -u
cd "$(dirname "$0")/../.." || exit 1
case $1 in
c++*) language=c++ compiler=${CXX:-c++} flags= ;;
*) language=c compiler=${CC:-cc} flags='-Wstrict-prototypes -Wmissing-prototypes' ;;
esac
command -v "$compiler" >/dev/null || { echo "skipped: no compiler $compiler"; exit 77; }
status=0 count=0
for header in include/multihead/*.h; do
    name=multihead/${header##*/}
    # shellcheck disable=SC2086  # a list of flags
    printf '#include <%s>\n#include <%s>\nint here;\n' "$name" "$name" |
        "$compiler" -x $language -std="$1" -Iinclude -Wall -Wextra -Wpedantic -Wconversion -Wshadow \
            -Wundef $flags -Werror -fsyntax-only - || { echo "FAILED: $name as $1"; status=1; }
    count=$((count + 1))
done
echo "$count headers as $1 with $compiler"
exit $status

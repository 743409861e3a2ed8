#!/bin/sh
# Usage: example_cpp.sh LIBRARY. Compiles examples/attention.cpp with $CXX or c++ as C++17 and C++20
# against the static library, warnings as errors; the program must print exactly the expected text.
set -u
compiler=${CXX:-c++}
command -v "$compiler" >/dev/null || { echo "skipped: no compiler $compiler"; exit 77; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
for standard in c++17 c++20; do
    "$compiler" -std=$standard -Iinclude -Wall -Wextra -Wpedantic -Wconversion -Wshadow \
        -Wmissing-field-initializers -Werror examples/attention.cpp "$1" -pthread -lm \
        -o "$work/example" || { echo "FAILED: as $standard"; exit 1; }
    sh tests/examples.sh "$work/example" examples/attention_cpp.expected || exit 1
done

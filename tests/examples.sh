#!/bin/sh
# Usage: examples.sh PROGRAM EXPECTED. The program must succeed and print exactly the expected text.
set -u
output=$("$1") || { echo "$1: exit status $?"; exit 1; }
printf '%s\n' "$output" | diff "$2" - && echo "$1: as expected"

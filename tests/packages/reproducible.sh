#!/bin/sh
# Usage: reproducible.sh WORK DEBS [OTHER]. WORK is the folder in which script/packages built the commit, DEBS its
# packages.
#
#   - The libraries and the program are byte-identical to those in OTHER (default: build), built from the same sources
# in another folder at another time.
#   - Packing again later in another folder, with another umask and time zone, gives the same .deb files.
#
# Exits with 77 (skipped) if the sources differ from the commit, as OTHER then does.
set -eu
cd "$(dirname "$0")/../.."
work=$1 debs=$2 other=${3:-build} status=0
git diff --quiet HEAD || { echo 'skipped: the sources differ from the commit'; exit 77; }

same() {
    if cmp "$1" "$2"; then echo "same bytes: ${1##*/}"; else status=1; fi
}
for file in "$work"/build/libmultihead*.so.*.*.* "$work"/build/libmultihead*.a "$work"/build/multihead; do
    same "$file" "$other/${file##*/}"
done

again=$(mktemp -d)
trap 'rm -rf "$again"' EXIT
work=$(cd "$work" && pwd)
SOURCE_DATE_EPOCH=$(git log -1 --format=%ct)
export SOURCE_DATE_EPOCH
(umask 077 && cd "$work/build" && TZ=Asia/Tokyo cpack -G DEB -B "$again") >"$again/log" 2>&1 ||
    { tail -n 20 "$again/log"; exit 1; }
for deb in "$debs"/*.deb; do same "$deb" "$again/${deb##*/}"; done
exit $status

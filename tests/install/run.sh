#!/bin/sh
# Usage: run.sh BUILD_DIR CMAKE. Installs the build into a temporary prefix, moves it (nothing may
# remember the first place), and builds and runs two consumers outside the tree against it: one with
# find_package(multihead), one with pkg-config; each with shared and with static libraries.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
build=$1 cmake=$2 cc=${CC:-cc}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

"$cmake" --install "$build" --prefix "$work/first" >"$work/log" || { cat "$work/log"; exit 1; }
prefix=$work/second
mv "$work/first" "$prefix"

pc=$(find "$prefix" -name multihead.pc)
PKG_CONFIG_PATH=${pc%/multihead.pc}
export PKG_CONFIG_PATH
library_dir=${PKG_CONFIG_PATH%/pkgconfig}
components='' modules=multihead
for part in model render; do
    if [ -e "$PKG_CONFIG_PATH/multihead-$part.pc" ]; then
        components="$components${components:+;}$part"
        modules="$modules multihead-$part"
    fi
done
[ "$components" = 'model;render' ] || components=''

echo "== find_package, components '$components'"
"$cmake" -S "$here" -B "$work/consumer" -DCMAKE_PREFIX_PATH="$prefix" -DCMAKE_C_COMPILER="$cc" \
    -DCOMPONENTS="$components" >"$work/log" || { cat "$work/log"; exit 1; }
"$cmake" --build "$work/consumer" >"$work/log" || { cat "$work/log"; exit 1; }
for program in compute companions; do
    for suffix in '' _static; do
        [ ! -x "$work/consumer/$program$suffix" ] || "$work/consumer/$program$suffix"
    done
done

echo "== pkg-config, modules $modules"
for module in $modules; do pkg-config --print-errors --modversion "$module"; done
# shellcheck disable=SC2046  # lists of flags
"$cc" "$here/compute.c" -o "$work/shared" $(pkg-config --cflags --libs multihead)
LD_LIBRARY_PATH=$library_dir "$work/shared"
# The archive by name: -lmultihead would take the shared library beside it.
# shellcheck disable=SC2046
"$cc" "$here/compute.c" -o "$work/static" $(pkg-config --cflags multihead) \
    "$library_dir/libmultihead.a" $(pkg-config --static --libs-only-l multihead |
        sed 's/-lmultihead[a-z-]*//g') -pthread
env -u LD_LIBRARY_PATH "$work/static"
if [ -n "$components" ]; then
    # shellcheck disable=SC2046
    "$cc" "$here/companions.c" -o "$work/companions" \
        $(pkg-config --cflags --libs multihead-model multihead-render)
    LD_LIBRARY_PATH=$library_dir "$work/companions"
fi

if [ -x "$prefix/bin/multihead" ]; then
    echo "== the installed program"
    env -u LD_LIBRARY_PATH "$prefix/bin/multihead" --version
fi

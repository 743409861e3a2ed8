#!/bin/sh
# Usage: run.sh BUILD_DIR CMAKE. Installs the build into a temporary prefix and moves it, since no file may contain the
# original path. Builds and runs two consumers outside the tree: one with find_package(multihead), one with pkg-config,
# each with shared and static libraries. Then tests the installed examples in C and C++, documents cited by headers, man
# pages, and uninstalling.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
build=$1 cmake=$2 cc=${CC:-cc}
work=$(mktemp -d)
# Keep the manifest, so that earlier installations from this folder can still be uninstalled.
manifest=$build/install_manifest.txt
if [ -e "$manifest" ]; then cp "$manifest" "$work/manifest"; fi
restore() {
    if [ -e "$work/manifest" ]; then cp "$work/manifest" "$manifest"; else rm -f "$manifest"; fi
    rm -rf "$work"
}
trap restore EXIT

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
circuits=''
[ ! -e "$PKG_CONFIG_PATH/multihead-circuits.pc" ] || circuits=multihead-circuits
ranks=''
[ ! -e "$PKG_CONFIG_PATH/multihead-mpi.pc" ] || ranks=multihead-mpi

echo "== find_package, components '$components'${circuits:+ and circuits}${ranks:+ and mpi}"
"$cmake" -S "$here" -B "$work/consumer" -DCMAKE_PREFIX_PATH="$prefix" -DCMAKE_C_COMPILER="$cc" \
    -DCOMPONENTS="$components" -DCIRCUITS="$circuits" -DRANKS="$ranks" >"$work/log" || { cat "$work/log"; exit 1; }
"$cmake" --build "$work/consumer" >"$work/log" || { cat "$work/log"; exit 1; }
for program in compute companions circuits mpi; do
    for suffix in '' _static; do
        [ ! -x "$work/consumer/$program$suffix" ] || "$work/consumer/$program$suffix"
    done
done

echo "== pkg-config, modules $modules $circuits $ranks"
for module in $modules $circuits $ranks; do pkg-config --print-errors --modversion "$module"; done
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
if [ -n "$circuits" ]; then
    # shellcheck disable=SC2046
    "$cc" "$here/circuits.c" -o "$work/circuits" $(pkg-config --cflags --libs $circuits)
    LD_LIBRARY_PATH=$library_dir "$work/circuits"
fi
if [ -n "$ranks" ]; then
    # shellcheck disable=SC2046
    "$cc" "$here/mpi.c" -o "$work/mpi" $(pkg-config --cflags --libs $ranks)
    LD_LIBRARY_PATH=$library_dir "$work/mpi"
fi

if [ -x "$prefix/bin/multihead" ]; then
    echo "== the installed program"
    env -u LD_LIBRARY_PATH "$prefix/bin/multihead" --version
fi

docs=$prefix/share/doc/multihead
examples=$docs/examples
warnings='-Wall -Wextra -Wmissing-field-initializers -Werror'
echo "== the installed examples"
for source in "$examples"/*.c "$examples"/*.cpp; do
    name=${source##*/}
    expected=${source%.*}.expected libraries=multihead
    case $name in
    *.cpp) compilers="${CXX:-c++} -std=c++17|${CXX:-c++} -std=c++20" expected=${source%.cpp}_cpp.expected ;;
    *) compilers="$cc -std=c17" ;;
    esac
    if grep -q 'multihead/\(model\|tokenizer\|io\|state\|checkpoint\|gguf\|render\)\.h' "$source"; then
        [ -n "$components" ] || continue
        libraries=$modules
    fi
    echo "$compilers" | tr '|' '\n' >"$work/compilers"
    while read -r compiler; do
        if ! command -v "${compiler%% *}" >/dev/null; then
            echo "left out: no ${compiler%% *}"
            continue
        fi
        # shellcheck disable=SC2046,SC2086  # lists of flags
        $compiler $warnings "$source" -o "$work/example" $(pkg-config --cflags --libs $libraries) -lm
        LD_LIBRARY_PATH=$library_dir sh "$here/../examples.sh" "$work/example" "$expected" >"$work/log" ||
            { cat "$work/log"; exit 1; }
        echo "$name: $compiler"
    done <"$work/compilers"
    # Run the build line in the file's comment unchanged; the program must find the library.
    line=$(sed -n '/Build it by hand with:$/{n;s/^ *[*/]*  *//p}' "$source")
    [ -n "$line" ] || { echo "FAILED: $name does not say how it is built"; exit 1; }
    (cd "$examples" && sh -c "$line") || { echo "FAILED: $line"; exit 1; }
    env -u LD_LIBRARY_PATH sh "$here/../examples.sh" "$examples/a.out" "$expected" >"$work/log" ||
        { cat "$work/log"; exit 1; }
    rm "$examples/a.out"
done

echo "== what the headers cite"
# shellcheck disable=SC2013  # names without blanks
for page in $(grep -ho 'docs/[a-z-]*\.md' "$prefix"/include/multihead/*.h | sort -u); do
    [ -e "$docs/$page" ] || { echo "FAILED: the headers cite $page, which is not in $docs"; exit 1; }
done
if [ -d "$prefix/share/man/man3" ] && command -v man >/dev/null; then
    man -M "$prefix/share/man" -w libmultihead mha_attention_forward
fi

echo "== uninstall"
mv "$prefix" "$work/first"
"$cmake" -DMANIFEST="$manifest" -P "$here/../../cmake/uninstall.cmake"
find "$work/first" -mindepth 1 >"$work/left"
[ ! -s "$work/left" ] || { echo "FAILED: it leaves"; cat "$work/left"; exit 1; }

#!/bin/sh
# Usage: compile.sh c99|c11|c17|c++17|c++20. Compiles each public header by itself, twice included,
# with strict warnings as errors: with $CC (default cc) as C, with $CXX or c++ as C++. Then a program
# with MHA_INIT() of every struct that has a struct_size: all other bytes must be zero. The usage blocks of
# attention.h and multihead.h compile likewise.
set -u
cd "$(dirname "$0")/../.." || exit 1
case $1 in
c++*) language=c++ compiler=${CXX:-c++} flags= ;;
*) language=c compiler=${CC:-cc} flags='-Wstrict-prototypes -Wmissing-prototypes' ;;
esac
command -v "$compiler" >/dev/null || { echo "skipped: no compiler $compiler"; exit 77; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
status=0 count=0
compile() { # NAME ARGUMENT...: what stdin holds
    what=$1
    shift
    # shellcheck disable=SC2086  # a list of flags
    "$compiler" -x $language -std="$standard" -Iinclude -Wall -Wextra -Wpedantic -Wconversion -Wshadow \
        -Wundef -Wmissing-field-initializers $flags -Werror "$@" - ||
        { echo "FAILED: $what as $standard"; status=1; }
}
standard=$1
for header in include/multihead/*.h; do
    name=multihead/${header##*/}
    rule='may change in a minor version'
    ! grep -q "^| \\[.*/multihead/${header##*/})" docs/stability.md || rule='stable from 1.0'
    grep -Fqx " * Stability: $rule (docs/stability.md)." "$header" ||
        { echo "FAILED: $header: its line Stability differs from docs/stability.md: $rule"; status=1; }
    ! grep -nE '[ (]_(NULL|ARGUMENT|SHAPE|DTYPE|STRIDE|OVERLAP|SIZE|NOMEM|UNSUPPORTED)\>' "$header" ||
        { echo "FAILED: $header: an error is not named whole, MHA_ERR_..."; status=1; }
    printf '#include <%s>\n#include <%s>\nint here;\n' "$name" "$name" | compile "$name" -fsyntax-only
    count=$((count + 1))
done

# The usage blocks are a program's body as they stand.
usage() { # HEADER FIRST LAST PARAMETERS: its lines from the one that has FIRST to the one that has LAST
    {
        printf '#include <multihead/model.h>\n#include <multihead/multihead.h>\n#include <stdio.h>\n'
        printf 'void usage(%s);\nvoid usage(%s)\n{\n' "$4" "$4"
        sed -n "/^ \* $2/,/^ \* $3/s/^ \*   //p" "include/multihead/$1"
        echo '}'
    } >"$work/usage"
    grep -q mha_attention_f "$work/usage" || { echo "FAILED: $1 has no usage block"; status=1; }
    compile "usage of $1" -fsyntax-only <"$work/usage"
}
usage attention.h Usage: 'A program' 'float *q, float *k, float *v, float *o, int64_t B, int64_t H, int64_t Hk,
    int64_t T, int64_t S, int64_t D'
usage multihead.h 'is the manual of its part' Stability: 'float *q, float *k, float *v, float *o, mha_tensor weight,
    mha_tensor tokens, mha_tensor out'

structs=$(cat include/multihead/*.h | awk '/^typedef struct .* {$/ { name = $3; next }
    /^    uint32_t struct_size;/ { print name }
    { name = "" }')
{
    for header in include/multihead/*.h; do echo "#include <multihead/${header##*/}>"; done
    cat <<'END'
#include <stdio.h>
#include <string.h>
#define CHECK(type)                                    \
    do {                                               \
        type made = MHA_INIT(type), zero;              \
        memset(&zero, 0, sizeof zero);                 \
        zero.struct_size = (uint32_t)sizeof zero;      \
        if (memcmp(&made, &zero, sizeof zero) != 0) {  \
            puts("FAILED: MHA_INIT(" #type ")");       \
            failed = 1;                                \
        }                                              \
    } while (0)
int main(void)
{
    int failed = 0;
END
    for struct in $structs; do echo "    CHECK($struct);"; done
    echo '    return failed;'
    echo '}'
} | compile MHA_INIT -o "$work/init"
[ $status -ne 0 ] || "$work/init" || status=1
# shellcheck disable=SC2086  # a list of words
set -- $structs
[ $# -ge 60 ] || { echo "FAILED: only $# structs found"; status=1; }
echo "$count headers and $# structs as $standard with $compiler"
exit $status

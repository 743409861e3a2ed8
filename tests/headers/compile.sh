#!/bin/sh
# Usage: compile.sh c99|c11|c17|c++17|c++20. Compiles each public header alone, included twice, with strict warnings as
# errors: with $CC (default cc) as C, with $CXX or c++ as C++. Then runs a program with MHA_INIT() of every struct that
# has a struct_size: all other bytes must be zero. The example of each header must also compile.
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
compile() { # NAME ARGUMENT...: compile stdin
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

# Each header's example is the body of a function whose parameters its text names.
{
    for header in include/multihead/*.h; do echo "#include <multihead/${header##*/}>"; done
    printf '#include <stdio.h>\n#include <string.h>\n'
    for header in include/multihead/*.h; do
        name=$(basename "$header" .h)
        given=$(awk '/^ \* Example, given /, /:$/ { print }' "$header" | sed 's/^ \* //; s/^Example, given //; s/:$//')
        printf 'mha_status %s_example(%s);\nmha_status %s_example(%s)\n{\n#line 1 "%s: example"\n' \
            "$name" "$given" "$name" "$given" "$header"
        sed -n '/^ \* Example, given /,/^ \* Stability: /{ s/^ \*   //p; }' "$header"
        printf 'return status;\n}\n'
    done
} | compile "the headers' examples" -fsyntax-only

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

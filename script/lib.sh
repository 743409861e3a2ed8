# shellcheck shell=sh
# Shared by script/demo, script/test and .ci/run; POSIX sh, functions only. Source it in the project's root.
#
#   want_command COMMAND PACKAGE ...    record PACKAGE as missing unless COMMAND exists
#   want_module MODULE PACKAGE          the same for a pkg-config module
#   want_file FILE PACKAGE              the same for a file
#   want_build, want_fuzz, want_pages   the packages of every build; of tests/fuzz; of the commands in
#                                       docs/*.md, and a PDF reader for tests
#   install_missing                     install the missing packages, or print how and exit
#   step LOG TEXT COMMAND ...           run quietly into build/LOG.log; show its tail on failure
#   configure [OPTION ...], build TARGET ...
#   skipped_tests BUILD                 list what the last ctest skipped, and why
#   count_tests BUILD HINT              print how many tests passed, failed and were skipped, then HINT
#   want_venv, make_venv                build/venv with the Python packages of the tests, and two models

missing=''

say() { printf '%s\n' "$*" >&2; }

fail() {
    say "error: $*"
    exit 1
}

note_missing() { missing="$missing $1"; }

want_command() { command -v "$1" >/dev/null 2>&1 || note_missing "$2"; }

want_module() { pkg-config --exists "$1" 2>/dev/null || note_missing "$2"; }

want_file() { [ -e "$1" ] || note_missing "$2"; }

# Packages of every build.
want_build() {
    want_command cmake cmake
    want_command ninja ninja-build
    want_command cc gcc
    # A compiler may lack the C library's headers.
    want_file /usr/include/stdio.h libc6-dev
    want_command pkg-config pkg-config
    want_module jansson libjansson-dev
    want_module libutf8proc libutf8proc-dev
    want_module libpcre2-8 libpcre2-dev
    want_module cairo-pdf libcairo2-dev
    want_module libpng libpng-dev
    want_module libjpeg libjpeg62-turbo-dev
    want_module freetype2 libfreetype-dev
    want_module lapacke liblapacke-dev
    want_command mpicc libopenmpi-dev
    want_module libmicrohttpd libmicrohttpd-dev
    want_file /usr/share/fonts/truetype/dejavu/DejaVuSans.ttf fonts-dejavu-core
}

want_pages() {
    want_command jq jq
    want_command pdftotext poppler-utils
    want_command man man-db
}

want_venv() {
    want_command python3 python3
    python3 -c 'import ensurepip' 2>/dev/null || note_missing python3-venv
}

# torch comes first, so that packages depending on it keep this version. The comparison with transformers needs the
# models: fail without them.
make_venv() {
    [ -x build/venv/bin/python ] || python3 -m venv build/venv
    build/venv/bin/python -m pip install --no-compile torch==2.13.0 &&
        build/venv/bin/python -m pip install --no-compile -r tests/python/requirements.txt &&
        tools/get-minilm &&
        tools/get-smollm2 &&
        tools/get-rxnmapper
}

# clang, and the library of its -fsanitize=fuzzer.
want_fuzz() {
    want_command clang clang
    if ! clang -fsanitize=fuzzer,address -x c -o /dev/null - 2>/dev/null <<EOF
int LLVMFuzzerTestOneInput(const unsigned char *data, unsigned long size);
int LLVMFuzzerTestOneInput(const unsigned char *data, unsigned long size) { return !data && size; }
EOF
    then
        note_missing libclang-rt-14-dev
    fi
}

install_missing() {
    [ -n "$missing" ] || return 0
    if ! command -v apt-get >/dev/null 2>&1; then
        fail "missing:$missing (Debian's names); please install them and run this again"
    fi
    if ! find_root; then
        say "Missing:$missing"
        say "Please run this, and then ${0#"$PWD/"} again:"
        say "  sudo apt-get update && sudo apt-get install -y --no-install-recommends$missing"
        exit 1
    fi
    say "Installing:$missing"
    mkdir -p build
    # Package lists may be absent or stale: refresh them only if the first attempt fails.
    # shellcheck disable=SC2086  # lists of words
    if ! apt_install $missing; then
        # shellcheck disable=SC2086
        watched build/apt.log $as_root apt-get update || true
        apt_install $missing || {
            tail -n 15 build/apt.log >&2
            fail "installing packages failed; the whole log is build/apt.log"
        }
    fi
    missing=''
}

# as_root: the prefix of commands that install packages.
find_root() {
    if [ "$(id -u)" -eq 0 ]; then
        as_root="env"
    else
        as_root='sudo -n env'
        command -v sudo >/dev/null 2>&1 && sudo -n true 2>/dev/null
    fi
}

apt_install() {
    find_root || return 1
    # shellcheck disable=SC2086  # a command and its arguments
    watched build/apt.log $as_root DEBIAN_FRONTEND=noninteractive apt-get install -y \
        --no-install-recommends -o DPkg::Lock::Timeout=300 "$@"
}

# step LOG TEXT COMMAND ...: print one line during the command, its time afterwards, and the log's tail if it fails.
step() {
    step_log=build/$1.log
    say "$2 ..."
    shift 2
    mkdir -p build
    : >"$step_log"
    step_begin=$(date +%s)
    step_status=0
    watched "$step_log" "$@" || step_status=$?
    if [ $step_status -eq 0 ]; then
        say "  done in $(($(date +%s) - step_begin)) s"
    else
        tail -n 30 "$step_log" >&2
        say "error: '$*' failed with status $step_status; the whole log is $step_log"
        return "$step_status"
    fi
}

# watched LOG COMMAND ...: run it, append its output to the log, and show progress: on a terminal in a temporary line,
# otherwise in a line every MHA_WATCH seconds.
watched() {
    watch_log=$1 watch_status=0
    shift
    watch "$watch_log" &
    watch_pid=$!
    "$@" >>"$watch_log" 2>&1 </dev/null || watch_status=$?
    kill "$watch_pid" 2>/dev/null || true
    wait "$watch_pid" 2>/dev/null || true
    if [ -t 2 ]; then printf '\r\033[K' >&2; fi
    return "$watch_status"
}

# The number of finished steps of ninja and, after 5 %, the estimated time for the rest.
watch() {
    watch_begin=$(date +%s) watch_next=${MHA_WATCH:-15} watch_all=0
    while kill -0 $$ 2>/dev/null; do
        sleep 1 >/dev/null 2>&1
        watch_now=$(date +%s)
        watch_line="$((watch_now - watch_begin)) s"
        # shellcheck disable=SC2046  # two numbers
        set -- "$1" $(sed -n 's|^\[\([0-9]*\)/\([0-9]*\)\].*|\1 \2|p' "$1" | tail -n 1)
        if [ "${2:-0}" -gt 0 ]; then
            if [ "$3" -ne "$watch_all" ]; then watch_all=$3 watch_from=$2 watch_since=$watch_now; fi
            watch_line="$2 of $3 steps, $watch_line"
            watch_done=$(($2 - watch_from))
            if [ $watch_done -gt 0 ] && [ $((20 * watch_done)) -ge "$3" ]; then
                watch_left=$(((watch_now - watch_since) * ($3 - $2) / watch_done))
                watch_line="$watch_line, about $watch_left s left"
            fi
        fi
        if [ -t 2 ]; then
            printf '\r\033[K  %s ' "$watch_line" >&2
        elif [ $((watch_now - watch_begin)) -ge "$watch_next" ]; then
            say "  $watch_line"
            watch_next=$((watch_now - watch_begin + ${MHA_WATCH:-15}))
        fi
        set -- "$1"
    done
}

cores() { nproc 2>/dev/null || getconf _NPROCESSORS_ONLN 2>/dev/null || echo 2; }

# Keep the generator of a configured build folder.
configure() {
    if [ -e build/CMakeCache.txt ]; then
        step configure 'Configuring' cmake -S . -B build "$@"
    else
        step configure 'Configuring' cmake -S . -B build -G Ninja -DCMAKE_BUILD_TYPE=Release "$@"
    fi
}

# build [TARGET ...]
build() {
    if [ $# -gt 0 ]; then set -- --target "$@"; fi
    step build "Building with $(cores) jobs" cmake --build build --parallel "$(cores)" "$@"
}

# skipped_tests BUILD: each test that the last ctest skipped, with the line that gives the reason; also the tests that
# pytest skipped in a file that passed.
skipped_tests() {
    skipped_logs=$1/Testing/Temporary skipped_list=$1/Testing/Temporary/LastTestsDisabled.log
    [ -e "$skipped_logs/LastTest.log" ] || return 0
    [ -e "$skipped_list" ] || skipped_list=/dev/null
    # The first log has "NUMBER:NAME", the second the output of each test after a line of dashes.
    awk '
        function tell(why) {
            sub(/^[sS][kK][iI][pP][pP][eE][dD]:? *(\[[0-9]+\] *)?/, "", why)
            if (!told++) print "Skipped, and why:"
            printf "  %s: %s\n", name, why
        }
        FILENAME == ARGV[1] { skipped[substr($0, index($0, ":") + 1)]; next }
        / Testing: / { name = $NF; reason = last = "" }
        /^Output:$/ { begins = 1; next }
        begins && /^-+$/ { begins = 0; said = 1; next }
        said && /^<end of output>$/ {
            said = 0
            if (name in skipped) tell(reason ? reason : last ? last : "it does not say why")
        }
        said && /^SKIPPED \[[0-9]+\] / && !(name in skipped) { tell($0) }
        said && NF { last = $0; if (!reason && tolower($0) ~ /^skipped/) reason = $0 }' \
        "$skipped_list" "$skipped_logs/LastTest.log" >&2
}

# count_tests BUILD HINT: the last line of script/test, with HINT if any test was skipped. ctest counts skipped tests as
# passed.
count_tests() {
    count_logs=$1/Testing/Temporary
    count_all=$(grep -c '^[0-9]*/[0-9]* Testing: ' "$count_logs/LastTest.log") || true
    count_failed=0 count_skipped=0 count_hint=
    [ ! -e "$count_logs/LastTestsFailed.log" ] || count_failed=$(wc -l <"$count_logs/LastTestsFailed.log")
    [ ! -e "$count_logs/LastTestsDisabled.log" ] || count_skipped=$(wc -l <"$count_logs/LastTestsDisabled.log")
    [ "$count_skipped" -eq 0 ] || count_hint=$2
    say "$((count_all - count_failed - count_skipped)) tests passed, $((count_failed)) failed, $((count_skipped)) skipped$count_hint"
}

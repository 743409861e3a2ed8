# shellcheck shell=sh disable=SC2154  # work, toolchain and c_flags are the caller's
# Libraries from Debian's source packages, compiled for another machine. Shared by script/wheel and script/page, which
# source script/lib.sh first and set `work`, the folder for all files.
#
#   want_sources                       record the packages needed for fetching (lib.sh's install_missing)
#   get_sources LOG PACKAGE ...        fetch them into $work/sources, once; status 77: they cannot be fetched
#   with_cmake FOLDER SOURCE [OPTION ...]   a static library into FOLDER/prefix, by the CMake file `toolchain`
#                                      with the flags `c_flags`
#   build_model_libraries FOLDER       the dependencies of the model library, in the same form

want_sources() { want_command dpkg-source dpkg-dev; }

# Run apt for the source packages of the machine's Debian archives, with a separate state folder.
debian() { # COMMAND ...
    debian_command=$1
    shift
    "$debian_command" -o Dir::Etc::sourcelist=/dev/null -o Dir::Etc::sourceparts="$work/apt/parts" \
        -o Dir::State::lists="$work/apt/lists" -o Dir::Cache="$work/apt/cache" -o APT::Sandbox::User=root "$@"
}

# Debian's pixman differs from upstream in packaging only, and some mirrors lack the difference.
without_packaging() { # NAME VERSION
    [ "$1" = pixman ] && [ -e "$work/apt/$1_${2%-*}.orig.tar.gz" ] || return 1
    mkdir -p "$work/sources/$1/debian"
    tar -xf "$work/apt/$1_${2%-*}.orig.tar.gz" -C "$work/sources/$1" --strip-components=1
    cp "$work/sources/$1/COPYING" "$work/sources/$1/debian/copyright"
    echo "$1 ${2%-*}" >>"$work/sources/versions"
}

# Try the newest version first. A mirror may list a version but lack its files, which is then
# reported.
fetch_package() { # NAME
    for version in $(debian apt-cache showsrc --only-source "$1" | awk '/^Version:/ { print $2 }' | sort -Vru); do
        if (cd "$work/apt" && debian apt-get -qq source --download-only "$1=$version"); then
            dpkg-source --no-check --extract "$work/apt/$1_${version#*:}.dsc" "$work/sources/$1"
            echo "$1 $version" >>"$work/sources/versions"
            return 0
        fi
        without_packaging "$1" "$version" && return 0
        echo "$1 $version" >>"$work/passed-over"
    done
    echo "no version of $1 can be fetched from Debian"
    return 1
}

# fetch_sources PACKAGE ...: into $work/sources; complete if a file of that name exists
fetch_sources() {
    rm -rf "$work/sources" "$work/apt" "$work/passed-over"
    mkdir -p "$work/sources" "$work/apt/parts" "$work/apt/lists/partial" "$work/apt/cache/archives/partial"
    if [ -e /etc/apt/sources.list.d/debian.sources ]; then
        sed 's/^Types:.*/Types: deb-src/' /etc/apt/sources.list.d/debian.sources >"$work/apt/parts/debian.sources"
    else
        sed -n 's/^deb /deb-src /p' /etc/apt/sources.list >"$work/apt/parts/debian.list"
    fi
    debian apt-get update
    for package; do fetch_package "$package" || return 1; done
    : >"$work/sources/complete"
}

get_sources() { # LOG PACKAGE ...
    sources_log=$1
    shift
    [ -e "$work/sources/complete" ] || step "$sources_log" "Fetching Debian's sources" fetch_sources "$@" || return 77
    [ ! -e "$work/passed-over" ] ||
        say "warning: Debian's mirror lists these, but does not have them; older ones are used:" \
            "$(paste -sd, "$work/passed-over")"
}

with_cmake() { # FOLDER SOURCE [OPTION ...]
    to=$1 from=$2
    shift 2
    cmake -S "$work/sources/$from" -B "$to/$from" -G Ninja -DCMAKE_TOOLCHAIN_FILE="$toolchain" \
        -DCMAKE_BUILD_TYPE=Release -DCMAKE_INSTALL_PREFIX="$to/prefix" -DCMAKE_INSTALL_LIBDIR=lib \
        -DBUILD_SHARED_LIBS=OFF -DCMAKE_C_FLAGS="$c_flags" "$@" &&
        cmake --build "$to/$from" --parallel "$(cores)" && cmake --install "$to/$from"
}

build_model_libraries() { # FOLDER
    with_cmake "$1" jansson -DJANSSON_BUILD_DOCS=OFF -DJANSSON_WITHOUT_TESTS=ON -DJANSSON_EXAMPLES=OFF &&
        with_cmake "$1" utf8proc &&
        with_cmake "$1" pcre2 -DPCRE2_BUILD_PCRE2GREP=OFF -DPCRE2_BUILD_TESTS=OFF
}

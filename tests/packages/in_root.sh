#!/bin/sh
# Run by debs.sh in its copy of the machine.
set -eu
cd /mnt/debs

files() {
    find /etc /opt /usr /var -xdev \( -path /var/lib/dpkg -o -path /var/lib/apt -o -path /var/cache \
        -o -path /var/log -o -path /usr/share/mime -o -name __pycache__ -o -name ld.so.cache \) -prune -o -print | sort
}

fail() {
    echo "FAILED: $*"
    exit 1
}

packages=$(for deb in *.deb; do dpkg-deb -f "$deb" Package; done)
# Install dependencies first, so that they are present before and after.
missing=''
for name in $(for deb in *.deb; do dpkg-deb -f "$deb" Depends; done | tr ',' '\n' | awk '{ print $1 }' | sort -u); do
    case $name in *multihead*) continue ;; esac
    dpkg -s "$name" >/dev/null 2>&1 || missing="$missing $name"
done
# shellcheck disable=SC2086  # a list
if [ -n "$missing" ] && ! apt-get install -y --no-install-recommends $missing >apt.log 2>&1; then
    for name in $missing; do
        for deb in *.deb; do
            dpkg-deb -f "$deb" Depends | grep -q "\b$name\b" || continue
            echo "left out: $deb, whose $name cannot be installed here"
            rm "$deb"
        done
    done
    packages=$(for deb in *.deb; do dpkg-deb -f "$deb" Package; done)
fi
files >before
dpkg -i ./*.deb >dpkg.log 2>&1 || { tail -n 20 dpkg.log; fail 'dpkg -i'; }
echo "installed: $packages" | tr '\n' ' '
echo

echo "== man pages"
for page in multihead multihead-view multihead-help libmultihead mha_attention_forward multihead_attention.h; do
    man -w "$page" >/dev/null || fail "no man page $page"
    man --warnings "$page" 2>warnings | cat >shown
    if [ -s warnings ] || ! grep -q NAME shown; then
        cat warnings
        fail "man page $page"
    fi
done

echo "== the program and its completions"
multihead --version
multihead selftest --problems 1 >/dev/null
bash -c '. /usr/share/bash-completion/completions/multihead
    COMP_WORDS=(multihead view --sor) COMP_CWORD=2; _multihead; [[ ${COMPREPLY[*]} == --sort ]]' ||
    fail 'completion of bash'
for file in /usr/share/zsh/vendor-completions/_multihead /usr/share/fish/vendor_completions.d/multihead.fish; do
    [ -s $file ] || fail "no $file"
done

echo "== examples by pkg-config"
examples=/usr/share/doc/multihead/examples
# shellcheck disable=SC2046  # lists of flags
cc $examples/attention.c -o example $(pkg-config --cflags --libs multihead)
./example | diff - $examples/attention.expected || fail attention.c
# shellcheck disable=SC2046
cc $examples/generate.c -o example $(pkg-config --cflags --libs multihead-model multihead) -lm
./example | diff - $examples/generate.expected || fail generate.c
ldd example | grep -o 'libmultihead[^ ]*.so.0 => [^ ]*'

case $packages in
*python3-multihead*)
    echo "== Python"
    # The package's interpreter, not the first on this machine's PATH.
    if [ -e $examples/attention.py ]; then
        /usr/bin/python3 -B $examples/attention.py | diff - $examples/attention.expected || fail attention.py
    fi
    /usr/bin/python3 -B -c 'import multihead; print(multihead.__file__, multihead.version())'
    ;;
esac

echo "== removal"
# shellcheck disable=SC2086
dpkg --purge $packages >dpkg.log 2>&1 || { tail -n 20 dpkg.log; fail 'dpkg --purge'; }
files >after
diff before after || fail 'removal leaves these files'
ldconfig -p | grep multihead && fail 'the loader still knows a library'
echo "removed, nothing is left"

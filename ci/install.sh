#!/bin/sh
# Installs an archive or a wheel of `cargo xtask dist` in a folder. Needs no root; a wheel needs Python with venv.
#
# usage: install.sh ARCHIVE [FOLDER]
#
# ARCHIVE is a path or an address. FOLDER is ./doorbell by default. In a job of GitHub Actions, later steps have the
# command in their path. Elsewhere the last line names the folder to add.
set -eu

if [ $# -lt 1 ] || [ $# -gt 2 ] || [ -z "$1" ]; then
    echo "usage: install.sh ARCHIVE [FOLDER]" >&2
    exit 2
fi
archive=$1
folder=${2:-$PWD/doorbell}
case $folder in
*[\ :]*)
    echo "install.sh: $folder: must have no space and no colon, since LD_PRELOAD separates paths by them" >&2
    exit 2
    ;;
esac

mkdir -p "$folder"
folder=$(cd "$folder" && pwd)
case $archive in
*.whl | *.whl[?#]*)
    # In a folder of its own, so that later steps keep their Python.
    python3 -m venv "$folder/python"
    "$folder/python/bin/pip" install --quiet --disable-pip-version-check --no-index "$archive" || {
        echo "install.sh: pip cannot install ${archive%%[?#]*}. Wheels need glibc 2.28 or later, not musl: take an" \
            "image such as python:3-slim, and the wheel whose name ends with $(uname -m).whl" >&2
        exit 1
    }
    mkdir -p "$folder/bin"
    ln -sf ../python/bin/doorbell "$folder/bin/doorbell"
    ;;
http://* | https://*)
    fetched=$folder/archive.tar.gz
    curl --fail --location --silent --show-error --output "$fetched" "$archive"
    tar --extract --gzip --strip-components=1 --directory "$folder" --file "$fetched"
    rm "$fetched"
    ;;
*)
    tar --extract --gzip --strip-components=1 --directory "$folder" --file "$archive"
    ;;
esac

if ! "$folder/bin/doorbell" --version; then
    case $(ldd --version 2>&1 || :) in
    *musl*) remedy="this system has musl, and doorbell needs glibc: take an image such as debian or python:3-slim" ;;
    *) remedy="build the archive on this kind of processor, with a glibc that is not newer than this machine's" ;;
    esac
    echo "install.sh: $folder/bin/doorbell does not start here: $remedy" >&2
    exit 1
fi
if [ -n "${GITHUB_PATH:-}" ]; then
    echo "$folder/bin" >> "$GITHUB_PATH"
else
    echo "export PATH=\"$folder/bin:\$PATH\""
fi

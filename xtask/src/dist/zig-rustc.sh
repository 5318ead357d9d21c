#!/bin/sh
# Wrapper of rustc that links with zig: zig-rustc.sh RUSTC ARGUMENT... Cargo compiles all crates again if its own
# settings name another linker. It does not compare wrappers.
set -eu
exec "$@" -C linker="${0%/*}/zig-cc.sh"

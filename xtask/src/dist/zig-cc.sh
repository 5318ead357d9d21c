#!/bin/sh
# Linker of rustc for the wheel: zig, with the symbols of an older glibc. ZIG_TARGET is a processor with this version of
# glibc, ZIG_PYTHON a Python interpreter with ziglang, and LIBGCC_S the path of libgcc_s.so.1 for this processor.
set -eu
for argument; do
    shift
    case $argument in
    # zig would link its own unwinder. But glibc ends a cancelled thread with libgcc_s, and both must agree on frames.
    -lgcc_s) set -- "$@" "$LIBGCC_S" ;;
    # zig does not know this option. With the other one, also data of the library is bound to the library.
    -Wl,-Bsymbolic-functions) set -- "$@" -Wl,-Bsymbolic ;;
    # zig always links with its own lld, and warns about this level.
    -fuse-ld=* | -B* | -Wl,-O1) ;;
    *) set -- "$@" "$argument" ;;
    esac
done
# libgcc_s of this machine may need symbols of a newer glibc, and a machine with the wheel has a libgcc_s of its own.
# The size of the wheel is limited, so its programs have no information for debuggers.
exec "$ZIG_PYTHON" -m ziglang cc -target "$ZIG_TARGET" -O2 -fno-sanitize=undefined \
    -Wl,--allow-shlib-undefined -Wl,--strip-all "$@"

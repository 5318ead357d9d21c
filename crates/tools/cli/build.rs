//! Links the program `libdoorbell_ibverbs` as a shared library, and names the drop-in libraries that the command
//! contains.
//!
//! Compilers that link by `-shared` ignore the `-pie` that rustc passes for programs. The code of the library is in
//! another crate, which rustc compiles for libraries too. The program's own crate has no code: rustc may give its
//! thread-local variables places that only an executable has. Link-time optimisation of whole programs would do so with
//! all code.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::{env, fs, process};

/// Name of the program.
const PROGRAM: &str = "libdoorbell_ibverbs";

/// Version script that exports the functions of C, and hides those of Rust. rustc passes such a script for libraries
/// only.
const EXPORTS: &str = "{ global: *; local: _R*; _ZN*; rust_*; __rust*; __rdl_*; __rg_*; };\n";

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    let out = PathBuf::from(env::var_os("OUT_DIR").unwrap_or_default());
    write(&out.join("drop_ins.rs"), &drop_ins());
    // With other C libraries, the program does not depend on `doorbell-preload`, whose build script sets the variables.
    let Ok(options) = env::var("DEP_DOORBELL_IBVERBS_LINK_OPTIONS") else { return };
    let script = out.join("exports.map");
    write(&script, EXPORTS);
    let exports = format!("-Wl,--version-script={}", script.display());
    for option in ["-shared", &exports].into_iter().chain(options.split_whitespace()) {
        println!("cargo::rustc-link-arg-bin={PROGRAM}={option}");
    }
}

/// Returns the list of the drop-in libraries, each with its name and its bytes, for `src/drop_ins.rs`.
fn drop_ins() -> String {
    let paths = env::var_os("DEP_DOORBELL_IBVERBS_DROP_INS").unwrap_or_default();
    let mut list = String::from("&[");
    // An empty variable has one empty path.
    for path in env::split_paths(&paths).filter(|path| !path.as_os_str().is_empty()) {
        let name = path.file_name().unwrap_or_default();
        let _ = write!(list, "({name:?}, include_bytes!({path:?}) as &[u8]), ");
    }
    list + "]\n"
}

fn write(path: &Path, text: &str) {
    if let Err(error) = fs::write(path, text) {
        println!("cargo::error={} could not be written: {error}", path.display());
        process::exit(1);
    }
}

//! The library that `doorbell run` preloads, for `cargo install`, which installs programs only. `build.rs` makes the
//! linker produce a shared library instead of an executable.
#![cfg_attr(target_env = "gnu", no_main)]

#[cfg(target_env = "gnu")]
use doorbell_preload as _;

/// Programs of other C libraries cannot preload the library.
#[cfg(not(target_env = "gnu"))]
fn main() {
    eprintln!("this build has no library for `doorbell run`, which needs the GNU C library");
    std::process::exit(1);
}

//! Passes the options of `doorbell-preload` to the linker.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    // The build script of `doorbell-preload` always sets the variable.
    let options = std::env::var("DEP_DOORBELL_IBVERBS_LINK_OPTIONS").unwrap_or_default();
    for option in options.split_whitespace() {
        println!("cargo::rustc-cdylib-link-arg={option}");
    }
}

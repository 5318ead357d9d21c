//! `cargo xtask bindings`: C layouts from rdma-core's public headers, and the check that the C compiler uses the same
//! layouts.

#[cfg(feature = "bindings")]
mod generate;

use std::fmt::Write as _;
use std::fs;
use std::path::PathBuf;

use crate::place;
use crate::shell::{command, output_of, root};

#[cfg(feature = "bindings")]
pub(crate) use generate::generate;

const HEADER: &str = "#include <infiniband/verbs.h>\n#include <rdma/rdma_verbs.h>\n";

/// Minimum number of sizes and offsets. A lower number means that the check misses some of them.
const LEAST_LAYOUTS: usize = 800;

fn sources() -> PathBuf {
    root().join("crates/rnic/ibverbs-sys/src")
}

/// Generates the bindings by a build of this program with bindgen, which no other command needs.
#[cfg(not(feature = "bindings"))]
pub(crate) fn generate() -> Result<(), String> {
    use crate::shell::{cargo, run};
    run(cargo(&["run", "--quiet", "--package", "xtask", "--features", "bindings", "--", "bindings"]))
}

/// Checks with the C compiler each size and offset that the checked-in bindings assert.
pub(crate) fn check_layout() -> Result<(), String> {
    let read = |name: &str| {
        let path = sources().join(name);
        fs::read_to_string(&path).map_err(|error| format!("{} could not be read: {error}", path.display()))
    };
    let (probe, count) = probe(&read("layout.rs")?, &read("bindings.rs")?)?;
    if count < LEAST_LAYOUTS {
        return Err(format!("layout.rs asserts {count} sizes and offsets, must be at least {LEAST_LAYOUTS}"));
    }
    let source = place::own().join("layout.c");
    fs::write(&source, probe).map_err(|error| format!("{} could not be written: {error}", source.display()))?;
    output_of(command("cc", &["-std=gnu11", "-fsyntax-only", &source.to_string_lossy()]))?;
    eprintln!("cc agrees with {count} sizes, alignments and offsets");
    Ok(())
}

/// Returns a C program that compiles only if all asserted layouts hold, and the number of its assertions.
fn probe(layout: &str, bindings: &str) -> Result<(String, usize), String> {
    let mut program = format!("{HEADER}#include <stddef.h>\n");
    let mut count = 0;
    let named = |name: &str| {
        // Leave out types that have no name in C. bindgen gives them a name with `__bindgen_ty`.
        let kind = if bindings.contains(&format!("pub union {name} ")) { "union" } else { "struct" };
        (!name.contains("__bindgen_ty")).then(|| format!("{kind} {name}"))
    };
    // An assertion is `["Size of NAME"][::core::mem::size_of::<NAME>() - 8usize];`, for example. rustfmt may break the
    // line.
    let joined = layout.replace('\n', " ");
    for assertion in joined.split("[\"").skip(1) {
        let wrong = || format!("an assertion of layout.rs cannot be parsed: {assertion}");
        let (what, rest) = assertion.split_once("\"]").ok_or_else(wrong)?;
        let value = rest.rsplit_once("usize").and_then(|(before, _)| before.rsplit_once("- ")).ok_or_else(wrong)?.1;
        let c = if let Some(name) = what.strip_prefix("Size of ") {
            named(name).map(|name| format!("sizeof({name})"))
        } else if let Some(name) = what.strip_prefix("Alignment of ") {
            named(name).map(|name| format!("_Alignof({name})"))
        } else if let Some((name, field)) = what.strip_prefix("Offset of field: ").and_then(|of| of.split_once("::")) {
            // Leave out fields that have no name in C. bindgen also adds `_` to field names that are keywords of Rust.
            let field = field.trim_end_matches('_');
            named(name).filter(|_| !field.starts_with("__bindgen")).map(|name| format!("offsetof({name}, {field})"))
        } else {
            return Err(wrong());
        };
        let Some(c) = c else { continue };
        count += 1;
        writeln!(program, "_Static_assert({c} == {value}, \"{what}\");").map_err(|error| error.to_string())?;
    }
    Ok((program, count))
}

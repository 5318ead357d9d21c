//! What a verbs program and libibverbs say to each other in memory: structures, function tables
//! and constants of the public header `infiniband/verbs.h`.
//!
//! `cargo xtask bindings` generates them from rdma-core's header, and they are checked in, so that
//! building needs neither the header nor libclang. They are those of rdma-core 44; the ABI only
//! grows, and structures that grow carry their size or a mask of the fields that are used.
//!
//! Functions are not declared: whoever offers them defines them, and whoever uses them looks them
//! up at run time. So nothing here links to libibverbs.
//!
//! Sizes and offsets that libclang saw are compared with those of Rust when this is compiled
//! (x86-64), and by `cargo xtask test` with those of the C compiler.

mod bindings;
#[cfg(all(target_arch = "x86_64", target_pointer_width = "64"))]
mod layout;

pub use bindings::*;

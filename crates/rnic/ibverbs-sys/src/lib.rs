//! Structures, function tables and constants of libibverbs and librdmacm, from the public headers
//! `infiniband/verbs.h`, `rdma/rdma_cma.h` and `rdma/rdma_verbs.h`.
//!
//! ```
//! use doorbell_ibverbs_sys::ibv_sge;
//!
//! let memory = [0_u8; 64];
//! let element = ibv_sge { addr: memory.as_ptr() as u64, length: 64, lkey: 7 };
//! assert_eq!((size_of_val(&element), element.length), (16, 64));
//! ```
//!
//! `cargo xtask bindings` generates the bindings from rdma-core's headers. They are checked in, so a build needs
//! neither the headers nor libclang. They are those of rdma-core 44. The ABI only grows: structures that grow carry
//! their size, or a mask of the fields in use.
//!
//! This crate declares no functions. A library that provides them defines them, and a program looks them up at run
//! time. The crate therefore links to neither library.
//!
//! The compiler compares sizes and offsets from libclang with those of Rust (x86-64). `cargo xtask test` compares
//! them with those of the C compiler.

mod bindings;
#[cfg(all(target_arch = "x86_64", target_pointer_width = "64"))]
mod layout;

pub use bindings::*;

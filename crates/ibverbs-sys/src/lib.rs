//! What a verbs program, libibverbs and librdmacm say to each other in memory: structures, function tables
//! and constants of the public headers `infiniband/verbs.h`, `rdma/rdma_cma.h` and `rdma/rdma_verbs.h`.
//!
//! ```
//! use doorbell_ibverbs_sys::ibv_sge;
//!
//! let memory = [0_u8; 64];
//! let element = ibv_sge { addr: memory.as_ptr() as u64, length: 64, lkey: 7 };
//! assert_eq!((size_of_val(&element), element.length), (16, 64));
//! ```
//!
//! `cargo xtask bindings` generates them from rdma-core's headers, and they are checked in, so that
//! building needs neither the headers nor libclang. They are those of rdma-core 44; the ABI only
//! grows, and structures that grow carry their size or a mask of the fields that are used.
//!
//! Functions are not declared: whoever offers them defines them, and whoever uses them looks them
//! up at run time. So nothing here links to either library.
//!
//! Sizes and offsets that libclang saw are compared with those of Rust when this is compiled
//! (x86-64), and by `cargo xtask test` with those of the C compiler.

mod bindings;
#[cfg(all(target_arch = "x86_64", target_pointer_width = "64"))]
mod layout;

pub use bindings::*;

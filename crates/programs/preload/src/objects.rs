//! Objects of verbs, and the functions of libibverbs that take these objects.

pub(crate) mod ah;
pub(crate) mod answer;
pub(crate) mod context;
pub(crate) mod cq;
pub(crate) mod cq_ex;
pub(crate) mod device;
pub(crate) mod dm;
pub(crate) mod dmabuf;
pub(crate) mod event;
pub(crate) mod handle;
pub(crate) mod mr;
pub(crate) mod mw;
pub(crate) mod pd;
pub(crate) mod post;
pub(crate) mod qp;
pub(crate) mod qp_attr;
pub(crate) mod query;
pub(crate) mod srq;
pub(crate) mod unsupported;
pub(crate) mod wr;

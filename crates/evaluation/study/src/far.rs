//! Points of a study about passive memory that several clients share.
//!
//! A [`FarPoint`](doorbell_record::FarPoint) has more parties than a session of two ends: a memory node, a metadata
//! service, clients on several hosts, and possibly a middlebox. `doorbell_sim::far` measures such a point in virtual
//! time, and `doorbell study` on real machines. The result is a [`PointResult`](doorbell_record::PointResult) with
//! [`Figure`](doorbell_record::Figure)s. [`words`] contains the operations of clients on bare memory, and
//! `doorbell_farmem` contains the operations of the store.

mod figure;
mod here;
mod relays;
pub mod words;

pub use figure::{order_figures, store_result};
pub use here::{HereError, measure};
pub(crate) use here::{Shape, run_pairs};
pub use relays::BoxError;
pub(crate) use relays::box_at;

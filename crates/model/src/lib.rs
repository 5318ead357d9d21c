//! How fast messages over RDMA can be: predicted, fitted to measurements, and explained.
//!
//! The model is LogGP (Alexandrov, Ionescu, Schauser, Scheiman, 1995) extended for RNICs, which
//! work beside the CPU: pure functions of a set of [`Parameters`](parameters::Parameters) and a
//! [`Workload`](workload::Workload). Nothing here reads a file or a clock.
//!
//! | parameter | meaning |
//! |---|---|
//! | `o_snd`, `o_rcv` | CPU time to send, to receive one message; less per message in batches |
//! | `o_post` (`o_free`) | CPU time to prepare a receive buffer; likewise |
//! | `o_nsnd`, `o_nrcv` | NIC time per message, sending and receiving |
//! | `o_run` | of a software RNIC: CPU time of the system call that carries a run of packets, at each end |
//! | `L` | latency from NIC to NIC, PCIe and switch included |
//! | `g = g_fix + k g_var` | time until the sender can reuse what a message of k bytes holds |
//! | `G` | time per byte on the line, one for latency and one for bandwidth |
//! | `o_unit` | for how long a message occupies the processing unit of a NIC that serves its queue pair |
//! | `o_nic` | NIC time per message that all units together cannot fall below: the NIC's ceiling |
//! | `o_inline` | CPU time of taking a short payload out of the completion, where the NIC has put it |
//! | `o_pairs` | CPU time that each doubling of a receiving thread's queue pairs adds to a message |
//! | `o_srq` | for how long a message behind one of another queue pair holds the receive queue that they share |
//! | `o_repost_thread` | CPU time of one thread that reposts shared receives for all |
//! | `o_atomic`, `o_atomic_address` | for how long an atomic operation occupies its queue pair, its address |
//!
//! # Latency
//!
//! ```text
//! t(k) = o_snd + o_nsnd + (line(k) - 1) G + L + o_nrcv + o_rcv
//! ```
//!
//! `line(k)` are the line bytes of a message with k bytes of payload: headers of each packet,
//! padding, preamble, FCS and gap, from [`doorbell_wire::message_cost`]. A READ or an atomic
//! operation crosses twice, `2 (o_nsnd + L + o_nrcv)` with the bytes of request and response, and
//! ends with polling its completion. A protocol's latency is the sum over those of its
//! [steps](doorbell_protocols::Protocol::steps) that deliver a message.
//!
//! # Throughput
//!
//! The **smallest** of these bounds, whose name is the bottleneck; k stands for one message, n for
//! connections, W for their window, u for the smaller of n and the NIC's units, m for what an end's NIC
//! sends or receives per message, whichever is more, acknowledgements aside, and q for the queue pairs of a receiving
//! thread:
//!
//! ```text
//! round trip      n W / (o_snd + g)          the sender's buffer is free once the RNIC has the ACK
//!                 n W / (t + t_release)      ... or once the receiver has said so
//! receiver space  n depth / (t + t_release)
//! fence           n / (one READ)             READs behind a fenced operation wait for each other
//! sending CPU     senders / (sum of o_snd, and of o_rcv for what comes back)
//! READs in flight n R / (one READ)           a queue pair has R READs in flight at most
//! sending NIC     u / (o_nsnd + (line - 1) G)
//! receiving NIC   u / (o_nrcv + (line - 1) G)
//! NIC's units     u / (m o_unit)             at each end
//! NIC's ceiling   1 / (m o_nic)              at each end, however many connections
//! link            1 / (line G)               each direction, acknowledgements included
//! receiving CPU   receivers / (sum of o_rcv and o_post, o_inline of short messages, o_pairs log2 q)
//! shared queue    1 / o_srq / (1 - 1 / connections)   above the size that is spared
//! repost thread   1 / o_repost_thread
//! atomics         n / o_atomic, and receivers / o_atomic_address; times W where one serves all messages that wait
//! ```
//!
//! All of them are linear in the parameters. Of a [software
//! RNIC](parameters::RnicKind::Software) the NIC's work is added to the CPU's, and there is no link; its
//! packets travel in runs of one length, the longer the more of them are in flight, and each run costs
//! both CPUs `o_run`. Of other RNICs that is 0.
//!
//! # Single operations
//!
//! [`operation`] predicts WRITEs, READs, atomics, SENDs and request-response of bare queue pairs, from the same forms.
//!
//! # Corrections to the published model
//!
//! - One source prints `max` before the list of bounds; the smallest counts.
//! - It gives the sender `k / (o_snd + g)` alone, which is a window of one; here it stands for a
//!   window of W. The receiver's `o_rcv + g_rcv` is `o_rcv + o_post`, the cost of reposting.
//! - Bytes in the terms of NIC and link are line bytes, not payload. That, and no property of a
//!   NIC, explains why 100 Gb/s carry 21.0 M messages/s of 512 B: each is 594 bytes on the line.
//! - NIC and link are bounds apart: the units of a NIC serve several connections at once, which share the link.
//! - A single `o_nsnd` of 20 ns, 50 M messages/s, does not explain that one connection stays below 14 M: that is
//!   what one unit does, and 50 M what the NIC does.
//! - READs are two crossings, not one.
//! - The published `G` of bandwidth has headers in it; see the
//!   [open points](parameters::Parameters::open_points) of [T1](parameters::Parameters::t1).
//!
//! # Fits and advice
//!
//! [`fit`](fit::fit) finds parameters in measurements and says which of them, or which of their sums, the
//! data determines. [`advise`](advise::advise) ranks protocols with their windows and batches for a need.
//!
//! # Held to published figures
//!
//! [`check`](check::check) compares each published number of a testbed with what the testbed's parameters predict.
//!
//! # What has no parameter
//!
//! Loss and retransmission; copies between a ring and where a message belongs; what inline messages cost the
//! sender's CPU; sleeping and waking up. One acknowledgement per message is taken to come back, unless
//! parameters say otherwise, and polling
//! memory to cost as much as polling a completion.
//!
//! ```
//! use doorbell_model::explain::explain;
//! use doorbell_model::parameters::Parameters;
//! use doorbell_model::workload::Workload;
//!
//! let workload = Workload { credits: false, ..Workload::sequential(16) };
//! let explanation = explain(&Parameters::t1(), &workload)?;
//! assert!(explanation.sentence.contains("round trip (0.284 M messages/s); a window of 30"));
//! # Ok::<(), doorbell_model::workload::WorkloadError>(())
//! ```
#![forbid(unsafe_code)]

pub mod advise;
pub mod check;
pub mod cost;
pub mod explain;
pub mod fit;
pub mod observation;
pub mod operation;
pub mod parameters;
pub mod predict;
pub mod record;
mod steps;
pub mod workload;

#[cfg(test)]
mod tests;

//! Model of the speed of messages over RDMA: predictions, fits to measurements, and explanations.
//!
//! The model is LogGP (Alexandrov, Ionescu, Schauser, Scheiman, 1995) extended for RNICs, which work in parallel with
//! the CPU. The model consists of pure functions of [`Parameters`](parameters::Parameters) and a
//! [`Workload`](workload::Workload). This crate reads no files and no clock.
//!
//! | parameter | meaning |
//! |---|---|
//! | `o_snd`, `o_rcv` | CPU time to send one message, and to receive one message; less per message in batches |
//! | `o_post` (`o_free`) | CPU time to prepare a receive buffer; less per buffer in batches |
//! | `o_nsnd`, `o_nrcv` | NIC time per message, sending and receiving |
//! | `o_run` | of a software RNIC: CPU time of the system call that carries a run of packets, at each end |
//! | `L` | latency from NIC to NIC, PCIe and switch included |
//! | `g = g_fix + k g_var` | time until the sender can reuse the resources of a message of k bytes |
//! | `G` | time per byte on the line, with separate values for latency and bandwidth |
//! | `o_unit` | time that a message occupies the processing unit of a NIC that serves its queue pair |
//! | `o_nic` | minimum NIC time per message over all units together: the NIC's ceiling |
//! | `o_inline` | CPU time to copy a short payload out of the completion, where the NIC has put it |
//! | `o_pairs` | CPU time that each doubling of a receiving thread's queue pairs adds to a message with a buffer |
//! | `o_srq` | time that a message holds a shared receive queue if the previous message came from another queue pair |
//! | `o_repost_thread` | CPU time of a single thread that reposts all shared receives |
//! | `o_atomic`, `o_atomic_address` | time that an atomic operation occupies its queue pair, and its address |
//! | `o_list` | time of a NIC to fetch a list of several work requests; a single one comes with its doorbell |
//! | `o_take` | time of a NIC to fetch the receive that a message takes; its acknowledgement does not wait |
//! | `o_slow` | longest delay of the slow accesses to memory |
//! | `o_copy` | CPU time per byte that an end copies or clears in registered memory |
//!
//! # Latency
//!
//! ```text
//! t(k) = o_snd + o_nsnd + (line(k) - 1) G + L + o_nrcv + o_rcv
//! ```
//!
//! `line(k)` is the number of line bytes of a message with k bytes of payload: headers of each packet, padding,
//! preamble, FCS and gap, from [`doorbell_wire::message_cost`]. A READ or an atomic operation crosses the link twice,
//! `2 (o_nsnd + L + o_nrcv)` with the bytes of request and response, and ends with polling its completion. A protocol's
//! latency is the sum over the [steps](doorbell_protocols::Protocol::steps) that deliver a message. To this come
//! `o_list` if a step is posted together with the step before, and `k o_copy` for each pass of the sender over the
//! bytes.
//!
//! `G` of latency and `g_var` hold up to the size `k_max` for which they were published, if the parameters state one
//! ([`slopes_up_to_bytes`](parameters::Limits::slopes_up_to_bytes)). A longer message streams over the line, so each
//! further line byte takes `G` of bandwidth:
//!
//! ```text
//! t(k) = t(k_max) + (line(k) - line(k_max)) G_bandwidth     for k > k_max
//! g(k) = g(k_max) + (line(k) - line(k_max)) G_bandwidth     for k > k_max
//! ```
//!
//! # Throughput
//!
//! The throughput is the **smallest** of these bounds. The name of the smallest bound is the bottleneck. The symbols:
//!
//! - k: one message
//! - n: connections
//! - W: window of a connection
//! - R: maximum number of READs that a queue pair has in flight
//! - u: the smaller of n and the NIC's units
//! - m: the larger of the messages that an end's NIC sends and receives per message of the workload, without
//!   acknowledgements
//! - q: queue pairs of a receiving thread
//!
//! ```text
//! round trip      n W / (o_snd + g)          the sender's buffer is free once the RNIC has the ACK
//!                 n W / (t + t_release)      ... or once the receiver has reported free space
//!                 plus o_list for each list of work requests, and the time of a reservation
//! receiver space  n S / (t + t_release)      S: depth, or the messages that fit into a ring of whole pages
//! fence           n / (one READ)             the fenced operation after each READ serialises READs
//! sending CPU     senders / (sum of o_snd, and of o_rcv for the answers)
//! READs in flight n R / (one READ)           a queue pair has at most R READs in flight
//! sending NIC     u / (o_nsnd + (line - 1) G)
//! receiving NIC   u / (o_nrcv + (line - 1) G)
//! NIC's units     u / (m o_unit)             at each end
//! payload fetches n F / dma_read             F: payloads of a queue pair that the NIC fetches at the same time
//! NIC's ceiling   1 / (m o_nic)              at each end, for any number of connections
//! link            1 / (line G)               each direction, acknowledgements included
//! receiving CPU   receivers / (sum of o_rcv and o_post, o_inline of short messages, o_pairs log2 q)
//! shared queue    1 / o_srq / (1 - 1 / connections)   above the size limit
//! repost thread   1 / o_repost_thread
//! atomics         n / o_atomic, and receivers / o_atomic_address
//!                 if one atomic serves all waiting messages, with W of at least two posts for each of f in flight:
//!                 n W / f / o_atomic, and n W / ((f + 1/2) n o_atomic_address / receivers + o_snd + o_rcv + o_snd + g)
//! ```
//!
//! A receiving CPU that binds reports free space once per poll, for half of S; a slower sender gets more reports.
//!
//! All bounds are linear in the parameters.
//!
//! A [software RNIC](parameters::RnicKind::Software) has no bound of the link, and its work is added to the CPU time.
//! Its packets travel in runs of packets of equal length. The more packets are in flight, the longer the runs. Each run
//! costs the CPU of each end `o_run`.
//! For other RNICs `o_run` is 0.
//!
//! # Requests with replies
//!
//! [`predict_requests`](predict::predict_requests) predicts requests of one size with replies of another size. Each
//! connection has O requests outstanding, and its client sends the next request when a reply arrives. The costs of a
//! request and of its reply add up in CPUs, NICs and the link. The bound of the round trip is
//!
//! ```text
//! round trip      n O / (t(request) + t(reply) + waits for the threads of clients and server)
//! ```
//!
//! A thread looks at its connections in turns, so a request waits although the thread is idle most of the time. The
//! latency with this load follows from Little's law: `n O / throughput`.
//!
//! # Single operations
//!
//! [`operation`] predicts WRITEs, READs, atomics, SENDs and request-response of bare queue pairs with the same forms.
//! It has two further bounds: rounds of requests (`operation/rounds.rs`), and slow accesses to a peer's memory
//! (`operation/slow.rs`). The first of these modules also has the number of acknowledgements per message.
//!
//! # Values of the simulator's testbed
//!
//! A parameter file may take values from the hardware of the simulator's testbed of the same name, in a table
//! `hardware`. Each value then has one definition.
//!
//! # Corrections to the published model
//!
//! - One source prints `max` before the list of bounds; the correct function is the minimum.
//! - The source gives `k / (o_snd + g)` as the bound of the sender, which assumes a window of one. This crate
//!   multiplies this bound by the window W. The receiver's `o_rcv + g_rcv` in the source is `o_rcv + o_post` here:
//!   `g_rcv` is the cost of reposting.
//! - The terms of NIC and link count line bytes, not payload. Line bytes alone explain why 100 Gb/s carry 21.0 M
//!   messages/s of 512 B, since each message has 594 bytes on the line.
//! - NIC and link are separate bounds, because the units of a NIC serve several connections at once and share the link.
//! - A single `o_nsnd` of 20 ns allows 50 M messages/s, but one connection stays below 14 M. The limit of one
//!   unit is 14 M, and the limit of the whole NIC is 50 M.
//! - A READ crosses the link twice, where the source counts one crossing.
//! - The published `G` of bandwidth includes headers; see the [open points](parameters::Parameters::open_points) of
//!   [T1](parameters::Parameters::t1).
//!
//! # Fits and advice
//!
//! [`fit`](fit::fit) estimates parameters from measurements and reports the parameters, or sums of them, that the
//! data determines. [`advise`](advise::advise) ranks protocols with their windows and batches for a need.
//!
//! # Comparison with published figures
//!
//! [`check`](check::check) compares each published number of a testbed with the prediction of the testbed's parameters.
//!
//! # Limits of the model
//!
//! The model has no parameter for these costs:
//!
//! - loss and retransmission
//! - copies between a ring and a message's place
//! - the sender's CPU cost of inline messages
//! - sleeping and waking up
//!
//! The model assumes one acknowledgement per message, unless the parameters state another number. The model also
//! assumes that polling memory costs as much as polling a completion queue.
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
mod latency;
pub mod observation;
pub mod operation;
pub mod parameters;
pub mod predict;
pub mod record;
mod setting;
mod steps;
pub mod workload;

#[cfg(test)]
mod tests;

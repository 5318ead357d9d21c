//! Tests of single packets between the RNIC and a scripted peer.

mod acknowledgements;
mod datagrams;
mod flow;
mod full_links;
mod input;
mod invalidate;
mod longest;
mod multicast;
mod objects;
mod paging;
mod policies;
mod probes;
mod queues;
mod recovery;
mod refusals;
mod requester;
mod responder;
mod shared;
mod windows;

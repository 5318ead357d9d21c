//! Counters of a box, and a description of each.

macro_rules! counters {
    ($($name:ident: $sentence:literal,)*) => {
        /// Counters of a box since its creation.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct Counters {
            $(#[doc = concat!("Counts: ", $sentence, ".")] pub $name: u64,)*
        }

        impl Counters {
            /// Returns each counter above 0 with its description.
            pub fn sentences(&self) -> impl Iterator<Item = (u64, &'static str)> + use<> {
                [$((self.$name, $sentence)),*].into_iter().filter(|(count, _)| *count > 0)
            }

            /// Returns all counters with their names.
            pub fn named(&self) -> impl Iterator<Item = (&'static str, u64)> + use<> {
                [$((stringify!($name), self.$name)),*].into_iter()
            }
        }
    };
}

counters! {
    received: "packets received",
    sent: "packets sent",
    requests: "requests of clients that were accepted",
    to_node: "packets of requests sent to the memory node for the first time",
    to_node_again: "packets of requests sent to the memory node again",
    acks_in: "acknowledgements of the memory node",
    acks_out: "acknowledgements sent to clients",
    coalesced: "acknowledgements of the memory node for requests of several clients",
    duplicates: "requests that a client sent again",
    reads_again: "READs executed again because a client lost the response",
    out_of_sequence: "requests that arrived ahead of a lost request",
    naks_out: "NAKs for lost requests sent to clients",
    node_naks: "NAKs for lost requests received from the memory node",
    lost_responses: "responses of the memory node that were lost and requested again",
    node_timeouts: "times that the memory node did not answer in time",
    refused_access: "requests refused for their key, bounds or rights",
    refused_invalid: "requests refused because they are malformed or not offered by the box",
    node_failures: "times that the shared queue pair failed, with all clients on it",
    reads_steered: "READs steered to the newest node of their key",
    cas_steered: "CASes steered to the newest node of their key",
    cas_converted: "CASes sent to the memory node as WRITEs",
    cas_held: "CASes held until another CAS to the same key was answered",
    passed: "packets passed through unchanged",
    unparsed: "packets that the box cannot read as RoCE v2 packets",
    unknown_qp: "packets for a queue pair that the box does not have",
    foreign: "packets from an address that is not the peer of their queue pair",
    unexpected: "responses that answer no request of the box",
    full: "requests dropped because a limit of the client or of the box was reached",
    incomplete: "clients given up because they left a message incomplete",
    congestion: "congestion notifications passed on",
    keys_replaced: "keys forgotten because another key took their place in the table",
}

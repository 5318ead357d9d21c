//! Costs as linear forms of the parameters.
//!
//! Every bound and every latency of the model is a sum of multiples of parameters. A prediction is therefore a dot
//! product, and its derivatives are the coefficients. Linear algebra determines which sums of parameters the data
//! reveals.

/// Terms of costs. Each term is one number of a parameter set, in nanoseconds or nanoseconds per byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Term {
    /// Part of `o_snd` per post.
    SendPost,
    /// Part of `o_snd` per message.
    SendEach,
    /// Part of `o_rcv` per poll.
    ReceivePoll,
    /// Part of `o_rcv` per message.
    ReceiveEach,
    /// Part of `o_post` per list of receives.
    RepostList,
    /// Part of `o_post` per receive.
    RepostEach,
    /// `o_nsnd`.
    NicSend,
    /// `o_nrcv`.
    NicReceive,
    /// Time of a NIC to fetch a payload that is not inline.
    DmaRead,
    /// Time of a NIC to fetch a list of several work requests from memory.
    ListFetch,
    /// CPU time to read or write a byte of a message in registered memory.
    CopyPerByte,
    /// CPU time of a software RNIC, at each end, for the system call that carries a run of packets.
    Run,
    /// `L`.
    Latency,
    /// `g_fix`.
    GapFixed,
    /// `g_var`, per byte of payload.
    GapPerByte,
    /// `G` of latency, per byte on the line.
    LatencyPerByte,
    /// `G` of bandwidth, per byte on the line.
    BandwidthPerByte,
    /// Time that a message occupies the processing unit of a NIC that serves its queue pair.
    NicUnit,
    /// Minimum NIC time per message over all processing units.
    NicWhole,
    /// CPU time to copy a short message out of the completion, where the NIC has put it.
    InlineReceive,
    /// CPU time that each doubling of a receiver's queue pairs adds to a message.
    ManyPairs,
    /// Time that a message holds a receive queue that queue pairs share.
    SharedQueue,
    /// CPU time of the single thread that reposts the receives of a shared queue.
    RepostThread,
    /// Time that an atomic operation occupies its queue pair.
    AtomicPair,
    /// Time that an atomic operation holds its address.
    AtomicAddress,
    /// Time of a NIC to fetch the receive that a message takes.
    TakeReceive,
    /// Longest delay of a slow access to memory.
    SlowAccess,
}

impl Term {
    /// All terms, in their order.
    pub const ALL: [Term; TERMS] = [
        Term::SendPost,
        Term::SendEach,
        Term::ReceivePoll,
        Term::ReceiveEach,
        Term::RepostList,
        Term::RepostEach,
        Term::NicSend,
        Term::NicReceive,
        Term::DmaRead,
        Term::ListFetch,
        Term::CopyPerByte,
        Term::Run,
        Term::Latency,
        Term::GapFixed,
        Term::GapPerByte,
        Term::LatencyPerByte,
        Term::BandwidthPerByte,
        Term::NicUnit,
        Term::NicWhole,
        Term::InlineReceive,
        Term::ManyPairs,
        Term::SharedQueue,
        Term::RepostThread,
        Term::AtomicPair,
        Term::AtomicAddress,
        Term::TakeReceive,
        Term::SlowAccess,
    ];

    /// Returns the name of the term's parameter, as in parameter files, and a description of the term.
    pub const fn parameter(self) -> (&'static str, &'static str) {
        match self {
            Term::SendPost | Term::SendEach => ("o_snd", "CPU, sending"),
            Term::ReceivePoll | Term::ReceiveEach => ("o_rcv", "CPU, polling for arrivals"),
            Term::RepostList | Term::RepostEach => ("o_post", "CPU, preparing receive buffers"),
            Term::NicSend => ("o_nsnd", "NIC, sending"),
            Term::NicReceive => ("o_nrcv", "NIC, receiving"),
            Term::DmaRead => ("dma_read", "NIC, fetching the payload"),
            Term::ListFetch => ("o_list", "NIC, fetching lists of work requests"),
            Term::CopyPerByte => ("o_copy", "CPU, copying or clearing messages"),
            Term::Run => ("o_run", "system calls of a software RNIC"),
            Term::Latency => ("L", "NIC to NIC, PCIe and switch included"),
            Term::GapFixed => ("g_fix", "until an acknowledgement returns"),
            Term::GapPerByte => ("g_var", "the same, per byte"),
            Term::LatencyPerByte => ("G", "bytes on the line, as a part of latency"),
            Term::BandwidthPerByte => ("G of bandwidth", "bytes on the line"),
            Term::NicUnit => ("o_unit", "a processing unit of the NIC"),
            Term::NicWhole => ("o_nic", "the whole NIC"),
            Term::InlineReceive => ("o_inline", "CPU, copying short payloads out of completions"),
            Term::ManyPairs => ("o_pairs", "CPU, changing between queue pairs"),
            Term::SharedQueue => ("o_srq", "the shared receive queue"),
            Term::RepostThread => ("o_repost_thread", "the thread that reposts shared receives"),
            Term::AtomicPair => ("o_atomic", "atomics of a queue pair"),
            Term::AtomicAddress => ("o_atomic_address", "atomics on one address"),
            Term::TakeReceive => ("o_take", "NIC, fetching the receive of a message"),
            Term::SlowAccess => ("o_slow", "slow accesses to memory"),
        }
    }
}

/// Contribution of one parameter to a cost.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Part {
    /// Name of the parameter, as in parameter files and formulas; empty for a constant.
    pub name: &'static str,
    /// Description of the parameter.
    pub meaning: &'static str,
    /// Contribution in nanoseconds.
    pub ns: f64,
}

/// Number of [`Term`]s.
pub const TERMS: usize = 27;

/// Value of each [`Term`] in the order of [`Term::ALL`], in nanoseconds or nanoseconds per byte.
pub type Values = [f64; TERMS];

/// Cost as a linear form: a coefficient for each [`Term`], and a constant in nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Cost {
    pub(crate) coefficients: [f64; TERMS],
    pub(crate) constant_ns: f64,
}

impl Cost {
    /// Cost without any term.
    pub const ZERO: Cost = Cost { coefficients: [0.0; TERMS], constant_ns: 0.0 };

    /// Returns a constant cost in nanoseconds.
    pub const fn constant(ns: f64) -> Cost {
        Cost { constant_ns: ns, ..Self::ZERO }
    }

    /// Returns the coefficient of a term.
    pub fn times(&self, term: Term) -> f64 {
        self.coefficients[term as usize]
    }

    /// Adds a multiple of a term.
    #[must_use]
    pub fn with(mut self, term: Term, times: f64) -> Cost {
        self.coefficients[term as usize] += times;
        self
    }

    /// Returns the sum of two costs.
    #[must_use]
    pub fn plus(mut self, other: &Cost) -> Cost {
        for (own, more) in self.coefficients.iter_mut().zip(other.coefficients) {
            *own += more;
        }
        self.constant_ns += other.constant_ns;
        self
    }

    /// Multiplies the cost by a factor.
    #[must_use]
    pub fn scaled(mut self, factor: f64) -> Cost {
        self.coefficients.iter_mut().for_each(|own| *own *= factor);
        self.constant_ns *= factor;
        self
    }

    /// Returns the nanoseconds of the cost with these parameters.
    pub fn ns(&self, values: &Values) -> f64 {
        self.constant_ns + self.coefficients.iter().zip(values).map(|(times, value)| times * value).sum::<f64>()
    }

    /// Returns the contribution of each parameter, in the order of [`Term`]. The contributions add up to
    /// [`ns`](Self::ns).
    pub fn parts(&self, values: &Values) -> Vec<Part> {
        let mut parts: Vec<Part> = Vec::new();
        let mut add = |(name, meaning), ns: f64| match parts.iter_mut().find(|part| part.name == name) {
            _ if ns == 0.0 => {}
            Some(part) => part.ns += ns,
            None => parts.push(Part { name, meaning, ns }),
        };
        for (index, term) in Term::ALL.into_iter().enumerate() {
            add(term.parameter(), self.coefficients[index] * values[index]);
        }
        add(("", "constant"), self.constant_ns);
        parts
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn terms_are_listed_in_their_order() {
        assert!(Term::ALL.into_iter().enumerate().all(|(index, term)| term as usize == index));
    }

    #[test]
    fn parts_add_up_to_the_whole() {
        let values: Values = std::array::from_fn(|index| 1.0 + index as f64);
        let cost = Cost { coefficients: std::array::from_fn(|index| 0.5 * index as f64), constant_ns: 3.0 };
        let parts = cost.parts(&values);
        assert!((parts.iter().map(|part| part.ns).sum::<f64>() - cost.ns(&values)).abs() < 1e-9);
        // `o_snd` has a cost per post and a cost per message. Their sum is one part.
        assert_eq!(parts.iter().filter(|part| part.name == "o_snd").count(), 1);
        assert_eq!(Cost::constant(2.0).parts(&values).len(), 1);
    }

    #[test]
    fn costs_add_up() {
        let mut values = [0.0; TERMS];
        values[Term::SendPost as usize] = 100.0;
        values[Term::Latency as usize] = 2000.0;
        let one = Cost::ZERO.with(Term::SendPost, 0.5);
        let sum = one.plus(&Cost::constant(7.0)).plus(&Cost::ZERO.with(Term::Latency, 2.0)).scaled(2.0);
        assert_eq!(sum.ns(&values), 2.0 * (50.0 + 7.0 + 4000.0));
        assert_eq!(sum.times(Term::Latency), 4.0);
    }
}

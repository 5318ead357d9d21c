//! Costs as linear forms of the parameters.
//!
//! Every bound and every latency of the model is a sum of parameters, each a number of times. So a
//! prediction is a dot product, its derivatives are the coefficients, and what data can tell about
//! sums of parameters follows from linear algebra.

/// What costs are made of. Each is one number of a parameter set, in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Term {
    /// The part of `o_snd` that a post costs once.
    SendPost,
    /// The part of `o_snd` that each message costs.
    SendEach,
    /// The part of `o_rcv` that a poll costs once.
    ReceivePoll,
    /// The part of `o_rcv` that each message costs.
    ReceiveEach,
    /// The part of `o_post` that a list of receives costs once.
    RepostList,
    /// The part of `o_post` that each receive costs.
    RepostEach,
    /// `o_nsnd`.
    NicSend,
    /// `o_nrcv`.
    NicReceive,
    /// What a NIC needs to fetch a payload that is not inline.
    DmaRead,
    /// What a software RNIC needs for a run of packets: a system call, at each end.
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
}

/// Number of [`Term`]s.
pub const TERMS: usize = 15;

/// The value of each [`Term`], in its order: nanoseconds, or nanoseconds per byte.
pub type Values = [f64; TERMS];

/// So many times each [`Term`], and nanoseconds that no parameter changes.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Cost {
    pub(crate) coefficients: [f64; TERMS],
    pub(crate) constant_ns: f64,
}

impl Cost {
    /// Nothing.
    pub const ZERO: Cost = Cost { coefficients: [0.0; TERMS], constant_ns: 0.0 };

    /// Nanoseconds that no parameter changes.
    pub const fn constant(ns: f64) -> Cost {
        Cost { constant_ns: ns, ..Self::ZERO }
    }

    /// How often a term is in it.
    pub fn times(&self, term: Term) -> f64 {
        self.coefficients[term as usize]
    }

    /// The same with so many times a term more.
    #[must_use]
    pub fn with(mut self, term: Term, times: f64) -> Cost {
        self.coefficients[term as usize] += times;
        self
    }

    /// The sum of two.
    #[must_use]
    pub fn plus(mut self, other: &Cost) -> Cost {
        for (own, more) in self.coefficients.iter_mut().zip(other.coefficients) {
            *own += more;
        }
        self.constant_ns += other.constant_ns;
        self
    }

    /// So many times it.
    #[must_use]
    pub fn scaled(mut self, factor: f64) -> Cost {
        self.coefficients.iter_mut().for_each(|own| *own *= factor);
        self.constant_ns *= factor;
        self
    }

    /// Nanoseconds, with these parameters.
    pub fn ns(&self, values: &Values) -> f64 {
        self.constant_ns + self.coefficients.iter().zip(values).map(|(times, value)| times * value).sum::<f64>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_term_is_the_last() {
        assert_eq!(Term::BandwidthPerByte as usize, TERMS - 1);
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

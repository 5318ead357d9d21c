//! Which nodes there are, and what lies between them.

use std::fmt;

/// The most nodes of a simulation.
pub const MAX_NODES: usize = 1024;

/// Nodes and what lies between them. All cables have one rate, that of the testbed's `link.rate`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Topology {
    /// Two nodes and a cable.
    Pair,
    /// Two nodes or more, each on a port of one switch.
    Star {
        /// How many, from 2 to [`MAX_NODES`].
        nodes: usize,
    },
    /// A two-level Clos network: each node on a leaf, each leaf with one cable to each spine. Frames between leaves
    /// take the spine that a hash of their addresses, ports and queue pairs names, so packets of one connection stay in
    /// order.
    ///
    /// A leaf's nodes ask for up to `hosts / spines` times what its cables upward carry: the oversubscription.
    Clos {
        /// How many, from 2 to [`MAX_NODES`]. They fill one leaf after the other.
        nodes: usize,
        /// Nodes per leaf, at least 1.
        hosts: usize,
        /// Spines, from 1 to `hosts`.
        spines: usize,
    },
}

/// A topology that there cannot be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TopologyError {
    /// Too few nodes or too many.
    #[error("the topology has {nodes} nodes, allowed are 2 to {MAX_NODES}")]
    Nodes {
        /// How many.
        nodes: usize,
    },
    /// A leaf has no nodes.
    #[error("a leaf has 0 nodes, allowed are 1 to {MAX_NODES}")]
    Hosts,
    /// A Clos network has no spine, or more than its leaves have nodes.
    #[error("the topology has {spines} spines, allowed are 1 to {hosts}, the nodes per leaf")]
    Spines {
        /// How many.
        spines: usize,
        /// Nodes per leaf.
        hosts: usize,
    },
    /// A middlebox is a function of one switch, through which everything goes.
    #[error("the topology has {switches} switches; a middlebox needs exactly one")]
    Middlebox {
        /// How many.
        switches: usize,
    },
    /// An oversubscription that no whole number of spines gives.
    #[error("the oversubscription is {oversubscription}, allowed are divisors of {hosts}, the nodes per leaf")]
    Oversubscription {
        /// What was asked for.
        oversubscription: usize,
        /// Nodes per leaf.
        hosts: usize,
    },
}

impl Topology {
    /// A Clos network whose leaves carry 1/`oversubscription` of what their nodes can send.
    ///
    /// # Errors
    ///
    /// There is no such network.
    pub fn clos(nodes: usize, hosts: usize, oversubscription: usize) -> Result<Self, TopologyError> {
        if hosts == 0 {
            return Err(TopologyError::Hosts);
        }
        if oversubscription == 0 || !hosts.is_multiple_of(oversubscription) {
            return Err(TopologyError::Oversubscription { oversubscription, hosts });
        }
        let topology = Self::Clos { nodes, hosts, spines: hosts / oversubscription };
        topology.check()?;
        Ok(topology)
    }

    /// Can there be such a topology?
    ///
    /// # Errors
    ///
    /// Which number is not allowed, and what is.
    pub fn check(self) -> Result<(), TopologyError> {
        let nodes = self.nodes();
        if !(2..=MAX_NODES).contains(&nodes) {
            return Err(TopologyError::Nodes { nodes });
        }
        match self {
            Self::Clos { hosts: 0, .. } => Err(TopologyError::Hosts),
            Self::Clos { hosts, spines, .. } if !(1..=hosts.min(MAX_NODES)).contains(&spines) => {
                Err(TopologyError::Spines { spines, hosts: hosts.min(MAX_NODES) })
            }
            _ => Ok(()),
        }
    }

    /// How many nodes there are.
    pub fn nodes(self) -> usize {
        match self {
            Self::Pair => 2,
            Self::Star { nodes } | Self::Clos { nodes, .. } => nodes,
        }
    }

    /// How many switches there are.
    pub fn switches(self) -> usize {
        match self {
            Self::Pair => 0,
            Self::Star { .. } => 1,
            Self::Clos { spines, .. } => self.leaves() + spines,
        }
    }

    /// How many switches have nodes.
    pub(crate) fn leaves(self) -> usize {
        match self {
            Self::Pair => 0,
            Self::Star { .. } => 1,
            Self::Clos { nodes, hosts, .. } => nodes.div_ceil(hosts.max(1)),
        }
    }
}

impl fmt::Display for Topology {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Pair => f.write_str("two nodes and a cable"),
            Self::Star { nodes } => write!(f, "{nodes} nodes on one switch"),
            Self::Clos { nodes, hosts, spines } => {
                write!(f, "{nodes} nodes on {} leaves of {hosts}, {spines} spines", self.leaves())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_be_is_refused_with_what_is_allowed() {
        let clos = |nodes, hosts, spines| Topology::Clos { nodes, hosts, spines }.check().map_err(|it| it.to_string());
        assert_eq!(clos(64, 16, 4), Ok(()));
        assert_eq!(clos(1025, 16, 4), Err("the topology has 1025 nodes, allowed are 2 to 1024".to_owned()));
        assert_eq!(clos(64, 0, 4), Err("a leaf has 0 nodes, allowed are 1 to 1024".to_owned()));
        assert_eq!(clos(64, 4, 5), Err("the topology has 5 spines, allowed are 1 to 4, the nodes per leaf".to_owned()));
        let error = Topology::clos(64, 16, 3).expect_err("no whole number of spines");
        assert_eq!(error.to_string(), "the oversubscription is 3, allowed are divisors of 16, the nodes per leaf");
        assert_eq!(Topology::clos(64, 16, 4), Ok(Topology::Clos { nodes: 64, hosts: 16, spines: 4 }));
        assert_eq!(Topology::Star { nodes: 1 }.check(), Err(TopologyError::Nodes { nodes: 1 }));
    }

    #[test]
    fn a_leaf_that_is_not_full_is_a_leaf() {
        let topology = Topology::Clos { nodes: 17, hosts: 8, spines: 2 };
        assert_eq!((topology.leaves(), topology.switches()), (3, 5));
    }
}

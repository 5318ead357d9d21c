//! Topology: the nodes and the network between them.

use std::fmt;

/// Maximum number of nodes of a simulation.
pub const MAX_NODES: usize = 1024;

/// Nodes and the network between them. All cables have the rate `link.rate` of the testbed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Topology {
    /// Two nodes and a cable.
    Pair,
    /// Two nodes or more, each on a port of one switch.
    Star {
        /// Number of nodes, from 2 to [`MAX_NODES`].
        nodes: usize,
    },
    /// A two-level Clos network: each node is on a leaf, and each leaf has one cable to each spine. A hash of
    /// addresses, ports and queue pairs selects the spine of a frame between leaves. Packets of one connection
    /// therefore stay in order.
    ///
    /// The nodes of a leaf can together send `hosts / spines` times the rate of the cables from the leaf to the spines.
    /// This ratio is the oversubscription.
    Clos {
        /// Number of nodes, from 2 to [`MAX_NODES`].
        nodes: usize,
        /// Nodes per leaf, at least 1.
        hosts: usize,
        /// Spines, from 1 to `hosts`.
        spines: usize,
    },
}

/// Error of an impossible topology.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TopologyError {
    /// Too few nodes or too many.
    #[error("the topology has {nodes} nodes, allowed are 2 to {MAX_NODES}")]
    Nodes {
        /// Number of nodes.
        nodes: usize,
    },
    /// A leaf has no nodes.
    #[error("a leaf has 0 nodes, allowed are 1 to {MAX_NODES}")]
    Hosts,
    /// A Clos network has no spine, or more spines than nodes per leaf.
    #[error("the topology has {spines} spines, allowed are 1 to {hosts}, the number of nodes per leaf")]
    Spines {
        /// Number of spines.
        spines: usize,
        /// Nodes per leaf.
        hosts: usize,
    },
    /// A middlebox needs a topology with exactly one switch.
    #[error("the topology has {switches} switches; a middlebox needs exactly one")]
    Middlebox {
        /// Number of switches.
        switches: usize,
    },
    /// The oversubscription does not give a whole number of spines.
    #[error("the oversubscription is {oversubscription}, it must divide {hosts}, the number of nodes per leaf")]
    Oversubscription {
        /// Requested oversubscription.
        oversubscription: usize,
        /// Nodes per leaf.
        hosts: usize,
    },
}

impl Topology {
    /// Creates a Clos network whose leaves carry 1/`oversubscription` of the rate of their nodes.
    ///
    /// # Errors
    ///
    /// Returns an error if there is no such network.
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

    /// Checks that the topology is possible.
    ///
    /// # Errors
    ///
    /// Returns the number that is not allowed, and the allowed range.
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

    /// Returns the number of nodes.
    pub fn nodes(self) -> usize {
        match self {
            Self::Pair => 2,
            Self::Star { nodes } | Self::Clos { nodes, .. } => nodes,
        }
    }

    /// Returns the number of switches.
    pub fn switches(self) -> usize {
        match self {
            Self::Pair => 0,
            Self::Star { .. } => 1,
            Self::Clos { spines, .. } => self.leaves() + spines,
        }
    }

    /// Returns the number of switches with nodes.
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
    fn check_refuses_impossible_topologies() {
        let clos = |nodes, hosts, spines| Topology::Clos { nodes, hosts, spines }.check().map_err(|it| it.to_string());
        assert_eq!(clos(64, 16, 4), Ok(()));
        assert_eq!(clos(1025, 16, 4), Err("the topology has 1025 nodes, allowed are 2 to 1024".to_owned()));
        assert_eq!(clos(64, 0, 4), Err("a leaf has 0 nodes, allowed are 1 to 1024".to_owned()));
        let error = "the topology has 5 spines, allowed are 1 to 4, the number of nodes per leaf";
        assert_eq!(clos(64, 4, 5), Err(error.to_owned()));
        let error = Topology::clos(64, 16, 3).expect_err("no whole number of spines");
        assert_eq!(error.to_string(), "the oversubscription is 3, it must divide 16, the number of nodes per leaf");
        assert_eq!(Topology::clos(64, 16, 4), Ok(Topology::Clos { nodes: 64, hosts: 16, spines: 4 }));
        assert_eq!(Topology::Star { nodes: 1 }.check(), Err(TopologyError::Nodes { nodes: 1 }));
    }

    #[test]
    fn a_partly_filled_leaf_counts_as_a_leaf() {
        let topology = Topology::Clos { nodes: 17, hosts: 8, spines: 2 };
        assert_eq!((topology.leaves(), topology.switches()), (3, 5));
    }
}

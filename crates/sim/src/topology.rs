//! Which nodes there are, and what lies between them.

/// The most nodes of a simulation.
pub const MAX_NODES: usize = 1024;

/// Nodes and what lies between them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Topology {
    /// Two nodes and a cable.
    Pair,
    /// Two nodes or more, each on a port of one switch.
    Star {
        /// How many, from 2 to [`MAX_NODES`].
        nodes: usize,
    },
}

impl Topology {
    /// How many nodes there are.
    pub fn nodes(self) -> usize {
        match self {
            Self::Pair => 2,
            Self::Star { nodes } => nodes,
        }
    }

    /// Does every frame go through a switch?
    pub fn has_switch(self) -> bool {
        matches!(self, Self::Star { .. })
    }
}

//! Distribution of an experiment's connections over hosts.
//!
//! The [`Layout`] of an experiment determines the two hosts that each connection joins. A study between two hosts, in
//! one process or in virtual time has only two ends, so the layout makes no difference.

/// Distribution of a point's connections over the hosts of a study.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Layout {
    /// The first host asks, and the second host answers. Other hosts have no part.
    #[default]
    TwoEnds,
    /// The first host receives. The senders are distributed over all other hosts.
    ManyToOne,
    /// The first host sends. The readers are distributed over all other hosts.
    OneToMany,
    /// The hosts form pairs: the first host sends to the second, the third to the fourth, and so on. With an odd number
    /// of hosts, the last host has no part.
    Pairs,
    /// Every host exchanges messages with every other host in both directions.
    AllToAll,
}

/// Connection between two hosts, by their numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Lane {
    /// Host with the asking end.
    pub asks: usize,
    /// Host with the answering end.
    pub answers: usize,
}

/// Connections and part of one host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Share {
    /// Number of the host.
    pub host: usize,
    /// Whether the host performs the asking part. With [`Layout::AllToAll`], every host does.
    pub asks: bool,
    /// Connections with an end on this host, as ascending indices into the connections of the whole layout.
    pub lanes: Vec<usize>,
}

impl Layout {
    /// Distributes connections over at least two hosts as evenly as possible.
    ///
    /// With [`AllToAll`](Self::AllToAll), the connections join `n` ends, each with each other. End `i` is on host `i`
    /// modulo the number of hosts. If both ends of a connection are on one host, its second end moves to the next host,
    /// so that the connection uses the network.
    pub(crate) fn deal(self, connections: usize, hosts: usize) -> Vec<Lane> {
        let others = hosts.saturating_sub(1).max(1);
        let lane = |asks, answers| Lane { asks, answers };
        match self {
            Self::TwoEnds => vec![lane(0, 1); connections],
            Self::ManyToOne => (0..connections).map(|k| lane(1 + k % others, 0)).collect(),
            Self::OneToMany => (0..connections).map(|k| lane(0, 1 + k % others)).collect(),
            Self::Pairs => {
                let pairs = (hosts / 2).max(1);
                (0..connections).map(|k| lane(2 * (k % pairs), 2 * (k % pairs) + 1)).collect()
            }
            Self::AllToAll => {
                let pairs = (1..).flat_map(|high| (0..high).map(move |low| (low, high)));
                let on_hosts = |(low, high): (usize, usize)| match (low % hosts, high % hosts) {
                    (one, other) if one == other => lane(one, (one + 1) % hosts),
                    (one, other) => lane(one, other),
                };
                pairs.take(connections).map(on_hosts).collect()
            }
        }
    }

    /// Returns the shares of all hosts that have a connection, in the order of hosts.
    pub(crate) fn shares(self, lanes: &[Lane], hosts: usize) -> Vec<Share> {
        let share = |host| {
            let own = |(_, lane): &(usize, &Lane)| lane.asks == host || lane.answers == host;
            let own: Vec<usize> = lanes.iter().enumerate().filter(own).map(|(index, _)| index).collect();
            let asks = self == Self::AllToAll || own.first().is_some_and(|&index| lanes[index].asks == host);
            Share { host, asks, lanes: own }
        };
        (0..hosts).map(share).filter(|share| !share.lanes.is_empty()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns number, part and number of connections of each host that has a share.
    fn counts(layout: Layout, connections: usize, hosts: usize) -> Vec<(usize, bool, usize)> {
        let lanes = layout.deal(connections, hosts);
        assert_eq!(lanes.len(), connections);
        assert!(lanes.iter().all(|lane| lane.asks != lane.answers && lane.asks < hosts && lane.answers < hosts));
        layout.shares(&lanes, hosts).iter().map(|share| (share.host, share.asks, share.lanes.len())).collect()
    }

    #[test]
    fn ends_share_hosts_evenly_with_one_part_each() {
        assert_eq!(counts(Layout::TwoEnds, 3, 4), [(0, true, 3), (1, false, 3)]);
        assert_eq!(counts(Layout::ManyToOne, 16, 4), [(0, false, 16), (1, true, 6), (2, true, 5), (3, true, 5)]);
        assert_eq!(counts(Layout::ManyToOne, 1, 4), [(0, false, 1), (1, true, 1)]);
        assert_eq!(counts(Layout::OneToMany, 4, 3), [(0, true, 4), (1, false, 2), (2, false, 2)]);
        assert_eq!(counts(Layout::Pairs, 4, 4), [(0, true, 2), (1, false, 2), (2, true, 2), (3, false, 2)]);
        assert_eq!(counts(Layout::Pairs, 2, 3), [(0, true, 2), (1, false, 2)]);
        // Between two hosts, all layouts give each host an end of every connection.
        for layout in [Layout::ManyToOne, Layout::OneToMany, Layout::Pairs, Layout::AllToAll] {
            assert_eq!(counts(layout, 6, 2).iter().map(|count| count.2).collect::<Vec<_>>(), [6, 6], "{layout:?}");
        }
    }

    #[test]
    fn each_of_all_to_all_has_one_connection_with_every_other() {
        for hosts in 2..=8 {
            let connections = hosts * (hosts - 1) / 2;
            let expected: Vec<_> = (0..hosts).map(|host| (host, true, hosts - 1)).collect();
            assert_eq!(counts(Layout::AllToAll, connections, hosts), expected);
            let mut pairs: Vec<_> = Layout::AllToAll.deal(connections, hosts);
            pairs.sort_unstable_by_key(|lane| (lane.asks, lane.answers));
            pairs.dedup();
            assert_eq!(pairs.len(), connections);
        }
        // The first case has fewer hosts than ends, the second case fewer ends than hosts.
        assert_eq!(counts(Layout::AllToAll, 28, 4).iter().map(|count| count.2).sum::<usize>(), 56);
        assert_eq!(counts(Layout::AllToAll, 1, 4), [(0, true, 1), (1, true, 1)]);
    }
}

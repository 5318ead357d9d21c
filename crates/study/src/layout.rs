//! Which hosts the ends of an experiment are dealt to.
//!
//! An experiment says by its [`Layout`] how its connections lie between its ends. Between two hosts, in one process and in
//! virtual time there are two ends, whatever the layout: then it makes no difference.

/// How the connections of a point lie between the hosts of a study.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Layout {
    /// Between two ends: the first host asks, the second answers, and others have no part.
    #[default]
    TwoEnds,
    /// The first host receives, and the senders are dealt to all others.
    ManyToOne,
    /// The first host sends, and the readers are dealt to all others.
    OneToMany,
    /// Every second host sends to the one after it. Of an odd number of hosts the last has no part.
    Pairs,
    /// Every host with every other, both ways.
    AllToAll,
}

/// A connection between two hosts, by their numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lane {
    /// The host with the asking end.
    pub asks: usize,
    /// The host with the answering end.
    pub answers: usize,
}

/// The share of one host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Share {
    /// The host's number.
    pub host: usize,
    /// It performs the asking part. Where every host both sends and receives, all do.
    pub asks: bool,
    /// The connections that it has an end of, in order: indices of [`Layout::deal`].
    pub lanes: Vec<usize>,
}

impl Layout {
    /// Deals so many connections to so many hosts, two at least: as evenly as their number allows.
    ///
    /// Where both ways are used ([`AllToAll`](Self::AllToAll)), connections are those between `n` ends, each with each, and
    /// end `i` is on host `i` modulo the number of hosts. Two ends of one host would meet without a network: their
    /// connection goes to the next host instead.
    pub fn deal(self, connections: usize, hosts: usize) -> Vec<Lane> {
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

    /// The shares of the hosts that have one, in the order of hosts.
    pub fn shares(self, lanes: &[Lane], hosts: usize) -> Vec<Share> {
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

    /// How many connections each host has an end of.
    fn counts(layout: Layout, connections: usize, hosts: usize) -> Vec<(usize, bool, usize)> {
        let lanes = layout.deal(connections, hosts);
        assert_eq!(lanes.len(), connections);
        assert!(lanes.iter().all(|lane| lane.asks != lane.answers && lane.asks < hosts && lane.answers < hosts));
        layout.shares(&lanes, hosts).iter().map(|share| (share.host, share.asks, share.lanes.len())).collect()
    }

    #[test]
    fn ends_share_hosts_evenly_and_no_host_has_both_parts_of_a_layout_with_two() {
        assert_eq!(counts(Layout::TwoEnds, 3, 4), [(0, true, 3), (1, false, 3)]);
        assert_eq!(counts(Layout::ManyToOne, 16, 4), [(0, false, 16), (1, true, 6), (2, true, 5), (3, true, 5)]);
        assert_eq!(counts(Layout::ManyToOne, 1, 4), [(0, false, 1), (1, true, 1)]);
        assert_eq!(counts(Layout::OneToMany, 4, 3), [(0, true, 4), (1, false, 2), (2, false, 2)]);
        assert_eq!(counts(Layout::Pairs, 4, 4), [(0, true, 2), (1, false, 2), (2, true, 2), (3, false, 2)]);
        assert_eq!(counts(Layout::Pairs, 2, 3), [(0, true, 2), (1, false, 2)]);
        // Between two hosts every layout is one of two ends.
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
        // Fewer hosts than ends, and fewer ends than hosts.
        assert_eq!(counts(Layout::AllToAll, 28, 4).iter().map(|count| count.2).sum::<usize>(), 56);
        assert_eq!(counts(Layout::AllToAll, 1, 4), [(0, true, 1), (1, true, 1)]);
    }
}

//! Messages between clients and the metadata service, over Send-Receive. Numbers are little endian.

use std::net::Ipv6Addr;

use doorbell_verbs::Qpn;

use crate::layout::{MAX_KEY, NodeVersion};
use crate::nodes::MAX_REPLICAS;

/// Maximum number of nodes in one grant.
pub(crate) const GRANT: usize = 16;
/// Maximum number of reports in one message.
pub(crate) const MAX_REPORTS: usize = 32;
/// Maximum length of a message in bytes.
pub(crate) const MAX_MESSAGE: usize = {
    let with_key = 1 + 4 + 8 + 2 + MAX_KEY;
    let reports = 1 + 2 + MAX_REPORTS * 17;
    if with_key > reports { with_key } else { reports }
};

/// Report that a new node replaced an old node in a key's chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Report {
    pub(crate) old: NodeVersion,
    pub(crate) new: NodeVersion,
    /// Whether the new node marks the key as deleted.
    pub(crate) is_tombstone: bool,
}

/// Message of a client. The answer contains the `tag` of the request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Request {
    /// Asks for a grant of nodes.
    Grant,
    /// Asks for the first node of this key's chain.
    Lookup { tag: u32, key: Vec<u8> },
    /// Creates a key whose first node is `place`.
    Create { tag: u32, key: Vec<u8>, place: NodeVersion },
    /// Reports replaced nodes.
    Reports(Vec<Report>),
    /// Returns unused nodes.
    Return(Vec<NodeVersion>),
    /// Acknowledges an epoch: all operations that ran when the client received the epoch have ended.
    Quiet { epoch: u64 },
    /// Asks the service to shut out this client, which does not release a lock.
    Suspect { tag: u32, client: u32 },
    /// Announces the queue pair at which the sender receives datagrams of other clients.
    Hello { gid: Ipv6Addr, qpn: Qpn },
    /// Asks for the address at which this client receives datagrams.
    Peer { tag: u32, client: u32 },
    /// Asks for a node of the reserve for a delete, since the store is full.
    Reserve { tag: u32 },
    /// Reports that this memory node, of two, does not answer or has wrong content.
    Lost { tag: u32, node: u8 },
    /// Asks the service to shut out the client to which this node was handed out, since the link to the node stays
    /// locked.
    Stuck { tag: u32, place: NodeVersion },
}

/// Message of the metadata service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Reply {
    /// A grant of nodes; empty if no node is free.
    Granted(Vec<NodeVersion>),
    /// The key exists and has this number. `place` is the first node of its chain, or was some time ago.
    Found { tag: u32, place: NodeVersion, number: u32 },
    /// The key or client does not exist, or both memory nodes answer the service.
    Absent { tag: u32 },
    /// The key was created and has this number.
    Created { tag: u32, number: u32 },
    /// The service is removing the key, or has given up a memory node. The client should check the state and, if
    /// necessary, send the request again.
    Again { tag: u32 },
    /// The store has the maximum number of keys.
    TooManyKeys { tag: u32 },
    /// The client was shut out.
    Fenced { tag: u32 },
    /// A new epoch began. The client must acknowledge it when all operations that run now have ended.
    Epoch { epoch: u64 },
    /// The queue pair at which the other client receives datagrams.
    Peer { tag: u32, gid: Ipv6Addr, qpn: Qpn },
    /// A node for a delete, or `None` if the reserve is empty.
    Reserved { tag: u32, place: Option<NodeVersion> },
    /// This memory node, of two, serves alone from now on.
    Alone { node: u8 },
}

/// Reads the fields of a message from a byte slice.
struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (head, rest) = self.0.split_first_chunk::<N>()?;
        self.0 = rest;
        Some(*head)
    }

    fn u32(&mut self) -> Option<u32> {
        self.take().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Option<u64> {
        self.take().map(u64::from_le_bytes)
    }

    fn datagrams(&mut self) -> Option<(Ipv6Addr, Qpn)> {
        let gid = Ipv6Addr::from(self.take::<16>()?);
        self.u32().filter(|&qpn| qpn < 1 << 24).map(|qpn| (gid, Qpn::new(qpn)))
    }

    fn place(&mut self) -> Option<NodeVersion> {
        self.u64().and_then(NodeVersion::from_bits)
    }

    /// Parses the index of a memory node in a store with two.
    fn node(&mut self) -> Option<u8> {
        self.take().map(|[node]| node).filter(|&node| usize::from(node) < MAX_REPLICAS)
    }

    fn rest(&mut self) -> &'a [u8] {
        std::mem::take(&mut self.0)
    }

    /// Parses items up to the end of the message. Returns `None` if an item is invalid, or if there are more than
    /// `most`.
    fn list<T>(&mut self, most: usize, item: impl Fn(&mut Self) -> Option<T>) -> Option<Vec<T>> {
        let mut list = Vec::new();
        while !self.0.is_empty() {
            if list.len() == most {
                return None;
            }
            list.push(item(self)?);
        }
        Some(list)
    }

    fn end<T>(self, value: T) -> Option<T> {
        self.0.is_empty().then_some(value)
    }
}

fn key(reader: &mut Reader<'_>) -> Option<Vec<u8>> {
    let key = reader.rest();
    (1..=MAX_KEY).contains(&key.len()).then(|| key.to_vec())
}

/// Appends the kind of a message and its fields.
fn put(out: &mut Vec<u8>, kind: u8, fields: &[&[u8]]) {
    out.push(kind);
    fields.iter().for_each(|field| out.extend_from_slice(field));
}

impl Request {
    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        out.clear();
        let mut put = |kind: u8, fields: &[&[u8]]| put(out, kind, fields);
        match self {
            Self::Grant => put(1, &[]),
            Self::Lookup { tag, key } => put(2, &[&tag.to_le_bytes(), key]),
            Self::Create { tag, key, place } => put(3, &[&tag.to_le_bytes(), &place.bits().to_le_bytes(), key]),
            Self::Reports(reports) => {
                put(4, &[]);
                for report in reports {
                    out.extend(report.old.bits().to_le_bytes());
                    out.extend(report.new.bits().to_le_bytes());
                    out.push(report.is_tombstone.into());
                }
            }
            Self::Return(places) => {
                put(5, &[]);
                places.iter().for_each(|place| out.extend(place.bits().to_le_bytes()));
            }
            Self::Quiet { epoch } => put(6, &[&epoch.to_le_bytes()]),
            Self::Suspect { tag, client } => put(7, &[&tag.to_le_bytes(), &client.to_le_bytes()]),
            Self::Hello { gid, qpn } => put(8, &[&gid.octets(), &qpn.get().to_le_bytes()]),
            Self::Peer { tag, client } => put(9, &[&tag.to_le_bytes(), &client.to_le_bytes()]),
            Self::Reserve { tag } => put(10, &[&tag.to_le_bytes()]),
            Self::Lost { tag, node } => put(11, &[&tag.to_le_bytes(), &[*node]]),
            Self::Stuck { tag, place } => put(12, &[&tag.to_le_bytes(), &place.bits().to_le_bytes()]),
        }
    }

    /// Parses a request. Returns `None` if the bytes are no request.
    pub(crate) fn decode(bytes: &[u8]) -> Option<Self> {
        let mut reader = Reader(bytes);
        let [kind] = reader.take()?;
        let request = match kind {
            1 => Self::Grant,
            2 => Self::Lookup { tag: reader.u32()?, key: key(&mut reader)? },
            3 => Self::Create { tag: reader.u32()?, place: reader.place()?, key: key(&mut reader)? },
            4 => Self::Reports(reader.list(MAX_REPORTS, |reader| {
                let (old, new, [flag]) = (reader.place()?, reader.place()?, reader.take()?);
                (flag <= 1).then_some(Report { old, new, is_tombstone: flag == 1 })
            })?),
            5 => Self::Return(reader.list(MAX_REPORTS, Reader::place)?),
            6 => Self::Quiet { epoch: reader.u64()? },
            7 => Self::Suspect { tag: reader.u32()?, client: reader.u32()? },
            8 => reader.datagrams().map(|(gid, qpn)| Self::Hello { gid, qpn })?,
            9 => Self::Peer { tag: reader.u32()?, client: reader.u32()? },
            10 => Self::Reserve { tag: reader.u32()? },
            11 => Self::Lost { tag: reader.u32()?, node: reader.node()? },
            12 => Self::Stuck { tag: reader.u32()?, place: reader.place()? },
            _ => return None,
        };
        reader.end(request)
    }
}

impl Reply {
    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        out.clear();
        let mut put = |kind: u8, fields: &[&[u8]]| put(out, kind, fields);
        match self {
            Self::Granted(places) => {
                put(1, &[]);
                places.iter().for_each(|place| out.extend(place.bits().to_le_bytes()));
            }
            Self::Found { tag, place, number } => {
                put(2, &[&tag.to_le_bytes(), &place.bits().to_le_bytes(), &number.to_le_bytes()]);
            }
            Self::Absent { tag } => put(3, &[&tag.to_le_bytes()]),
            Self::Created { tag, number } => put(4, &[&tag.to_le_bytes(), &number.to_le_bytes()]),
            Self::Again { tag } => put(5, &[&tag.to_le_bytes()]),
            Self::TooManyKeys { tag } => put(6, &[&tag.to_le_bytes()]),
            Self::Fenced { tag } => put(7, &[&tag.to_le_bytes()]),
            Self::Epoch { epoch } => put(8, &[&epoch.to_le_bytes()]),
            Self::Peer { tag, gid, qpn } => {
                put(9, &[&tag.to_le_bytes(), &gid.octets(), &qpn.get().to_le_bytes()]);
            }
            Self::Reserved { tag, place } => {
                put(10, &[&tag.to_le_bytes(), &place.map_or(0, NodeVersion::bits).to_le_bytes()]);
            }
            Self::Alone { node } => put(11, &[&[*node]]),
        }
    }

    /// Parses a reply. Returns `None` if the bytes are no reply.
    pub(crate) fn decode(bytes: &[u8]) -> Option<Self> {
        let mut reader = Reader(bytes);
        let [kind] = reader.take()?;
        let reply = match kind {
            1 => Self::Granted(reader.list(GRANT, Reader::place)?),
            2 => Self::Found { tag: reader.u32()?, place: reader.place()?, number: reader.u32()? },
            3 => Self::Absent { tag: reader.u32()? },
            4 => Self::Created { tag: reader.u32()?, number: reader.u32()? },
            5 => Self::Again { tag: reader.u32()? },
            6 => Self::TooManyKeys { tag: reader.u32()? },
            7 => Self::Fenced { tag: reader.u32()? },
            8 => Self::Epoch { epoch: reader.u64()? },
            9 => {
                let tag = reader.u32()?;
                reader.datagrams().map(|(gid, qpn)| Self::Peer { tag, gid, qpn })?
            }
            10 => {
                let (tag, bits) = (reader.u32()?, reader.u64()?);
                // A place is never 0, so 0 stands for no node.
                let place = if bits == 0 { None } else { Some(NodeVersion::from_bits(bits)?) };
                Self::Reserved { tag, place }
            }
            11 => Self::Alone { node: reader.node()? },
            _ => return None,
        };
        reader.end(reply)
    }

    /// Returns the tag of the request that the reply answers.
    pub(crate) fn tag(&self) -> Option<u32> {
        match self {
            Self::Granted(_) | Self::Epoch { .. } | Self::Alone { .. } => None,
            Self::Found { tag, .. }
            | Self::Absent { tag }
            | Self::Created { tag, .. }
            | Self::Again { tag }
            | Self::TooManyKeys { tag }
            | Self::Fenced { tag }
            | Self::Reserved { tag, .. }
            | Self::Peer { tag, .. } => Some(*tag),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_round_trip_and_wrong_lengths_are_rejected() {
        let place = NodeVersion::new(3, 7);
        let report = Report { old: place, new: NodeVersion::new(4, 1), is_tombstone: true };
        let requests = [
            Request::Grant,
            Request::Lookup { tag: 1, key: b"k".to_vec() },
            Request::Create { tag: 2, key: vec![9; MAX_KEY], place },
            Request::Reports(vec![report; MAX_REPORTS]),
            Request::Return(vec![place; GRANT]),
            Request::Quiet { epoch: 5 },
            Request::Suspect { tag: 3, client: 4 },
            Request::Hello { gid: Ipv6Addr::LOCALHOST, qpn: Qpn::new(5) },
            Request::Peer { tag: 6, client: 7 },
            Request::Reserve { tag: 9 },
            Request::Lost { tag: 10, node: 1 },
            Request::Stuck { tag: 11, place },
        ];
        let mut bytes = Vec::new();
        for request in requests {
            request.encode(&mut bytes);
            assert!(bytes.len() <= MAX_MESSAGE);
            assert_eq!(Request::decode(&bytes).as_ref(), Some(&request));
            bytes.push(0);
            assert_ne!(Request::decode(&bytes).as_ref(), Some(&request));
        }
        let replies = [
            Reply::Granted(vec![place; GRANT]),
            Reply::Found { tag: 1, place, number: 2 },
            Reply::Absent { tag: 1 },
            Reply::Created { tag: 1, number: 2 },
            Reply::Again { tag: 1 },
            Reply::TooManyKeys { tag: 1 },
            Reply::Fenced { tag: 1 },
            Reply::Epoch { epoch: 9 },
            Reply::Peer { tag: 2, gid: Ipv6Addr::LOCALHOST, qpn: Qpn::new(5) },
            Reply::Reserved { tag: 3, place: Some(place) },
            Reply::Reserved { tag: 3, place: None },
            Reply::Alone { node: 1 },
        ];
        for reply in replies {
            reply.encode(&mut bytes);
            assert_eq!(Reply::decode(&bytes).as_ref(), Some(&reply));
            bytes.pop();
            assert_ne!(Reply::decode(&bytes).as_ref(), Some(&reply), "a reply without its last byte was decoded");
        }
        assert_eq!(Request::decode(&[]), None);
        Request::Reports(vec![report; MAX_REPORTS + 1]).encode(&mut bytes);
        assert_eq!(Request::decode(&bytes), None, "a request with too many reports was decoded");
    }
}

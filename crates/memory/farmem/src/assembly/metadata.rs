//! The metadata service as a party. While the store works, it also has clients shut out and memory nodes stopped.

use std::collections::BTreeMap;

use doorbell_exchange::setup::EndpointDescription;
use doorbell_verbs::Pd;

use super::{AssemblyError, Body, Message, Outbox, Party, Path, Plan};
use crate::error::OpenError;
use crate::layout::NodeVersion;
use crate::memory::MemoryDescription;
use crate::metadata::{Metadata, MetadataEnd, MetadataOptions};
use crate::methods::Strategy;
use crate::nodes::MAX_REPLICAS;

/// Time by which a memory node may be late to stop at the end of its lease.
const MARGIN_NS: u64 = 50_000_000;
/// Time after which a memory node that owes an answer counts as lost, in a store with two.
const ANSWER_NS: u64 = 3_000_000_000;

/// Request of a client to join.
#[derive(Clone, Copy, Debug)]
struct Join {
    end: EndpointDescription,
    path: Option<Path>,
}

/// State of the service.
enum State {
    /// The descriptions of memory nodes are missing.
    Entering(Box<MetadataEnd>),
    /// The service is connected. `renewed` waits for the answer of another middlebox.
    Serving { metadata: Box<Metadata>, renewed: Option<Box<MetadataEnd>> },
    /// A description was invalid, or a party refused the service.
    Failed,
}

/// Control state of a memory node.
#[derive(Clone, Copy, Debug, Default)]
struct Control {
    /// Time of the last lease.
    renewed_ns: u64,
    /// Whether the memory node gets no further lease.
    is_given_up: bool,
    /// Time of the oldest request without an answer.
    asked_ns: Option<u64>,
}

/// Check of a store without clients: whether each serving memory node has the node of each key.
struct Check {
    /// Keys to be checked.
    keys: std::vec::IntoIter<(Vec<u8>, NodeVersion)>,
    /// Key that is being checked, or whose node is damaged.
    key: Vec<u8>,
    /// Memory nodes that owe the result for this key.
    owe: [bool; MAX_REPLICAS],
    is_damaged: bool,
    is_over: bool,
}

/// The metadata service with the messages that it exchanges.
pub struct MetadataParty {
    plan: Plan,
    state: State,
    /// Description of the memory node or middlebox, before the service is connected.
    memory: Option<MemoryDescription>,
    lacks_replica: bool,
    /// Requests of clients that came before the service was connected.
    early: BTreeMap<u32, Join>,
    /// Path of each client, in a store behind a middlebox.
    paths: BTreeMap<u32, Path>,
    /// Path of the service itself.
    own_path: Option<Path>,
    /// Clients to be shut out, each with the memory nodes that have done so.
    fencing: BTreeMap<u32, [bool; MAX_REPLICAS]>,
    nodes: [Control; MAX_REPLICAS],
    /// A memory node that is to stop, and the time at which its lease has ended.
    stopping: Option<(usize, Option<u64>)>,
    check: Option<Check>,
    out: Outbox,
}

impl std::fmt::Debug for MetadataParty {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("MetadataParty")
            .field("plan", &self.plan)
            .field("fencing", &self.fencing)
            .finish_non_exhaustive()
    }
}

impl MetadataParty {
    /// Creates the queue pairs of the service. The plan determines the number of memory nodes, and `options` all else.
    ///
    /// # Errors
    ///
    /// The device has no room, or the number of memory nodes is not 1 or 2.
    pub fn new(pd: &Pd, plan: &Plan, options: MetadataOptions) -> Result<Self, OpenError> {
        let end = MetadataEnd::new(pd, MetadataOptions { replicas: plan.replicas, ..options })?;
        let mut out = Outbox::new(Party::Metadata, plan);
        out.push(plan.entrance(), Body::Enter(end.to_memory()));
        if let Some(ends) = end.to_replica() {
            out.push(Party::Memory(1), Body::Enter(ends));
        }
        Ok(Self {
            plan: *plan,
            lacks_replica: end.to_replica().is_some(),
            state: State::Entering(Box::new(end)),
            memory: None,
            early: BTreeMap::new(),
            paths: BTreeMap::new(),
            own_path: None,
            fencing: BTreeMap::new(),
            nodes: [Control::default(); MAX_REPLICAS],
            stopping: None,
            check: None,
            out,
        })
    }

    /// Handles a message of another party. `now_ns` is the time on the clock of the device.
    ///
    /// # Errors
    ///
    /// The message is for another party, repeats a request, or its sender may not send it. Or a party refuses the
    /// service, or its description is invalid; the service then [has failed](Self::has_failed).
    pub fn receive(&mut self, message: Message, now_ns: u64) -> Result<(), AssemblyError> {
        self.out.check(&message)?;
        let Message { from, body, .. } = message;
        let result = match (from, body) {
            (_, Body::Entered(ends)) => {
                return self.entered(from, MemoryDescription::of(ends, self.plan.geometry), now_ns);
            }
            (Party::Client(number), Body::Join { end, path }) => return self.join(number, Join { end, path }),
            (Party::Memory(_) | Party::Middlebox, Body::Fenced { client }) => self.fenced(from, client),
            (Party::Memory(node), Body::Stopped) => self.stopped(node.into()),
            (Party::Memory(node), Body::AskLease) if self.plan.lease_ns.is_some() => {
                let control = &mut self.nodes[usize::from(node)];
                if !control.is_given_up {
                    control.renewed_ns = now_ns;
                    self.out.push(from, Body::Lease);
                }
                Some(())
            }
            (Party::Memory(node), Body::Checked { is_intact }) => self.checked(node.into(), is_intact),
            (by @ (Party::Memory(_) | Party::Middlebox), Body::Refused(why)) => return Err(self.refused(by, why)),
            (Party::Memory(node), Body::Ended) if self.metadata().is_some() => {
                self.lose(node.into());
                Some(())
            }
            (by @ Party::Memory(_), Body::Ended) => return Err(self.refused(by, "it has ended".to_owned())),
            (Party::Middlebox, Body::Ended) if self.plan.is_boxed => return Ok(self.leave_middlebox()?),
            (from, body) => return Err(self.out.unexpected(from, &body)),
        };
        let unexpected = AssemblyError::Unexpected { from, own: self.out.own, what: "an answer" };
        result.ok_or(unexpected)
    }

    /// Handles a refusal. The service fails without memory nodes or, later, without the next middlebox.
    fn refused(&mut self, by: Party, why: String) -> AssemblyError {
        let is_needed = match &self.state {
            State::Entering(_) => true,
            State::Serving { renewed, .. } => by == Party::Middlebox && renewed.is_some(),
            State::Failed => false,
        };
        if is_needed {
            self.state = State::Failed;
        }
        AssemblyError::Refused { by, own: self.out.own, why }
    }

    /// Handles the description of a memory node or of the middlebox.
    fn entered(&mut self, from: Party, memory: MemoryDescription, now_ns: u64) -> Result<(), AssemblyError> {
        let unexpected = AssemblyError::Unexpected { from, own: self.out.own, what: "ends of the memory" };
        let is_entrance = from == self.plan.entrance();
        match &mut self.state {
            State::Entering(_) if is_entrance && self.memory.is_none() => self.memory = Some(memory),
            State::Entering(end) if from == Party::Memory(1) && self.lacks_replica => {
                end.set_replica(memory);
                self.lacks_replica = false;
            }
            State::Serving { metadata, renewed } if is_entrance && renewed.is_some() => {
                let Some(end) = renewed.take() else { return Err(unexpected) };
                metadata.reconnect(*end, &memory)?;
                let path = Path::of(&memory);
                let is_same = self.own_path.replace(path).is_some_and(|former| former.rkey == path.rkey);
                for (&client, fenced) in &mut self.fencing {
                    if is_same {
                        let path = self.paths.get(&client).copied();
                        self.out.push(from, Body::Fence { client, path });
                    } else {
                        // The memory node has destroyed the queue pair of the middlebox that these clients used.
                        *fenced = [true; MAX_REPLICAS];
                    }
                }
                return Ok(());
            }
            _ => return Err(unexpected),
        }
        if let Party::Memory(node) = from {
            // The first lease has begun before the answer.
            self.nodes[usize::from(node)].renewed_ns = now_ns;
        }
        self.begin()
    }

    /// Connects the service and admits the clients that came early, once all descriptions have come.
    fn begin(&mut self) -> Result<(), AssemblyError> {
        let (Some(memory), false) = (self.memory, self.lacks_replica) else { return Ok(()) };
        let State::Entering(end) = std::mem::replace(&mut self.state, State::Failed) else { return Ok(()) };
        let mut metadata = end.connect(&memory)?;
        if self.plan.strategy != Strategy::Server {
            metadata.fill(self.plan.keys)?;
        }
        self.own_path = self.plan.is_boxed.then(|| Path::of(&memory));
        self.state = State::Serving { metadata: Box::new(metadata), renewed: None };
        let early = std::mem::take(&mut self.early);
        early.into_iter().try_for_each(|(number, join)| self.join(number, join))
    }

    fn join(&mut self, number: u32, join: Join) -> Result<(), AssemblyError> {
        let from = Party::Client(number);
        let unexpected = AssemblyError::Unexpected { from, own: self.out.own, what: "a request to join" };
        let metadata = match &mut self.state {
            State::Serving { metadata, .. } => metadata,
            State::Entering(_) if self.early.len() < self.plan.clients && !self.early.contains_key(&number) => {
                self.early.insert(number, join);
                return Ok(());
            }
            _ => return Err(unexpected),
        };
        if join.path.map(|path| path.rkey) != self.own_path.map(|path| path.rkey) {
            let why = "the path leads through another middlebox: connect through the present one";
            self.out.push(from, Body::Refused(why.to_owned()));
            return Ok(());
        }
        let joined = metadata.accept(number, &join.end);
        if joined.is_ok() {
            self.paths.extend(join.path.map(|path| (number, path)));
        }
        self.out.answer(from, joined.map(Body::Joined), "a request to join")
    }

    /// Records that a memory node or the middlebox has shut out a client.
    fn fenced(&mut self, from: Party, client: u32) -> Option<()> {
        let fenced = self.fencing.get_mut(&client)?;
        match from {
            Party::Memory(node) if !self.plan.is_boxed => {
                let node = usize::from(node);
                fenced[node] = true;
                if self.fencing.values().all(|fenced| fenced[node]) {
                    self.nodes[node].asked_ns = None;
                }
            }
            Party::Middlebox if self.plan.is_boxed => *fenced = [true; MAX_REPLICAS],
            _ => return None,
        }
        self.end_fences();
        Some(())
    }

    /// Reports to the service the clients that are shut out at each serving memory node.
    fn end_fences(&mut self) -> bool {
        let State::Serving { metadata, .. } = &mut self.state else { return false };
        let (before, alone, replicas) = (self.fencing.len(), metadata.alone(), self.plan.replicas);
        let paths = &mut self.paths;
        self.fencing.retain(|&client, fenced| {
            // A memory node that was given up serves no client any more.
            let is_out = (0..replicas).all(|node| fenced[node] || alone.is_some_and(|alone| alone != node));
            if is_out {
                paths.remove(&client);
                metadata.fenced(client);
            }
            !is_out
        });
        before > self.fencing.len()
    }

    fn stopped(&mut self, node: usize) -> Option<()> {
        self.stopping.take_if(|(stopping, _)| *stopping == node)?;
        let State::Serving { metadata, .. } = &mut self.state else { return None };
        metadata.stopped(node);
        self.end_fences();
        Some(())
    }

    /// Advances the service. Returns whether anything changed.
    pub fn poll(&mut self, now_ns: u64) -> bool {
        let mut happened = self.check_next();
        let State::Serving { metadata, renewed } = &mut self.state else { return false };
        happened |= metadata.poll();
        if self.plan.is_boxed && renewed.is_none() && metadata.is_cut_off() {
            return happened | self.leave_middlebox().is_ok();
        }
        let late = |control: &Control| control.asked_ns.is_some_and(|asked_ns| now_ns >= asked_ns + ANSWER_NS);
        if self.plan.replicas > 1
            && let Some(node) = self.nodes.iter().position(late)
        {
            metadata.lose(node);
        }
        // The next middlebox may know another client by the number of the present queue pair.
        while renewed.is_none()
            && self.out.has_room()
            && let Some(client) = metadata.next_fence()
        {
            happened = true;
            let path = self.paths.get(&client).copied();
            let has_parted = self.plan.is_boxed && path.map(|path| path.rkey) != self.own_path.map(|path| path.rkey);
            self.fencing.insert(client, [has_parted; MAX_REPLICAS]);
            let alone = metadata.alone();
            for node in (0..self.plan.replicas).filter(|&node| !has_parted && alone.is_none_or(|alone| alone == node)) {
                let to = if node == 0 { self.plan.entrance() } else { Party::Memory(1) };
                self.nodes[node].asked_ns.get_or_insert(now_ns);
                self.out.push(to, Body::Fence { client, path });
            }
        }
        if self.out.has_room()
            && let Some(node) = metadata.next_stop()
        {
            happened = true;
            let control = &mut self.nodes[node];
            (control.is_given_up, control.asked_ns) = (true, None);
            // A node that cannot be reached stops at the end of its lease.
            self.stopping = Some((node, self.plan.lease_ns.map(|lease_ns| control.renewed_ns + lease_ns + MARGIN_NS)));
            self.out.push(Party::Memory(node as u8), Body::Stop);
        }
        if let Some((node, Some(at_ns))) = self.stopping
            && now_ns >= at_ns
        {
            happened |= self.stopped(node).is_some();
        }
        happened | self.end_fences()
    }

    /// Records that a memory node has ended.
    fn lose(&mut self, node: usize) {
        if let State::Serving { metadata, .. } = &mut self.state {
            metadata.lose(node);
        }
        if let Some(check) = &mut self.check {
            check.owe[node] = false;
        }
    }

    /// Begins to check a store that [is idle](Self::is_idle): whether each node is free, or is the newest node of a key
    /// and intact at each serving memory node.
    ///
    /// # Errors
    ///
    /// Nodes were lost.
    pub fn begin_check(&mut self) -> Result<(), AssemblyError> {
        let Some(metadata) = self.metadata() else { return Ok(()) };
        let (counts, all) = (metadata.nodes(), self.plan.geometry.nodes);
        let is_complete = counts.free + counts.heads + counts.spent == u64::from(all);
        if !is_complete || counts.granted + counts.retired > 0 {
            return Err(AssemblyError::LostNodes { counts, all });
        }
        let keys = metadata.keys().into_iter();
        self.check = Some(Check { keys, key: Vec::new(), owe: Default::default(), is_damaged: false, is_over: false });
        Ok(())
    }

    /// Returns whether the check that [began](Self::begin_check) has ended.
    ///
    /// # Errors
    ///
    /// The node of a key is damaged.
    pub fn has_checked(&self) -> Result<bool, AssemblyError> {
        match &self.check {
            Some(Check { is_damaged: true, key, .. }) => Err(AssemblyError::Damaged(key.clone())),
            check => Ok(check.as_ref().is_none_or(|check| check.is_over)),
        }
    }

    /// Asks the serving memory nodes for the next key.
    fn check_next(&mut self) -> bool {
        let (State::Serving { metadata, .. }, Some(check)) = (&self.state, &mut self.check) else { return false };
        if check.is_over || check.owe.contains(&true) || !self.out.has_room() {
            return false;
        }
        let Some((key, place)) = check.keys.next() else {
            check.is_over = true;
            return true;
        };
        for node in (0..self.plan.replicas).filter(|&node| metadata.alone().is_none_or(|alone| alone == node)) {
            check.owe[node] = true;
            self.out.push(Party::Memory(node as u8), Body::Check { place, key: key.clone() });
        }
        check.key = key;
        true
    }

    fn checked(&mut self, node: usize, is_intact: bool) -> Option<()> {
        let check = self.check.as_mut().filter(|check| check.owe[node])?;
        check.owe[node] = false;
        check.is_damaged |= !is_intact;
        check.is_over |= check.is_damaged;
        Some(())
    }

    /// Enters the next middlebox, after the present one has ended.
    fn leave_middlebox(&mut self) -> Result<(), OpenError> {
        if let State::Serving { metadata, renewed } = &mut self.state
            && renewed.is_none()
        {
            let end = metadata.renew()?;
            self.out.queue.retain(|message| message.to != Party::Middlebox);
            self.out.push(Party::Middlebox, Body::Enter(end.to_memory()));
            *renewed = Some(Box::new(end));
        }
        Ok(())
    }

    /// Returns the time, on the device's clock, at which the service needs a poll without an event.
    pub fn deadline_ns(&self) -> Option<u64> {
        let stop_ns = self.stopping.and_then(|(_, at_ns)| at_ns);
        self.metadata().and_then(Metadata::deadline_ns).into_iter().chain(stop_ns).min()
    }

    /// Returns the next message to carry.
    pub fn next_message(&mut self) -> Option<Message> {
        self.out.queue.pop_front()
    }

    /// Returns the service, once it is connected.
    pub fn metadata(&self) -> Option<&Metadata> {
        match &self.state {
            State::Serving { metadata, .. } => Some(metadata),
            _ => None,
        }
    }

    /// Returns whether the set-up, or that with the next middlebox, has failed for good.
    pub fn has_failed(&self) -> bool {
        matches!(self.state, State::Failed)
    }

    /// Returns whether the service serves no client and has no pending work, so that the store may be torn down.
    pub fn is_idle(&self) -> bool {
        self.fencing.is_empty()
            && self
                .metadata()
                .is_none_or(|metadata| metadata.clients() == 0 && metadata.is_tidy() && metadata.nodes().retired == 0)
    }
}

//! Memory windows (IBTA Vol 1, 10.6.7).

use std::sync::Arc;

use crate::common::script::{OWN, PEER_PSN, Script, nak_of};
use crate::common::{End, Link, World};
use doorbell_rnic::{Region, SharedReceiveQueue};
use doorbell_verbs_core::{
    Access, CompletionOpcode, LKey, ObjectError, Payload, PostErrorKind, QpKind, QpState, SendFlags,
    SendOperation as Op, SendRequest, Sge, SrqId, Status, WindowBinding, WindowKind,
};
use doorbell_wire::{NakCode, Opcode, PathMtu, RKey};

const LENGTH: usize = 256;

/// A queue pair, an unbound window, and a region that peers can access only through windows.
pub(super) struct Windows {
    pub(super) script: Script,
    pub(super) region: Arc<Region>,
    pub(super) key: RKey,
    pub(super) heard: u32,
    /// Shared receive queue of the queue pair; `None` if the queue pair has a receive queue of its own.
    pub(super) shared: Option<(SrqId, Arc<SharedReceiveQueue>)>,
}

pub(super) fn next(key: RKey) -> RKey {
    RKey::new((key.get() & !0xff) | (key.get().wrapping_add(1) & 0xff))
}

impl Windows {
    pub(super) fn new(kind: WindowKind) -> Self {
        Self::of(kind, Script::new(), None)
    }

    /// Creates a queue pair that uses a shared receive queue, with region and window.
    pub(super) fn sharing(kind: WindowKind) -> Self {
        let mut script = Script::silent(PathMtu::Mtu256);
        let pd = script.world.nodes[OWN].pd;
        let (id, queue) = script.rnic().create_srq(pd, 4, 1).expect("the device has room for a queue");
        script.qpn = script.add_qp(QpKind::Rc, PathMtu::Mtu256, &End { srq: Some(id), ..End::default() });
        Self::of(kind, script, Some((id, queue)))
    }

    fn of(kind: WindowKind, mut script: Script, shared: Option<(SrqId, Arc<SharedReceiveQueue>)>) -> Self {
        let region = script.region(4096, LENGTH, Access::LOCAL_WRITE | Access::WINDOW_BIND);
        let pd = script.world.nodes[OWN].pd;
        let key = script.rnic().create_window(pd, kind).expect("the device has room for a window");
        Self { script, region, key, heard: 0, shared }
    }

    /// Returns a binding of the window to the first half of the region, with all rights.
    pub(super) fn binding(&self) -> WindowBinding {
        WindowBinding {
            rkey: next(self.key),
            lkey: self.region.lkey(),
            address: self.region.address(),
            length: LENGTH as u64 / 2,
            access: Access::REMOTE_WRITE | Access::REMOTE_READ | Access::REMOTE_ATOMIC,
            zero_based: false,
        }
    }

    pub(super) fn run(&mut self, operation: Op) -> Status {
        self.script.post(operation, 0);
        assert!(self.script.sent().is_empty(), "the local operation sent a packet");
        let completions = self.script.reap();
        assert_eq!(completions.len(), 1, "{operation:?}");
        completions[0].status
    }

    pub(super) fn bind(&mut self, binding: WindowBinding) -> Status {
        let status = self.run(Op::BindWindow(binding));
        if status == Status::Success {
            self.key = binding.rkey;
        }
        status
    }

    /// Returns whether the device accepts a WRITE of the peer to these bytes.
    pub(super) fn write(&mut self, key: RKey, address: u64, length: usize) -> bool {
        let said = self.script.say(Opcode::RC_WRITE_ONLY).psn(PEER_PSN.add(self.heard));
        self.heard += 1;
        self.script.hear(&said.reth(address, key, length as u32).payload(&vec![7; length]));
        match nak_of(&self.script.sent()[0]) {
            None => true,
            Some(code) => {
                assert_eq!(code, NakCode::REMOTE_ACCESS_ERROR);
                assert_eq!(self.script.state(), QpState::Error);
                false
            }
        }
    }
}

#[test]
fn a_bound_window_opens_its_bytes_and_no_others() {
    for kind in [WindowKind::Type1, WindowKind::Type2] {
        let start = |bound: bool| {
            let mut own = Windows::new(kind);
            let binding = own.binding();
            assert!(!bound || own.bind(binding) == Status::Success);
            (own, binding)
        };
        let (mut own, bound) = start(true);
        assert!(own.write(bound.rkey, bound.address, 8));
        assert!(own.write(bound.rkey, bound.address + 120, 8));
        assert_eq!(own.script.world.nodes[OWN].memory.read(4096 + 120, 9), [7, 7, 7, 7, 7, 7, 7, 7, 0]);
        assert!(!own.write(bound.rkey, bound.address + 121, 8), "a WRITE exceeded the window by one byte");

        let (mut own, binding) = start(false);
        assert!(!own.write(binding.rkey, binding.address, 8), "a WRITE through an unbound window was accepted");
        let (mut own, binding) = start(false);
        let named = own.key;
        assert!(!own.write(named, binding.address, 8), "a WRITE through an unbound window was accepted");
        let (mut own, bound) = start(true);
        assert!(!own.write(next(bound.rkey), bound.address, 8), "a WRITE with another key of the window was accepted");
        let (mut own, bound) = start(true);
        let rkey = own.region.rkey();
        assert!(!own.write(rkey, bound.address, 8), "a WRITE with the region's key was accepted");
        // The window must allow only the accesses in its binding.
        let mut own = Windows::new(kind);
        let binding = WindowBinding { access: Access::REMOTE_READ, ..own.binding() };
        assert_eq!(own.bind(binding), Status::Success);
        assert!(!own.write(binding.rkey, binding.address, 8), "a WRITE to a window for reading was accepted");
    }
}

#[test]
fn reads_and_atomics_go_through_windows_too() {
    let mut own = Windows::new(WindowKind::Type2);
    let bound = own.binding();
    assert_eq!(own.bind(bound), Status::Success);
    own.script.world.nodes[OWN].memory.set_word(4096 + 8, 41);
    let add = own.script.say(Opcode::RC_FETCH_ADD).atomic(bound.address + 8, bound.rkey, 1, 0);
    own.script.hear(&add);
    assert_eq!(own.script.sent()[0].opcode(), Opcode::RC_ATOMIC_ACKNOWLEDGE);
    let read = own.script.say(Opcode::RC_READ_REQUEST).psn(PEER_PSN.add(1)).reth(bound.address + 8, bound.rkey, 8);
    own.script.hear(&read);
    let sent = own.script.sent();
    assert_eq!(sent[0].opcode(), Opcode::RC_READ_RESPONSE_ONLY);
    assert_eq!(sent[0].bytes[16..24], 42u64.to_ne_bytes());
}

#[test]
fn type_1_serves_all_queue_pairs_of_a_domain_and_type_2_one() {
    for (kind, reached) in [(WindowKind::Type1, true), (WindowKind::Type2, false)] {
        let mut own = Windows::new(kind);
        let bound = own.binding();
        assert_eq!(own.bind(bound), Status::Success);
        own.script.qpn = own.script.add_qp(QpKind::Rc, PathMtu::Mtu256, &End::default());
        assert_eq!(own.write(bound.rkey, bound.address, 8), reached, "{kind:?}");
    }
}

#[test]
fn type_1_can_be_rebound_and_unbound_at_any_time() {
    let mut own = Windows::new(WindowKind::Type1);
    let first = own.binding();
    assert_eq!(own.bind(first), Status::Success);
    let second = WindowBinding { address: first.address + 128, ..own.binding() };
    assert_ne!(second.rkey, first.rkey);
    assert_eq!(own.bind(second), Status::Success);
    assert!(own.write(second.rkey, second.address, 8));
    // Bind the window to another range. The same key must now give access to that range.
    assert_eq!(own.bind(WindowBinding { address: first.address, ..second }), Status::Success);
    assert!(own.write(second.rkey, first.address, 8));
    let nothing = WindowBinding { length: 0, lkey: LKey(0), ..own.binding() };
    assert_eq!(own.bind(nothing), Status::Success);
    assert!(!own.write(second.rkey, first.address, 8));
}

#[test]
fn type_2_can_be_rebound_only_after_invalidation() {
    let mut own = Windows::new(WindowKind::Type2);
    let bound = own.binding();
    assert_eq!(own.bind(bound), Status::Success);
    assert_eq!(own.run(Op::LocalInvalidate(bound.rkey)), Status::Success);
    let again = own.binding();
    assert_eq!(own.bind(again), Status::Success);
    assert!(own.write(again.rkey, again.address, 8));
    assert_eq!(own.run(Op::LocalInvalidate(again.rkey)), Status::Success);
    assert!(!own.write(again.rkey, again.address, 8));

    let mut own = Windows::new(WindowKind::Type2);
    let bound = own.binding();
    assert_eq!(own.bind(bound), Status::Success);
    let again = own.binding();
    assert_eq!(own.bind(again), Status::MemoryWindowBind);
    assert_eq!(own.script.state(), QpState::Error);
}

#[test]
fn only_the_binding_queue_pair_invalidates_a_type_2_window() {
    let mut own = Windows::new(WindowKind::Type2);
    let bound = own.binding();
    assert_eq!(own.bind(bound), Status::Success);
    let binder = own.script.qpn;
    own.script.qpn = own.script.add_qp(QpKind::Rc, PathMtu::Mtu256, &End::default());
    assert_eq!(own.run(Op::LocalInvalidate(bound.rkey)), Status::MemoryWindowBind);
    assert_eq!(own.script.state(), QpState::Error);
    own.script.qpn = binder;
    assert!(own.write(bound.rkey, bound.address, 8), "the peer of the queue pair that bound the window lost access");
    assert_eq!(own.run(Op::LocalInvalidate(bound.rkey)), Status::Success);
    assert!(!own.write(bound.rkey, bound.address, 8));
}

#[test]
fn invalid_bindings_fail_and_end_the_connection() {
    use WindowKind::{Type1, Type2};
    type Change = fn(&mut Windows, WindowBinding) -> WindowBinding;
    let cases: &[(WindowKind, &str, Change)] = &[
        (Type1, "zero-based", |_, binding| WindowBinding { zero_based: true, ..binding }),
        (Type2, "no bytes", |_, binding| WindowBinding { length: 0, ..binding }),
        (Type1, "beyond the region", |_, binding| WindowBinding { length: LENGTH as u64 + 1, ..binding }),
        (Type2, "before the region", |_, binding| WindowBinding { address: binding.address - 1, ..binding }),
        (Type2, "around the address space", |_, binding| WindowBinding { length: u64::MAX, ..binding }),
        (Type1, "no region", |_, binding| WindowBinding { lkey: LKey(3), ..binding }),
        (Type2, "no window", |_, binding| WindowBinding { rkey: RKey::new(!binding.rkey.get()), ..binding }),
        (Type1, "a region", |own, binding| WindowBinding { rkey: own.region.rkey(), ..binding }),
        (Type2, "not to be bound", |own, binding| {
            let region = own.script.region(4096, LENGTH, Access::LOCAL_WRITE);
            WindowBinding { lkey: region.lkey(), ..binding }
        }),
        (Type1, "not writable here", |own, binding| {
            let region = own.script.region(4096, LENGTH, Access::WINDOW_BIND);
            WindowBinding { lkey: region.lkey(), access: Access::REMOTE_ATOMIC, ..binding }
        }),
        (Type2, "a window of another domain", |own, binding| {
            let pd = own.script.rnic().create_pd();
            let rkey = own.script.rnic().create_window(pd, Type2).expect("the device has room for a window");
            WindowBinding { rkey, ..binding }
        }),
        (Type1, "a region of another domain", |own, binding| {
            let (pd, address) = (own.script.rnic().create_pd(), own.script.base());
            let base = own.script.world.nodes[OWN].memory.base();
            // SAFETY: the block lives as long as the node's RNIC.
            let region = unsafe { own.script.rnic().register(pd, base, 64, address, Access::all(), None) };
            WindowBinding {
                lkey: region.expect("the device has room for a region").lkey(),
                address,
                length: 64,
                ..binding
            }
        }),
    ];
    for (kind, what, change) in cases {
        let mut own = Windows::new(*kind);
        let binding = own.binding();
        let binding = change(&mut own, binding);
        assert_eq!(own.bind(binding), Status::MemoryWindowBind, "{what}");
        assert_eq!(own.script.state(), QpState::Error, "{what}");
    }
    // Functions that return keys that the device must not invalidate.
    type Key = fn(&Windows) -> RKey;
    let take: [(WindowKind, &str, Key); 4] = [
        (Type1, "type 1", |own| own.key),
        (Type2, "another key", |own| next(own.key)),
        (Type2, "a region", |own| own.region.rkey()),
        (Type2, "nothing", |_| RKey::new(0)),
    ];
    for (kind, what, key) in take {
        let mut own = Windows::new(kind);
        let binding = own.binding();
        assert_eq!(own.bind(binding), Status::Success);
        let key = key(&own);
        assert_eq!(own.run(Op::LocalInvalidate(key)), Status::MemoryWindowBind, "{what}");
    }
}

#[test]
fn a_region_that_is_read_only_here_can_be_bound_for_reading() {
    let mut own = Windows::new(WindowKind::Type2);
    own.region = own.script.region(4096, LENGTH, Access::WINDOW_BIND);
    let binding = WindowBinding { access: Access::REMOTE_READ, ..own.binding() };
    assert_eq!(own.bind(binding), Status::Success);
}

#[test]
fn a_zero_based_window_counts_from_its_own_start() {
    let mut own = Windows::new(WindowKind::Type2);
    let binding = WindowBinding { address: own.region.address() + 64, zero_based: true, ..own.binding() };
    assert_eq!(own.bind(binding), Status::Success);
    assert!(own.write(binding.rkey, 1, 2));
    assert_eq!(own.script.world.nodes[OWN].memory.read(4096 + 64, 4), [0, 7, 7, 0]);
    assert!(!own.write(binding.rkey, binding.address, 8));
}

#[test]
fn window_operations_take_effect_in_order() {
    let mut own = Windows::new(WindowKind::Type2);
    let bound = own.binding();
    let before = own.script.post(Op::Send, 8);
    let bind = own.script.post(Op::BindWindow(bound), 0);
    let behind = own.script.post(Op::Send, 8);
    assert_eq!(own.script.sent().len(), 1);
    // The requester may still retransmit earlier requests.
    own.script.nak(crate::common::script::OWN_PSN, NakCode::PSN_SEQUENCE_ERROR);
    assert_eq!(own.script.sent().len(), 1);
    assert!(own.script.reap().is_empty());
    own.script.ack(crate::common::script::OWN_PSN);
    assert_eq!(own.script.shapes(), [(Opcode::RC_SEND_ONLY, crate::common::script::OWN_PSN.next())]);
    let done = own.script.reap();
    assert_eq!((done[0].wr_id, done[0].status), (before, Status::Success));
    assert_eq!((done[1].wr_id, done[1].opcode), (bind, CompletionOpcode::BindWindow));
    assert!(own.write(bound.rkey, bound.address, 8));
    // A retransmission must not bind the window again.
    own.script.nak(crate::common::script::OWN_PSN.next(), NakCode::PSN_SEQUENCE_ERROR);
    assert_eq!(own.script.sent().len(), 1);
    own.script.ack(crate::common::script::OWN_PSN.next());
    assert_eq!(own.script.ends(), [(behind, Status::Success)]);
    let silent = own.script.post_flagged(Op::LocalInvalidate(bound.rkey), 0, SendFlags::empty());
    let last = own.script.post_flagged(Op::Send, 8, SendFlags::SIGNALED);
    assert_eq!((own.script.sent().len(), silent + 1), (1, last));
    assert!(own.script.reap().is_empty(), "an unsignalled operation has a completion");
    assert!(!own.write(bound.rkey, bound.address, 8));
}

#[test]
fn window_operations_need_a_connection_and_take_no_payload() {
    let mut script = Script::new();
    let key = RKey::new(0x100);
    let error = script.try_post(Op::LocalInvalidate(key), 8, SendFlags::empty()).expect_err("one element");
    assert_eq!(error.kind, PostErrorKind::NoPayload("local invalidate"));
    let mut script = Script::with(QpKind::Ud, PathMtu::Mtu256, &End::default());
    let error = script.try_post(Op::LocalInvalidate(key), 0, SendFlags::empty()).expect_err("UD has no windows");
    assert!(matches!(error.kind, PostErrorKind::UnsupportedOperation { transport: "UD", .. }));

    // UC supports windows, unlike UD.
    let mut own = Windows::new(WindowKind::Type1);
    own.script.qpn = own.script.add_qp(QpKind::Uc, PathMtu::Mtu256, &End::default());
    let bound = own.binding();
    assert_eq!(own.bind(bound), Status::Success);
    let write = own.script.say(Opcode::UC_WRITE_ONLY).quiet().reth(bound.address, bound.rkey, 8).payload(&[7; 8]);
    own.script.hear(&write);
    assert_eq!(own.script.world.nodes[OWN].memory.read(4096, 9), [7, 7, 7, 7, 7, 7, 7, 7, 0]);
    let foreign = WindowBinding { lkey: LKey(3), ..own.binding() };
    assert_eq!(own.bind(foreign), Status::MemoryWindowBind);
    assert_eq!(own.script.state(), QpState::SqError);
}

#[test]
fn a_window_has_no_local_key() {
    let mut own = Windows::new(WindowKind::Type1);
    let bound = own.binding();
    assert_eq!(own.bind(bound), Status::Success);
    let sges = [Sge { address: bound.address, length: 8, lkey: LKey(bound.rkey.get()) }];
    let (now_ns, qpn) = (own.script.world.now_ns, own.script.qpn);
    let request = SendRequest {
        wr_id: 1,
        operation: Op::Send,
        flags: SendFlags::SIGNALED,
        payload: Payload::Sges(&sges),
        destination: None,
    };
    let error = own.script.rnic().post_send(now_ns, qpn, &[request]).expect_err("the window's key is not a local key");
    assert!(matches!(error.kind, PostErrorKind::Memory { index: 0, .. }), "{error}");
}

#[test]
fn objects_that_windows_use_cannot_be_destroyed() {
    let mut own = Windows::new(WindowKind::Type1);
    let bound = own.binding();
    assert_eq!(own.bind(bound), Status::Success);
    let region = Arc::clone(&own.region);
    let busy = |error| matches!(error, ObjectError::Busy { users: "a memory window", .. });
    assert!(busy(own.script.rnic().deregister(&region).expect_err("a window is bound to the region")));
    let (pd, base) = (own.script.world.nodes[OWN].pd, own.script.world.nodes[OWN].memory.base());
    // SAFETY: the block lives as long as the node's RNIC.
    let anew = unsafe { own.script.rnic().reregister(&region, pd, base, 8, 0, Access::all()) };
    assert!(busy(anew.expect_err("a window is bound to the region")));
    own.script.rnic().destroy_window(bound.rkey).expect("it exists");
    assert!(own.script.rnic().destroy_window(bound.rkey).is_err(), "the window was destroyed before");
    assert!(!own.write(bound.rkey, bound.address, 8));
    own.script.rnic().deregister(&region).expect("no window is bound to the region");

    let mut world = World::new(1, 1, 1 << 20, 1 << 12, Link::default());
    let rnic = &mut world.nodes[OWN].rnic;
    let pd = rnic.create_pd();
    let key = rnic.create_window(pd, WindowKind::Type2).expect("the device has room for a window");
    assert!(busy(rnic.destroy_pd(pd).expect_err("a window belongs to the domain")));
    rnic.destroy_window(key).expect("it exists");
    rnic.destroy_pd(pd).expect("no object belongs to the domain");
}

#[test]
fn deregistration_releases_memory_after_window_use() {
    // The owner either invalidates the window or destroys it.
    for is_destroyed in [false, true] {
        let mut own = Windows::new(WindowKind::Type2);
        let memory = Arc::new(());
        let node = &mut own.script.world.nodes[OWN];
        let (base, address) = (node.memory.base(), node.memory.address());
        let access = Access::LOCAL_WRITE | Access::WINDOW_BIND;
        let owner = Some(Arc::clone(&memory) as _);
        // SAFETY: the block lives as long as the node's RNIC.
        own.region =
            unsafe { node.rnic.register(node.pd, base, LENGTH, address, access, owner) }.expect("the device has room");
        let binding = own.binding();
        assert_eq!(own.bind(binding), Status::Success);
        assert!(own.write(binding.rkey, binding.address, 8), "the engine knows the window now");
        if is_destroyed {
            own.script.rnic().destroy_window(binding.rkey).expect("the window exists");
        } else {
            assert_eq!(own.run(Op::LocalInvalidate(binding.rkey)), Status::Success);
        }
        let region = Arc::clone(&own.region);
        own.script.rnic().deregister(&region).expect("no window is bound to the region");
        drop(own.region);
        drop(region);
        assert_eq!(Arc::strong_count(&memory), 1, "an object keeps the memory");
    }
}

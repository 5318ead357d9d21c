//! Objects of a device: creation, modification and destruction.

use std::net::IpAddr;
use std::sync::Arc;

use doorbell_verbs_core::{
    Access, AddressVector, Completion, CqId, EventSource, ModifyError, Notifier, ObjectError, Overrun, PdId,
    QpAttributes, QpCounters, QpInfo, QpInit, QpKind, QpState, SrqId, WindowKind, check_range, check_transition,
};
use doorbell_wire::{Psn, QKey, Qpn, RKey};
use rand_core::Rng;

use super::Rnic;
use super::multicast::MULTICAST_QPN;
use crate::commons::frame_overhead;
use crate::completion::CompletionQueue;
use crate::congestion::{Destination, Window};
use crate::device::SharedReceives;
use crate::limits::LIMITS;
use crate::memory::{Pager, Region};
use crate::qp::{Qp, ReceiveQueue, ReceiveRing, Requester, Responder, Settings};
use crate::shared::{ReceiveSource, SharedReceiveQueue};
use crate::transmit::{ENGINE_SHIFT, EngineId, Path};
use crate::work::SendQueue;

/// Creation, modification and destruction of objects.
impl Rnic {
    /// Creates a protection domain.
    pub fn create_pd(&mut self) -> PdId {
        self.device.create_pd()
    }

    /// Destroys an unused protection domain.
    ///
    /// # Errors
    ///
    /// There is no such protection domain, or a queue pair, a shared receive queue, a memory region or a memory window
    /// still uses the protection domain.
    pub fn destroy_pd(&mut self, pd: PdId) -> Result<(), ObjectError> {
        self.device.destroy_pd(pd)
    }

    /// Registers memory.
    ///
    /// # Errors
    ///
    /// There is no such protection domain, or the device already has its maximum number of regions. Or the region has
    /// no bytes, is longer than the device allows, or goes beyond the last address.
    ///
    /// # Safety
    ///
    /// The memory must stay mapped until [`deregister`](Self::deregister) and
    /// [`forget_gone`](Self::forget_gone) of each other engine return, and also writable if `access` allows writing. If
    /// `owner` owns the memory, it must instead stay mapped and writable as long as `owner` lives. No Rust reference
    /// may exist to bytes of the memory that a work request or a peer may write.
    pub unsafe fn register(
        &mut self,
        pd: PdId,
        base: *mut u8,
        length: usize,
        address: u64,
        access: Access,
        owner: Option<Arc<dyn std::any::Any + Send + Sync>>,
    ) -> Result<Arc<Region>, ObjectError> {
        // SAFETY: `register_paged` has the same contract as this function, and the caller keeps that contract.
        unsafe { self.register_paged(pd, base, length, address, access, owner, None) }
    }

    /// Registers memory like [`register`](Self::register). If `pager` is given, the device calls it before each access
    /// to the memory.
    ///
    /// # Errors
    ///
    /// The errors of [`register`](Self::register).
    ///
    /// # Safety
    ///
    /// As for [`register`](Self::register).
    #[allow(clippy::too_many_arguments, reason = "the parameters of a registration, and who hears of accesses")]
    pub unsafe fn register_paged(
        &mut self,
        pd: PdId,
        base: *mut u8,
        length: usize,
        address: u64,
        access: Access,
        owner: Option<Arc<dyn std::any::Any + Send + Sync>>,
        pager: Option<Arc<dyn Pager>>,
    ) -> Result<Arc<Region>, ObjectError> {
        // SAFETY: both functions have the same contract, which the caller keeps.
        unsafe { self.device.register(pd, base, length, address, access, owner, pager) }
    }

    /// Registers a region without memory, for local use. Reads return zeros, and writes are lost. The region accepts
    /// every address.
    ///
    /// # Errors
    ///
    /// There is no such protection domain, or the device already has its maximum number of regions.
    pub fn register_null(&mut self, pd: PdId) -> Result<Arc<Region>, ObjectError> {
        self.device.register_null(pd)
    }

    /// Registers a region again, with other memory, rights or protection domain. The keys of the region stay valid.
    /// IBTA Vol 1, 11.2.8.5 permits other keys, but programs expect the same keys.
    ///
    /// # Errors
    ///
    /// There is no such protection domain or region, or a memory window is bound to the region. Or the new region has
    /// no bytes, is longer than the device allows, or goes beyond the last address. The old region then stays
    /// unchanged.
    ///
    /// # Safety
    ///
    /// As for [`register`](Self::register). The memory of the old region may be unmapped after this function and
    /// [`forget_gone`](Self::forget_gone) of each other engine have returned.
    pub unsafe fn reregister(
        &mut self,
        region: &Region,
        pd: PdId,
        base: *mut u8,
        length: usize,
        address: u64,
        access: Access,
    ) -> Result<Arc<Region>, ObjectError> {
        // SAFETY: the caller keeps the contract of this function. The engine forgets the old region before this
        // function returns.
        let renewed = unsafe { self.device.reregister(region, pd, base, length, address, access) };
        self.forget_gone();
        renewed
    }

    /// Sets whether the acknowledgement of a completed receive may wait for the reply of the program, so that both
    /// leave together. By default it may wait if the program has replied to enough preceding messages. With false, the
    /// acknowledgement always leaves before the completion is visible.
    pub fn let_acks_wait(&mut self, may_wait: bool) {
        self.core.acks_may_wait = may_wait;
    }

    /// Makes the device check scatter-gather elements at the time of use. An invalid element then ends its work request
    /// with an error completion, as on other RNICs. By default, the device checks elements when a work request is
    /// posted, and rejects the work request if an element is invalid.
    pub fn check_elements_late(&mut self) {
        self.core.memory.checks_late = true;
    }

    /// Sets the pager of regions that are registered with [`Access::ON_DEMAND`] from now on. Without a pager, such
    /// regions behave like all other regions.
    pub fn page_with(&mut self, pager: Arc<dyn Pager>) {
        self.device.regions.page_with(pager);
    }

    /// Deregisters a region. After this call returns, this engine does not access the memory of the region. The caller
    /// then calls [`forget_gone`](Self::forget_gone) of each other engine.
    ///
    /// # Errors
    ///
    /// The region is not registered, or a memory window is bound to the region.
    pub fn deregister(&mut self, region: &Region) -> Result<(), ObjectError> {
        self.device.deregister(region)?;
        self.forget_gone();
        Ok(())
    }

    /// Makes this engine forget regions and windows that another engine has destroyed. After this call returns, this
    /// engine does not access their memory.
    pub fn forget_gone(&mut self) {
        self.core.memory.forget_gone();
    }

    /// Creates an unbound memory window and returns its key.
    ///
    /// # Errors
    ///
    /// There is no such protection domain, or the device already has its maximum number of memory windows.
    pub fn create_window(&mut self, pd: PdId, kind: WindowKind) -> Result<RKey, ObjectError> {
        self.device.create_window(pd, kind)
    }

    /// Destroys a memory window. `rkey` is the current key of the window or an earlier one. After this call and
    /// [`forget_gone`](Self::forget_gone) of each other engine return, no peer reaches memory through the window.
    ///
    /// # Errors
    ///
    /// No memory window has or had this key.
    pub fn destroy_window(&mut self, rkey: RKey) -> Result<(), ObjectError> {
        self.device.destroy_window(rkey)?;
        self.forget_gone();
        Ok(())
    }

    /// Creates a completion queue of exactly `depth` entries.
    ///
    /// # Errors
    ///
    /// `depth` is 0 or more than [`LIMITS`] allow, or the device already has its maximum number of completion queues.
    pub fn create_cq(
        &mut self,
        depth: usize,
        notifier: Option<Notifier>,
    ) -> Result<(CqId, Arc<CompletionQueue>), ObjectError> {
        self.device.create_cq(depth, |depth| CompletionQueue::new(depth, notifier))
    }

    /// Creates a completion queue that also calls `observer` whenever an engine adds completions.
    ///
    /// # Errors
    ///
    /// The errors of [`create_cq`](Self::create_cq).
    pub fn create_observed_cq(
        &mut self,
        depth: usize,
        notifier: Option<Notifier>,
        observer: Notifier,
    ) -> Result<(CqId, Arc<CompletionQueue>), ObjectError> {
        self.device.create_cq(depth, |depth| CompletionQueue::observed(depth, notifier, observer))
    }

    /// Returns the completion queue itself, from which a program reaps without access to the RNIC.
    pub fn completion_queue(&self, cq: CqId) -> Option<Arc<CompletionQueue>> {
        self.device.completion_queue(cq)
    }

    /// Changes the maximum number of entries of a completion queue.
    ///
    /// # Errors
    ///
    /// There is no such completion queue, `depth` is 0 or more than [`LIMITS`] allow, or the queue holds more than
    /// `depth` completions. The queue then stays unchanged.
    pub fn resize_cq(&mut self, cq: CqId, depth: usize) -> Result<(), ObjectError> {
        let queue = self.completion_queue(cq).ok_or(ObjectError::Unknown("completion queue"))?;
        check_range("the completion queue's depth", depth, 1, LIMITS.max_cq_depth)?;
        if queue.resize(depth) {
            return Ok(());
        }
        Err(ObjectError::Range {
            what: "the completion queue's depth",
            given: depth,
            least: queue.len(),
            most: LIMITS.max_cq_depth,
        })
    }

    /// Destroys a completion queue.
    ///
    /// # Errors
    ///
    /// There is no such completion queue, or a queue pair uses the completion queue.
    pub fn destroy_cq(&mut self, cq: CqId) -> Result<(), ObjectError> {
        self.device.destroy_cq(cq)
    }

    /// Reaps completions, like [`CompletionQueue::poll`].
    ///
    /// # Errors
    ///
    /// The errors of [`CompletionQueue::poll`]. If there is no such queue, the call reaps nothing and returns no error.
    pub fn poll_cq(&self, cq: CqId, out: &mut [Completion]) -> Result<usize, Overrun> {
        self.completion_queue(cq).map_or(Ok(0), |queue| queue.poll(out))
    }

    /// Creates a shared receive queue.
    ///
    /// # Errors
    ///
    /// There is no such protection domain, `depth` or `max_sges` is 0 or more than [`LIMITS`] allow, or the device
    /// already has its maximum number of shared receive queues.
    pub fn create_srq(
        &mut self,
        pd: PdId,
        depth: usize,
        max_sges: usize,
    ) -> Result<(SrqId, Arc<SharedReceiveQueue>), ObjectError> {
        let (hides_receives, checks_late) = (self.core.policy.waits_for_doorbells, self.core.memory.checks_late);
        self.device.create_srq(pd, depth, max_sges, hides_receives, checks_late)
    }

    /// Returns the shared receive queue with the check of posted receives, for posts without access to an engine.
    pub fn shared_receives(&self, srq: SrqId) -> Option<Arc<SharedReceives>> {
        self.device.shared_receives(srq)
    }

    /// Destroys a shared receive queue.
    ///
    /// # Errors
    ///
    /// There is no such shared receive queue, or a queue pair uses the shared receive queue.
    pub fn destroy_srq(&mut self, srq: SrqId) -> Result<(), ObjectError> {
        self.device.destroy_srq(srq)
    }

    /// Creates a queue pair of this engine, in the reset state.
    ///
    /// # Errors
    ///
    /// There is no such protection domain, completion queue or shared receive queue. Or the shared receive queue
    /// belongs to another protection domain, a capacity is more than [`LIMITS`] allow, or the device already has its
    /// maximum number of queue pairs.
    pub fn create_qp(&mut self, init: QpInit) -> Result<Qpn, ObjectError> {
        let c = init.capacities;
        check_range("max_send_wr", c.max_send_wr, 0, LIMITS.max_queue_depth)?;
        check_range("max_recv_wr", c.max_recv_wr, 0, LIMITS.max_queue_depth)?;
        check_range("max_send_sge", c.max_send_sge, 0, LIMITS.max_sges)?;
        check_range("max_recv_sge", c.max_recv_sge, 0, LIMITS.max_sges)?;
        check_range("max_inline", c.max_inline, 0, LIMITS.max_inline)?;
        let queues = self.device.enter_qp(&init)?;
        self.device.use_engine(self.engine);
        let rq = match queues.shared {
            Some(shared) => ReceiveQueue::Shared(shared as Arc<dyn ReceiveSource>),
            None => {
                let (depth, max_sges) = (c.max_recv_wr, c.max_recv_sge);
                ReceiveQueue::Own { ring: ReceiveRing::default(), depth, max_sges }
            }
        };
        let send_cq = self.core.use_cq(init.send_cq.0, queues.send);
        let recv_cq = self.core.use_cq(init.recv_cq.0, queues.receive);
        let qpn = self.unused_qpn();
        let unset = AddressVector::to(self.config.address);
        let sq = SendQueue::new(c.max_send_wr, c.max_send_sge, c.max_inline, init.kind == QpKind::Ud);
        let slot = self.qps.insert(Qp {
            qpn,
            kind: init.kind,
            pd: init.pd,
            state: QpState::Reset,
            settings: Settings {
                access: Access::empty(),
                qkey: QKey::new(0),
                peer: unset,
                dest_qpn: Qpn::new(0),
                path_mtu: self.config.active_mtu,
                timeout: 0,
                retry_count: 0,
                rnr_retry: 0,
                max_rd_atomic: 0,
                max_dest_rd_atomic: 0,
                min_rnr_timer: 0,
                receive_psn: Psn::new(0),
                send_psn: Psn::new(0),
                sqd_notify: false,
            },
            signal_all: init.signal_all,
            send_cq,
            recv_cq,
            sq,
            rq,
            req: Requester::new(0, &self.core.policy),
            resp: Responder::default(),
            counters: QpCounters::default(),
            destination: None,
            path: Path {
                engine: EngineId(0),
                destination: unset.destination,
                traffic_class: unset.traffic_class,
                hop_limit: unset.hop_limit,
            },
            frame_overhead: frame_overhead(self.config.address),
            queued: false,
            answers_turn: false,
            blocked: false,
            awaits_link: false,
            ack_held: false,
            timer_queued_ns: u64::MAX,
            established: false,
            init,
        });
        self.by_number.insert(qpn.get(), slot as u32);
        Ok(qpn)
    }

    /// Returns a random number of this engine that no queue pair has.
    fn unused_qpn(&mut self) -> Qpn {
        loop {
            let number = self.qpn_rng.next_u32() & ((1 << ENGINE_SHIFT) - 1);
            let qpn = Qpn::new((u32::from(self.engine.0) << ENGINE_SHIFT) | number);
            // The numbers 0 and 1 are reserved.
            if number > 1 && qpn != MULTICAST_QPN && !self.by_number.contains_key(&qpn.get()) {
                return qpn;
            }
        }
    }

    /// Destroys a queue pair and its completions that the program has not reaped.
    ///
    /// # Errors
    ///
    /// There is no such queue pair.
    pub fn destroy_qp(&mut self, qpn: Qpn) -> Result<(), ObjectError> {
        let slot = self.by_number.remove(&qpn.get()).ok_or(ObjectError::Unknown("queue pair"))?;
        let mut qp = self.qps.remove(slot as usize);
        qp.release_in_flight(&mut self.core);
        qp.say_farewell(&mut self.core);
        qp.return_receive();
        if qp.queued {
            self.core.ready.retain(|&ready| ready != slot);
        }
        self.core.inbound.forget(slot);
        self.core.awaiting_link.retain(|&waiting| waiting != qpn);
        self.detach_from_all(slot);
        if let Some(index) = qp.destination {
            self.leave_destination(index, slot);
        }
        let next = self.core.inbound.next_waiting();
        self.wake(next);
        self.core.events.purge(EventSource::Qp(qpn));
        self.core.purge(qpn);
        self.device.regions.unbind_windows_of(qpn); // a later queue pair may get the same number, but has other peers
        for port in [qp.send_cq, qp.recv_cq] {
            self.core.sink_of(port).purge(qpn);
            self.core.release_cq(port);
        }
        self.device.leave_qp(&qp.init);
        Ok(())
    }

    /// Removes the completions of a queue pair that is reset.
    fn purge_completions(&mut self, slot: u32) {
        let qp = &self.qps[slot as usize];
        self.core.purge(qp.qpn);
        for port in [qp.send_cq, qp.recv_cq] {
            self.core.sink_of(port).purge(qp.qpn);
        }
    }

    /// Removes a queue pair from the users of a destination. The queue pair must have no packets in flight.
    fn leave_destination(&mut self, index: usize, slot: u32) {
        let destination = &mut self.core.destinations[index];
        destination.window.forget(slot);
        destination.users -= 1;
        if destination.users == 0 {
            self.by_address.remove(&destination.address);
            self.core.destinations.remove(index);
            return;
        }
        let next = destination.window.next_waiting();
        self.wake(next);
    }

    fn join_destination(&mut self, address: IpAddr) -> usize {
        let (destinations, config, policy) = (&mut self.core.destinations, &self.config, &self.core.policy);
        // A peer with one engine has one buffer for the packets of all engines. Their windows fit into it together.
        let share_bytes = config.receive_buffer_bytes / u64::from(self.device.used_engines());
        let index = *self.by_address.entry(address).or_insert_with(|| {
            let window = Window::new(share_bytes, policy.max_window_bytes);
            destinations.insert(Destination { address, users: 0, window })
        });
        self.core.destinations[index].users += 1;
        index
    }

    /// Modifies a queue pair, as the table of transitions allows.
    ///
    /// # Errors
    ///
    /// There is no such queue pair, or [`check_transition`] rejects the modification. Or the path MTU is larger than
    /// the active MTU of the device, or the address of the peer is of another family than the address of the device.
    /// The queue pair then stays unchanged.
    pub fn modify_qp(&mut self, qpn: Qpn, attributes: &QpAttributes) -> Result<(), ModifyError> {
        let slot = *self.by_number.get(&qpn.get()).ok_or(ModifyError::UnknownQp(qpn))?;
        let qp = &self.qps[slot as usize];
        let to = check_transition(qp.kind, qp.state, attributes, &LIMITS)?;
        if let Some(mtu) = attributes.path_mtu
            && mtu > self.config.active_mtu
        {
            let (given, active) = (mtu.bytes(), self.config.active_mtu.bytes());
            return Err(ModifyError::PathMtu { given, active });
        }
        if let Some(address) = attributes.address
            && address.destination.is_ipv4() != self.config.address.is_ipv4()
        {
            return Err(ModifyError::AddressFamily { peer: address.destination, own: self.config.address });
        }
        let peer = attributes.address.filter(|_| qp.kind == QpKind::Rc);
        let joins = peer.map(|peer| self.join_destination(peer.destination));
        let qp = &mut self.qps[slot as usize];
        // The requests of a UC queue pair may have waited for room to the old destination.
        qp.blocked &= qp.kind != QpKind::Uc || attributes.address.is_none();
        if joins.is_some() || to == QpState::Reset {
            // The queue pair leaves its old destination. Remove its bytes in flight from the windows first.
            qp.rewind(&mut self.core);
            qp.blocked = false;
            self.core.inbound.forget(slot);
            if let Some(left) = std::mem::replace(&mut qp.destination, joins) {
                self.leave_destination(left, slot);
            }
        }
        self.qps[slot as usize].apply(&mut self.core, to, attributes);
        self.settle(slot);
        self.publish();
        if to == QpState::Reset {
            self.purge_completions(slot);
        }
        Ok(())
    }

    /// Returns the state and the attributes of a queue pair.
    pub fn query_qp(&self, qpn: Qpn) -> Option<QpInfo> {
        let qp = &self.qps[*self.by_number.get(&qpn.get())? as usize];
        let s = &qp.settings;
        Some(QpInfo {
            kind: qp.kind,
            state: qp.state,
            attributes: QpAttributes {
                state: Some(qp.state),
                current_state: Some(qp.state),
                sqd_notify: Some(s.sqd_notify),
                access: Some(s.access),
                pkey_index: Some(0),
                port: Some(1),
                qkey: Some(s.qkey),
                address: Some(s.peer),
                path_mtu: Some(s.path_mtu),
                timeout: Some(s.timeout),
                retry_count: Some(s.retry_count),
                rnr_retry: Some(s.rnr_retry),
                receive_psn: Some(qp.resp.expected_psn()),
                send_psn: Some(qp.req.next_psn()),
                max_rd_atomic: Some(s.max_rd_atomic),
                max_dest_rd_atomic: Some(s.max_dest_rd_atomic),
                min_rnr_timer: Some(s.min_rnr_timer),
                dest_qpn: Some(s.dest_qpn),
            },
            capacities: qp.init.capacities,
            signal_all: qp.init.signal_all,
            counters: qp.counters,
            outstanding_sends: qp.sq.len(),
        })
    }

    /// Returns a random packet sequence number, for the first packet of a connection.
    pub fn random_psn(&mut self) -> Psn {
        Psn::new(self.psn_rng.next_u32())
    }
}

#[cfg(test)]
mod tests {
    use doorbell_wire::PathMtu;

    use super::*;
    use crate::Config;

    /// Returns the windows of an engine of a device that uses this number of engines: for packets to a peer, and for
    /// READ responses to the engine's own receive buffer.
    fn windows(engines: usize) -> [u64; 2] {
        let address = [10, 0, 0, 1].into();
        let config = Config { address, active_mtu: PathMtu::Mtu1024, receive_buffer_bytes: 400_000, seed: [7; 32] };
        let mut rnic = Rnic::new(config, None);
        let further: Vec<_> = (1..4).map(|_| rnic.add_engine().unwrap()).collect();
        further[..engines - 1].iter().for_each(|rnic| rnic.device.use_engine(rnic.engine));
        rnic.device.use_engine(rnic.engine);
        let destination = rnic.join_destination([10, 0, 0, 2].into());
        [rnic.core.destinations[destination].window.limit(), rnic.core.inbound.limit()]
    }

    #[test]
    fn the_engines_of_a_device_share_the_buffer_of_a_peer_but_not_their_own() {
        assert_eq!(windows(1), [100_000, 100_000]);
        assert_eq!(windows(4), [25_000, 100_000]);
    }
}

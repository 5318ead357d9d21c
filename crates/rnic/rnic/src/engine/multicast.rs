//! Multicast groups and the UD queue pairs that are attached to them (IBTA Vol 1, 10.5.2).

use std::net::IpAddr;
use std::sync::Arc;

use doorbell_verbs_core::{ObjectError, QpKind};
use doorbell_wire::{BthRepr, Outer, Qpn};

use super::Rnic;
use crate::device::GroupEngines;
use crate::memory::Packet;

/// Destination QPN of datagrams to a multicast group (IBTA Vol 1, 9.2.6).
pub(super) const MULTICAST_QPN: Qpn = Qpn::new(0xff_ffff);

/// A multicast group with queue pairs of an engine.
pub(super) struct Group {
    /// Slots of the attached queue pairs.
    attached: Vec<u32>,
    /// Members of the group.
    engines: Arc<GroupEngines>,
}

impl Rnic {
    /// Attaches a UD queue pair to a multicast group. Attaching a queue pair again changes nothing. Returns true if the
    /// queue pair is the first one of this engine in the group: then the link of the engine must join the group.
    ///
    /// # Errors
    ///
    /// There is no such queue pair, or the queue pair is not UD. Or `group` is no multicast address of the device's
    /// address family, or the device already has its maximum number of groups.
    pub fn attach(&mut self, qpn: Qpn, group: IpAddr) -> Result<bool, ObjectError> {
        let slot = self.slot(qpn).ok_or(ObjectError::Unknown("queue pair"))?;
        if self.qps[slot as usize].kind != QpKind::Ud {
            return Err(ObjectError::Group { group, why: "only UD queue pairs can be attached" });
        }
        if !group.is_multicast() || group.is_ipv4() != self.config.address.is_ipv4() {
            return Err(ObjectError::Group {
                group,
                why: "the group must be a multicast address of the device's address family",
            });
        }
        if let Some(Group { attached, .. }) = self.groups.get_mut(&group) {
            if !attached.contains(&slot) {
                attached.push(slot);
            }
            return Ok(false);
        }
        let engines = self.device.join_group(group, self.engine)?;
        self.groups.insert(group, Group { attached: vec![slot], engines });
        Ok(true)
    }

    /// Detaches a queue pair from a multicast group. Returns true if the group has no queue pair of this engine left:
    /// then the link of the engine may leave the group.
    ///
    /// # Errors
    ///
    /// There is no such queue pair, or the queue pair is not attached to the group.
    pub fn detach(&mut self, qpn: Qpn, group: IpAddr) -> Result<bool, ObjectError> {
        let slot = self.slot(qpn).ok_or(ObjectError::Unknown("queue pair"))?;
        let unknown = ObjectError::Group { group, why: "the queue pair is not attached to this group" };
        let Group { attached, .. } = self.groups.get_mut(&group).ok_or(unknown)?;
        let index = attached.iter().position(|&other| other == slot).ok_or(unknown)?;
        attached.swap_remove(index);
        let was_last = attached.is_empty();
        if was_last {
            self.groups.remove(&group);
            self.device.leave_group(group, self.engine);
        }
        Ok(was_last)
    }

    /// Detaches a queue pair that is being destroyed from all groups.
    pub(super) fn detach_from_all(&mut self, slot: u32) {
        self.groups.retain(|&group, Group { attached, .. }| {
            attached.retain(|&other| other != slot);
            if attached.is_empty() {
                self.device.leave_group(group, self.engine);
            }
            !attached.is_empty()
        });
    }

    /// Handles a packet to a multicast group. Each attached queue pair gets the packet, including the queue pair that
    /// sent it. Each engine of the device gets the packet too, and one of them counts it.
    pub(super) fn handle_multicast(&mut self, outer: &Outer, bth: BthRepr, rest: Packet<'_>, bytes: u64) {
        let attached = match self.groups.get(&outer.dst) {
            Some(group) if bth.dest_qpn == MULTICAST_QPN => {
                if !group.engines.counts(self.engine) {
                    self.core.counters.rx_vport_rdma_unicast_packets -= 1;
                    self.core.counters.rx_vport_rdma_unicast_bytes -= bytes;
                }
                group.attached.clone()
            }
            _ => {
                self.count_unknown(&bth);
                return;
            }
        };
        for slot in attached {
            self.dispatch(slot, outer, bth, rest);
            self.settle(slot);
        }
    }
}

//! Memory regions of simulated hosts.

use std::sync::Arc;

use doorbell_rnic::Pager;
use doorbell_verbs::raw::{MemoryAccess, MemoryObserver};

use super::SharedWorld;
use crate::kernel::World;
use crate::kernel::watch::{Watch, lock};

/// Memory region of a simulated host. It charges the cost of each access, and notifies the threads that look at it.
pub(super) struct Memory {
    pub(super) shared: Arc<SharedWorld>,
    pub(super) node: usize,
    /// Address of the region for peers.
    pub(super) address: u64,
    pub(super) watch: Watch,
    pub(super) base: usize,
    /// Length after which mirrored memory repeats; otherwise the length of the region.
    pub(super) period: usize,
    pub(super) mirrored: bool,
}

impl Memory {
    fn fold(&self, offset: usize, length: usize) -> (usize, usize) {
        let from = if offset < self.period { offset } else { offset - self.period };
        (from, from + length)
    }

    /// Records a store of the running thread if the hardware may reach its time only after the thread's turn.
    fn stored(&self, world: &mut World, offset: usize, length: usize) {
        let (at, now) = (world.clock(), world.now());
        if at.since(now) <= world.least_latency {
            return;
        }
        let from = self.address + self.fold(offset, length).0 as u64;
        let stores = &mut world.nodes[self.node].stores;
        stores.add(from..from + length as u64, at, now);
        if self.mirrored {
            let from = from + self.period as u64;
            stores.add(from..from + length as u64, at, now);
        }
    }

    fn changed(&self, offset: usize, length: usize) {
        let (from, to) = self.fold(offset, length);
        self.watch.changed(from, to);
        if to > self.period {
            self.watch.changed(0, to - self.period);
        }
    }
}

impl Pager for Memory {
    #[inline]
    fn bring_in(&self, base: *mut u8, length: usize, written: bool) -> bool {
        if written {
            // Use the offset in the region, because addresses of the process differ between runs.
            self.changed((base as usize).wrapping_sub(self.base), length);
        }
        true
    }
}

/// Maximum length in bytes of a read that counts as a look.
const WORD: usize = 8;

impl MemoryObserver for Memory {
    fn accessed(&self, access: MemoryAccess, offset: usize, length: usize) {
        let mut world = lock(&self.shared.world);
        let cpu = &world.testbed.cpu;
        let (word, copy) = (cpu.memory_access, cpu.copy_per_byte);
        match access {
            MemoryAccess::Load => world.charge_load(word),
            MemoryAccess::Store => world.charge(word),
            MemoryAccess::CopyIn | MemoryAccess::CopyOut => world.charge(copy.time_of(length as u64)),
        }
        match access {
            MemoryAccess::Load | MemoryAccess::CopyOut => {
                if length <= WORD
                    && let Some((thread, turn)) = world.looker()
                {
                    let (from, to) = self.fold(offset, length);
                    self.watch.look(thread, turn, from, to);
                } else if world.current.is_none() && access == MemoryAccess::Load {
                    world.step_from_outside();
                }
            }
            MemoryAccess::Store | MemoryAccess::CopyIn => {
                self.stored(&mut world, offset, length);
                self.changed(offset, length);
                world.wake();
            }
        }
    }
}

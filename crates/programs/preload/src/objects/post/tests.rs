//! Tests of work requests with too many bytes or pieces, whose memory must not be read.

use std::num::NonZeroUsize;
use std::ptr;

use nix::sys::mman::{MapFlags, ProtFlags, mmap_anonymous, munmap};

use super::*;
use crate::objects::context::{ibv_close_device, ibv_open_device};
use crate::objects::cq::{ibv_create_cq, ibv_destroy_cq};
use crate::objects::device::listed;
use crate::objects::pd::{ibv_alloc_pd, ibv_dealloc_pd};
use crate::objects::qp::{create_qp_ex, ibv_destroy_qp, ibv_modify_qp};
use crate::objects::srq::{ibv_create_srq, ibv_destroy_srq};

const PAGE: usize = 4096;
const MAX_INLINE: u32 = 64;
const MAX_SGE: u32 = 4;

/// A range of addresses that no code may read or write.
struct Hole(usize);

impl Hole {
    const BYTES: NonZeroUsize = NonZeroUsize::new(4 * PAGE).unwrap();

    fn new() -> Self {
        // SAFETY: the mapping is new, at an address that the kernel chooses.
        let mapped = unsafe { mmap_anonymous(None, Self::BYTES, ProtFlags::PROT_NONE, MapFlags::MAP_PRIVATE) };
        Self(mapped.unwrap().as_ptr() as usize)
    }

    fn sge(&self, length: u32) -> c::ibv_sge {
        c::ibv_sge { addr: self.0 as u64, length, lkey: 0 }
    }

    fn pointer<T>(&self) -> *mut T {
        ptr::with_exposed_provenance_mut(self.0)
    }
}

impl Drop for Hole {
    fn drop(&mut self) {
        // SAFETY: the mapping belongs to this test.
        unsafe { munmap(ptr::NonNull::new(self.pointer()).unwrap(), Self::BYTES.get()) }.unwrap();
    }
}

/// A queue pair that is connected to itself, and the objects that it uses.
struct World {
    context: *mut c::ibv_context,
    pd: *mut c::ibv_pd,
    cq: *mut c::ibv_cq,
    qp: *mut c::ibv_qp,
}

impl World {
    fn new() -> Self {
        let cap = c::ibv_qp_cap {
            max_send_wr: 8,
            max_recv_wr: 8,
            max_send_sge: MAX_SGE,
            max_recv_sge: MAX_SGE,
            max_inline_data: MAX_INLINE,
        };
        // SAFETY: the objects exist until the test destroys them.
        unsafe {
            let context = ibv_open_device(listed(0).unwrap());
            let pd = ibv_alloc_pd(context);
            let cq = ibv_create_cq(context, 16, ptr::null_mut(), ptr::null_mut(), 0);
            let mut init = c::ibv_qp_init_attr_ex {
                send_cq: cq,
                recv_cq: cq,
                cap,
                qp_type: c::IBV_QPT_RC,
                comp_mask: c::IBV_QP_INIT_ATTR_PD | c::IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
                pd,
                send_ops_flags: u64::from(c::IBV_QP_EX_WITH_SEND | c::IBV_QP_EX_WITH_RDMA_READ),
                ..c::ibv_qp_init_attr_ex::default()
            };
            let qp = create_qp_ex(context, &raw mut init);
            assert!(!qp.is_null());
            let world = Self { context, pd, cq, qp };
            world.connect();
            world
        }
    }

    fn connect(&self) {
        // SAFETY: the queue pair exists.
        let own = unsafe { &*self.qp.cast::<Qp>() };
        let mut attr = c::ibv_qp_attr {
            port_num: 1,
            path_mtu: c::IBV_MTU_1024,
            dest_qp_num: own.raw.qpn().get(),
            max_dest_rd_atomic: 1,
            max_rd_atomic: 1,
            timeout: 14,
            retry_cnt: 7,
            rnr_retry: 7,
            ah_attr: crate::objects::ah::ah_attributes(&doorbell_verbs::AddressVector::to(
                own.device.attributes.address,
            )),
            ..c::ibv_qp_attr::default()
        };
        let (init, rtr, rts) = (
            c::IBV_QP_PKEY_INDEX | c::IBV_QP_PORT | c::IBV_QP_ACCESS_FLAGS,
            c::IBV_QP_AV
                | c::IBV_QP_PATH_MTU
                | c::IBV_QP_DEST_QPN
                | c::IBV_QP_RQ_PSN
                | c::IBV_QP_MAX_DEST_RD_ATOMIC
                | c::IBV_QP_MIN_RNR_TIMER,
            c::IBV_QP_SQ_PSN
                | c::IBV_QP_TIMEOUT
                | c::IBV_QP_RETRY_CNT
                | c::IBV_QP_RNR_RETRY
                | c::IBV_QP_MAX_QP_RD_ATOMIC,
        );
        for (state, mask) in [(c::IBV_QPS_INIT, init), (c::IBV_QPS_RTR, rtr), (c::IBV_QPS_RTS, rts)] {
            attr.qp_state = state;
            // SAFETY: the queue pair exists.
            assert_eq!(unsafe { ibv_modify_qp(self.qp, &raw mut attr, (c::IBV_QP_STATE | mask) as c_int) }, 0);
        }
    }

    fn send(&self, opcode: c::ibv_wr_opcode, flags: u32, list: *mut c::ibv_sge, count: c_int) -> c_int {
        let mut bad = ptr::null_mut();
        let mut wr =
            c::ibv_send_wr { sg_list: list, num_sge: count, opcode, send_flags: flags, ..c::ibv_send_wr::default() };
        // SAFETY: the queue pair exists. The pieces lie in unreadable memory, but the call must reject them.
        let errno = unsafe { post_send(self.qp, &raw mut wr, &raw mut bad) };
        assert_eq!(bad.is_null(), errno == 0);
        errno
    }

    /// Builds one work request with the extended interface (`ibv_wr_*`), and posts it.
    fn build(&self, body: impl Fn(*mut c::ibv_qp_ex, &c::ibv_qp_ex)) -> c_int {
        let ex = self.qp.cast::<c::ibv_qp_ex>();
        // SAFETY: the queue pair was created for the extended interface.
        unsafe {
            let table = std::ptr::read(ex);
            table.wr_start.unwrap()(ex);
            body(ex, &table);
            table.wr_complete.unwrap()(ex)
        }
    }
}

impl Drop for World {
    fn drop(&mut self) {
        // SAFETY: no other code uses the objects any more.
        unsafe {
            assert_eq!(ibv_destroy_qp(self.qp), 0);
            assert_eq!((ibv_destroy_cq(self.cq), ibv_dealloc_pd(self.pd), ibv_close_device(self.context)), (0, 0, 0));
        }
    }
}

#[test]
fn inline_data_is_judged_before_a_byte_is_read() {
    let (world, hole) = (World::new(), Hole::new());
    let too_long = [
        vec![hole.sge(MAX_INLINE + 1)],
        vec![hole.sge(MAX_INLINE), hole.sge(1)],
        vec![hole.sge(1 << 20); 2],
        // The first of these lists has 4 GiB + 16 B, which 32 bits would truncate to 16 B. The second list has almost
        // 16 GiB in four pieces.
        vec![hole.sge(1 << 31), hole.sge((1 << 31) + 16)],
        vec![hole.sge(u32::MAX); 4],
    ];
    for mut list in too_long {
        let count = list.len() as c_int;
        assert_eq!(world.send(c::IBV_WR_SEND, c::IBV_SEND_INLINE, list.as_mut_ptr(), count), libc::EINVAL);
        let pieces: Vec<_> =
            list.iter().map(|sge| c::ibv_data_buf { addr: hole.pointer(), length: sge.length as usize }).collect();
        let posted = world.build(|ex, table| {
            // SAFETY: the queue pair was created for the extended interface.
            unsafe {
                table.wr_send.unwrap()(ex);
                table.wr_set_inline_data_list.unwrap()(ex, pieces.len(), pieces.as_ptr());
            }
        });
        assert_eq!(posted, libc::EINVAL);
    }
    for length in [MAX_INLINE as usize + 1, 1 << 30, usize::MAX] {
        let posted = world.build(|ex, table| {
            // SAFETY: the queue pair was created for the extended interface.
            unsafe {
                table.wr_send.unwrap()(ex);
                table.wr_set_inline_data.unwrap()(ex, hole.pointer(), length);
            }
        });
        assert_eq!(posted, libc::EINVAL, "{length} B");
    }
    // A READ accepts no inline bytes, even if they fit.
    let mut short = [hole.sge(4), hole.sge(4)];
    for count in [1, 2] {
        assert_eq!(world.send(c::IBV_WR_RDMA_READ, c::IBV_SEND_INLINE, short.as_mut_ptr(), count), libc::EINVAL);
    }
    let posted = world.build(|ex, table| {
        // SAFETY: the queue pair was created for the extended interface.
        unsafe {
            table.wr_rdma_read.unwrap()(ex, 1, 0);
            table.wr_set_inline_data.unwrap()(ex, hole.pointer(), 8);
        }
    });
    assert_eq!(posted, libc::EINVAL);
    // The queue pair must accept inline data of the maximum size.
    let mut bytes = [7_u8; MAX_INLINE as usize];
    let half = MAX_INLINE / 2;
    let addr = bytes.as_mut_ptr() as u64;
    let mut list = [
        c::ibv_sge { addr, length: half, lkey: 0 },
        c::ibv_sge { addr: addr + u64::from(half), length: half, lkey: 0 },
    ];
    assert_eq!(world.send(c::IBV_WR_SEND, c::IBV_SEND_INLINE, list.as_mut_ptr(), 2), 0);
}

#[test]
fn a_list_with_too_many_pieces_is_not_read() {
    let (world, hole) = (World::new(), Hole::new());
    for count in [MAX_SGE as c_int + 1, 1000, c_int::MAX, -1] {
        for flags in [0, c::IBV_SEND_INLINE] {
            for opcode in [c::IBV_WR_SEND, c::IBV_WR_RDMA_READ, c::IBV_WR_ATOMIC_FETCH_AND_ADD] {
                assert_eq!(world.send(opcode, flags, hole.pointer(), count), libc::EINVAL, "{count} elements");
            }
        }
        let mut wr = c::ibv_recv_wr { sg_list: hole.pointer(), num_sge: count, ..c::ibv_recv_wr::default() };
        let mut bad = ptr::null_mut();
        // SAFETY: the queues exist. The pieces lie in unreadable memory, but the calls must reject them.
        unsafe {
            assert_eq!(post_recv(world.qp, &raw mut wr, &raw mut bad), libc::EINVAL);
            let attr = c::ibv_srq_attr { max_wr: 1, max_sge: MAX_SGE, srq_limit: 0 };
            let mut init = c::ibv_srq_init_attr { srq_context: ptr::null_mut(), attr };
            let srq = ibv_create_srq(world.pd, &raw mut init);
            assert_eq!(post_srq_recv(srq, &raw mut wr, &raw mut bad), libc::EINVAL);
            assert_eq!(ibv_destroy_srq(srq), 0);
        }
        let posted = world.build(|ex, table| {
            // SAFETY: the queue pair was created for the extended interface.
            unsafe {
                table.wr_send.unwrap()(ex);
                table.wr_set_sge_list.unwrap()(ex, count as usize, hole.pointer());
            }
        });
        assert_eq!(posted, libc::EINVAL);
    }
    let posted = world.build(|ex, table| {
        // SAFETY: the queue pair was created for the extended interface.
        unsafe {
            table.wr_send.unwrap()(ex);
            table.wr_set_inline_data_list.unwrap()(ex, 1000, hole.pointer());
        }
    });
    assert_eq!(posted, libc::EINVAL);
}

#[test]
fn a_builder_rejects_requests_beyond_the_depth_of_the_queue() {
    let world = World::new();
    let posted = world.build(|ex, table| {
        for _ in 0..1000 {
            // SAFETY: the queue pair was created for the extended interface.
            unsafe { table.wr_send.unwrap()(ex) };
        }
    });
    assert_eq!(posted, libc::ENOMEM);
}

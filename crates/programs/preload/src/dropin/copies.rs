//! Functions of libibverbs that copy between the structures of the kernel's interface and those of verbs.

use doorbell_ibverbs_sys as c;

/// `struct ib_uverbs_global_route` of `rdma/ib_user_verbs.h`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(super) struct KernelRoute {
    dgid: [u8; 16],
    flow_label: u32,
    sgid_index: u8,
    hop_limit: u8,
    traffic_class: u8,
    reserved: u8,
}

/// `struct ib_uverbs_ah_attr` of `rdma/ib_user_verbs.h`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(super) struct KernelAddress {
    grh: KernelRoute,
    dlid: u16,
    sl: u8,
    src_path_bits: u8,
    static_rate: u8,
    is_global: u8,
    port_num: u8,
    reserved: u8,
}

/// `struct ib_uverbs_qp_attr` of `rdma/ib_user_verbs.h`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(super) struct KernelQp {
    qp_attr_mask: u32,
    qp_state: u32,
    cur_qp_state: u32,
    path_mtu: u32,
    path_mig_state: u32,
    qkey: u32,
    rq_psn: u32,
    sq_psn: u32,
    dest_qp_num: u32,
    qp_access_flags: u32,
    ah_attr: KernelAddress,
    alt_ah_attr: KernelAddress,
    max_send_wr: u32,
    max_recv_wr: u32,
    max_send_sge: u32,
    max_recv_sge: u32,
    max_inline_data: u32,
    pkey_index: u16,
    alt_pkey_index: u16,
    en_sqd_async_notify: u8,
    sq_draining: u8,
    max_rd_atomic: u8,
    max_dest_rd_atomic: u8,
    min_rnr_timer: u8,
    port_num: u8,
    timeout: u8,
    retry_cnt: u8,
    rnr_retry: u8,
    alt_port_num: u8,
    alt_timeout: u8,
    reserved: [u8; 5],
}

/// `struct ib_user_path_rec` of `rdma/ib_user_sa.h`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(super) struct KernelPath {
    dgid: [u8; 16],
    sgid: [u8; 16],
    dlid: u16,
    slid: u16,
    raw_traffic: u32,
    flow_label: u32,
    reversible: u32,
    mtu: u32,
    pkey: u16,
    hop_limit: u8,
    traffic_class: u8,
    numb_path: u8,
    sl: u8,
    mtu_selector: u8,
    rate_selector: u8,
    rate: u8,
    packet_life_time_selector: u8,
    packet_life_time: u8,
    preference: u8,
}

const _: () = {
    assert!(size_of::<KernelAddress>() == 32);
    assert!(size_of::<KernelQp>() == 144);
    assert!(size_of::<KernelPath>() == 64);
};

/// Copies fields of the same name, which differ at most in their types.
macro_rules! copy_fields {
    ($from:expr => $to:expr; $($field:ident),*) => {
        $($to.$field = $from.$field as _;)*
    };
}

fn copy_address(to: &mut c::ibv_ah_attr, from: &KernelAddress) {
    to.grh.dgid = c::ibv_gid { raw: from.grh.dgid };
    copy_fields!(from.grh => to.grh; flow_label, sgid_index, hop_limit, traffic_class);
    copy_fields!(from => to; dlid, sl, src_path_bits, static_rate, is_global, port_num);
}

/// # Safety
///
/// Both pointers refer to structures of these types.
pub(super) unsafe extern "C" fn ibv_copy_ah_attr_from_kern(to: *mut c::ibv_ah_attr, from: *const KernelAddress) {
    // SAFETY: the caller guarantees that both pointers are valid.
    unsafe { copy_address(&mut *to, &*from) }
}

/// Leaves `qp_state` as it is, as libibverbs does.
///
/// # Safety
///
/// Both pointers refer to structures of these types.
pub(super) unsafe extern "C" fn ibv_copy_qp_attr_from_kern(to: *mut c::ibv_qp_attr, from: *const KernelQp) {
    // SAFETY: the caller guarantees that both pointers are valid.
    let (to, from) = unsafe { (&mut *to, &*from) };
    copy_fields!(from => to; cur_qp_state, path_mtu, path_mig_state, qkey, rq_psn, sq_psn, dest_qp_num);
    copy_fields!(from => to; qp_access_flags);
    copy_fields!(from => to.cap; max_send_wr, max_recv_wr, max_send_sge, max_recv_sge, max_inline_data);
    copy_address(&mut to.ah_attr, &from.ah_attr);
    copy_address(&mut to.alt_ah_attr, &from.alt_ah_attr);
    copy_fields!(from => to; pkey_index, alt_pkey_index, en_sqd_async_notify, sq_draining, max_rd_atomic);
    copy_fields!(from => to; max_dest_rd_atomic, min_rnr_timer, port_num, timeout, retry_cnt, rnr_retry);
    copy_fields!(from => to; alt_port_num, alt_timeout);
}

macro_rules! copy_path_fields {
    ($from:expr => $to:expr) => {
        copy_fields!($from => $to; dlid, slid, raw_traffic, flow_label, hop_limit, traffic_class, reversible);
        copy_fields!($from => $to; numb_path, pkey, sl, mtu_selector, mtu, rate_selector, rate, packet_life_time, preference);
        copy_fields!($from => $to; packet_life_time_selector);
    };
}

/// # Safety
///
/// Both pointers refer to structures of these types.
pub(super) unsafe extern "C" fn ibv_copy_path_rec_from_kern(to: *mut c::ibv_sa_path_rec, from: *const KernelPath) {
    // SAFETY: the caller guarantees that both pointers are valid.
    let (to, from) = unsafe { (&mut *to, &*from) };
    to.dgid = c::ibv_gid { raw: from.dgid };
    to.sgid = c::ibv_gid { raw: from.sgid };
    copy_path_fields!(from => to);
}

/// # Safety
///
/// Both pointers refer to structures of these types.
pub(super) unsafe extern "C" fn ibv_copy_path_rec_to_kern(to: *mut KernelPath, from: *const c::ibv_sa_path_rec) {
    // SAFETY: the caller guarantees that both pointers are valid, and each bit pattern is a valid GID.
    unsafe {
        let (to, from) = (&mut *to, &*from);
        to.dgid = from.dgid.raw;
        to.sgid = from.sgid.raw;
        copy_path_fields!(from => to);
    }
}

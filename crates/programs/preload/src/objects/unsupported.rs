//! Functions that the device does not support. The real library must not receive objects of this device, since it would
//! read private fields that these objects do not have. So this library defines the functions, and they always fail.

use std::ffi::{c_int, c_uint, c_void};

use doorbell_ibverbs_sys as c;

use crate::objects::answer::{Refused, pointer, status};

macro_rules! refused {
    ($($why:literal: $name:ident($($type:ty),*) -> $end:ident $result:ty;)*) => {
        $(#[unsafe(no_mangle)]
        extern "C" fn $name($(_: $type),*) -> $result {
            $end(stringify!($name), || Err(Refused::unsupported($why)))
        })*
    };
}

/// Defines functions for the table of a context that reject each call. If the table had no such function, the headers
/// of verbs would return the same errno, but without an explanation.
macro_rules! refused_in_table {
    ($($why:literal: $field:ident $name:literal($($type:ty),*) -> $end:ident $result:ty;)*) => {
        pub(crate) fn fill(tables: &mut c::verbs_context) {
            $(
                extern "C" fn $field($(_: $type),*) -> $result {
                    $end($name, || Err(Refused::unsupported($why)))
                }
                tables.$field = Some($field);
            )*
        }
    };
}

// The list does not contain functions that destroy flow rules, counters, work queues and the like. The functions below
// create no such object, so a program has none to destroy.
refused_in_table! {
    "flow rules are not supported":
        ibv_create_flow "ibv_create_flow"(*mut c::ibv_qp, *mut c::ibv_flow_attr) -> pointer *mut c::ibv_flow;
    "flow rules are not supported":
        create_flow_action_esp "ibv_create_flow_action_esp"(*mut c::ibv_context, *mut c::ibv_flow_action_esp_attr)
            -> pointer *mut c::ibv_flow_action;
    "counters of flow rules are not supported":
        create_counters "ibv_create_counters"(*mut c::ibv_context, *mut c::ibv_counters_init_attr)
            -> pointer *mut c::ibv_counters;
    "XRC is not supported":
        open_xrcd "ibv_open_xrcd"(*mut c::ibv_context, *mut c::ibv_xrcd_init_attr) -> pointer *mut c::ibv_xrcd;
    "XRC is not supported":
        open_qp "ibv_open_qp"(*mut c::ibv_context, *mut c::ibv_qp_open_attr) -> pointer *mut c::ibv_qp;
    "work queues without queue pairs are for raw Ethernet, which is not supported":
        create_wq "ibv_create_wq"(*mut c::ibv_context, *mut c::ibv_wq_init_attr) -> pointer *mut c::ibv_wq;
    "work queues without queue pairs are for raw Ethernet, which is not supported":
        create_rwq_ind_table "ibv_create_rwq_ind_table"(*mut c::ibv_context, *mut c::ibv_rwq_ind_table_init_attr)
            -> pointer *mut c::ibv_rwq_ind_table;
    "tag matching is not supported":
        post_srq_ops "ibv_post_srq_ops"(*mut c::ibv_srq, *mut c::ibv_ops_wr, *mut *mut c::ibv_ops_wr) -> status c_int;
    "moderation of notifications is not supported":
        modify_cq "ibv_modify_cq"(*mut c::ibv_cq, *mut c::ibv_modify_cq_attr) -> status c_int;
    "rate limits of queue pairs are not supported":
        modify_qp_rate_limit "ibv_modify_qp_rate_limit"(*mut c::ibv_qp, *mut c::ibv_qp_rate_limit_attr)
            -> status c_int;
}

refused! {
    "a device cannot be shared between processes": ibv_import_device(c_int) -> pointer *mut c::ibv_context;
    "a protection domain cannot be shared between processes":
        ibv_import_pd(*mut c::ibv_context, u32) -> pointer *mut c::ibv_pd;
    "a memory region cannot be shared between processes": ibv_import_mr(*mut c::ibv_pd, u32) -> pointer *mut c::ibv_mr;
    "device memory cannot be shared between processes":
        ibv_import_dm(*mut c::ibv_context, u32) -> pointer *mut c::ibv_dm;
    "the device has no vendor-specific enhancements": ibv_query_ece(*mut c::ibv_qp, *mut c::ibv_ece) -> status c_int;
    "the device has no vendor-specific enhancements": ibv_set_ece(*mut c::ibv_qp, *mut c::ibv_ece) -> status c_int;
    "Ethernet addresses are not supported: the kernel resolves them":
        ibv_resolve_eth_l2_from_gid(*mut c::ibv_context, *mut c::ibv_ah_attr, *mut u8, *mut u16) -> status c_int;
}

// The functions that import an object always fail. So the functions that release an imported object have nothing to do.

#[unsafe(no_mangle)]
extern "C" fn ibv_unimport_pd(_: *mut c::ibv_pd) {}

#[unsafe(no_mangle)]
extern "C" fn ibv_unimport_mr(_: *mut c::ibv_mr) {}

#[unsafe(no_mangle)]
extern "C" fn ibv_unimport_dm(_: *mut c::ibv_dm) {}

/// Returns 0, which promises no order. The RNIC places the bytes of a message in order only within each packet.
#[unsafe(no_mangle)]
extern "C" fn ibv_query_qp_data_in_order(_: *mut c::ibv_qp, _: c::ibv_wr_opcode, _: u32) -> c_int {
    0
}

// The functions for forks do nothing. A fork may copy pages of registered memory, and only hardware, which reads
// physical pages, needs a preparation for this.

#[unsafe(no_mangle)]
extern "C" fn ibv_fork_init() -> c_int {
    0
}

#[unsafe(no_mangle)]
extern "C" fn ibv_is_fork_initialized() -> c_uint {
    c::IBV_FORK_UNNEEDED
}

#[unsafe(no_mangle)]
extern "C" fn ibv_dontfork_range(_: *mut c_void, _: usize) -> c_int {
    0
}

#[unsafe(no_mangle)]
extern "C" fn ibv_dofork_range(_: *mut c_void, _: usize) -> c_int {
    0
}

//! libibverbs, loaded at run time. No part of the program links to libibverbs, so all other providers work without it.

use std::ffi::{OsStr, OsString, c_char, c_int, c_uint, c_void};
use std::sync::Mutex;

use doorbell_ibverbs_sys::*;
use doorbell_sync::IgnorePoison;

use super::SystemError;

/// Name that the dynamic linker searches for.
const FILE: &str = "libibverbs.so.1";

macro_rules! library {
    ($($name:ident = $symbol:literal: fn($($argument:ty),*) $(-> $result:ty)?;)*) => {
        /// The functions of libibverbs that the provider uses.
        pub(super) struct Library {
            $(pub(super) $name: unsafe extern "C" fn($($argument),*) $(-> $result)?,)*
        }

        impl Library {
            fn load(file: &OsStr) -> Result<Self, SystemError> {
                let absent = |why: libloading::Error| SystemError::Absent {
                    library: file.to_string_lossy().into_owned(),
                    why: why.to_string(),
                };
                // SAFETY: loading runs the constructors of the machine's own libibverbs. They are trusted like those of
                // any library that a program links to.
                let library = unsafe { libloading::Library::new(file) }.map_err(absent)?;
                let functions = Self {
                    $($name: {
                        // SAFETY: this is the type of the function in the header infiniband/verbs.h.
                        let found = unsafe { library.get::<unsafe extern "C" fn($($argument),*) $(-> $result)?>($symbol) };
                        match found {
                            Ok(function) => *function,
                            Err(_) => return Err(SystemError::TooOld {
                                library: file.to_string_lossy().into_owned(),
                                symbol: String::from_utf8_lossy($symbol).into_owned(),
                            }),
                        }
                    },)*
                };
                // Keep the library loaded: its drivers cannot be unloaded, and the function pointers must stay valid.
                std::mem::forget(library);
                Ok(functions)
            }
        }
    };
}

library! {
    get_device_list = b"ibv_get_device_list": fn(*mut c_int) -> *mut *mut ibv_device;
    free_device_list = b"ibv_free_device_list": fn(*mut *mut ibv_device);
    get_device_name = b"ibv_get_device_name": fn(*mut ibv_device) -> *const c_char;
    open_device = b"ibv_open_device": fn(*mut ibv_device) -> *mut ibv_context;
    close_device = b"ibv_close_device": fn(*mut ibv_context) -> c_int;
    query_device = b"ibv_query_device": fn(*mut ibv_context, *mut ibv_device_attr) -> c_int;
    query_port = b"ibv_query_port": fn(*mut ibv_context, u8, *mut ibv_port_attr) -> c_int;
    // This function exists since rdma-core 34. Earlier versions provide the type of a GID only in files.
    query_gid_table = b"_ibv_query_gid_table": fn(*mut ibv_context, *mut ibv_gid_entry, usize, u32, usize) -> isize;
    alloc_pd = b"ibv_alloc_pd": fn(*mut ibv_context) -> *mut ibv_pd;
    dealloc_pd = b"ibv_dealloc_pd": fn(*mut ibv_pd) -> c_int;
    reg_mr_iova = b"ibv_reg_mr_iova": fn(*mut ibv_pd, *mut c_void, usize, u64, c_int) -> *mut ibv_mr;
    rereg_mr = b"ibv_rereg_mr": fn(*mut ibv_mr, c_int, *mut ibv_pd, *mut c_void, usize, c_int) -> c_int;
    dereg_mr = b"ibv_dereg_mr": fn(*mut ibv_mr) -> c_int;
    create_comp_channel = b"ibv_create_comp_channel": fn(*mut ibv_context) -> *mut ibv_comp_channel;
    destroy_comp_channel = b"ibv_destroy_comp_channel": fn(*mut ibv_comp_channel) -> c_int;
    create_cq = b"ibv_create_cq": fn(*mut ibv_context, c_int, *mut c_void, *mut ibv_comp_channel, c_int) -> *mut ibv_cq;
    resize_cq = b"ibv_resize_cq": fn(*mut ibv_cq, c_int) -> c_int;
    destroy_cq = b"ibv_destroy_cq": fn(*mut ibv_cq) -> c_int;
    get_cq_event = b"ibv_get_cq_event": fn(*mut ibv_comp_channel, *mut *mut ibv_cq, *mut *mut c_void) -> c_int;
    ack_cq_events = b"ibv_ack_cq_events": fn(*mut ibv_cq, c_uint);
    create_srq = b"ibv_create_srq": fn(*mut ibv_pd, *mut ibv_srq_init_attr) -> *mut ibv_srq;
    modify_srq = b"ibv_modify_srq": fn(*mut ibv_srq, *mut ibv_srq_attr, c_int) -> c_int;
    query_srq = b"ibv_query_srq": fn(*mut ibv_srq, *mut ibv_srq_attr) -> c_int;
    destroy_srq = b"ibv_destroy_srq": fn(*mut ibv_srq) -> c_int;
    create_qp = b"ibv_create_qp": fn(*mut ibv_pd, *mut ibv_qp_init_attr) -> *mut ibv_qp;
    modify_qp = b"ibv_modify_qp": fn(*mut ibv_qp, *mut ibv_qp_attr, c_int) -> c_int;
    query_qp = b"ibv_query_qp": fn(*mut ibv_qp, *mut ibv_qp_attr, c_int, *mut ibv_qp_init_attr) -> c_int;
    destroy_qp = b"ibv_destroy_qp": fn(*mut ibv_qp) -> c_int;
    create_ah = b"ibv_create_ah": fn(*mut ibv_pd, *mut ibv_ah_attr) -> *mut ibv_ah;
    destroy_ah = b"ibv_destroy_ah": fn(*mut ibv_ah) -> c_int;
    get_async_event = b"ibv_get_async_event": fn(*mut ibv_context, *mut ibv_async_event) -> c_int;
    ack_async_event = b"ibv_ack_async_event": fn(*mut ibv_async_event);
}

impl Library {
    /// Returns libibverbs from `file`, or the library that the dynamic linker finds. Each library is loaded once and
    /// stays loaded.
    pub(super) fn get(file: Option<&OsStr>) -> Result<&'static Self, SystemError> {
        static LOADED: Mutex<Vec<(OsString, &'static Library)>> = Mutex::new(Vec::new());
        let file = file.unwrap_or(OsStr::new(FILE));
        let mut loaded = LOADED.lock().ignore_poison();
        if let Some((_, library)) = loaded.iter().find(|(known, _)| known == file) {
            return Ok(library);
        }
        let library = &*Box::leak(Box::new(Self::load(file)?));
        loaded.push((file.to_owned(), library));
        Ok(library)
    }
}

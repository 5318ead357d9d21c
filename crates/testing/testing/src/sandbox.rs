//! Sandboxes, which refuse system calls.

use std::mem::offset_of;

/// Makes the kernel refuse an option of sockets with EPERM, to this thread and to those that it starts from now on. The
/// refusal lasts until they end.
///
/// # Panics
///
/// Panics if the kernel has no filters of system calls.
pub fn refuse_socket_option(option: i32) {
    refuse(libc::SYS_setsockopt, Some(option));
}

/// Makes the kernel refuse new threads and processes with EPERM, as [`refuse_socket_option`] does an option.
///
/// # Panics
///
/// Panics if the kernel has no filters of system calls.
pub fn refuse_threads() {
    refuse(libc::SYS_clone3, None);
    refuse(libc::SYS_clone, None);
}

/// Refuses a system call, or only its calls with this third argument.
fn refuse(call: libc::c_long, third: Option<i32>) {
    let step = |code: u32, jf, k| libc::sock_filter { code: code as u16, jt: 0, jf, k };
    let load = |at: usize| step(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, at as u32);
    let equals = |value: u32, jf| step(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, jf, value);
    let end = |action| step(libc::BPF_RET | libc::BPF_K, 0, action);
    // The lower half of an argument comes first or last, as the processor's byte order says.
    let upper_half = if cfg!(target_endian = "big") { size_of::<u32>() } else { 0 };
    let third_at = offset_of!(libc::seccomp_data, args) + 2 * size_of::<u64>() + upper_half;
    let third = third.map(|third| [load(third_at), equals(third as u32, 1)]);
    let mut steps =
        vec![load(offset_of!(libc::seccomp_data, nr)), equals(call as u32, if third.is_some() { 3 } else { 1 })];
    steps.extend(third.into_iter().flatten());
    steps.extend([end(libc::SECCOMP_RET_ERRNO | libc::EPERM as u32), end(libc::SECCOMP_RET_ALLOW)]);
    let program = libc::sock_fprog { len: steps.len() as u16, filter: steps.as_mut_ptr() };
    // SAFETY: both calls concern the calling thread alone, and the kernel copies the program, which is valid here.
    let [allowed, filtered] = unsafe {
        [
            libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0),
            libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program),
        ]
    };
    assert_eq!((allowed, filtered), (0, 0), "no filter: {}", std::io::Error::last_os_error());
}

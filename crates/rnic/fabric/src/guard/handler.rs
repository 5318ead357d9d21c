//! The handler of SIGSEGV and SIGBUS, and the program's handlers that it calls.
//!
//! The handler lands faults of the RNIC's copies. For all others, it calls the program's handler as the kernel would,
//! or takes the default action. All functions that a handler calls here are async-signal-safe.

use std::cell::Cell;
use std::ffi::{c_int, c_void};
use std::io;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicPtr, AtomicU64, AtomicUsize, Ordering};
use std::{mem, ptr};

use doorbell_rnic::GuardedCode;

use super::FAULTS;

/// A program's action for a signal, in pieces that a handler can read at any time.
///
/// A fault that comes while another thread changes the action may find pieces of both.
struct Program {
    handler: AtomicUsize,
    flags: AtomicI32,
    /// The first 64 signals of the set to block.
    mask: AtomicU64,
    /// Whether the program installed the handler by a system call in place of ours. Such a handler may call ours for a
    /// fault that it does not know, as Go's runtime does.
    may_call_ours: AtomicBool,
}

impl Program {
    const fn new() -> Self {
        Self {
            handler: AtomicUsize::new(libc::SIG_DFL),
            flags: AtomicI32::new(0),
            mask: AtomicU64::new(0),
            may_call_ours: AtomicBool::new(false),
        }
    }
}

static PROGRAMS: [Program; FAULTS.len()] = [const { Program::new() }; FAULTS.len()];

/// The action that a program asks for, in the format of `sigaction`.
pub type Action = libc::sigaction;

fn program(signal: c_int) -> Option<&'static Program> {
    FAULTS.iter().position(|&fault| fault as c_int == signal).map(|index| &PROGRAMS[index])
}

impl Program {
    fn set(&self, action: &Action) {
        self.mask.store(bits(&action.sa_mask), Ordering::Relaxed);
        self.flags.store(action.sa_flags, Ordering::Relaxed);
        self.handler.store(action.sa_sigaction, Ordering::Release);
    }

    fn get(&self) -> Action {
        // SAFETY: the structure consists of integers and optional functions, for which zero is a value.
        let mut action: Action = unsafe { mem::zeroed() };
        action.sa_sigaction = self.handler.load(Ordering::Acquire);
        action.sa_flags = self.flags.load(Ordering::Relaxed);
        let mask = self.mask.load(Ordering::Relaxed);
        for signal in (1..=64).filter(|signal| mask & (1 << (signal - 1)) != 0) {
            // SAFETY: the set is valid; a signal that does not exist is refused.
            unsafe { libc::sigaddset(&raw mut action.sa_mask, signal) };
        }
        action
    }
}

/// Returns the first 64 signals of a set.
fn bits(set: &libc::sigset_t) -> u64 {
    // SAFETY: the set is valid.
    let is_member = |signal: &c_int| unsafe { libc::sigismember(set, *signal) } == 1;
    (1..=64).filter(is_member).fold(0, |bits, signal| bits | 1 << (signal - 1))
}

type Sigaction = unsafe extern "C" fn(c_int, *const Action, *mut Action) -> c_int;

/// Calls the next function `sigaction` after this library: a preloaded library may define one of its own.
fn sigaction(signal: c_int, new: Option<&Action>, old: Option<&mut Action>) -> io::Result<()> {
    static REAL: AtomicPtr<c_void> = AtomicPtr::new(ptr::null_mut());
    let mut real = REAL.load(Ordering::Relaxed);
    if real.is_null() {
        // SAFETY: the name is a C string.
        real = unsafe { libc::dlsym(libc::RTLD_NEXT, c"sigaction".as_ptr()) };
        if real.is_null() {
            real = libc::sigaction as *mut c_void;
        }
        REAL.store(real, Ordering::Relaxed);
    }
    // SAFETY: the function of this name has this type.
    let real: Sigaction = unsafe { mem::transmute(real) };
    let (new, old) = (new.map_or(ptr::null(), ptr::from_ref), old.map_or(ptr::null_mut(), ptr::from_mut));
    // SAFETY: the structures outlive the call. The handler that this module installs keeps the rules of signal
    // handlers.
    match unsafe { real(signal, new, old) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Installs the handlers that are missing. Returns whether other code had replaced one of them.
pub(super) fn install() -> io::Result<bool> {
    if GuardedCode::own().is_none() {
        return Err(io::Error::new(io::ErrorKind::Unsupported, "this machine has no landing code"));
    }
    let mut replaced = false;
    for signal in FAULTS.map(|fault| fault as c_int) {
        // SAFETY: as in `Program::get`.
        let mut found: Action = unsafe { mem::zeroed() };
        sigaction(signal, None, Some(&mut found))?;
        if found.sa_sigaction == own_handler() {
            continue;
        }
        replaced = true;
        if let Some(program) = program(signal) {
            program.may_call_ours.store(super::has_handlers(), Ordering::Relaxed);
            program.set(&found);
        }
        // SAFETY: as in `Program::get`.
        let mut own: Action = unsafe { mem::zeroed() };
        own.sa_sigaction = own_handler();
        // The handler also lands a fault in a program's handler, so the signal is not blocked meanwhile.
        own.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK | libc::SA_NODEFER | libc::SA_RESTART;
        sigaction(signal, Some(&own), None)?;
    }
    if !super::has_handlers() {
        unblock_in_handlers();
    }
    Ok(replaced)
}

/// Unblocks the two signals in handlers of other signals, so that these handlers survive faults.
fn unblock_in_handlers() {
    for signal in (1..=libc::SIGRTMAX()).filter(|&signal| program(signal).is_none()) {
        // SAFETY: as in `Program::get`.
        let mut action: Action = unsafe { mem::zeroed() };
        // The C library refuses the signals that it keeps for itself.
        if sigaction(signal, None, Some(&mut action)).is_err() {
            continue;
        }
        let before = bits(&action.sa_mask);
        for fault in FAULTS {
            // SAFETY: the set is valid.
            unsafe { libc::sigdelset(&raw mut action.sa_mask, fault as c_int) };
        }
        if bits(&action.sa_mask) != before {
            let _ = sigaction(signal, Some(&action), None);
        }
    }
}

fn own_handler() -> usize {
    on_fault as *const () as usize
}

/// Exchanges the program's action for one of the two signals, as `sigaction` would without the handlers of this module.
///
/// Returns false if the handlers are not installed or the signal is another one. Then the caller uses the C library's
/// function.
pub fn exchange_action(signal: c_int, new: Option<&Action>, old: Option<&mut Action>) -> bool {
    let Some(program) = program(signal).filter(|_| super::has_handlers()) else { return false };
    let before = program.get();
    if let Some(new) = new {
        program.may_call_ours.store(false, Ordering::Relaxed);
        program.set(new);
    }
    if let Some(old) = old {
        *old = before;
    }
    true
}

extern "C" fn on_fault(signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
    // SAFETY: the kernel's arguments of a handler with SA_SIGINFO.
    unsafe {
        if !land(&*info, context) {
            pass_on(signal, info, context);
        }
    }
}

/// Makes a faulting copy of the RNIC continue at its landing. Returns false for all other faults.
///
/// # Safety
///
/// `context` is the context that the kernel passed to the handler.
#[cfg(target_arch = "x86_64")]
unsafe fn land(info: &libc::siginfo_t, context: *mut c_void) -> bool {
    /// `si_code` of a signal that the kernel sends without an address. Linux defines it; the crate libc does not.
    const SI_KERNEL: c_int = 0x80;
    let Some(code) = GuardedCode::own() else { return false };
    // SAFETY: the caller's promise.
    let registers = unsafe { &mut (*context.cast::<libc::ucontext_t>()).uc_mcontext.gregs };
    let at = |register: c_int| registers[register as usize] as usize;
    if info.si_code <= 0 || !(code.start..code.end).contains(&at(libc::REG_RIP)) {
        return false; // sent by a process, or a fault of other code
    }
    let (start, length) = (at(libc::REG_R8), at(libc::REG_R9));
    // SAFETY: the kernel reports a fault, which has an address.
    let offset = (unsafe { info.si_addr() } as usize).wrapping_sub(start);
    if info.si_code != SI_KERNEL && offset >= length {
        return false;
    }
    registers[libc::REG_RIP as usize] = code.landing as i64;
    true
}

#[cfg(not(target_arch = "x86_64"))]
unsafe fn land(_: &libc::siginfo_t, _: *mut c_void) -> bool {
    false
}

/// Takes the program's action for a signal.
///
/// # Safety
///
/// The arguments are those of the kernel for a handler with SA_SIGINFO.
unsafe fn pass_on(signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
    type Handler = unsafe extern "C" fn(c_int, *mut libc::siginfo_t, *mut c_void);
    let Some(program) = program(signal) else { return };
    let flags = program.flags.load(Ordering::Relaxed);
    // SAFETY: the kernel's argument.
    let is_sent = unsafe { (*info).si_code } <= 0;
    let handler = program.handler.load(Ordering::Acquire);
    if is_sent && handler == libc::SIG_IGN {
        return;
    }
    let may_call_ours = program.may_call_ours.load(Ordering::Relaxed);
    if handler == libc::SIG_DFL || handler == libc::SIG_IGN || (may_call_ours && PASSED_ON.get() == context) {
        // SAFETY: the kernel's argument.
        return unsafe { end_by_default(signal, is_sent, info) };
    }
    if flags & libc::SA_RESETHAND != 0 {
        program.handler.store(libc::SIG_DFL, Ordering::Release);
    }
    block(program.mask.load(Ordering::Relaxed));
    PASSED_ON.set(context);
    // SAFETY: the program declared that this is a handler. A handler without SA_SIGINFO ignores the other arguments,
    // which are in registers. The kernel restores the mask when this handler returns.
    unsafe { mem::transmute::<usize, Handler>(handler)(signal, info, context) };
    PASSED_ON.set(ptr::null_mut());
}

thread_local! {
    /// Context of the fault for which the program's handler is called. A handler that leaves by `longjmp` does not
    /// reset it, so it counts only if the handler may call ours.
    static PASSED_ON: Cell<*mut c_void> = const { Cell::new(ptr::null_mut()) };
}

/// Blocks the signals of a program's action, except the two that the handlers need.
fn block(mask: u64) {
    const KERNEL_SET_BYTES: usize = size_of::<u64>();
    let needed = FAULTS.iter().fold(0, |bits, &fault| bits | 1_u64 << (fault as c_int - 1));
    let mask = mask & !needed;
    // SAFETY: the kernel's set has this size. The C library's function may be replaced by a preloaded one.
    unsafe {
        libc::syscall(
            libc::SYS_rt_sigprocmask,
            libc::SIG_BLOCK,
            &raw const mask,
            ptr::null_mut::<u64>(),
            KERNEL_SET_BYTES,
        )
    };
}

/// Takes the default action, which ends the process, at the place of the fault.
///
/// # Safety
///
/// `info` is the kernel's argument.
unsafe fn end_by_default(signal: c_int, is_sent: bool, info: *mut libc::siginfo_t) {
    // SAFETY: as in `Program::get`.
    let default: Action = unsafe { mem::zeroed() };
    let _ = sigaction(signal, Some(&default), None);
    if is_sent {
        // Queues the signal again with the same information.
        // SAFETY: the kernel's argument, for the calling thread.
        unsafe { libc::syscall(libc::SYS_rt_tgsigqueueinfo, libc::getpid(), libc::gettid(), signal, info) };
    }
    // The instruction faults again when the handler returns.
}

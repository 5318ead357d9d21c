//! The handler of SIGSEGV and SIGBUS, and the program's actions for these signals.
//!
//! If the RNIC's copy code faults, the handler makes the thread continue at the landing of that code, from which the
//! copy returns an error. For all other faults, the handler calls the program's handler as the kernel would, or takes
//! the default action. The handler calls only async-signal-safe functions.

use std::cell::Cell;
use std::ffi::{c_int, c_void};
use std::io;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicPtr, AtomicU64, AtomicUsize, Ordering};
use std::{mem, ptr};

use doorbell_rnic::GuardedCode;

use super::FAULTS;

/// A program's action for a signal, in atomics that a signal handler can read at any time.
///
/// If a fault occurs while another thread changes the action, the handler may read a mix of the old and the new action.
struct Program {
    handler: AtomicUsize,
    flags: AtomicI32,
    /// The first 64 signals of `sa_mask`, one bit each.
    mask: AtomicU64,
    /// Whether the program has replaced the handler of this module, through a system call that this library does not
    /// see. The program's handler may then call the replaced handler for faults that it does not know, as Go's runtime
    /// does.
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

/// A program's action for a signal, in the format of `sigaction`.
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
            // SAFETY: the set is valid, and the function rejects signals that do not exist.
            unsafe { libc::sigaddset(&raw mut action.sa_mask, signal) };
        }
        action
    }
}

/// Returns the first 64 signals of a set, one bit each.
fn bits(set: &libc::sigset_t) -> u64 {
    // SAFETY: the set is valid.
    let is_member = |signal: &c_int| unsafe { libc::sigismember(set, *signal) } == 1;
    (1..=64).filter(is_member).fold(0, |bits, signal| bits | 1 << (signal - 1))
}

type Sigaction = unsafe extern "C" fn(c_int, *const Action, *mut Action) -> c_int;

/// Calls the C library's `sigaction`. A preloaded library that contains this code may define another `sigaction`, which
/// `RTLD_NEXT` skips.
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
    // SAFETY: the symbol `sigaction` is a function of this type.
    let real: Sigaction = unsafe { mem::transmute(real) };
    let (new, old) = (new.map_or(ptr::null(), ptr::from_ref), old.map_or(ptr::null_mut(), ptr::from_mut));
    // SAFETY: the structures outlive the call. The handler of this module calls only async-signal-safe functions.
    match unsafe { real(signal, new, old) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Installs the handler for SIGSEGV and SIGBUS, unless it is already installed. Returns whether it was missing for at
/// least one of the two signals.
pub(super) fn install() -> io::Result<bool> {
    if GuardedCode::own().is_none() {
        return Err(io::Error::new(
            io::ErrorKind::Unsupported,
            "a handler can land faults of the copy code only on x86-64",
        ));
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
        // The program's handler may run within this handler, and may use an RNIC whose copy faults. So the kernel must
        // not block the signal while this handler runs (SA_NODEFER).
        own.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK | libc::SA_NODEFER | libc::SA_RESTART;
        sigaction(signal, Some(&own), None)?;
    }
    if !super::has_handlers() {
        unblock_in_handlers();
    }
    Ok(replaced)
}

/// Removes SIGSEGV and SIGBUS from the masks of handlers of other signals, so that faults in these handlers do not end
/// the process.
fn unblock_in_handlers() {
    for signal in (1..=libc::SIGRTMAX()).filter(|&signal| program(signal).is_none()) {
        // SAFETY: as in `Program::get`.
        let mut action: Action = unsafe { mem::zeroed() };
        // The C library rejects signals that it reserves for itself.
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

/// Exchanges the program's action for SIGSEGV or SIGBUS, as `sigaction` would without the handlers of this module.
///
/// Returns false for other signals, or if the handlers are not installed. Then the caller must call the C library's
/// `sigaction`.
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
    // SAFETY: the kernel passed these arguments to a handler with SA_SIGINFO.
    unsafe {
        if !land(&*info, context) {
            pass_on(signal, info, context);
        }
    }
}

/// If the RNIC's copy code faulted, makes the thread continue at the landing of that code, from which the copy returns
/// an error. Returns false for all other faults.
///
/// # Safety
///
/// `context` is the context that the kernel passed to the handler.
#[cfg(target_arch = "x86_64")]
unsafe fn land(info: &libc::siginfo_t, context: *mut c_void) -> bool {
    /// `si_code` of a fault for which the kernel does not report the address. The crate libc does not define this
    /// constant.
    const SI_KERNEL: c_int = 0x80;
    let Some(code) = GuardedCode::own() else { return false };
    // SAFETY: the caller promises that `context` is the context that the kernel passed to the handler.
    let registers = unsafe { &mut (*context.cast::<libc::ucontext_t>()).uc_mcontext.gregs };
    let at = |register: c_int| registers[register as usize] as usize;
    if info.si_code <= 0 || !(code.start..code.end).contains(&at(libc::REG_RIP)) {
        return false; // a process sent the signal, or other code faulted
    }
    let (start, length) = (at(libc::REG_R8), at(libc::REG_R9));
    // SAFETY: the kernel raised this signal for a fault, so `info` contains an address.
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

/// Carries out the program's action for a signal.
///
/// # Safety
///
/// The arguments are those that the kernel passed to a handler with SA_SIGINFO.
unsafe fn pass_on(signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
    type Handler = unsafe extern "C" fn(c_int, *mut libc::siginfo_t, *mut c_void);
    let Some(program) = program(signal) else { return };
    let flags = program.flags.load(Ordering::Relaxed);
    // SAFETY: the caller promises that `info` comes from the kernel.
    let is_sent = unsafe { (*info).si_code } <= 0;
    let handler = program.handler.load(Ordering::Acquire);
    if is_sent && handler == libc::SIG_IGN {
        return;
    }
    let may_call_ours = program.may_call_ours.load(Ordering::Relaxed);
    if handler == libc::SIG_DFL || handler == libc::SIG_IGN || (may_call_ours && PASSED_ON.get() == context) {
        // SAFETY: the caller promises that `info` comes from the kernel.
        return unsafe { end_by_default(signal, is_sent, info) };
    }
    if flags & libc::SA_RESETHAND != 0 {
        program.handler.store(libc::SIG_DFL, Ordering::Release);
    }
    block(program.mask.load(Ordering::Relaxed));
    PASSED_ON.set(context);
    // SAFETY: the program registered this address as a handler. A handler without SA_SIGINFO ignores the second and
    // third argument, which are in registers. The kernel restores the signal mask when `on_fault` returns.
    unsafe { mem::transmute::<usize, Handler>(handler)(signal, info, context) };
    PASSED_ON.set(ptr::null_mut());
}

thread_local! {
    /// Context of the fault for which the program's handler is running. A handler that leaves by `longjmp` does not
    /// reset this value, so `pass_on` uses the value only if `may_call_ours` is true.
    static PASSED_ON: Cell<*mut c_void> = const { Cell::new(ptr::null_mut()) };
}

/// Blocks the signals in the mask of a program's action, except SIGSEGV and SIGBUS.
fn block(mask: u64) {
    const KERNEL_SET_BYTES: usize = size_of::<u64>();
    let needed = FAULTS.iter().fold(0, |bits, &fault| bits | 1_u64 << (fault as c_int - 1));
    let mask = mask & !needed;
    // SAFETY: the kernel's signal set has `KERNEL_SET_BYTES` bytes. The code makes the system call directly, since a
    // preloaded library may replace the C library's function.
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

/// Restores the default action, so that the signal ends the process at the place of the fault.
///
/// # Safety
///
/// `info` is the argument that the kernel passed to the handler.
unsafe fn end_by_default(signal: c_int, is_sent: bool, info: *mut libc::siginfo_t) {
    // SAFETY: as in `Program::get`.
    let default: Action = unsafe { mem::zeroed() };
    let _ = sigaction(signal, Some(&default), None);
    if is_sent {
        // A process has sent this signal. Queue the signal again with the same information.
        // SAFETY: the caller promises that `info` comes from the kernel. The signal goes to the calling thread.
        unsafe {
            let thread = libc::syscall(libc::SYS_gettid); // glibc has a function only since 2.30
            libc::syscall(libc::SYS_rt_tgsigqueueinfo, libc::getpid(), thread, signal, info)
        };
    }
    // If no process sent the signal, the faulting instruction faults again when the handler returns. Then the default
    // action ends the process.
}

//! Ends of a process that no handler of the C library sees: `_exit`, `exec`, `daemon`, and code after the last `atexit`
//! handler. The RNIC delays some acknowledgements until the program sends a response. Before these ends, the library
//! sends the delayed acknowledgements, since no response will come. (`exit` and `quick_exit` run the handlers that the
//! crate `doorbell_verbs` installs.)
//!
//! This module also defines the functions that start programs, whose arguments `launch.rs` reads, `pthread_exit` for
//! `main_thread.rs`, and `dlopen` for `others.rs`.

use std::ffi::c_int;

use doorbell_fabric::flush_before_exit;

use crate::process::explain;
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
use crate::process::launch::{self, Arguments, Environment, Launch, Program};
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
use crate::process::main_thread::thread_leaves;
use crate::process::next::Next;
use crate::process::others::{self, Look};
use crate::process::signals;
use crate::{cm, paths};

/// Ends the process at once.
#[unsafe(no_mangle)]
extern "C" fn _exit(status: c_int) -> ! {
    flush_before_exit();
    loop {
        // SAFETY: `exit_group` ends the process. `_exit` of the C library does nothing else.
        unsafe { libc::syscall(libc::SYS_exit_group, status) };
    }
}

/// Ends the process at once. `_Exit` is the C standard's name for `_exit`.
#[unsafe(no_mangle)]
extern "C" fn _Exit(status: c_int) -> ! {
    _exit(status)
}

/// Runs after all handlers that the program registered with `atexit`, since these handlers may still receive messages.
#[used]
#[unsafe(link_section = ".fini_array")]
static AT_THE_VERY_END: extern "C" fn() = {
    extern "C" fn at_the_very_end() {
        flush_before_exit();
        others::look(Look::Later);
    }
    at_the_very_end
};

/// Prepares explanations and looks up the replaced functions of the C library when this library is loaded.
#[used]
#[unsafe(link_section = ".init_array")]
static AT_LOADING: extern "C" fn() = {
    extern "C" fn at_loading() {
        explain::prepare();
        others::look(Look::AtLoading);
        for replaced in &REPLACED {
            replaced.find();
        }
        paths::find_all();
        paths::look_where_started();
        cm::find_next();
        signals::find_all();
    }
    at_loading
};

/// Effect of a call on the process.
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
#[derive(Clone, Copy)]
enum Effect {
    /// The process becomes the program (`exec`). The library must send delayed acknowledgements first.
    Becomes(Program, Environment),
    /// The process starts the program and continues.
    Starts(Program, Environment),
    /// A child continues (`daemon`), and the process ends inside the C library, which calls its own `_exit` and not the
    /// one of this library.
    Leaves,
    /// The calling thread ends.
    LeavesThread,
    /// The process loads a library.
    Loads,
}

#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
impl Effect {
    /// Prepares the process for the call.
    ///
    /// # Safety
    ///
    /// `frame` is the frame pointer of a function that `before_the_real_function!` defines.
    unsafe fn prepare(self, frame: *const usize) {
        if let Self::Becomes(program, environment) | Self::Starts(program, environment) = self {
            // SAFETY: the caller guarantees that `frame` is valid.
            unsafe { launch::watch(Launch { program, environment }, Arguments::new(frame)) };
        }
        match self {
            Self::Becomes(..) | Self::Leaves => {
                flush_before_exit();
            }
            Self::Starts(..) => {}
            Self::LeavesThread => thread_leaves(),
            // The library is not loaded yet. So a look before each call finds it at the next one, or at the end.
            // SAFETY: the caller guarantees that `frame` is valid. The first argument of `dlopen` is null or a C
            // string.
            Self::Loads => others::look_before_opening(unsafe { Arguments::new(frame).text(0) }),
        }
    }
}

/// Defines functions that prepare the process and then jump to the C library's function of the same name, with all
/// arguments. Some functions are variadic. Only assembly can pass on variadic arguments.
macro_rules! before_the_real_function {
    ($($index:literal $name:ident $text:literal $effect:expr;)*) => {
        static REPLACED: [Next; [$($index),*].len()] = [$(Next::new($text)),*];

        $(
            #[unsafe(naked)]
            #[unsafe(no_mangle)]
            unsafe extern "C" fn $name() {
                extern "C" fn prepare(frame: *const usize) -> *mut libc::c_void {
                    #[allow(unused_imports, reason = "some rows name no program")]
                    use {Effect::*, Environment::*, Program::*};
                    // SAFETY: `frame` is the frame pointer of the function below, whose arguments come from its caller.
                    unsafe { ($effect).prepare(frame) };
                    REPLACED[$index].get()
                }
                // The assembly saves the argument registers around the call of `prepare`, and aligns the stack for the
                // call. Then it restores both, so the real function finds stack and registers as the caller left them.
                #[cfg(target_arch = "x86_64")]
                core::arch::naked_asm!(
                    "push rbp",
                    "mov rbp, rsp",
                    "push rdi",
                    "push rsi",
                    "push rdx",
                    "push rcx",
                    "push r8",
                    "push r9",
                    "push rax",
                    "sub rsp, 8",
                    "mov rdi, rbp",
                    "call {prepare}",
                    "mov r11, rax",
                    "add rsp, 8",
                    "pop rax",
                    "pop r9",
                    "pop r8",
                    "pop rcx",
                    "pop rdx",
                    "pop rsi",
                    "pop rdi",
                    "pop rbp",
                    "jmp r11",
                    prepare = sym prepare,
                );
                #[cfg(target_arch = "aarch64")]
                core::arch::naked_asm!(
                    "stp x29, x30, [sp, #-80]!",
                    "stp x0, x1, [sp, #16]",
                    "stp x2, x3, [sp, #32]",
                    "stp x4, x5, [sp, #48]",
                    "stp x6, x7, [sp, #64]",
                    "mov x0, sp",
                    "bl {prepare}",
                    "mov x16, x0",
                    "ldp x0, x1, [sp, #16]",
                    "ldp x2, x3, [sp, #32]",
                    "ldp x4, x5, [sp, #48]",
                    "ldp x6, x7, [sp, #64]",
                    "ldp x29, x30, [sp], #80",
                    "br x16",
                    prepare = sym prepare,
                );
            }
        )*
    };
}

#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
before_the_real_function! {
    0 execve c"execve" Becomes(Path(0), Given(2));
    1 execv c"execv" Becomes(Path(0), Own);
    2 execvp c"execvp" Becomes(Name(0), Own);
    3 execvpe c"execvpe" Becomes(Name(0), Given(2));
    4 execl c"execl" Becomes(Path(0), Own);
    5 execlp c"execlp" Becomes(Name(0), Own);
    6 execle c"execle" Becomes(Path(0), BehindNull(1));
    7 fexecve c"fexecve" Becomes(Descriptor(0), Given(2));
    8 execveat c"execveat" Becomes(Below(1), Given(3));
    9 posix_spawn c"posix_spawn" Starts(Path(1), Given(5));
    10 posix_spawnp c"posix_spawnp" Starts(Name(1), Given(5));
    11 system c"system" Starts(Shell, Own);
    12 popen c"popen" Starts(Shell, Own);
    13 daemon c"daemon" Leaves;
    14 pthread_exit c"pthread_exit" LeavesThread;
    15 dlopen c"dlopen" Loads;
}

/// Other processors have no replacements. There, `exec` and `daemon` lose a delayed acknowledgement, and a program
/// whose main thread called `pthread_exit` does not end with its last thread.
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
static REPLACED: [Next; 0] = [];

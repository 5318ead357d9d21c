//! Signal handlers of the library. It handles SIGSEGV and SIGBUS only if the program asks for that.

use doorbell_verbs_conformance::common;

use common::*;
use doorbell_verbs::SendOperation;

/// Returns the addresses of the handlers of SIGSEGV and SIGBUS.
fn handlers() -> [usize; 2] {
    [libc::SIGSEGV, libc::SIGBUS].map(|signal| {
        // SAFETY: the structure consists of integers and optional functions, for which zero is a value. The call reads
        // the action, and changes nothing.
        unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            assert_eq!(libc::sigaction(signal, std::ptr::null(), &raw mut action), 0);
            action.sa_sigaction
        }
    })
}

#[test]
fn a_device_handles_no_faults_of_the_process_unless_asked() {
    let before = handlers();
    let (a, b) = Plan::rc().connect(&soft_pair());
    let (from, to) = (a.patterned(64, 1), b.memory(64));
    b.post_recv(1, &[to.sge(0, 64)]);
    a.post(2, SendOperation::Send, &[from.sge(0, 64)]);
    b.expect(1);
    a.expect(2);
    assert_eq!(handlers(), before);
    assert!(!doorbell_fabric::has_handlers());
}

//! Ports that `doorbell port` takes down and up while unmodified programs watch them.

use super::{Started, doorbell, on_doorbell, start};
use crate::shell::{command, output_of};

/// Program that opens the device, and prints the files of its port each time that they change.
const FILES: &str = "
import ctypes, time
verbs = ctypes.CDLL(None)
verbs.ibv_get_device_list.restype = ctypes.POINTER(ctypes.c_void_p)
verbs.ibv_open_device.argtypes = [ctypes.c_void_p]
verbs.ibv_open_device.restype = ctypes.c_void_p
assert verbs.ibv_open_device(verbs.ibv_get_device_list(None)[0])
port, before = '/sys/class/infiniband/doorbell0/ports/1/', None
while True:
    now = ', '.join(open(port + name).read().strip() for name in ['state', 'phys_state'])
    if now != before:
        print(now, flush=True)
    before = now
    time.sleep(0.01)
";

/// Orders the port of a program's device, and waits until the program has printed `expected` in full.
fn order(program: &mut Started, order: &str, expected: &str) -> Result<(), String> {
    let process = program.child.id().to_string();
    output_of(command(doorbell(), &["port", &process, order]))?;
    wait_for(program, expected)
}

/// Waits until the output of a program ends with `expected`.
fn wait_for(program: &mut Started, expected: &str) -> Result<(), String> {
    program.wait_until(|program| program.has_ended() || program.said().ends_with(expected))?;
    if program.said().ends_with(expected) {
        return Ok(());
    }
    Err(format!("the program ended before it printed {expected:?}:\n{}", program.said()))
}

/// Runs ibv_asyncwatch, which prints asynchronous events, and a program that reads sysfs.
pub(super) fn all() -> Result<(), String> {
    let mut watch = start(on_doorbell(&[], &["stdbuf", "-oL", "ibv_asyncwatch"]))?;
    watch.wait_until(|watch| watch.has_ended() || watch.said().contains("doorbell0: async event FD"))?;
    for (what, events) in [
        ("down", "event_type IBV_EVENT_PORT_ERR (10), port 1\n"),
        ("up", "event_type IBV_EVENT_PORT_ACTIVE (9), port 1\n  event_type IBV_EVENT_GID_CHANGE (18), port 1\n"),
        ("fatal", "event_type IBV_EVENT_DEVICE_FATAL (8), port 0\n"),
    ] {
        order(&mut watch, what, events)?;
    }
    drop(watch);
    let mut files = start(on_doorbell(&[], &["python3", "-c", FILES]))?;
    wait_for(&mut files, "4: ACTIVE, 5: LinkUp\n")?;
    for (what, state) in
        [("down", "1: DOWN, 3: Disabled\n"), ("up", "4: ACTIVE, 5: LinkUp\n"), ("fatal", "1: DOWN, 3: Disabled\n")]
    {
        order(&mut files, what, state)?;
    }
    Ok(())
}

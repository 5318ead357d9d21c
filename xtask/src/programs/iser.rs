//! iSCSI over RDMA: Debian's tgt as the target, and QEMU's tools with libiscsi as the initiator.

use std::fs;
use std::path::Path;
use std::process::{Command, id};
use std::time::{Duration, Instant};

use super::transfers::{UNANSWERED, Way, each_way, expect};
use super::{PATIENCE, Started, on_doorbell, ports, start};
use crate::shell::{command, output_of, run};
use crate::test::StepEnd;
use crate::{peers, place};

const TARGET: &str = "iqn.2026-11.test:disk";
const INITIATOR: &str = "iqn.2026-11.test:host";

/// Number of requests to the disk, and their bytes. libiscsi has buffers of 256 KiB, and writes beyond their ends if a
/// request is longer.
const REQUESTS: u8 = 64;
const BYTES: usize = 128 * 1024;

/// Port of the target over RDMA, free in a network of its own. The program tgt keeps it in a signed variable of 16
/// bits. So it cannot listen on the ports above 32767, from which a free port of the system would come.
const PORT: &str = "3260";

/// Address of the target over TCP, which tgt always has.
const TCP: &str = "portal=127.0.0.1:3261";

/// Folder of tgt's control sockets.
const SOCKETS: &str = "/var/run/tgtd";

/// Time for which the initiator logs in and reads before the target is killed. All its reads take seconds.
const SOME_READS: Duration = Duration::from_millis(700);

/// Runs the target and the initiator. Only root can create the control socket of tgt, and a network for its port.
pub(crate) fn all() -> StepEnd {
    if !peers::is_root() {
        return StepEnd::LeftOut("tgt needs root".to_owned());
    }
    peers::install_for_iser().and_then(|()| each_way("iSER", disk)).into()
}

/// A running target with one disk, which a file backs.
struct Target {
    program: Started,
    /// Number of the control socket.
    control: String,
}

impl Target {
    fn new(disk: &Path, way: Way) -> Result<Self, String> {
        fs::create_dir_all(SOCKETS).map_err(|error| format!("{SOCKETS}: {error}"))?;
        // tgt takes 15 bits, and 0 is the number of the system's own tgt.
        let control = (1 + id() % 0x7fff).to_string();
        // The pool of buffers has 1 GiB by default.
        let iser = format!("port={PORT},pool_sz_mb=64");
        let words = ["tgtd", "-f", "--iser", &iser, "--iscsi", TCP, "-C", &control];
        let mut own = Self { program: start(on_doorbell(way.options(), &words))?, control };
        ports::wait_until_listening(PORT, &mut own.program)?;
        own.order(&["--op", "new", "--mode", "target", "-T", TARGET])?;
        own.order(&["--op", "new", "--mode", "logicalunit", "--lun", "1", "-b", &disk.to_string_lossy()])?;
        // Both the address and the name of an initiator must be allowed.
        own.order(&["--op", "bind", "--mode", "target", "-I", "ALL"])?;
        own.order(&["--op", "bind", "--mode", "target", "-Q", INITIATOR])?;
        Ok(own)
    }

    fn order(&self, words: &[&str]) -> Result<(), String> {
        let all = [&["-C", &self.control, "--lld", "iser", "--tid", "1"][..], words].concat();
        run(command("tgtadm", &all))
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        for suffix in ["", ".lock"] {
            // The file may be missing.
            let _ = fs::remove_file(format!("{SOCKETS}/socket.{}{suffix}", self.control));
        }
    }
}

/// Writes and reads the disk, and compares all bytes with those of the file. Or kills the target while the initiator
/// reads.
fn disk(way: Way) -> Result<(), String> {
    let folder = place::own_file("iser");
    let path = folder.join("disk.img");
    let failed = |error: std::io::Error| format!("{}: {error}", path.display());
    fs::create_dir_all(&folder)
        .and_then(|()| fs::write(&path, vec![0_u8; usize::from(REQUESTS) * BYTES]))
        .map_err(failed)?;
    let target = Target::new(&path, way)?;
    let options =
        format!("driver=iscsi,transport=iser,portal=127.0.0.1:{PORT},target={TARGET},lun=1,initiator-name={INITIATOR}");
    if way == Way::Killed {
        return killed(target, &options, way);
    }
    // Each request has a byte of its own.
    let write = |number: u8| format!("write -P {} {} {BYTES}", number + 1, usize::from(number) * BYTES);
    let read = |number: u8| format!("read -P {} {} {BYTES}", number + 1, usize::from(number) * BYTES);
    let orders: Vec<String> = (0..REQUESTS).map(write).chain((0..REQUESTS).map(read)).collect();
    let said = start(qemu_io(&options, &orders, way))?.finish(PATIENCE)?;
    let right = said.matches(&format!("{BYTES}/{BYTES} bytes")).count();
    if right != orders.len() || said.contains("verification failed") {
        return Err(format!("{right} of {} requests are right:\n{said}", orders.len()));
    }
    let expected: Vec<u8> = (0..REQUESTS).flat_map(|number| vec![number + 1; BYTES]).collect();
    if fs::read(&path).map_err(failed)? != expected {
        return Err("the file of the disk has wrong bytes".to_owned());
    }
    let back = folder.join("back.img");
    let (from, to) = (format!("if={options}"), format!("of={}", back.display()));
    let words = ["qemu-img", "dd", "--image-opts", "-O", "raw", &from, &to, &format!("bs={BYTES}")];
    output_of(on_doorbell(way.options(), &words))?;
    if fs::read(&back).map_err(failed)? != expected {
        return Err("qemu-img has read wrong bytes".to_owned());
    }
    drop(target);
    fs::remove_dir_all(&folder).map_err(failed)
}

fn qemu_io(options: &str, orders: &[String], way: Way) -> Command {
    let mut own = on_doorbell(way.options(), &["qemu-io", "--image-opts", options]);
    own.args(orders.iter().flat_map(|order| ["-c", order.as_str()]));
    own
}

/// Kills the target while the initiator reads. libiscsi then tries to reconnect forever, so the library's message shows
/// that the queue pair has died.
fn killed(mut target: Target, options: &str, way: Way) -> Result<(), String> {
    let orders = vec![format!("read -q 0 {BYTES}"); 20_000];
    let mut initiator = start(qemu_io(options, &orders, way))?;
    target.program.wait_until(|target| target.said().contains("established") || target.has_ended())?;
    std::thread::sleep(SOME_READS);
    if initiator.has_ended() {
        return Err(format!("the initiator has ended: {}", initiator.said()));
    }
    drop(target);
    let begun = Instant::now();
    initiator.wait_until(|initiator| initiator.said().contains(UNANSWERED) || initiator.has_ended())?;
    expect(initiator.said(), UNANSWERED).map(drop).map_err(|why| format!("after {:?}: {why}", begun.elapsed()))
}

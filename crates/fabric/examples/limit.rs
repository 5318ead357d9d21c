//! Prints what this machine's kernel gives for RoCE v2's datagrams without an RNIC.

use std::io;
use std::process::Command;

use doorbell_fabric::limit::{LimitOptions, child_main, measure};

const CHILD: &str = "--child";

fn main() -> io::Result<()> {
    let mut arguments = std::env::args().skip(1);
    if arguments.next().as_deref() == Some(CHILD) {
        return child_main(&arguments.next().unwrap_or_default());
    }
    let options = LimitOptions::default();
    let mut child = Command::new(std::env::current_exe()?);
    child.args([CHILD, &options.port.to_string()]);
    let report = measure(child, &options)?;
    println!("half a round trip, spinning: {} ns", report.ping_pong_ns);
    println!("half a round trip, sleeping: {} ns", report.ping_pong_blocking_ns);
    println!("receive buffer: {} bytes", report.receive_buffer_bytes);
    for result in &report.results {
        let (slowest, fastest) = result.datagrams_per_s_spread;
        println!(
            "frames of {} bytes, {} per send: {:.2} M/s ({:.2} to {:.2}), {:.3} GB/s, {:.1} % received",
            result.frame_bytes,
            result.segments,
            result.datagrams_per_s / 1e6,
            slowest / 1e6,
            fastest / 1e6,
            result.bytes_per_s / 1e9,
            result.received_share * 100.0,
        );
    }
    Ok(())
}

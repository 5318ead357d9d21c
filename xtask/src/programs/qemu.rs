//! QEMU's live migration. A guest that counts moves from one process to another process. The memory of the guest must
//! stay equal, and no number of its count may be missing.
//!
//! The guest is a boot sector. It writes its counter to its debug console, in hexadecimal digits, one line for each
//! number. It also writes the counter to 128 pages from 0x10000 on, in turn, so that pages change during the migration.
//! Half of its memory holds random bytes.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::Started;
use super::page::Run;

/// Size of the guest's memory. The commands in the page contain the same size.
const MEMORY_BYTES: usize = 128 << 20;
/// Address of the random bytes in the guest's memory. The commands in the page contain the same address.
const RANDOM_AT: usize = 0x100_0000;
const RANDOM_BYTES: usize = 64 << 20;
/// Time after which QEMU counts as hanging. No wait takes this long, even on a busy machine.
const PATIENCE: Duration = Duration::from_secs(180);
/// Bandwidth limit of the migration. No migration is this fast.
const MOST_BYTES_PER_SECOND: u64 = 100_000_000_000;
const DISK_BYTES: u64 = 1_474_560;

/// Migrates with registration of each memory region before it is sent.
pub(crate) fn migrate(run: &Run<'_>) -> Result<String, String> {
    migrate_with(run, false)
}

/// Migrates with registration of all memory at the start.
pub(crate) fn migrate_pinned(run: &Run<'_>) -> Result<String, String> {
    migrate_with(run, true)
}

fn migrate_with(run: &Run<'_>, pin: bool) -> Result<String, String> {
    let file = |name: &str| run.folder.join(name);
    let failed = |error: std::io::Error| format!("the guest's files could not be written: {error}");
    fs::write(file("guest.img"), boot_sector()).map_err(failed)?;
    fs::File::options()
        .write(true)
        .open(file("guest.img"))
        .and_then(|disk| disk.set_len(DISK_BYTES))
        .map_err(failed)?;
    let random = fs::File::open("/dev/urandom").and_then(|from| {
        std::io::copy(&mut from.take(RANDOM_BYTES as u64), &mut fs::File::create(file("random.bin"))?)
    });
    random.map_err(failed)?;

    let mut destination = run.server()?;
    let mut source = run.client()?;
    let outcome = migrate_between(run, pin);
    let says = |name: &str, program: &mut Started| format!("the {name}: {}", program.said());
    outcome.map_err(|why| format!("{why}\n{}\n{}", says("source", &mut source), says("destination", &mut destination)))
}

fn migrate_between(run: &Run<'_>, pin: bool) -> Result<String, String> {
    let file = |name: &str| run.folder.join(name);
    let mut destination = Monitor::connect(&file("destination.sock"))?;
    let mut source = Monitor::connect(&file("source.sock"))?;
    wait_for_numbers(&file("source.txt"))?;
    if pin {
        let capability = json!({ "capabilities": [{ "capability": "rdma-pin-all", "state": true }] });
        source.ask("migrate-set-capabilities", capability)?;
    }
    source.ask("migrate-set-parameters", json!({ "max-bandwidth": MOST_BYTES_PER_SECOND }))?;
    let to = run.word_after("-incoming").ok_or("the destination's command has no -incoming")?;
    source.ask("migrate", json!({ "uri": to }))?;
    let migrated = source.wait_for("query-migrate", |answer| {
        matches!(answer["status"].as_str(), Some("completed" | "failed" | "cancelled"))
    })?;
    if migrated["status"] != "completed" {
        return Err(format!("the migration did not succeed: {migrated}"));
    }

    // The guest is stopped in both processes now.
    destination.wait_for("query-status", |answer| answer["status"] == "paused")?;
    for (monitor, name) in [(&mut source, "source.memory"), (&mut destination, "destination.memory")] {
        monitor.ask("pmemsave", json!({ "val": 0, "size": MEMORY_BYTES, "filename": name }))?;
    }
    let read = |name: &str| fs::read(file(name)).map_err(|error| format!("{name}: {error}"));
    let (was, is) = (read("source.memory")?, read("destination.memory")?);
    // The search for the first different byte takes seconds, so it runs only if the memories differ.
    if was != is {
        let at = was.iter().zip(&is).position(|(was, is)| was != is).unwrap_or_default();
        return Err(format!("the guest's memory differs from {at:#x} on"));
    }
    let random = read("random.bin")?;
    if was.len() != MEMORY_BYTES || is.get(RANDOM_AT..RANDOM_AT + RANDOM_BYTES) != Some(&random[..]) {
        return Err("the guest's memory does not hold its random bytes".to_owned());
    }

    destination.ask("cont", json!({}))?;
    wait_for_numbers(&file("destination.txt"))?;
    let text = |name: &str| fs::read_to_string(file(name)).map_err(|error| format!("{name}: {error}"));
    // The source may have written the begin of a line, and the destination its end. So join both outputs first.
    let counted = text("source.txt")? + &text("destination.txt")?;
    let complete = counted.rfind('\n').map_or("", |end| &counted[..end]);
    for (expected, line) in (1_u32..).zip(complete.lines()) {
        if u32::from_str_radix(line, 16) != Ok(expected) {
            return Err(format!("the guest counted {line:?}, expected {expected:08x}"));
        }
    }
    let number = |name: &str| migrated[name].as_f64().ok_or_else(|| format!("QEMU reports no {name}: {migrated}"));
    let megabits = migrated["ram"]["mbps"].as_f64().ok_or_else(|| format!("QEMU reports no throughput: {migrated}"))?;
    Ok(format!("total-time {} ms\ndowntime {} ms\nmbps {megabits}\n", number("total-time")?, number("downtime")?))
}

/// Waits until the guest has counted to at least three.
fn wait_for_numbers(path: &Path) -> Result<(), String> {
    let until = Instant::now() + PATIENCE;
    while fs::read_to_string(path).unwrap_or_default().lines().count() < 4 {
        if Instant::now() > until {
            return Err(format!("the guest does not count in {}", path.display()));
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    Ok(())
}

/// Connection to the monitor of QEMU, which exchanges lines of JSON.
struct Monitor {
    stream: BufReader<UnixStream>,
}

impl Monitor {
    fn connect(path: &Path) -> Result<Self, String> {
        let until = Instant::now() + PATIENCE;
        let stream = loop {
            match UnixStream::connect(path) {
                Ok(stream) => break stream,
                Err(error) if Instant::now() > until => return Err(format!("{}: {error}", path.display())),
                Err(_) => std::thread::sleep(Duration::from_millis(10)),
            }
        };
        stream.set_read_timeout(Some(PATIENCE)).map_err(|error| error.to_string())?;
        let mut monitor = Self { stream: BufReader::new(stream) };
        monitor.line()?; // the greeting of QEMU
        monitor.ask("qmp_capabilities", json!({}))?;
        Ok(monitor)
    }

    fn line(&mut self) -> Result<Value, String> {
        let mut line = String::new();
        self.stream.read_line(&mut line).map_err(|error| format!("QEMU does not answer: {error}"))?;
        serde_json::from_str(&line).map_err(|error| format!("QEMU answers {line:?}: {error}"))
    }

    fn ask(&mut self, what: &str, arguments: Value) -> Result<Value, String> {
        let line = format!("{}\n", json!({ "execute": what, "arguments": arguments }));
        self.stream.get_mut().write_all(line.as_bytes()).map_err(|error| format!("{what}: {error}"))?;
        loop {
            let answer = self.line()?;
            if let Some(result) = answer.get("return") {
                return Ok(result.clone());
            }
            if let Some(error) = answer.get("error") {
                return Err(format!("{what}: {error}"));
            }
            // A line without `return` and `error` is an event. Ignore it.
        }
    }

    /// Repeats a query until `is_meant` accepts the answer.
    fn wait_for(&mut self, what: &str, is_meant: impl Fn(&Value) -> bool) -> Result<Value, String> {
        let until = Instant::now() + PATIENCE;
        loop {
            let answer = self.ask(what, json!({}))?;
            if is_meant(&answer) {
                return Ok(answer);
            }
            if Instant::now() > until {
                return Err(format!("{what} still answers {answer}"));
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

/// Returns the boot sector with the guest's code. The firmware starts this 16-bit code at 0x7c00.
fn boot_sector() -> Vec<u8> {
    let mut code = vec![
        0x31, 0xc0, // xor ax, ax
        0x8e, 0xd8, // mov ds, ax
        0x66, 0x31, 0xdb, // xor ebx, ebx
    ];
    let next_number = code.len();
    code.extend([
        0x66, 0x43, // inc ebx
        // Next of 128 pages.
        0x89, 0xd8, // mov ax, bx
        0xc1, 0xe0, 0x08, // shl ax, 8
        0x25, 0x00, 0x7f, // and ax, 0x7f00
        0x05, 0x00, 0x10, // add ax, 0x1000
        0x8e, 0xc0, // mov es, ax
        0x26, 0x66, 0x89, 0x1e, 0x00, 0x00, // mov [es:0], ebx
        0xb9, 0x08, 0x00, // mov cx, 8
        0x66, 0x89, 0xda, // mov edx, ebx
    ]);
    let next_digit = code.len();
    code.extend([
        0x66,
        0xc1,
        0xc2,
        0x04, // rol edx, 4
        0x88,
        0xd0, // mov al, dl
        0x24,
        0x0f, // and al, 15
        0x04,
        b'0', // add al, '0'
        0x3c,
        b'9' + 1, // cmp al, '9' + 1
        0x72,
        0x02, // jb over the next
        0x04,
        b'a' - b'9' - 1, // add al, 'a' - '9' - 1
        0xe6,
        0xe9, // out 0xe9, al: the debug console
        0xe2, // loop next_digit
    ]);
    code.push(back_to(next_digit, code.len()));
    code.extend([
        0xb0, b'\n', // mov al, '\n'
        0xe6, 0xe9, // out 0xe9, al
        // Delay of about a millisecond.
        0x66, 0xb9, 0x00, 0x00, 0x01, 0x00, // mov ecx, 0x10000
        0x67, 0xe2, 0xfd, // loop here, with ecx
        0xeb, // jmp next_number
    ]);
    code.push(back_to(next_number, code.len()));
    code.resize(510, 0);
    code.extend([0x55, 0xaa]);
    code
}

/// Returns the distance of a short jump back to `place`. The last byte of the jump is at `from`.
fn back_to(place: usize, from: usize) -> u8 {
    (place as i64 - from as i64 - 1) as u8
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_boot_sector_has_its_size_and_signature() {
        let sector = boot_sector();
        assert_eq!(sector.len(), 512);
        assert_eq!(sector[510..], [0x55, 0xaa]);
        // A jump instruction of two bytes that jumps to itself.
        assert_eq!(back_to(0, 1), 0xfe);
    }
}

//! Tests in which publisher and reader are two processes, and tests of the files that a killed publisher leaves.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};

use doorbell_counters::{
    AskError, Common, DIRECTORY_VARIABLE, Monitor, Name, PortReply, PortRequest, Published, PublishedPort,
    PublishedSource, Publisher, Reading, Sample, Set, Source,
};
use doorbell_testing::in_own_process;
use nix::sys::resource::{Resource, getrlimit, setrlimit};

/// Environment variable with the address of the device to publish. It is set in the publishing process.
const CHILD: &str = "DOORBELL_TEST_PUBLISHER";

const NAMES: [&str; 3] = ["tx_vport_rdma_unicast_packets", "tx_vport_rdma_unicast_bytes", "of_a_newer_version"];

fn publisher(address: &str) -> Publisher {
    let device = Published { name: "doorbell0", address: address.parse().unwrap(), udp_port: 4791, counters: &NAMES };
    Publisher::new(&device).unwrap()
}

/// Runs the publishing process. It executes the commands on its standard input, one per line.
fn be_the_publisher(address: &str) {
    let mut publisher = publisher(address);
    println!("ready");
    for line in std::io::stdin().lock().lines() {
        let line = line.unwrap();
        let mut words = line.split(' ');
        match words.next().unwrap() {
            "publish" => {
                let value: u64 = words.next().unwrap().parse().unwrap();
                publisher.publish(&[value, 100 * value, value]);
            }
            "race" => {
                println!("racing");
                // Wait until the parent process kills this process.
                (0..u64::MAX).for_each(|value| publisher.publish(&[value; NAMES.len()]));
            }
            _ => break,
        }
        println!("done");
    }
    drop(publisher);
    println!("closed");
    let _ = std::io::stdin().read_line(&mut String::new());
}

struct Peer {
    child: Child,
    commands: ChildStdin,
    answers: BufReader<ChildStdout>,
}

impl Peer {
    fn start(test: &str, address: &str) -> Self {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", &format!("published::{test}"), "--nocapture"]).env(CHILD, address);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let commands = child.stdin.take().unwrap();
        let answers = BufReader::new(child.stdout.take().unwrap());
        let mut peer = Self { child, commands, answers };
        peer.wait_for("ready");
        peer
    }

    fn wait_for(&mut self, answer: &str) {
        let mut line = String::new();
        while !line.trim_end().ends_with(answer) {
            line.clear();
            assert!(self.answers.read_line(&mut line).unwrap() > 0, "the peer ended before it printed {answer:?}");
        }
    }

    fn tell(&mut self, command: &str, answer: &str) {
        writeln!(self.commands, "{command}").unwrap();
        self.wait_for(answer);
    }

    fn kill(&mut self) {
        self.child.kill().unwrap(); // SIGKILL
        self.child.wait().unwrap();
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Runs each test in a separate process with its own directory. The environment passes the path of the directory to
/// that process and to the publishing process that the test starts.
fn in_own_directory(body: impl FnOnce(&Path)) {
    if let Ok(address) = std::env::var(CHILD) {
        return be_the_publisher(&address);
    }
    let root = tempfile::tempdir().unwrap();
    let prepare = |command: &mut Command| _ = command.env(DIRECTORY_VARIABLE, root.path().join("counters"));
    in_own_process(prepare, || body(Path::new(&std::env::var_os(DIRECTORY_VARIABLE).unwrap())));
}

fn read(source: &mut PublishedSource) -> (Vec<Sample>, Vec<String>) {
    let mut reading = Reading::default();
    source.read(&mut reading);
    (reading.samples, reading.notes.into_iter().map(|note| note.text).collect())
}

fn only(samples: Vec<Sample>) -> Sample {
    let [sample] = <[Sample; 1]>::try_from(samples).unwrap();
    sample
}

fn value(sample: &Sample, name: &str) -> u64 {
    sample.raw[&Name::new(Set::Published, name)]
}

fn files(directory: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(directory).unwrap();
    entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
}

#[test]
fn another_process_sees_published_counters() {
    in_own_directory(|directory| {
        let mut source = PublishedSource::new();
        assert!(read(&mut source).0.is_empty(), "a missing directory must give no note");
        let mut peer = Peer::start("another_process_sees_published_counters", "127.0.0.9");
        let sample = only(read(&mut source).0);
        assert_eq!(sample.identity.label, "doorbell0@127.0.0.9");
        assert_eq!(sample.identity.pid, Some(peer.child.id()));
        assert!(sample.identity.program.as_ref().unwrap().starts_with("suite"));
        assert_eq!(sample.identity.gid, Some("::ffff:127.0.0.9".parse().unwrap()));
        assert_eq!(value(&sample, "of_a_newer_version"), 0);
        peer.tell("publish 7", "done");
        let sample = only(read(&mut source).0);
        assert_eq!(value(&sample, "of_a_newer_version"), 7);
        assert_eq!(Common::TxBytes.total(&sample.raw), Some(700));
        assert_eq!(Common::RxBytes.total(&sample.raw), None);
        // When the device closes, its file is removed. A reader that has already opened the file gets the last values.
        peer.tell("publish 9", "done");
        peer.tell("close", "closed");
        assert!(files(directory).is_empty());
        let sample = only(read(&mut source).0);
        assert!(sample.ended);
        assert_eq!(value(&sample, "of_a_newer_version"), 9);
        assert!(read(&mut source).0.is_empty());
        assert_eq!(directory.metadata().unwrap().permissions().mode() & 0o777, 0o700);
    });
}

#[test]
fn files_of_a_killed_process_are_recognised_and_removed() {
    in_own_directory(|directory| {
        let mut source = PublishedSource::new();
        let mut peer = Peer::start("files_of_a_killed_process_are_recognised_and_removed", "127.0.0.9");
        peer.tell("publish 5", "done");
        assert!(!only(read(&mut source).0).ended);
        peer.kill();
        assert_eq!(files(directory).len(), 1, "a killed process removed its file");
        let sample = only(read(&mut source).0);
        assert!(sample.ended);
        assert_eq!(value(&sample, "of_a_newer_version"), 5);
        assert!(files(directory).is_empty());
        // If no reader removes the file, the next device that opens removes it.
        let mut peer = Peer::start("files_of_a_killed_process_are_recognised_and_removed", "127.0.0.9");
        peer.kill();
        std::fs::write(directory.join(format!(".new-{}-1-1", peer.child.id())), "half").unwrap();
        let own = publisher("127.0.0.10");
        assert_eq!(files(directory).len(), 1, "{:?}", files(directory));
        drop(own);
        assert!(files(directory).is_empty());
    });
}

#[test]
fn values_belong_together_while_they_are_written() {
    in_own_directory(|_| {
        let mut source = PublishedSource::new();
        let mut peer = Peer::start("values_belong_together_while_they_are_written", "127.0.0.9");
        peer.tell("race", "racing");
        let (mut last, mut taken) = (0, 0);
        for _ in 0..2_000 {
            let (samples, notes) = read(&mut source);
            let Some(sample) = samples.first() else {
                // The publisher writes continuously, so all attempts of the reader may fail. A note then states the
                // reason.
                assert!(notes[0].contains("stopped during a write"), "{notes:?}");
                continue;
            };
            let values: Vec<u64> = sample.raw.values().copied().collect();
            assert!(values.iter().all(|&value| value == values[0] && value >= last), "{values:?} after {last}");
            (last, taken) = (values[0], taken + 1);
        }
        assert!(taken > 0 && last > 0);
    });
}

#[test]
fn damaged_files_are_reported_and_skipped() {
    in_own_directory(|directory| {
        let mut own = publisher("127.0.0.9");
        let whole = std::fs::read(directory.join(&files(directory)[0])).unwrap();
        own.publish(&[3; 3]);
        let writing = |mut bytes: Vec<u8>| {
            // Behind the values are the two words for orders to the port.
            let values = bytes.len() - (2 + NAMES.len() + 2) * 8;
            bytes[values..values + 8].copy_from_slice(&1_u64.to_ne_bytes());
            bytes
        };
        for (name, bytes, said) in [
            ("cut.counters", whole[..whole.len() - 8].to_vec(), "but its header states"),
            ("empty.counters", Vec::new(), "less than a header"),
            ("garbage.counters", b"\xff".repeat(4096), "does not begin with"),
            ("long.counters", vec![0; 1 << 20], "longer than 65536 B"),
            ("odd.counters", writing(whole.clone()), "stopped during a write"),
        ] {
            let path = directory.join(name);
            std::fs::write(&path, bytes).unwrap();
            let (samples, notes) = read(&mut PublishedSource::new());
            assert_eq!(value(&only(samples), "of_a_newer_version"), 3, "the other counters were not read");
            assert_eq!(notes.len(), 1, "{notes:?}");
            assert!(notes[0].contains(name) && notes[0].contains(said), "{notes:?}");
            std::fs::remove_file(path).unwrap();
        }
        // The file shrinks after it was opened.
        let mut source = PublishedSource::new();
        std::fs::write(directory.join("other.counters"), &whole).unwrap();
        assert_eq!(read(&mut source).0.len(), 2);
        std::fs::write(directory.join("other.counters"), "").unwrap();
        let (samples, notes) = read(&mut source);
        assert_eq!((samples.len(), notes.len()), (1, 1), "{notes:?}");
        assert!(notes[0].contains("cannot be read"), "{notes:?}");
        drop(own);
    });
}

#[test]
fn names_of_devices_and_of_files_may_be_anything() {
    in_own_directory(|directory| {
        let plain = "doorbell0@127.0.0.9";
        // Without the second file, the fourth file would get this label: the first file has the label `plain`, and the
        // third file has `plain` with the process number.
        let taken = format!("{plain}#{}.4", std::process::id());
        let names = ["doorbell0", &taken, "doorbell0", "doorbell0"];
        let publish = |name| {
            let address = [127, 0, 0, 9].into();
            Publisher::new(&Published { name, address, udp_port: 4791, counters: &NAMES }).unwrap()
        };
        let _publishers = names.map(publish);
        let mut paths: Vec<_> = files(directory).into_iter().map(|name| directory.join(name)).collect();
        paths.sort();
        // Hide the address in the second file. Without an address, the label of that file is its name, `taken`.
        let mut bytes = std::fs::read(&paths[1]).unwrap();
        let at = bytes.windows(8).position(|text| text == b"address ").unwrap();
        bytes[at] = b'A';
        std::fs::write(&paths[1], bytes).unwrap();
        std::fs::write(directory.join("\x1b[2J.counters"), "damaged").unwrap();
        let (samples, notes) = read(&mut PublishedSource::new());
        assert_eq!(notes, [] as [String; 0], "notes must not show a file name with control characters");
        let labels: std::collections::BTreeSet<&str> =
            samples.iter().map(|sample| sample.identity.label.as_str()).collect();
        assert!(labels.contains(taken.as_str()), "{labels:?}");
        assert_eq!(labels.len(), names.len(), "{labels:?}");
    });
}

#[test]
fn a_directory_holds_a_bounded_number_of_files() {
    in_own_directory(|directory| {
        drop(publisher("127.0.0.9"));
        for file in 0..doorbell_counters::MAX_FILES {
            std::fs::write(directory.join(format!("{file}.counters")), "").unwrap();
        }
        let device = Published { name: "doorbell0", address: [127, 0, 0, 9].into(), udp_port: 4791, counters: &NAMES };
        let error = Publisher::new(&device).unwrap_err().to_string();
        assert!(error.contains("holds 256 files"), "{error}");
        assert_eq!(files(directory).len(), doorbell_counters::MAX_FILES);
    });
}

#[test]
fn an_unusable_directory_is_an_error() {
    in_own_directory(|directory| {
        std::fs::write(directory, "a file in its place").unwrap();
        let device = Published { name: "doorbell0", address: [127, 0, 0, 9].into(), udp_port: 4791, counters: &NAMES };
        let error = Publisher::new(&device).unwrap_err().to_string();
        assert!(error.contains("cannot be used"), "{error}");
        let (samples, notes) = read(&mut PublishedSource::new());
        assert_eq!((samples.len(), notes.len()), (0, 1), "{notes:?}");
    });
}

#[test]
fn a_limit_on_the_length_of_files_does_not_end_the_program() {
    in_own_directory(|directory| {
        let (soft, hard) = getrlimit(Resource::RLIMIT_FSIZE).unwrap();
        for allowed in [0, 100] {
            setrlimit(Resource::RLIMIT_FSIZE, allowed, hard).unwrap();
            let device = Published { name: "a", address: "127.0.0.1".parse().unwrap(), udp_port: 1, counters: &NAMES };
            let refused = Publisher::new(&device);
            setrlimit(Resource::RLIMIT_FSIZE, soft, hard).unwrap();
            assert!(refused.unwrap_err().to_string().contains(&format!("files of {allowed} bytes at most")));
            assert_eq!(files(directory), [""; 0]);
        }
    });
}

#[test]
fn a_monitor_follows_devices_that_come_and_go() {
    in_own_directory(|_| {
        let mut monitor = Monitor::of(vec![Box::new(PublishedSource::new())]);
        let error = monitor.select("doorbell0").unwrap_err().to_string();
        assert!(error.contains("there is none at all"), "{error}");
        assert!(monitor.look().devices.is_empty());
        let mut own = publisher("127.0.0.9");
        own.publish(&[5, 50, 0]);
        let [first] = <[_; 1]>::try_from(monitor.look().devices).unwrap();
        let rates = first.rates.expect("a device opened since the last look has rates from zero");
        assert_eq!(rates.delta(Common::TxPackets), Some(5));
        own.publish(&[9, 90, 0]);
        let other = publisher("127.0.0.9");
        let devices = monitor.look().devices;
        assert_eq!(devices[0].rates.as_ref().unwrap().delta(Common::TxBytes), Some(40));
        let label = format!("doorbell0@127.0.0.9#{}", std::process::id());
        assert_eq!(
            devices[1].sample.identity.label, label,
            "a device with the same address in another namespace needs another label"
        );
        let error = monitor.select("doorbell9").unwrap_err().to_string();
        assert_eq!(error, format!("there is no RDMA device \"doorbell9\"; there are: doorbell0@127.0.0.9, {label}"));
        drop(other);
        let devices = monitor.look().devices;
        assert_eq!(devices.iter().filter(|device| device.sample.ended).count(), 1);
        assert_eq!(monitor.look().devices.len(), 1);
        monitor.select("127.0.0.9").unwrap();
        assert_eq!(monitor.look().devices.len(), 1);
    });
}

#[test]
fn a_request_to_a_port_gets_the_reply_of_its_device() {
    in_own_directory(|_| {
        let own = publisher("127.0.0.9");
        let mut requests = own.port_requests();
        let is_over = AtomicBool::new(false);
        let (served, answers) = std::thread::scope(|scope| {
            let device = scope.spawn(|| {
                let mut seen = Vec::new();
                while !is_over.load(Ordering::Relaxed) {
                    requests.serve(|request| {
                        seen.push(request);
                        PortReply { state: PublishedPort::Down, was_refused: seen.len() > 1 }
                    });
                    std::thread::yield_now();
                }
                seen
            });
            let mut source = PublishedSource::new();
            let mut ask = |selector: &str, request| source.ask_port(selector, request, |_, _| {});
            let of_process = format!("doorbell0#{}", std::process::id());
            let answers = [ask(&of_process, PortRequest::Down), ask("127.0.0.9", PortRequest::Down)];
            is_over.store(true, Ordering::Relaxed);
            (device.join().unwrap(), answers)
        });
        assert_eq!(served, [PortRequest::Down; 2]);
        for (answer, was_refused) in answers.into_iter().zip([false, true]) {
            let answer = answer.unwrap();
            assert_eq!((answer.label.as_str(), answer.pid), ("doorbell0@127.0.0.9", std::process::id()));
            assert_eq!(answer.reply, PortReply { state: PublishedPort::Down, was_refused });
        }
    });
}

#[test]
fn a_request_to_no_port_or_to_several_is_refused() {
    in_own_directory(|_| {
        let ask = |selector: &str| {
            let refused = PublishedSource::new().ask_port(selector, PortRequest::State, |_, _| {});
            refused.unwrap_err()
        };
        assert!(ask("doorbell0").to_string().ends_with("none is open at all"));
        let _own = [publisher("127.0.0.9"), publisher("127.0.0.10")];
        let error = ask("doorbell0").to_string();
        let expected = "\"doorbell0\" is the name of 2 devices: name one of ";
        assert!(error.starts_with(expected) && error.contains("doorbell0@127.0.0.10"), "{error}");
        let of_process = format!("doorbell0#{}", std::process::id());
        assert!(matches!(ask(&of_process), AskError::Ambiguous { .. }));
        for unknown in ["doorbell0#0", "doorbell0#", "#1"] {
            assert!(matches!(ask(unknown), AskError::Unknown { .. }), "{unknown}");
        }
        let error = ask("doorbell1");
        assert!(matches!(error, AskError::Unknown { .. }), "{error}");
        assert!(error.to_string().contains("open are doorbell0@127.0.0."), "{error}");
    });
}

/// A stopped command keeps the lock on the file of a device.
#[test]
fn a_request_does_not_wait_for_a_stopped_command_forever() {
    in_own_directory(|directory| {
        let _own = publisher("127.0.0.9");
        let file = std::fs::File::open(directory.join(&files(directory)[0])).unwrap();
        file.lock().unwrap();
        let error = PublishedSource::new().ask_port("doorbell0", PortRequest::State, |_, _| {}).unwrap_err();
        assert!(error.to_string().ends_with("another command uses it and may be stopped"), "{error}");
    });
}

#[test]
fn a_forked_child_neither_publishes_nor_removes() {
    in_own_directory(|directory| {
        let mut own = publisher("127.0.0.9");
        own.publish(&[5; 3]);
        // SAFETY: the child calls no function that needs a lock of another thread. The child compares its process
        // number, unmaps the file and ends.
        match unsafe { nix::unistd::fork() }.unwrap() {
            nix::unistd::ForkResult::Child => {
                own.publish(&[6; 3]);
                drop(own);
                // SAFETY: the call only ends the child.
                unsafe { nix::libc::_exit(0) }
            }
            nix::unistd::ForkResult::Parent { child } => {
                nix::sys::wait::waitpid(child, None).unwrap();
            }
        }
        assert_eq!(files(directory).len(), 1);
        assert_eq!(value(&only(read(&mut PublishedSource::new()).0), "of_a_newer_version"), 5);
    });
}

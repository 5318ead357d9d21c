//! `doorbell audit`: whether the figures of a benchmark agree with packets, counters and limits.

mod command;

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Args;
use doorbell_audit::{Counted, Given, Output, Predicted, Verdict, audit, json, read, text};
use doorbell_claims::UnknownTestbed;
use doorbell_counters::SYSFS;
use doorbell_model::operation::{Posted, PostedOperation, predict_operation};
use doorbell_model::parameters::Parameters;
use doorbell_wire::{MessageKind, PathMtu, Transport};

use crate::failure::{Failure, Usage};
use crate::output::{line, note, pretty};
use crate::quantity;
use crate::wire::parse_mtu;

pub(crate) const EXAMPLES: &str = "\
Examples:
  doorbell audit -- ib_write_bw -d mlx5_0 -D 10 HOST
                                                         compare it with the device's counters
  doorbell audit --software -- ib_send_bw 127.0.0.1      the same on the software RNIC
  doorbell audit --from output.txt --link 100G           judge an output from elsewhere
  doorbell audit --from - --counters readings.json       with lines of `doorbell counters --json`

The output of the command appears on standard error. The exit status is 1 if the claim is
contradicted, or if the command failed. The audit reads outputs of perftest, ucx_perftest, qperf,
fio and OSU's benchmarks.";

/// Maximum bytes of a file with an output or counters.
const MOST_BYTES: u64 = 64 << 20;
/// Window of a prediction if the output does not show it: perftest's default.
const DEFAULT_DEPTH: u64 = 128;

/// Compare the figures that a benchmark prints with packets, counters, link and model, and rank probable causes of a
/// contradiction
#[derive(Args)]
pub(crate) struct Audit {
    /// Read the output of a benchmark from this file instead of running a command; - is standard input
    #[arg(long, value_name = "FILE", conflicts_with = "command")]
    from: Option<PathBuf>,
    /// With --from: readings of the counters, as `doorbell counters --json` prints them. Two lines or more are the
    /// readings before and after the benchmark; one line has the rates during the benchmark
    #[arg(long, value_name = "FILE", requires = "from")]
    counters: Option<PathBuf>,
    /// Run the command on the software RNIC, with the settings of `doorbell run`
    #[arg(long, conflicts_with = "from")]
    software: bool,
    /// Compare with the counters of this device, also if another program has it. A software RNIC may be named by its
    /// address or process number too [default: the one that the output names, else all of the kernel and the command]
    #[arg(short, long, value_name = "NAME")]
    device: Option<String>,
    /// Rate of the link in bit/s and direction, as in 100G [default: the rate that the kernel reports for the device]
    #[arg(long, value_name = "RATE", value_parser = quantity::link)]
    link: Option<f64>,
    /// Path MTU, if the output does not show it
    #[arg(short, long, value_name = "BYTES", value_parser = parse_mtu)]
    mtu: Option<PathMtu>,
    /// Also compare with the model's prediction for this published testbed
    #[arg(long, value_name = "NAME")]
    testbed: Option<String>,
    /// Print one JSON object instead of text
    #[arg(long)]
    json: bool,
    /// Sysfs directory with the kernel's devices.
    #[arg(long, hide = true, value_name = "ROOT", default_value = SYSFS)]
    sysfs: PathBuf,
    /// Benchmark and its arguments, after `--`
    #[arg(trailing_var_arg = true, required_unless_present = "from", value_name = "COMMAND")]
    command: Vec<OsString>,
}

pub(crate) fn run(arguments: &Audit) -> Result<ExitCode, Failure> {
    let parameters = arguments.testbed.as_deref().map(parameters).transpose()?;
    let words: Vec<String> = arguments.command.iter().map(|word| word.to_string_lossy().into_owned()).collect();
    let mut given = Given { link_bits_per_s: arguments.link, path_mtu: arguments.mtu, ..Given::default() };
    let (output, counted, has_failed) = match &arguments.from {
        Some(file) => {
            let output = read(&read_file(file)?, &words);
            let counted = arguments.counters.as_deref().map(read_counters).transpose()?;
            (output, counted.unwrap_or_default(), false)
        }
        None => {
            let ran =
                command::run(&arguments.command, arguments.software, arguments.device.as_deref(), &arguments.sysfs)?;
            let mut output = of_both(&ran.output, &ran.errors, &words);
            output.notes.extend(ran.notes);
            given.busy_cpus = ran.busy_cpus;
            (output, ran.counted, !ran.succeeded)
        }
    };
    let name = arguments.device.as_deref().or(output.setup.device.as_deref());
    let counted = chosen(counted, name);
    if given.link_bits_per_s.is_none() && arguments.from.is_none() {
        // Without a name and packets, the device may not be that of the benchmark.
        let is_used = |counted: &&Counted| name.is_some() || counted.packets().is_some();
        let device = counted.as_ref().filter(is_used).map(|counted| counted.device.as_str());
        given.link_bits_per_s = device.and_then(|device| link_rate(&arguments.sysfs, device));
    }
    given.predicted = parameters.and_then(|parameters| predicted(&parameters, &output, arguments.mtu));
    let audit = audit(&output, counted.as_ref(), &given);
    if arguments.json {
        pretty(&json(&audit))?;
    } else {
        text(&audit).into_iter().try_for_each(line)?;
    }
    let is_wrong = has_failed || matches!(audit.verdict, Verdict::Contradicted | Verdict::Failed);
    Ok(if is_wrong { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// Reads the figures in the standard output of a command, else those in its standard error. Failures and remarks on
/// CPUs may be in both.
fn of_both(standard: &str, errors: &str, words: &[String]) -> Output {
    let (mut output, mut other) = (read(standard, words), read(errors, words));
    if output.claims.is_empty() && !other.claims.is_empty() {
        std::mem::swap(&mut output, &mut other);
    }
    let more = other.failures.into_iter().filter(|failure| !output.failures.contains(failure));
    let more: Vec<_> = more.collect();
    output.failures.extend(more);
    output.setup.cpu_is_slow |= errors.contains("CPU Frequency is not max");
    output
}

/// Returns the name of an input in errors.
fn name_of(file: &Path) -> String {
    if file == Path::new("-") { "standard input".to_owned() } else { file.display().to_string() }
}

/// Reads readings of counters. Errors name the file.
fn read_counters(file: &Path) -> Result<Vec<Counted>, Failure> {
    Counted::from_json(&read_file(file)?).map_err(|error| format!("{}: {error}", name_of(file)).into())
}

/// Reads a file, or standard input for `-`. Localized output may have other encodings than UTF-8.
fn read_file(file: &Path) -> Result<String, Failure> {
    let (name, input): (String, Box<dyn Read>) = if file == Path::new("-") {
        (name_of(file), Box::new(io::stdin().lock()))
    } else {
        let name = name_of(file);
        (name.clone(), Box::new(File::open(file).map_err(|error| format!("{name} cannot be read: {error}"))?))
    };
    let mut bytes = Vec::new();
    let read = input.take(MOST_BYTES + 1).read_to_end(&mut bytes);
    read.map_err(|error| format!("{name} cannot be read: {error}"))?;
    if bytes.len() as u64 > MOST_BYTES {
        return Err(format!("{name} has more than {MOST_BYTES} B, the allowed maximum").into());
    }
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// Returns the device with this name. Without the name, all devices with packets may have carried a part of the
/// messages, so the result is their sum.
fn chosen(counted: Vec<Counted>, name: Option<&str>) -> Option<Counted> {
    // A label has the name of the device before the port or the address.
    let is_meant = |counted: &Counted, name: &str| {
        counted.device.strip_prefix(name).is_some_and(|rest| rest.is_empty() || rest.starts_with(['/', '@']))
    };
    let mut of_name = counted;
    if let Some(name) = name
        && of_name.iter().any(|counted| is_meant(counted, name))
    {
        of_name.retain(|counted| is_meant(counted, name));
    }
    // Without the packets of one device, the sum would be too small. That device has the reason.
    if let Some(unknown) = of_name.iter().position(|counted| counted.packets().is_none()) {
        return Some(of_name.swap_remove(unknown));
    }
    of_name.sort_by_key(|counted| std::cmp::Reverse(counted.packets()));
    let mut devices = of_name.into_iter();
    let mut sum = devices.next()?;
    devices.filter(|device| device.packets().is_some_and(|packets| packets > 0)).for_each(|device| sum.merge(&device));
    Some(sum)
}

/// Returns the rate of a device's port in bits per second, or `None` if the kernel does not know the rate.
///
/// For a port with network devices, `ports/N/rate` may have a default, so the result is the speed of the network
/// device. On InfiniBand, the result is the rate in a text such as `100 Gb/sec (4X EDR)`, without the encoding of the
/// signal.
fn link_rate(sysfs: &Path, label: &str) -> Option<f64> {
    let (name, port) = label.split_once('/').unwrap_or((label, "1"));
    let port = sysfs.join("class/infiniband").join(name).join("ports").join(port);
    let first_line = |file: &Path| Some(fs::read_to_string(file).ok()?.lines().next()?.trim().to_owned());
    if first_line(&port.join("link_layer")).as_deref() != Some("InfiniBand") {
        let netdevs = fs::read_dir(port.join("gid_attrs/ndevs")).ok()?;
        // The files of unused GIDs cannot be read.
        let netdev = netdevs.flatten().find_map(|entry| first_line(&entry.path()))?;
        let megabits: f64 = first_line(&sysfs.join("class/net").join(netdev).join("speed"))?.parse().ok()?;
        return (megabits.is_finite() && megabits > 0.0).then_some(megabits * 1e6);
    }
    let text = first_line(&port.join("rate"))?;
    let gigabits: f64 = text.split_once(" Gb/sec")?.0.trim().parse().ok()?;
    // Up to QDR, 10 bits of the signal carry 8 bits of data. The rates of later generations exclude the encoding. The
    // kernel appends no name for SDR.
    let is_later = ["FDR", "EDR", "HDR", "NDR", "XDR"].iter().any(|generation| text.contains(generation));
    let share = if is_later { 1.0 } else { 0.8 };
    (gigabits.is_finite() && gigabits > 0.0).then_some(gigabits * share * 1e9)
}

fn parameters(testbed: &str) -> Result<Parameters, Failure> {
    let unknown = || Usage(format!("--testbed: {}", UnknownTestbed::new(testbed)));
    Ok(Parameters::of_testbed(testbed).ok_or_else(unknown)?)
}

/// Predicts the rate of the output's largest claim. Returns `None` with a note if the model does not cover it.
fn predicted(parameters: &Parameters, output: &Output, path_mtu: Option<PathMtu>) -> Option<Predicted> {
    let setup = &output.setup;
    let bytes = output.main_claim()?.bytes?;
    let operation = match setup.operation {
        Some(MessageKind::Read) => PostedOperation::Read,
        Some(MessageKind::CompareSwap) => PostedOperation::CompareSwap,
        Some(MessageKind::FetchAdd) => PostedOperation::FetchAdd,
        Some(MessageKind::Send) if setup.transport == Some(Transport::Ud) => PostedOperation::UdSend,
        Some(MessageKind::Send) => PostedOperation::Send,
        _ => PostedOperation::Write,
    };
    let whole = |number: u64| u32::try_from(number).unwrap_or(u32::MAX);
    let posted = Posted {
        connections: whole(setup.queue_pairs.unwrap_or(1)),
        inline_bytes: setup.inline.unwrap_or(0),
        path_mtu: path_mtu.or(setup.path_mtu),
        ..Posted::new(operation, bytes, whole(setup.depth.unwrap_or(DEFAULT_DEPTH)))
    };
    match predict_operation(parameters, &posted) {
        Ok(prediction) => Some(Predicted {
            testbed: parameters.name.clone(),
            bytes_per_s: prediction.bytes_per_s,
            messages_per_s: prediction.messages_per_s,
        }),
        Err(error) => {
            note!("the model has no prediction: {error}");
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counted(device: &str, packets: u64) -> Counted {
        let mut counted = Counted::new(device);
        counted.deltas[doorbell_counters::Common::TxPackets as usize] = Some(packets);
        counted
    }

    #[test]
    fn the_named_device_is_chosen_else_the_sum_of_all() {
        let devices = || vec![counted("mlx5_0/1", 5), counted("mlx5_1/1", 7), counted("mlx5_10/1", 9)];
        let label = |name: Option<&str>| chosen(devices(), name).map(|counted| counted.device);
        assert_eq!(label(Some("mlx5_1")).as_deref(), Some("mlx5_1/1"));
        assert_eq!(label(Some("mlx5_0/1")).as_deref(), Some("mlx5_0/1"));
        assert_eq!(label(Some("other")).as_deref(), Some("mlx5_10/1 and mlx5_1/1 and mlx5_0/1"));
        assert_eq!(chosen(devices(), None).and_then(|counted| counted.packets()), Some(21));
        let mut with_reset = devices();
        with_reset.push(Counted::new("mlx5_2/1"));
        assert_eq!(chosen(with_reset, None).and_then(|counted| counted.packets()), None);
        assert!(chosen(Vec::new(), None).is_none());
    }

    #[test]
    fn errors_of_counters_name_the_file() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("readings.json");
        let error = |contents: &str| {
            fs::write(&file, contents).unwrap();
            read_counters(&file).unwrap_err().to_string()
        };
        for contents in ["{", "{}", "{\"devices\":[]}"] {
            let error = error(contents);
            assert!(error.starts_with(&format!("{}: the counters cannot be read", file.display())), "{error}");
        }
        let missing = folder.path().join("missing.json");
        let error = read_counters(&missing).unwrap_err().to_string();
        assert!(error.starts_with(&missing.display().to_string()), "{error}");
        assert_eq!(name_of(Path::new("-")), "standard input");
    }

    #[test]
    fn figures_and_failures_may_be_in_both_outputs() {
        let table =
            " #bytes #iterations BW peak[MB/sec] BW average[MB/sec] MsgRate[Mpps]\n 65536 5000 0.00 9375.00 0.15\n";
        let errors = "CPU Frequency is not max.\nFailed status 12: wr_id 0\n";
        for (standard, errors) in [(table.to_owned(), errors.to_owned()), (String::new(), table.to_owned() + errors)] {
            let output = of_both(&standard, &errors, &[]);
            assert_eq!((output.claims.len(), output.failures.len()), (1, 1), "{output:?}");
            assert!(output.setup.cpu_is_slow);
        }
    }

    #[test]
    fn the_kernel_reports_the_rate_of_a_port() {
        let sysfs = tempfile::tempdir().unwrap();
        let port = sysfs.path().join("class/infiniband/mlx5_0/ports/1");
        fs::create_dir_all(&port).unwrap();
        fs::write(port.join("link_layer"), "InfiniBand\n").unwrap();
        for (text, bits_per_s) in [
            ("100 Gb/sec (4X EDR)\n", Some(100e9)),
            ("56 Gb/sec (4X FDR)\n", Some(56e9)),
            ("40 Gb/sec (4X QDR)\n", Some(32e9)),
            ("20 Gb/sec (4X DDR)\n", Some(16e9)),
            ("2.5 Gb/sec (1X SDR)\n", Some(2e9)),
            ("10 Gb/sec (4X)\n", Some(8e9)),
            ("", None),
            ("fast\n", None),
            ("-1 Gb/sec\n", None),
            ("inf Gb/sec\n", None),
        ] {
            fs::write(port.join("rate"), text).unwrap();
            assert_eq!(link_rate(sysfs.path(), "mlx5_0/1"), bits_per_s, "{text}");
            assert_eq!(link_rate(sysfs.path(), "mlx5_0"), bits_per_s, "{text}");
        }
        assert_eq!(link_rate(sysfs.path(), "doorbell0@127.0.0.1"), None);
    }

    #[test]
    fn a_port_with_a_network_device_has_its_speed() {
        let sysfs = tempfile::tempdir().unwrap();
        let port = sysfs.path().join("class/infiniband/rxe0/ports/1");
        let netdev = sysfs.path().join("class/net/ens1");
        fs::create_dir_all(port.join("gid_attrs/ndevs")).unwrap();
        fs::create_dir_all(&netdev).unwrap();
        fs::write(port.join("link_layer"), "Ethernet\n").unwrap();
        fs::write(port.join("rate"), "2.5 Gb/sec (1X SDR)\n").unwrap();
        assert_eq!(link_rate(sysfs.path(), "rxe0/1"), None, "no network device");
        fs::write(port.join("gid_attrs/ndevs/0"), "ens1\n").unwrap();
        assert_eq!(link_rate(sysfs.path(), "rxe0/1"), None, "no speed");
        for (text, bits_per_s) in [("25000\n", Some(25e9)), ("-1\n", None), ("\n", None)] {
            fs::write(netdev.join("speed"), text).unwrap();
            assert_eq!(link_rate(sysfs.path(), "rxe0/1"), bits_per_s, "{text}");
        }
    }
}

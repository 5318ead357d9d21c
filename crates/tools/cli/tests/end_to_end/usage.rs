//! Arguments: help, wrong usage, and the destinations of output.

use doorbell_protocols::Protocol;

use crate::command::{Running, doorbell, measuring, run};

#[test]
fn every_command_has_help() {
    for command in [
        "",
        "advise",
        "audit",
        "bench",
        "bench lat",
        "bench bw",
        "bench load",
        "bench limit",
        "counters",
        "port",
        "qualify",
        "run",
        "env",
        "sim",
        "sim testbeds",
        "sim reproduce",
        "study",
        "report",
        "wire",
        "wire cost",
        "wire explain",
        "wire decode",
        "wire check",
        "model",
        "model predict",
        "model explain",
        "model fit",
        "model measure",
        "completions",
        "man",
    ] {
        let help = run(&format!("{command} --help")).expect_status(0);
        assert!(help.stdout.contains("Usage: doorbell"), "{command}:\n{}", help.stdout);
        assert_eq!(help.stderr, "");
    }
    let first = run("").expect_status(0).stdout;
    assert_eq!(first.lines().filter(|line| line.starts_with("  doorbell ")).count(), 5, "{first}");
    let bw = run("bench bw --help").stdout;
    for option in [
        "-s,",
        "-a,",
        "-n,",
        "-D,",
        "-t,",
        "-r,",
        "-l,",
        "-q,",
        "-b,",
        "-I,",
        "-e,",
        "-m,",
        "-u,",
        "-p,",
        "--op",
        "--protocol",
        "--replicate",
        "--config",
        "--rate",
        "--pcap",
        "--fault",
        "--link",
        "--retry",
        "--rnr-retry",
        "--verify",
        "--memory",
        "--json",
        "-v,",
        "--listen",
        "--no-credits",
        "--bind",
        "--cpus",
    ] {
        assert!(bw.contains(option), "{option} is missing in:\n{bw}");
    }
    for command in ["bench bw", "bench lat", "model predict"] {
        let help = run(&format!("{command} --help")).stdout;
        assert!(help.contains(Protocol::PAGES), "{} is missing in:\n{help}", Protocol::PAGES);
    }
    for command in ["bench", "advise"] {
        let help = run(&format!("{command} --help")).stdout;
        for protocol in Protocol::ALL {
            assert!(help.contains(protocol.page()), "{} is missing in:\n{help}", protocol.page());
        }
    }
    assert!(run("--version").expect_status(0).stdout.starts_with("doorbell "));
}

/// Wrong command lines, each with words of its error.
pub(crate) const WRONG: &[(&str, &[&str])] = &[
    ("bench", &["Usage"]),
    ("bench bw --no-such-option", &["--no-such-option"]),
    ("bench bw -n 0", &["messages (-n) is 0", "1 to"]),
    ("bench bw -n 5 -D 1", &["cannot be used with"]),
    ("bench bw -s 16 -a", &["cannot be used with"]),
    ("bench bw -s sixteen", &["sixteen", "KiB", "64K"]),
    ("bench bw -s 64kB", &["64kB", "whole number of bytes"]),
    ("bench bw -n 1.5", &["1.5", "whole number", "1e6"]),
    ("bench bw -t many", &["many", "whole number"]),
    ("bench bw -u 300", &["timeout (-u) is 300", "0 to 31"]),
    ("bench bw -p 70000", &["70000", "0 to 65535"]),
    ("bench bw --udp-port 0", &["--udp-port", "1 to 65535"]),
    ("bench bw -D soon", &["soon", "500ms"]),
    ("bench bw --memory 1K", &["1K", "MiB", "4G"]),
    ("bench bw --rate fast", &["fast", "100G"]),
    ("advise -s 64:many", &["64:many", "BYTES:WEIGHT"]),
    ("model predict -s 1.5", &["1.5", "whole number of bytes"]),
    ("completions tcsh", &["tcsh", "bash, zsh, fish"]),
    ("port doorbell0 sideways", &["sideways", "down, up, fatal"]),
    ("man bench fast", &["doorbell bench has no command \"fast\"", "only lat, bw, load, limit"]),
    ("man env bw", &["doorbell env has no command \"bw\"", "no commands"]),
    ("bench bw -s 2000000000", &["message size (-s)", "allowed is 0 to 1073741824"]),
    ("bench bw -t 0", &["window (-t) is 0", "1 to 16384"]),
    ("bench bw -t 20000", &["window (-t) is 20000"]),
    ("bench bw -l 65", &["batch (-l) is 65", "1 to 64"]),
    ("bench bw -t 4 -l 5", &["batch (-l) is 5", "1 to 4"]),
    ("bench bw -r 0", &["receive depth (-r) is 0"]),
    ("bench bw -I 2000", &["inline (-I) is 2000"]),
    ("bench bw -q 0", &["connections (-q) is 0"]),
    ("bench bw -D 0", &["duration (-D) is 0"]),
    ("bench bw -u 32", &["timeout (-u) is 32"]),
    ("bench bw --retry 8", &["(--retry) is 8, allowed is 0 to 7"]),
    ("bench bw --rnr-retry 8", &["(--rnr-retry) is 8"]),
    ("bench bw -s 1073741824", &["memory (--memory) is 268435456 B", "at least 5368709120 B"]),
    ("bench bw -q 4096 -t 1000", &["window (-t) is 1000, allowed is 1 to 256"]),
    ("bench bw --slow-receiver-us 2000000", &["(--slow-receiver-us) is 2000000 us"]),
    ("bench bw --memory 0", &["(--memory) is 0 B"]),
    ("bench bw --rate 0", &["(--rate) is 0 messages/s"]),
    ("bench bw -m 1500", &["256, 512, 1024, 2048 or 4096"]),
    ("bench bw --config fastest", &["fastest", "sequential, unbatched, batched"]),
    ("bench bw --fault drop=2", &["drop", "0 to 1"]),
    ("bench bw --link tcp", &["the link is \"tcp\"; allowed are auto, udp and shm"]),
    ("bench bw --cpus one", &["`one` is not a list of CPUs", "0,2,4-7, or none"]),
    ("bench bw --cpus 0,0", &["CPU 0 is named twice"]),
    ("bench bw -d doorbell0 --cpus 8000,8001", &["CPU 8000 does not exist or is offline: this machine has "]),
    ("study -d doorbell0 --out /dev/null/none --cpus ,", &["`,` is not a list of CPUs"]),
    ("study --testbed connectx5-100g --cpus none", &["--cpus", "--testbed"]),
    ("bench bw --fault lose=0.1", &["lose", "drop, duplicate"]),
    ("bench bw --fault delay=5", &["delay", "unit"]),
    ("bench bw --anyone localhost", &["--anyone applies to the side that listens", "--listen"]),
    ("study --anyone localhost", &["--anyone applies to the side that listens", "--listen"]),
    ("study --anyone", &["--anyone applies to the side that listens", "--listen"]),
    ("doctor --anyone localhost", &["--anyone applies to the side that listens", "--listen"]),
    ("bench bw -d doorbell0 --listen ::ffff:192.0.2.1", &["--listen ::ffff:192.0.2.1", "--token", "--anyone"]),
    ("bench bw -d doorbell0 --listen [::]", &["--listen [::]", "--token", "--anyone"]),
    ("bench bw -d doorbell1", &["there is no software RNIC doorbell1, only doorbell0 (--devices or DOORBELL_DEVICES"]),
    ("bench bw --listen 127.0.0.1 somewhere", &["cannot be used with"]),
    ("bench bw --op cas -s 16", &["message size (-s) is 16 B, allowed is 8 B for atomic operations"]),
    ("bench lat --op fetch-add -a", &["message size (-s) is 2 B, allowed is 8 B"]),
    ("bench bw --op fetch", &["fetch", "send, write, read, cas, fetch-add, request-response"]),
    ("bench bw --op write -b", &["both ways (-b)", "off for one-sided operations"]),
    ("bench bw --op request-response -b", &["both ways (-b)", "whose answers go the other way"]),
    ("bench bw --op send --reply 64", &["reply size (--reply) is 64 B, allowed is 0 B unless"]),
    ("bench bw --op request-response --reply 0", &["reply size (--reply) is 0 B, allowed is 1 to"]),
    ("bench --request 64 -s 64", &["cannot be used with"]),
    ("bench --request 2G", &["message size (--request) is 2147483648 B"]),
    ("bench bw --sizes 64:1,2G:1", &["message size (--sizes) is 2147483648 B"]),
    ("bench bw --sizes 64:0", &["mix of sizes (--sizes) is 64 B with a weight of 0", "weight of 0.000000001 to"]),
    ("bench bw --sizes 64:1,128 -b", &["mix of sizes (--sizes) is 2 sizes, allowed is one size for messages in both"]),
    (
        "bench bw --sizes 64:1 --protocol buffered-read",
        &["(--sizes) is 1 size, allowed is one size (-s)", "READs carry several messages"],
    ),
    ("bench bw --sizes-from /nowhere/sizes.csv", &["--sizes-from /nowhere/sizes.csv: No such file"]),
    ("bench --clients 3 -q 3", &["cannot be used with"]),
    ("bench --clients 0", &["connections (--clients) is 0"]),
    ("bench --outstanding 0", &["window (-t) is 0"]),
    ("bench --clients 65", &["--clients 65: must be at most 64", "use -q 65 --threads 64"]),
    ("bench lat --clients 4", &["--clients 4: must be 1 with lat", "bench load --clients 4"]),
    ("bench bw --think 5", &["think time (--think) is 5 us, allowed is 0 us unless"]),
    ("bench bw --reply 64 --rate 100 --think 5", &["think time (--think) is 5 us", "with a rate"]),
    ("bench lat --server-threads 2", &["server threads (--server-threads) is 2, allowed is 0 or 1 with lat"]),
    ("bench bw --op read -r 5", &["-r configures receives", "--op read"]),
    ("bench bw --op write --no-credits", &["--no-credits configures receives", "--op write"]),
    ("bench bw --op read --slow-receiver-us 5", &["(--slow-receiver-us) is 5 us", "have no receiver"]),
    ("bench bw --protocol telepathy", &["telepathy", "send-receive, direct-read,"]),
    ("bench bw --protocol direct-read --op write", &["(--protocol) is direct-read", "one-sided operations"]),
    ("bench bw --protocol shared-write --no-credits", &["credits (--no-credits) is off", "shared-write"]),
    ("bench lat --protocol direct-write -e", &["events (-e) is on", "polls memory"]),
    ("bench bw --replicate", &["(--replicate) is on", "direct-read-send"]),
    ("bench lat --replicate --protocol direct-read-send", &["(--replicate) is on", "one way"]),
    ("bench bw --buffers 0", &["buffers (--buffers) is 0, allowed is 1 to 16384"]),
    ("bench bw --buffers 2 --verify", &["buffers (--buffers) is 2", "payloads that are checked"]),
    ("bench bw --buffers 2 --protocol direct-read", &["buffers (--buffers) is 2", "other than send-receive"]),
    ("bench bw --bind ::1", &["--bind is ::1", "start both sides"]),
    ("bench lat -b", &["both ways (-b)", "sends both ways anyway"]),
    ("bench limit --repetitions 0", &["--repetitions is 0"]),
    ("sim predict --testbed t9", &["--testbed is t9", "connectx5-100g-far"]),
    ("counters -i 0", &["--interval is 0 s", "0.1 to 3600"]),
    ("counters -i nan", &["nan", "500ms"]),
    ("counters -n 0", &["--count is 0", "at least 1"]),
    ("counters --prometheus 9464 --json", &["cannot be used with"]),
];

#[test]
fn wrong_usage_exits_with_2_and_names_allowed_values() {
    for (arguments, words) in WRONG {
        run(arguments).expect_complaint(2, words);
    }
}

#[test]
fn all_commands_have_the_same_limits_of_an_offered_rate() {
    for command in ["bench bw", "bench load", "study --request 64", "advise -s 64", "model predict -s 64 --reply 64"] {
        for (rate, given) in [("1e13", "10000000000000"), ("1e-4", "0.0001")] {
            let limits = format!("is {given} messages/s, allowed is 0.001 to 1000000000000 messages/s");
            run(&format!("{command} --rate {rate}")).expect_complaint(2, &["--rate", &limits]);
        }
    }
}

#[test]
fn without_arguments_the_first_steps_are_printed() {
    let printed = run("").expect_status(0).stdout;
    assert!(printed.contains("First steps:") && printed.contains("doorbell study"), "{printed}");
}

#[test]
fn sizes_counts_and_times_may_have_units() {
    let _one_at_a_time = measuring();
    let finished = run("bench bw -s 1K,2KiB -n 1e2 --memory 64M --json").expect_status(0).json();
    assert_eq!(crate::command::number(&finished, "/results/0/bytes"), 1024);
    assert_eq!(crate::command::number(&finished, "/results/1/bytes"), 2048);
    assert_eq!(crate::command::number(&finished, "/results/0/messages"), 100);
    let start = std::time::Instant::now();
    run("bench bw -s 16 -D 50ms").expect_status(0);
    assert!(start.elapsed() < std::time::Duration::from_secs(50), "50 ms were taken for 50 s");
    let exact = run("wire cost --op send -s 64K").expect_status(0).stdout;
    assert_eq!(exact, run("wire cost --op send -s 65536").expect_status(0).stdout);
}

/// The scripts contain the commands and options. With its script, bash completes a command.
#[test]
fn shells_complete_the_options() {
    for shell in ["bash", "zsh", "fish"] {
        let text = run(&format!("completions {shell}")).expect_status(0).stdout;
        for word in ["bench", "counters", "--protocol"] {
            assert!(text.contains(word), "{word} is missing for {shell}");
        }
    }
    let file = tempfile::NamedTempFile::new().expect("the temporary folder can be written");
    std::fs::write(file.path(), run("completions bash").stdout).expect("the file can be written");
    let script = format!(
        "source {}; COMP_WORDS=(doorbell wi); COMP_CWORD=1; _doorbell doorbell wi doorbell; echo \"${{COMPREPLY[@]}}\"",
        file.path().display()
    );
    let output = std::process::Command::new("bash").args(["--norc", "-c", &script]).output().expect("bash is here");
    assert_eq!(String::from_utf8_lossy(&output.stdout).trim(), "wire", "{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn each_command_has_a_manual_page() {
    let folder = tempfile::tempdir().expect("the temporary folder can be written");
    let out = folder.path().join("man1");
    run(&format!("man --out {}", out.display())).expect_status(0);
    let mut names: Vec<String> = std::fs::read_dir(&out)
        .expect("the folder was made")
        .map(|entry| entry.expect("the page can be read").file_name().to_string_lossy().into_owned())
        .collect();
    names.sort();
    for name in ["doorbell.1", "doorbell-bench-bw.1", "doorbell-counters.1", "doorbell-model-fit.1", "doorbell-run.1"] {
        assert!(names.iter().any(|other| other == name), "{name} is missing in {names:?}");
    }
    assert!(!names.iter().any(|name| name.contains("help")), "{names:?}");
    let page = std::fs::read_to_string(out.join("doorbell-bench-bw.1")).expect("the page can be read");
    assert!(page.contains(".TH doorbell-bench-bw 1"), "{page}");
    assert!(page.contains("doorbell bench bw"), "the synopsis says how it is typed:\n{page}");
    assert!(page.contains("\\-\\-protocol"), "{page}");
    assert_eq!(run("man bench bw").expect_status(0).stdout, page);
}

#[test]
fn reference_pages_have_commands_settings_counters_and_fields() {
    let folder = tempfile::tempdir().expect("the temporary folder can be written");
    run(&format!("man --markdown --out {}", folder.path().display())).expect_status(0);
    let read = |name: &str| std::fs::read_to_string(folder.path().join(name)).expect("the page was written");
    for (page, expected) in [
        ("commands.md", "\n## doorbell wire decode\n"),
        ("commands.md", "| `-s, --size <BYTES>` | "),
        ("settings.md", "| the window | `window` | `-t, --window` | "),
        ("records.md", "| `latency_ns` | "),
        ("statuses.md", "\n## 1: local length error\n"),
        ("counters.md", "| `rnr_nak_sent` | RNR NAKs sent. |\n"),
        ("testbed-fields.md", "| `link.rate` | bits per second in each direction | 1 Mb/s to 100000 Gb/s |\n"),
    ] {
        let text = read(page);
        assert!(text.contains(expected), "{expected:?} is missing in {text}");
    }
    run("man --markdown").expect_complaint(2, &["--out"]);
}

#[test]
fn errors_of_the_machine_are_failures_with_a_reason() {
    run("bench bw -n 1 -s 16 --bind 192.0.2.77")
        .expect_complaint(1, &["192.0.2.77 is not an address of this machine", "127.0.0.1"]);
    run("bench bw -n 1 -s 16 --pcap /no/such/folder/x.pcap").expect_complaint(1, &["pcap"]);
    run("bench bw --anyone --listen 192.0.2.77").expect_complaint(1, &["cannot listen on 192.0.2.77"]);
    run("bench bw -n 1 somewhere:else").expect_complaint(1, &["somewhere:else must be a host and port"]);
}

#[test]
fn unwritable_output_is_an_error() {
    for arguments in ["wire cost --op send --size 1", "study --list", "man bench"] {
        let full = std::fs::File::options().write(true).open("/dev/full").expect("Linux has /dev/full");
        let output = doorbell(arguments).stdout(full).output().expect("the command can be started");
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{arguments}: {said}");
        assert!(said.contains("standard output: No space left"), "{arguments}: {said}");
    }
}

#[test]
fn commands_succeed_without_a_reader_of_stdout() {
    let _one_at_a_time = measuring();
    for arguments in ["wire cost --op send --size 1", "bench bw -n 50 -s 16,16,16", "bench lat -n 50 -s 16 --json"] {
        let finished = Running::without_stdout(doorbell(arguments)).finish().expect_status(0);
        assert!(!finished.stderr.contains("doorbell:"), "{arguments} complains:\n{}", finished.stderr);
    }
}

#[test]
fn data_goes_to_stdout_and_the_rest_to_stderr() {
    let _one_at_a_time = measuring();
    let finished = run("bench bw -n 100 -s 16,5000").expect_status(0);
    let mut lines = finished.stdout.lines();
    let header: Vec<&str> = lines.next().unwrap_or_default().split_whitespace().collect();
    assert_eq!(header, ["bytes", "messages", "messages/s", "MiB/s", "Gb/s"]);
    for bytes in ["16", "5000"] {
        let row: Vec<&str> = lines.next().unwrap_or_default().split_whitespace().collect();
        assert_eq!(row[..2], [bytes, "100"], "{}", finished.stdout);
        assert_eq!(row.len(), 5);
    }
    assert!(finished.stderr.lines().any(|line| line.starts_with("send-receive over ")), "{}", finished.stderr);
    assert!(!finished.stderr.contains('\u{1b}'), "no terminal, no progress bar: {:?}", finished.stderr);

    let finished = run("bench lat -n 100 -s 16").expect_status(0);
    let header = finished.stdout.lines().next().unwrap_or_default().to_owned();
    for word in ["min", "median", "mean", "99 %", "99.9 %", "max", "us"] {
        assert!(header.contains(word), "{word} is missing in {header}");
    }
}

#[test]
fn a_port_that_is_not_roces_is_marked() {
    let _one_at_a_time = measuring();
    let finished = run("bench bw -n 100 -s 16 --udp-port 14791 --json").expect_status(0);
    assert!(finished.stderr.contains("14791: not RoCE's 4791"), "{}", finished.stderr);
    assert_eq!(crate::command::number(&finished.json(), "/environment/udp_port"), 14_791);
}

//! The table of all rows of the page.

use super::Read::{
    Fio, Line, MegabitsPerSecond, Milliseconds, PerftestRate, PerftestTime, PingpongRate, PingpongTime, Qperf,
    UcxMessages, UcxRate, UcxTime,
};
use super::{Commands, Drive, Figure, Needs, Read, Row, Unit};
use crate::programs::qemu;
use crate::programs::transfers::{GLOO, LIBRPMA, RIGHT, Source};

const fn row(program: &'static str, what: &'static str, ours: Commands) -> Row {
    Row {
        program,
        what,
        ours,
        tcp: None,
        checked: "",
        words: &[],
        drive: None,
        needs: Needs::Nothing,
        apart: false,
        figures: &[],
    }
}

impl Row {
    const fn beside(mut self, tcp: Commands) -> Self {
        self.tcp = Some(tcp);
        self
    }

    const fn checks(mut self, checked: &'static str, words: &'static [&'static str]) -> Self {
        (self.checked, self.words) = (checked, words);
        self
    }

    const fn driven(mut self, drive: Drive) -> Self {
        self.drive = Some(drive);
        self
    }

    const fn needs(mut self, needs: Needs) -> Self {
        self.needs = needs;
        self
    }

    const fn apart(mut self) -> Self {
        self.apart = true;
        self
    }

    const fn figures(mut self, figures: &'static [Figure]) -> Self {
        self.figures = figures;
        self
    }
}

const fn figure(of: &'static str, unit: Unit, read: Read, tcp: Option<Read>) -> Figure {
    Figure { of, unit, read, tcp, buffer_bytes: None, tcp_sleeps: false, tcp_is_one_way: false }
}

impl Figure {
    /// States the bytes of all buffers that messages use in turn, of both ends together: on Doorbell, and over TCP.
    const fn rotating(mut self, ours: u64, tcp: u64) -> Self {
        self.buffer_bytes = Some([ours, tcp]);
        self
    }

    const fn asleep(mut self) -> Self {
        self.tcp_sleeps = true;
        self
    }

    const fn one_way(mut self) -> Self {
        self.tcp_is_one_way = true;
        self
    }
}

/// Bytes of two buffers of 64 KiB or 1 MiB, one at each end.
const PAIR_64K: u64 = 2 << 16;
const PAIR_1M: u64 = 2 << 20;

/// Bytes of the buffers of both ends of fio (`--iodepth=16`).
const PAIRS_OF_FIO: u64 = 16 * PAIR_64K;

const fn time(of: &'static str, read: Read, tcp: Option<Read>) -> Figure {
    figure(of, Unit::Microseconds, read, tcp)
}

const fn rate(of: &'static str, read: Read, tcp: Option<Read>) -> Figure {
    figure(of, Unit::GigabytesPerSecond, read, tcp)
}

const fn messages(of: &'static str, read: Read, tcp: Option<Read>) -> Figure {
    figure(of, Unit::MillionsPerSecond, read, tcp)
}

const fn took(of: &'static str, read: Read, tcp: Option<Read>) -> Figure {
    figure(of, Unit::Milliseconds, read, tcp)
}

/// Figures of `fi_pingpong`, which prints the same table over TCP.
const PINGPONG_64: &[Figure] = &[time("one way", PingpongTime("64"), Some(PingpongTime("64")))];
const PINGPONG_64K: &[Figure] =
    &[rate("ping-pong", PingpongRate("64k"), Some(PingpongRate("64k"))).rotating(4 << 16, 4 << 16)];
const PINGPONG_1M: &[Figure] =
    &[rate("ping-pong", PingpongRate("1m"), Some(PingpongRate("1m"))).rotating(4 << 20, 4 << 20)];

const EACH_BYTE: &str = "each byte of each message, at both ends (`-c`)";

/// Commands of a server and of its client. The client's command ends with the address of the server.
macro_rules! with_address {
    ($port:literal, $($part:literal),+) => {
        Commands::pair(concat!($($part),+), concat!($($part),+, " 127.0.0.1"), $port)
    };
}

/// Row of `fi_pingpong` with a provider and a kind of endpoint, beside the same endpoint over TCP or UDP. Each has a
/// number of round trips.
macro_rules! pingpong {
    ($what:literal, $options:literal, $provider:literal * $times:literal, $beside:literal * $tcp:literal, $of:expr) => {
        row(
            "libfabric",
            $what,
            with_address!(47592, "doorbell run -- fi_pingpong -p '", $provider, "' -e ", $options, " -I ", $times),
        )
        .beside(with_address!(47592, "fi_pingpong -p '", $beside, "' -e ", $options, " -I ", $tcp))
        .checks(EACH_BYTE, &[])
        .figures($of)
    };
}

/// Row of perftest, which does not check received data, beside qperf with messages of the same size over TCP.
macro_rules! perftest {
    ($what:literal, $command:literal, $tcp:literal, $figures:expr) => {
        row("perftest", $what, with_address!(18515, "doorbell run -- ", $command))
            .beside(Commands::pair("qperf", concat!("qperf 127.0.0.1 -t 1 ", $tcp, " quit"), 19765))
            .checks("that all operations complete; perftest compares no data", &[])
            .figures($figures)
    };
}

const PERFTEST_TIME: &[Figure] = &[time("one way", PerftestTime, Some(Qperf("tcp_lat"))).asleep()];
const PERFTEST_RATE: &[Figure] =
    &[rate("throughput", PerftestRate, Some(Qperf("tcp_bw"))).rotating(PAIR_64K, PAIR_64K)];

/// Row of fio. The client sends the job to the server. fio can verify files, but not the data of a connection.
macro_rules! fio {
    ($what:literal, $verb:literal) => {
        row(
            "fio",
            $what,
            Commands::pair(
                "doorbell run -- fio --name=server --ioengine=rdma --port=18600 --bs=64k --size=8g --rw=read --iodepth=16",
                concat!(
                    "doorbell run -- fio --name=client --ioengine=rdma --hostname=127.0.0.1 --port=18600 --verb=",
                    $verb,
                    " --bs=64k --size=8g --rw=write --iodepth=16"
                ),
                18600,
            ),
        )
        // With `--ioengine=net`, SIGPIPE sometimes kills fio 3.33 after its server has received all data. If the
        // program ignores SIGPIPE, its client sometimes never ends.
        .beside(Commands::pair("qperf", "qperf 127.0.0.1 -t 1 -m 64k tcp_bw quit", 19765))
        .checks("that all operations complete; fio compares no data with this engine", &["err= 0"])
        .figures(&[rate("throughput", Fio("WRITE"), Some(Qperf("tcp_bw"))).rotating(PAIRS_OF_FIO, PAIR_64K)])
    };
}

/// Memory of both guests in bytes (`-m 128`).
const GUESTS: u64 = 2 * (128 << 20);

const QEMU_FIGURES: &[Figure] = &[
    rate("throughput", MegabitsPerSecond("mbps "), Some(MegabitsPerSecond("mbps "))).rotating(GUESTS, GUESTS),
    took("whole migration", Milliseconds("total-time "), Some(Milliseconds("total-time "))),
    took("downtime", Milliseconds("downtime "), Some(Milliseconds("downtime "))),
];

macro_rules! qemu {
    ($prefix:literal, $to:literal) => {
        Commands::pair(
            concat!(
                $prefix,
                "qemu-system-x86_64 -machine pc -m 128 -display none -nodefaults \\\n    ",
                "-drive file=guest.img,format=raw,if=floppy,readonly=on -debugcon file:destination.txt \\\n    ",
                "-qmp unix:destination.sock,server=on,wait=off -S -incoming ",
                $to
            ),
            concat!(
                $prefix,
                "qemu-system-x86_64 -machine pc -m 128 -display none -nodefaults \\\n    ",
                "-drive file=guest.img,format=raw,if=floppy,readonly=on -debugcon file:source.txt \\\n    ",
                "-qmp unix:source.sock,server=on,wait=off -device loader,file=random.bin,addr=0x1000000,force-raw=on"
            ),
            0,
        )
    };
}

const QEMU_CHECKED: &str = "every byte of the guest's memory, half of which is random, and that the guest goes on \
    counting where it stopped";

/// Returns the row of an example of librdmacm. Each row must have a different port.
const fn example(
    what: &'static str,
    server: &'static str,
    client: &'static str,
    port: u16,
    checked: &'static str,
    words: &'static [&'static str],
) -> Row {
    row("librdmacm's examples", what, Commands::pair(server, client, port)).checks(checked, words)
}

/// Row of `ucx_perftest` over verbs, beside UCX over TCP. Each has a number of messages. The client sends the
/// parameters of the measurement to the server.
macro_rules! ucx {
    ($what:literal, $test:literal, $transport:literal * $times:literal, "tcp" * $tcp_times:literal, $figures:expr) => {
        row(
            "UCX",
            $what,
            Commands::pair(
                concat!("env UCX_TLS=", $transport, " doorbell run -- ucx_perftest -p 13400"),
                concat!(
                    "env UCX_TLS=",
                    $transport,
                    " doorbell run -- ucx_perftest -p 13400 127.0.0.1 -f -v ",
                    $test,
                    " -n ",
                    $times
                ),
                13400,
            ),
        )
        .beside(Commands::pair(
            "env UCX_TLS=tcp UCX_NET_DEVICES=lo ucx_perftest -p 13401",
            concat!(
                "env UCX_TLS=tcp UCX_NET_DEVICES=lo ucx_perftest -p 13401 127.0.0.1 -f -v ",
                $test,
                " -n ",
                $tcp_times
            ),
            13401,
        ))
        .checks(
            "that all operations complete; a program of ours compares each byte of tag, stream, active messages, put, get and \
             atomics (`xtask/programs/ucx.c`)",
            &[],
        )
        .figures($figures)
    };
}

const UCX_TIME: &[Figure] = &[time("one way", UcxTime, Some(UcxTime))];
const UCX_MESSAGES: &[Figure] = &[messages("messages", UcxMessages, Some(UcxMessages))];
const UCX_RATE_64K: &[Figure] = &[rate("throughput", UcxRate, Some(UcxRate)).rotating(PAIR_64K, PAIR_64K)];
const UCX_RATE_1M: &[Figure] = &[rate("throughput", UcxRate, Some(UcxRate)).rotating(PAIR_1M, PAIR_1M)];

const ONE_WAY: Figure = time("one way, 8 B", Line("one way, 8 B: "), Some(Line("one way, 8 B: ")));

/// Returns the throughput of a ping-pong of this repository. `bytes` are those of all its buffers.
const fn ping_pong(bytes: u64) -> Figure {
    rate("ping-pong, 1 MiB", Line("ping-pong, 1 MiB: "), Some(Line("ping-pong, 1 MiB: "))).rotating(bytes, bytes)
}

/// Rank 1 of MPI sends its message from the buffer into which it has received.
const PING_PONG_OF_MPI: &[Figure] = &[ONE_WAY, ping_pong(3 << 20)];
const PING_PONG_OF_GLOO: &[Figure] = &[ONE_WAY, ping_pong(4 << 20)];

/// Returns the row of two ranks of MPI, compiled by the compiler of their library, beside two ranks over TCP.
const fn of_mpi(program: &'static str, compiler: &'static str, command: &'static str, tcp: &'static str) -> Row {
    row(program, "two ranks", Commands::alone(command))
        .beside(Commands::alone(tcp))
        .needs(Needs::Program(Source { compiler, file: "mpi_speed.c", options: &[] }))
        .checks("messages that come back, byte by byte (`xtask/programs/mpi_speed.c`)", &[])
        .figures(PING_PONG_OF_MPI)
}

/// Returns the row of two ranks, beside Open MPI over TCP.
const fn of_open_mpi(program: &'static str, command: &'static str) -> Row {
    let tcp = "mpirun -n 2 --allow-run-as-root --oversubscribe --mca pml ob1 --mca btl tcp,self ./mpi_speed";
    of_mpi(program, "mpicc", command, tcp)
}

/// Figures of writes of this repository, each one after the other.
const WRITES: &[Figure] = &[
    time("one write, 8 B", Line("one write, 8 B: "), Some(Line("one write, 8 B: "))),
    rate("writes, 1 MiB", Line("writes, 1 MiB: "), Some(Line("writes, 1 MiB: "))).rotating(PAIR_1M, PAIR_1M),
];
/// The server of InfiniStore chooses the memory of each block.
const BLOCKS: &[Figure] = &[
    time("one write, 16 KiB", Line("one write, 16 KiB: "), Some(Line("one write, 16 KiB: "))),
    rate("writes, 1 MiB", Line("writes, 1 MiB: "), Some(Line("writes, 1 MiB: "))),
];

/// Figures of libraries without a transport over TCP, beside qperf. A write ends with its acknowledgement, and qperf
/// prints the time of one way.
const WRITES_BESIDE_QPERF: &[Figure] = &[
    time("one write, 8 B", Line("one write, 8 B: "), Some(Qperf("tcp_lat"))).one_way(),
    rate("writes, 1 MiB", Line("writes, 1 MiB: "), Some(Qperf("tcp_bw"))).rotating(PAIR_1M, PAIR_1M),
];

/// Messages of qperf over TCP with the sizes of [`WRITES_BESIDE_QPERF`].
const MESSAGES_OF_QPERF: Commands =
    Commands::pair("qperf", "qperf 127.0.0.1 -t 1 -m 8 tcp_lat -m 1mib tcp_bw quit", 19765);

/// Commands of a script in `xtask/programs/transfers`, as server and as client. `$tcp` ends both commands.
macro_rules! script {
    ($script:literal, $port:literal, $of_server:literal, $of_client:literal, $tcp:literal) => {
        Commands::pair(
            concat!($of_server, "python transfers/", $script, ".py server ", $port, " speed", $tcp),
            concat!($of_client, "python transfers/", $script, ".py client ", $port, " speed", $tcp),
            $port,
        )
    };
}

/// Row of a script for a package of PyPI.
macro_rules! of_pypi {
    ($program:literal, $script:literal, $ours:expr, $figures:expr) => {
        row($program, "writes, one at a time", $ours)
            .needs(Needs::Scripts)
            .apart()
            .checks(
                concat!("the bytes of the last write of each size (`xtask/programs/transfers/", $script, ".py`)"),
                &[RIGHT],
            )
            .figures($figures)
    };
}

pub(super) const ROWS: &[Row] = &[
    ucx!(
        "tagged messages over `rc_verbs`, 16 B, one at a time",
        "-t tag_lat -s 16 -w 1000",
        "rc_v" * 300_000,
        "tcp" * 60_000,
        UCX_TIME
    ),
    ucx!(
        "tagged messages over `rc_verbs`, 16 B",
        "-t tag_bw -s 16 -w 1000",
        "rc_v" * 1_500_000,
        "tcp" * 200_000,
        UCX_MESSAGES
    ),
    ucx!(
        "tagged messages over `rc_verbs`, 1 MiB",
        "-t tag_bw -s 1048576 -w 50",
        "rc_v" * 6_000,
        "tcp" * 4_000,
        UCX_RATE_1M
    ),
    ucx!("put over `rc_verbs`, 64 KiB", "-t ucp_put_bw -s 65536 -w 100", "rc_v" * 80_000, "tcp" * 10_000, UCX_RATE_64K),
    ucx!(
        "tagged messages over `ud_verbs`, 16 B, one at a time",
        "-t tag_lat -s 16 -w 1000",
        "ud_verbs" * 300_000,
        "tcp" * 60_000,
        UCX_TIME
    ),
    ucx!(
        "tagged messages over `ud_verbs`, 1 MiB",
        "-t tag_bw -s 1048576 -w 50",
        "ud_verbs" * 2_500,
        "tcp" * 4_000,
        UCX_RATE_1M
    ),
    of_open_mpi(
        "Open MPI over UCX",
        "env UCX_TLS=rc_v doorbell run -- mpirun -n 2 --allow-run-as-root --oversubscribe --mca pml ucx \\\n    \
         --mca btl ^openib,vader,uct ./mpi_speed",
    ),
    pingpong!("connected endpoints, 64 B", "msg -S 64 -c", "verbs" * 150_000, "tcp" * 50_000, PINGPONG_64),
    pingpong!("connected endpoints, 1 MiB", "msg -S 1048576 -c", "verbs" * 250, "tcp" * 250, PINGPONG_1M),
    pingpong!(
        "reliable datagrams over datagrams, 64 B",
        "rdm -S 64 -c",
        "verbs;ofi_rxd" * 20_000,
        "udp;ofi_rxd" * 18_000,
        PINGPONG_64
    ),
    pingpong!(
        "reliable datagrams over datagrams, 64 KiB",
        "rdm -S 65536 -c",
        "verbs;ofi_rxd" * 1_000,
        "udp;ofi_rxd" * 1_000,
        PINGPONG_64K
    ),
    pingpong!("datagrams, 64 B", "dgram -S 64 -c", "verbs" * 80_000, "udp" * 50_000, PINGPONG_64),
    of_open_mpi(
        "Open MPI over libfabric",
        "doorbell run -- mpirun -n 2 --allow-run-as-root --oversubscribe --mca pml cm --mca mtl ofi \\\n    \
         --mca mtl_ofi_provider_include 'verbs;ofi_rxm' ./mpi_speed",
    ),
    of_mpi(
        "MPICH",
        "mpicc.mpich",
        "env UCX_TLS=self,rc_v MPIR_CVAR_NOLOCAL=1 doorbell run -- mpiexec.mpich -n 2 ./mpi_speed",
        "env UCX_TLS=self,tcp UCX_NET_DEVICES=lo MPIR_CVAR_NOLOCAL=1 mpiexec.mpich -n 2 ./mpi_speed",
    ),
    row(
        "gloo",
        "buffers between two ranks, with busy polling",
        Commands::pair("doorbell run -- ./gloo 0 . speed", "doorbell run -- ./gloo 1 . speed", 0),
    )
    .beside(Commands::pair("./gloo 0 . speed tcp", "./gloo 1 . speed tcp", 0))
    .needs(Needs::Program(GLOO))
    .apart()
    .checks("messages of the warm-up and the last one, byte by byte (`xtask/programs/transfers/gloo.cc`)", &[RIGHT])
    .figures(PING_PONG_OF_GLOO),
    row(
        "librpma",
        "writes, one at a time",
        Commands::pair("doorbell run -- ./rpma server 18630", "doorbell run -- ./rpma client 18630 speed", 18630),
    )
    .beside(MESSAGES_OF_QPERF)
    .needs(Needs::Program(LIBRPMA))
    .checks("the bytes of the last write of each size (`xtask/programs/transfers/rpma.c`)", &[RIGHT])
    .figures(WRITES_BESIDE_QPERF),
    of_pypi!(
        "rdma4py",
        "rdma4py",
        script!("rdma4py", 18631, "doorbell run -- ", "doorbell run -- ", ""),
        WRITES_BESIDE_QPERF
    )
    .beside(MESSAGES_OF_QPERF),
    of_pypi!(
        "Mooncake Transfer Engine",
        "mooncake_engine",
        script!("mooncake_engine", 18632, "doorbell run -- ", "doorbell run -- ", ""),
        WRITES
    )
    .beside(script!("mooncake_engine", 18632, "", "", " tcp")),
    of_pypi!(
        "NIXL",
        "nixl_agent",
        script!("nixl_agent", 18633, "env UCX_TLS=rc_v doorbell run -- ", "env UCX_TLS=rc_v doorbell run -- ", ""),
        WRITES
    )
    .beside(script!(
        "nixl_agent",
        18633,
        "env UCX_TLS=tcp UCX_NET_DEVICES=lo ",
        "env UCX_TLS=tcp UCX_NET_DEVICES=lo ",
        ""
    )),
    // The server needs a device also for its clients over TCP.
    of_pypi!(
        "InfiniStore",
        "infinistore_blocks",
        script!("infinistore_blocks", 18634, "doorbell run -- ", "doorbell run -- ", ""),
        BLOCKS
    )
    .beside(script!("infinistore_blocks", 18634, "doorbell run -- ", "", " tcp")),
    fio!("RDMA WRITE, 64 KiB", "write"),
    fio!("RDMA READ, 64 KiB", "read"),
    row(
        "qperf",
        "reliable connections through `rdma_cm` (`-cm1`)",
        Commands::pair(
            "doorbell run -- qperf",
            "doorbell run -- qperf 127.0.0.1 -t 1 -cm1 rc_lat rc_bw rc_rdma_read_lat rc_rdma_read_bw rc_rdma_write_bw \\\n    \
             ver_rc_compare_swap ver_rc_fetch_add tcp_lat tcp_bw quit",
            19765,
        ),
    )
    .checks(
        "the values of all compare-and-swaps and fetch-and-adds (`ver_`); of other operations that they complete",
        &["ver_rc_compare_swap:", "ver_rc_fetch_add:"],
    )
    .figures(&[
        time("rc_lat, 1 B", Qperf("rc_lat"), Some(Qperf("tcp_lat"))).asleep(),
        time("rc_rdma_read_lat, 1 B", Qperf("rc_rdma_read_lat"), None),
        rate("rc_bw, 64 KiB", Qperf("rc_bw"), Some(Qperf("tcp_bw"))).rotating(PAIR_64K, PAIR_64K),
        rate("rc_rdma_read_bw, 64 KiB", Qperf("rc_rdma_read_bw"), None).rotating(PAIR_64K, PAIR_64K),
        rate("rc_rdma_write_bw, 64 KiB", Qperf("rc_rdma_write_bw"), None).rotating(PAIR_64K, PAIR_64K),
    ]),
    row("QEMU", "live migration", qemu!("doorbell run -- ", "rdma:127.0.0.1:18610"))
        .beside(qemu!("", "tcp:127.0.0.1:18610"))
        .driven(qemu::migrate)
        .checks(QEMU_CHECKED, &[])
        .figures(QEMU_FIGURES),
    row("QEMU", "live migration, all memory registered before (`rdma-pin-all`)", qemu!("doorbell run -- ", "rdma:127.0.0.1:18611"))
        .driven(qemu::migrate_pinned)
        .checks(QEMU_CHECKED, &[])
        .figures(&[
            rate("throughput", MegabitsPerSecond("mbps "), None).rotating(GUESTS, GUESTS),
            took("downtime", Milliseconds("downtime "), None),
        ]),
    perftest!("SEND, 16 B", "ib_send_lat -F -s 16 -n 400000", "-m 16 tcp_lat", PERFTEST_TIME),
    perftest!("RDMA WRITE, 16 B", "ib_write_lat -F -s 16 -n 400000", "-m 16 tcp_lat", PERFTEST_TIME),
    perftest!("SEND, 64 KiB", "ib_send_bw -F -s 65536 -n 120000", "-m 64k tcp_bw", PERFTEST_RATE),
    perftest!("RDMA WRITE, 64 KiB", "ib_write_bw -F -s 65536 -n 120000", "-m 64k tcp_bw", PERFTEST_RATE),
    perftest!("RDMA READ, 64 KiB", "ib_read_bw -F -s 65536 -n 120000", "-m 64k tcp_bw", PERFTEST_RATE),
    example(
        "rping",
        "doorbell run -- rping -s -a 127.0.0.1 -p 18620 -V -C 200 -S 50000",
        "doorbell run -- rping -c -a 127.0.0.1 -p 18620 -V -C 200 -S 50000",
        18620,
        "each byte that was read and written back (`-V`)",
        &[],
    ),
    example(
        "ucmatose",
        "doorbell run -- ucmatose -p 18621 -c 10 -C 50 -S 3000",
        "doorbell run -- ucmatose -s 127.0.0.1 -p 18621 -c 10 -C 50 -S 3000",
        18621,
        "that ten connections carry their messages and end",
        &["test complete", "return status 0"],
    ),
    example(
        "udaddy",
        "doorbell run -- udaddy -c 5 -C 20 -S 500",
        "doorbell run -- udaddy -s 127.0.0.1 -c 5 -C 20 -S 500",
        7174,
        "that datagrams go both ways and carry their sender's address",
        &["test complete", "return status 0"],
    ),
    example(
        "rdma_server and rdma_client",
        "doorbell run -- rdma_server -p 18623",
        "doorbell run -- rdma_client -s 127.0.0.1 -p 18623",
        18623,
        "that a message goes each way",
        &["rdma_client: end 0", "rdma_server: end 0"],
    ),
];

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn rows_that_need_pypi_run_only_by_name() {
        let names = ["gloo", "rdma4py", "Mooncake Transfer Engine", "NIXL", "InfiniStore"];
        for row in ROWS {
            assert_eq!(row.is_selected(&[]), !names.contains(&row.program), "{}", row.program);
            assert!(row.is_selected(&["other", row.program]) && !row.is_selected(&["other"]));
        }
        assert!(ROWS.iter().all(|row| row.apart || !matches!(row.needs, Needs::Scripts)));
    }

    /// The page has one section for each program, and records find a figure by its names.
    #[test]
    fn programs_are_adjacent_and_figures_have_different_names() {
        let programs = crate::programs::page::names();
        assert_eq!(programs.iter().collect::<HashSet<_>>().len(), programs.len());
        let figures: Vec<_> = ROWS
            .iter()
            .flat_map(|row| row.figures.iter().map(move |figure| (row.program, row.what, figure.of)))
            .collect();
        assert_eq!(figures.iter().collect::<HashSet<_>>().len(), figures.len());
    }
}

//! Tests of guests and hosts that violate the protocol. The tests construct and send each message themselves.

use std::fs::File;
use std::io::IoSlice;
use std::net::UdpSocket;
use std::os::fd::OwnedFd;
use std::os::fd::{BorrowedFd, RawFd};

use doorbell_testing::strangers;
use nix::fcntl::{FcntlArg, SealFlag, fcntl};
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::socket::{ControlMessage, MsgFlags, sendmsg};

mod crowd;

use super::connection::{call_at, name_of};
use super::*;
use crate::link::Link;
use crate::shm::LinkChoice;
use crate::shm::link::SharedMemoryLink;
use crate::shm::link::tests::{PORT, Plain, eventually, link, link_at, now_ns, send as exchange};
use crate::shm::message::MAX_BYTES;
use crate::shm::sys;
use crate::testing::{batch_of, packet};
use crate::{BindRequest, bind as bind_udp};

/// Returns the address and port of a device.
fn local_of(link: &SharedMemoryLink) -> SocketAddr {
    link.udp().local_socket_address()
}

/// Starts the thread of a device with one engine.
fn meeting_of(local: SocketAddr, udp: OwnProcess, answer_within: Duration) -> Meeting {
    let (mut meetings, _) = Meeting::start(local, 1, udp, answer_within, true).unwrap();
    meetings.swap_remove(0)
}

fn first_engine(address: IpAddr) -> PathEnd {
    PathEnd { address, engine: EngineId(0) }
}

/// Tests a program that closes a descriptor of the device and reuses its number for a file of the program.
#[test]
fn a_closing_device_does_not_write_to_a_reused_descriptor() {
    let udp = bind_udp(BindRequest { port: PORT, ..BindRequest::default() }).unwrap();
    let socket = udp.readable().unwrap();
    let meeting = meeting_of(udp.local_socket_address(), socket, Duration::from_secs(1));
    let file = file_in_memory(c"doorbell-test-taker", 1, SealFlag::empty());
    let taken = sys::replace(meeting.shared().kick.as_fd().as_raw_fd(), file.as_fd());
    drop(meeting);
    assert!(is_open(taken.as_fd()));
    assert_eq!(file.metadata().unwrap().len(), 1, "the device wrote its eight bytes to the file");
}

/// Connects to the name of the device at `host`.
fn call(host: SocketAddr) -> OwnProcess {
    call_at(name_of(host.ip(), host.port()).as_bytes()).unwrap().unwrap()
}

/// Sends bytes over a connection, with the given descriptors attached.
fn say(connection: &impl AsFd, bytes: &[u8], files: &[RawFd]) {
    let rights = [ControlMessage::ScmRights(files)];
    let control = if files.is_empty() { &[][..] } else { &rights };
    sendmsg::<()>(connection.as_fd().as_raw_fd(), &[IoSlice::new(bytes)], control, MsgFlags::MSG_NOSIGNAL, None)
        .unwrap();
}

fn hello_from(address: IpAddr) -> Message {
    let (from, to) = (EngineId(0), EngineId(0));
    Message::Hello { version: VERSION, address, port: PORT, nonce: [7; 16], from, to }
}

/// Waits for the next message of a connection. Returns `None` at the end of the connection.
fn answer(connection: &impl AsFd) -> Option<Message> {
    let mut heard = None;
    eventually("the host answers", || {
        heard = match hear(connection) {
            Heard::Nothing => return false,
            Heard::Said(message, _) => Some(message),
            Heard::Ended => None,
        };
        true
    });
    heard
}

/// Returns the number of descriptors of this process that refer to the file with this name.
fn copies_of(name: &str) -> usize {
    let files = std::fs::read_dir("/proc/self/fd").unwrap().flatten();
    files.filter(|file| std::fs::read_link(file.path()).is_ok_and(|to| to.to_string_lossy().contains(name))).count()
}

fn file_in_memory(name: &std::ffi::CStr, bytes: u64, seals: SealFlag) -> File {
    let file = File::from(memfd_create(name, MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING).unwrap());
    file.set_len(bytes).unwrap();
    fcntl(&file, FcntlArg::F_ADD_SEALS(seals)).unwrap();
    file
}

/// Tests that the host closes surplus descriptors, and descriptors of files that contain no rings.
#[test]
fn the_host_closes_every_descriptor_that_a_guest_sends() {
    let host = link();
    let marked = file_in_memory(c"doorbell-test-marked", 4096, SealFlag::empty());
    for count in [0, 1, 2, 3, 4, 100, 253] {
        let guest = call(local_of(&host));
        let hello = hello_from([127, 77, 43, 1].into());
        say(&guest, &hello.to_bytes(), &vec![marked.as_raw_fd(); count]);
        let welcome = answer(&guest);
        let refusal = Message::Welcome { version: VERSION, answer: Answer::Rejected };
        assert!(welcome.is_none() || count == 1 && welcome == Some(refusal), "{count}: {welcome:?}");
    }
    eventually("only the test's descriptor is left", || copies_of("doorbell-test-marked") == 1);
    // Attach descriptors to a message that must have none.
    let guest = call(local_of(&host));
    say(&guest, &Message::Proof { nonce: [0; 16] }.to_bytes(), &[marked.as_raw_fd(); 3]);
    assert_eq!(answer(&guest), None);
    eventually("only the test's descriptor is left", || copies_of("doorbell-test-marked") == 1);
}

#[test]
fn the_host_refuses_files_that_are_no_rings() {
    let mut host = link();
    let (_, ring) = Mapping::create().unwrap();
    let bytes = File::from(ring.try_clone().unwrap()).metadata().unwrap().len();
    let all = SealFlag::F_SEAL_SHRINK | SealFlag::F_SEAL_GROW | SealFlag::F_SEAL_SEAL;
    let (one, _other) = std::os::unix::net::UnixStream::pair().unwrap();
    let read_only = File::open(format!("/proc/self/fd/{}", ring.as_raw_fd())).unwrap();
    let wrong: [(&str, OwnedFd); 11] = [
        ("unsealed", file_in_memory(c"doorbell-test", bytes, SealFlag::empty()).into()),
        ("may shrink", file_in_memory(c"doorbell-test", bytes, all - SealFlag::F_SEAL_SHRINK).into()),
        ("may be sealed", file_in_memory(c"doorbell-test", bytes, all - SealFlag::F_SEAL_SEAL).into()),
        ("of another size", file_in_memory(c"doorbell-test", bytes + 4096, all).into()),
        ("empty", file_in_memory(c"doorbell-test", 0, all).into()),
        ("sealed against writes", file_in_memory(c"doorbell-test", bytes, all | SealFlag::F_SEAL_WRITE).into()),
        ("open for reading", read_only.into()),
        ("on disk", File::open("/proc/self/exe").unwrap().into()),
        ("a device", File::open("/dev/zero").unwrap().into()),
        ("a socket", one.into()),
        ("a folder", File::open("/dev/shm").or_else(|_| File::open("/")).unwrap().into()),
    ];
    for (what, file) in wrong {
        let guest = call(local_of(&host));
        send(&guest, hello_from([127, 77, 43, 2].into()), Some(file.as_raw_fd())).unwrap();
        assert_eq!(answer(&guest), Some(Message::Welcome { version: VERSION, answer: Answer::Rejected }), "{what}");
        assert_eq!(answer(&guest), None, "{what}");
    }
    let hello = hello_from([127, 77, 43, 2].into());
    let (mut version, mut port) = (hello, hello);
    if let (Message::Hello { version, .. }, Message::Hello { port, .. }) = (&mut version, &mut port) {
        (*version, *port) = (VERSION + 1, PORT + 1);
    }
    let longer = [version.to_bytes(), vec![1, 2, 3]].concat();
    // The host must reject these addresses. A guest that claims a group's address would receive all packets to the
    // group.
    let nobody = ["224.0.0.9", "255.255.255.255", "0.0.0.0", "::1", "ff02::1"].map(|text| text.parse().unwrap());
    let said = nobody.map(|address| hello_from(address).to_bytes()).into_iter();
    for bytes in said.chain([version.to_bytes(), longer, port.to_bytes()]) {
        let guest = call(local_of(&host));
        say(&guest, &bytes, &[ring.as_raw_fd()]);
        assert_eq!(answer(&guest), Some(Message::Welcome { version: VERSION, answer: Answer::Rejected }), "{bytes:?}");
        assert_eq!(answer(&guest), None);
    }
    // Send bytes that are no message, or a message at the wrong time.
    for bytes in
        [vec![], vec![1], hello.to_bytes()[..20].to_vec(), vec![9; 5000], Message::Proof { nonce: [1; 16] }.to_bytes()]
    {
        let guest = call(local_of(&host));
        say(&guest, &bytes, &[ring.as_raw_fd()]);
        assert_eq!(answer(&guest), None, "{bytes:?}");
    }
    exchange(&mut link(), &mut host, &[12]);
    assert_eq!(host.link_counters().shared_memory_refused, 0, "a device counts as refused");
}

/// Tests a guest that claims another device's address, so that it receives no challenge. Also tests a guest that
/// answers the challenge for another guest.
#[test]
fn a_guest_that_cannot_prove_its_address_gets_nothing() {
    let mut host = link();
    let (_mapping, ring) = Mapping::create().unwrap();
    let own = UdpSocket::bind(("127.77.43.3", PORT)).unwrap();
    own.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    for address in ["127.77.43.4", "127.77.43.3"] {
        let guest = call(local_of(&host));
        send(&guest, hello_from(address.parse().unwrap()), Some(ring.as_raw_fd())).unwrap();
        assert_eq!(answer(&guest), Some(Message::Welcome { version: VERSION, answer: Answer::Accepted }));
        send(&guest, Message::Proof { nonce: [7; 16] }, None).unwrap();
        assert_eq!(answer(&guest), None);
    }
    let mut bytes = [0; MAX_BYTES];
    let (length, from) = own.recv_from(&mut bytes).unwrap();
    assert_eq!(from, local_of(&host));
    let Some(Datagram::Challenge { invited, asked, .. }) = Datagram::parse(&bytes[..length]) else {
        panic!("no challenge")
    };
    assert_eq!(invited, [7; 16]);
    // The host rejects the nonce of a challenge for another guest.
    let guest = call(local_of(&host));
    send(&guest, hello_from([127, 77, 43, 3].into()), Some(ring.as_raw_fd())).unwrap();
    assert!(answer(&guest).is_some());
    send(&guest, Message::Proof { nonce: asked }, None).unwrap();
    assert_eq!(answer(&guest), None);
    // The host accepts the nonce of the guest's own challenge.
    let guest = call(local_of(&host));
    send(&guest, hello_from([127, 77, 43, 3].into()), Some(ring.as_raw_fd())).unwrap();
    let (_, _) = own.recv_from(&mut bytes).unwrap(); // the challenge of the last guest
    let (length, _) = own.recv_from(&mut bytes).unwrap();
    let Some(Datagram::Challenge { asked, .. }) = Datagram::parse(&bytes[..length]) else { panic!("no challenge") };
    assert!(answer(&guest).is_some());
    send(&guest, Message::Proof { nonce: asked }, None).unwrap();
    let mut batch = batch_of([127, 77, 43, 3].into(), &[32]);
    crate::Sealer::new(local_of(&host).ip(), PORT).seal(&mut batch);
    eventually("packets go through the guest's ring", || {
        host.transmit(now_ns(), &batch, &mut 0).unwrap();
        host.counters().packets_sent > 0
    });
}

/// Tests more guests than the host allows at a time. Most guests send nothing.
#[test]
fn silent_guests_do_not_block_others() {
    let mut host = link();
    let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
    nix::sys::resource::setrlimit(Resource::RLIMIT_NOFILE, soft.max(hard.min(4096)), hard).unwrap();
    let silent: Vec<_> = (0..1000).map(|_| call(local_of(&host))).collect();
    exchange(&mut link(), &mut host, &[12]);
    let mut ended = 0;
    for guest in &silent {
        ended += usize::from(matches!(hear(guest), Heard::Ended));
    }
    assert!(ended > guests::LIMITS.visitors, "{ended} connections were closed");
}

/// A stranger of the device's own user. It attaches a file with rings to each message.
struct Stranger {
    connection: OwnProcess,
    ring: RawFd,
}

impl io::Write for Stranger {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let rights = [self.ring];
        let rights = [ControlMessage::ScmRights(&rights)];
        let connection = self.connection.as_fd().as_raw_fd();
        Ok(sendmsg::<()>(connection, &[IoSlice::new(bytes)], &rights, MsgFlags::MSG_NOSIGNAL, None)?)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Some of the strangers send an invitation that fits, and never prove their address.
#[test]
fn a_device_is_met_beside_strangers() {
    let mut host = link();
    let local = local_of(&host);
    let (_mapping, ring) = Mapping::create().unwrap();
    let ring = ring.as_raw_fd();
    let connect = || {
        let called = call_at(name_of(local.ip(), local.port()).as_bytes()).map_err(io::Error::other)?;
        called.map(|connection| Stranger { connection, ring }).ok_or_else(|| io::ErrorKind::ConnectionRefused.into())
    };
    strangers::beside_on(connect, &hello_from([127, 77, 43, 12].into()).to_bytes(), || {
        exchange(&mut link(), &mut host, &[12]);
        let mut seen = Plain::default();
        eventually("the packet arrives through memory", || host.receive(now_ns(), &mut seen).unwrap() > 0);
        assert_eq!(seen.0, [packet(0, 12)]);
    });
    assert_eq!(host.link_counters().shared_memory_refused, 0, "a device counts as refused");
}

/// Last step of the exchange that a host makes before its process is stopped.
enum StopsAfter {
    Nothing,
    Welcome,
    Challenge,
}

#[test]
fn a_host_that_stops_at_any_step_is_reached_over_udp_and_asked_again_only_after_its_welcome() {
    for (octet, step) in [(5, StopsAfter::Nothing), (6, StopsAfter::Welcome), (7, StopsAfter::Challenge)] {
        let udp = UdpSocket::bind((Ipv4Addr::new(127, 77, 43, octet), PORT)).unwrap();
        let local = udp.local_addr().unwrap();
        let listener = silent_host(local);
        let shared = bind_udp(BindRequest { port: PORT, ..BindRequest::default() }).unwrap();
        // A host that stops after the challenge completes its answer. Its limit is long, so that the answer is in time
        // on a busy machine. Other hosts do not answer, and the test waits for their limit.
        let within = if matches!(step, StopsAfter::Challenge) { 60_000 } else { 50 };
        let own = shared.local_socket_address();
        let socket = shared.readable().unwrap();
        let meeting = meeting_of(own, socket, Duration::from_millis(within));
        meeting.invite(first_engine(local.ip()));
        let mut guest = None;
        eventually("the host is invited", || {
            guest = sys::accept(listener.as_fd()).ok();
            guest.is_some()
        });
        let guest = guest.unwrap();
        let Some(Message::Hello { nonce, .. }) = answer(&guest) else { panic!("no hello") };
        let welcome = Message::Welcome { version: VERSION, answer: Answer::Accepted };
        if !matches!(step, StopsAfter::Nothing) {
            send(&guest, welcome, None).unwrap();
        }
        if matches!(step, StopsAfter::Challenge) {
            meeting.challenged(local.ip(), nonce, [9; 16]);
            // The inviter now shares memory with a stopped host, which reads nothing. Only the timers of a requester
            // can detect such a host.
            assert_eq!(answer(&guest), Some(Message::Proof { nonce: [9; 16] }));
            let mut news = Vec::new();
            eventually("memory is shared", || {
                news.extend(meeting.news());
                !news.is_empty()
            });
            assert!(
                matches!(news[..], [News::Arrived { peer, made_here: true, .. }] if peer == first_engine(local.ip()))
            );
            drop(guest);
            eventually("the death of the host is seen", || matches!(meeting.news()[..], [News::Gone { id: 0 }]));
            continue;
        }
        let mut news = Vec::new();
        eventually("the host is given up", || {
            news.extend(meeting.news());
            !news.is_empty()
        });
        assert!(
            matches!(&news[..], [News::Absent { why: Some(why), .. }] if why == "the device did not answer in time")
        );
        if matches!(step, StopsAfter::Welcome) {
            begins_again(&meeting, &listener, &guest, nonce, local.ip());
            continue;
        }
        // The device must not invite the host again while the first invitation is unanswered.
        (0..100).for_each(|_| meeting.invite(first_engine(local.ip())));
        std::thread::sleep(Duration::from_millis(2 * within));
        let again = sys::accept(listener.as_fd());
        assert_eq!(again.unwrap_err().kind(), io::ErrorKind::WouldBlock);
        // Each further request to invite the host reports it as absent, so that no packet waits.
        let news = meeting.news();
        assert!((1..=100).contains(&news.len()));
        assert!(news.iter().all(|news| matches!(news, News::Absent { why: None, .. })), "{news:?}");
        // The host's process continues and completes the exchange.
        send(&guest, welcome, None).unwrap();
        meeting.challenged(local.ip(), [1; 16], [9; 16]); // a nonce of another inviter
        meeting.challenged(local.ip(), nonce, [9; 16]);
        assert_eq!(answer(&guest), Some(Message::Proof { nonce: [9; 16] }));
        eventually("memory is shared", || matches!(meeting.news()[..], [News::Arrived { .. }]));
    }
}

/// Tests an inviter whose host has sent a welcome, and whose challenge was lost. At the next request to invite the
/// host, the inviter ends the exchange and begins a new one.
fn begins_again(meeting: &Meeting, listener: &OwnProcess, first: &OwnedFd, lost: Nonce, host: IpAddr) {
    meeting.invite(first_engine(host));
    assert_eq!(answer(first), None, "the first exchange goes on");
    let mut second = None;
    eventually("the host is invited again", || {
        second = sys::accept(listener.as_fd()).ok();
        second.is_some()
    });
    let second = second.unwrap();
    let Some(Message::Hello { nonce, .. }) = answer(&second) else { panic!("no hello") };
    assert_ne!(nonce, lost);
    meeting.challenged(host, lost, [8; 16]); // the first challenge was late, not lost
    send(&second, Message::Welcome { version: VERSION, answer: Answer::Accepted }, None).unwrap();
    meeting.challenged(host, nonce, [9; 16]);
    assert_eq!(answer(&second), Some(Message::Proof { nonce: [9; 16] }));
    eventually("memory is shared", || {
        meeting.news().iter().any(|news| matches!(news, News::Arrived { peer, .. } if peer.address == host))
    });
}

#[test]
fn a_strangers_challenge_causes_no_work() {
    let udp = bind_udp(BindRequest { port: PORT, ..BindRequest::default() }).unwrap();
    let socket = udp.readable().unwrap();
    let meeting = meeting_of(udp.local_socket_address(), socket, Duration::from_secs(1));
    for number in 0..100_000_u64 {
        let mut nonce = [0; 16];
        nonce[..8].copy_from_slice(&number.to_le_bytes());
        meeting.challenged([127, 77, 43, 9].into(), nonce, nonce);
    }
    assert!(lock(&meeting.shared().wishes).is_empty());
}

#[test]
fn a_closed_listener_is_recreated() {
    let mut host = link_at(Some([127, 77, 43, 10].into()), LinkChoice::Auto);
    let name = format!("doorbell-link/{}", std::fs::read_link("/proc/thread-self/ns/net").unwrap().display());
    let name = format!("@{name}/127.77.43.10/{PORT}");
    let table = std::fs::read_to_string("/proc/net/unix").unwrap();
    let line = table.lines().find(|line| line.ends_with(&name)).expect("the name is in the table");
    let inode: u64 = line.split_whitespace().nth(6).unwrap().parse().unwrap();
    let is_it = |fd: &RawFd| {
        std::fs::read_link(format!("/proc/self/fd/{fd}"))
            .is_ok_and(|to| to.to_string_lossy() == format!("socket:[{inode}]"))
    };
    let files = std::fs::read_dir("/proc/self/fd").unwrap().flatten();
    let fd = files.map(|file| file.file_name().to_string_lossy().parse().unwrap()).find(is_it).unwrap();
    // Replace the descriptor by another file, as a program might that closes all descriptors.
    let file = file_in_memory(c"doorbell-test-taker", 1, SealFlag::empty());
    let taken = sys::replace(fd, file.as_fd());
    // The thread may still sleep on the old socket. A guest that connects wakes it.
    let _ = call_at(name_of(local_of(&host).ip(), PORT).as_bytes());
    eventually("the host has its name again", || {
        let table = std::fs::read_to_string("/proc/net/unix").unwrap();
        table.lines().any(|line| line.ends_with(&name) && !line.contains(&format!(" {inode} ")))
    });
    exchange(&mut link(), &mut host, &[12]);
    assert!(is_open(taken.as_fd()), "the host closed the file that now has the number");
    drop(host);
    assert!(is_open(taken.as_fd()));
}

fn is_open(fd: BorrowedFd<'_>) -> bool {
    fcntl(fd, FcntlArg::F_GETFD).is_ok()
}

//! Tests of the ports of this machine: which ids may have the same port, and how the ports relate to TCP ports.

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{IpAddr, Ipv6Addr, TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use socket2::SockRef;

use super::super::message::{Host, Message};
use super::super::ports::{Bound, Claim, Space, caller};
use super::super::testing::{PORTS, Transport, message as request, port_of_this_machine};
use super::super::{address, id, service};
use super::*;
use crate::process::fork::Inside;

fn at(text: &str, port: u16) -> SockAddr {
    SocketAddr::new(text.parse().unwrap(), port).into()
}

fn set(id: *mut c::rdma_cm_id, option: c::_bindgen_ty_26, value: c_int) -> c_int {
    let mut value = value;
    // SAFETY: the id exists, and the option is a number.
    unsafe {
        rdma_set_option(id, c::RDMA_OPTION_ID as c_int, option as c_int, (&raw mut value).cast(), size_of::<c_int>())
    }
}

fn port_of(id: *mut c::rdma_cm_id) -> u16 {
    // SAFETY: the id exists.
    u16::from_be(unsafe { rdma_get_src_port(id) })
}

/// Returns the local and the remote address that a program sees in the id.
fn addresses_of(id: *mut c::rdma_cm_id) -> [SocketAddr; 2] {
    // SAFETY: the id exists. Its fields have room for any address.
    unsafe {
        let address = &raw mut (*id).route.addr;
        [(&raw const (*address).__bindgen_anon_1).cast(), (&raw const (*address).__bindgen_anon_2).cast()]
            .map(|place| address::read(place).unwrap().unwrap())
    }
}

/// Address and options with which a program binds an id.
struct Asks {
    ip: &'static str,
    only: bool,
    reuse: bool,
}

const fn plain(ip: &'static str) -> Asks {
    Asks { ip, only: false, reuse: false }
}

const fn only(ip: &'static str) -> Asks {
    Asks { ip, only: true, reuse: false }
}

const fn reusing(ip: &'static str) -> Asks {
    Asks { ip, only: false, reuse: true }
}

impl Asks {
    fn bind(&self, channel: &Channel, port: u16) -> (*mut c::rdma_cm_id, c_int) {
        let id = channel.id(c::RDMA_PS_TCP);
        if self.only {
            fine(set(id, c::RDMA_OPTION_ID_AFONLY, 1));
        }
        if self.reuse {
            fine(set(id, c::RDMA_OPTION_ID_REUSEADDR, 1));
        }
        // SAFETY: the id exists.
        let result = unsafe { rdma_bind_addr(id, sockaddr(&at(self.ip, port))) };
        (id, if result == 0 { 0 } else { errno() })
    }
}

/// Checks the errno of the second of two ids that bind the same port (`cma_check_port` of Linux).
#[test]
fn two_ids_share_a_port_exactly_if_linux_allows_it() {
    let (same, any) = (libc::EADDRINUSE, libc::EADDRNOTAVAIL);
    let cases = [
        (plain("127.0.0.1"), plain("127.0.0.1"), same),
        (plain("127.0.0.1"), plain("127.0.0.2"), 0),
        (plain("127.0.0.1"), plain("0.0.0.0"), any),
        (plain("0.0.0.0"), plain("127.0.0.1"), any),
        (plain("0.0.0.0"), plain("0.0.0.0"), any),
        (plain("::1"), plain("::1"), same),
        (plain("::1"), plain("127.0.0.1"), 0),
        (plain("::"), plain("127.0.0.1"), any),
        (plain("::"), plain("0.0.0.0"), any),
        (only("::"), plain("127.0.0.1"), 0),
        (plain("0.0.0.0"), only("::"), 0),
        (only("::"), plain("::1"), any),
        (only("::"), only("::1"), any),
        (plain("::1"), plain("0.0.0.0"), any),
        (only("::1"), plain("0.0.0.0"), 0),
        (plain("::1"), only("::1"), same),
        (plain("::ffff:127.0.0.1"), plain("127.0.0.1"), same),
        (reusing("127.0.0.1"), reusing("127.0.0.1"), 0),
        (reusing("0.0.0.0"), reusing("127.0.0.1"), 0),
        (reusing("0.0.0.0"), reusing("0.0.0.0"), 0),
        (reusing("127.0.0.1"), plain("127.0.0.1"), same),
        (plain("127.0.0.1"), reusing("127.0.0.1"), same),
        (plain("0.0.0.0"), reusing("127.0.0.1"), any),
    ];
    let channel = Channel::new();
    for (first, second, expected) in cases {
        if !address::is_here((Ipv6Addr::LOCALHOST, 0).into()) && (first.ip.contains(':') || second.ip.contains(':')) {
            continue; // this machine has no IPv6
        }
        let (one, errno) = first.bind(&channel, 0);
        assert_eq!(errno, 0, "{}", first.ip);
        let (other, errno) = second.bind(&channel, port_of(one));
        assert_eq!(
            errno, expected,
            "{} (reuse {}, only {}) after {} (reuse {}, only {})",
            second.ip, second.reuse, second.only, first.ip, first.reuse, first.only
        );
        destroy(&[other, one]);
    }
}

#[test]
fn ports_of_different_spaces_are_different() {
    let channel = Channel::new();
    let (one, other, third) = (channel.id(c::RDMA_PS_TCP), channel.id(c::RDMA_PS_UDP), channel.id(c::RDMA_PS_IPOIB));
    // SAFETY: the ids exist.
    unsafe {
        fine(rdma_bind_addr(one, sockaddr(&local(0))));
        fine(rdma_bind_addr(other, sockaddr(&local(port_of(one)))));
        fine(rdma_bind_addr(third, sockaddr(&local(port_of(one)))));
        [one, other, third].into_iter().for_each(|id| fine(rdma_listen(id, 0)));
    }
    destroy(&[one, other, third]);
}

#[test]
fn a_listener_does_not_share_its_port() {
    let channel = Channel::new();
    let (one, _) = reusing("127.0.0.1").bind(&channel, 0);
    let (other, errno) = reusing("127.0.0.1").bind(&channel, port_of(one));
    assert_eq!(errno, 0);
    // SAFETY: the ids exist.
    unsafe {
        // Listening fails while another id is bound to the port.
        refused(rdma_listen(one, 0), libc::EADDRINUSE);
        destroy(&[other]);
        fine(rdma_listen(one, 0));
        refused(set(one, c::RDMA_OPTION_ID_REUSEADDR, 1), libc::EINVAL);
        let (late, errno) = reusing("127.0.0.1").bind(&channel, port_of(one));
        assert_eq!(errno, libc::EADDRINUSE);
        // A bound id may start to share its port, but it may not stop sharing.
        let (bound, _) = plain("127.0.0.1").bind(&channel, 0);
        fine(set(bound, c::RDMA_OPTION_ID_REUSEADDR, 1));
        refused(set(bound, c::RDMA_OPTION_ID_REUSEADDR, 0), libc::EINVAL);
        let (beside, errno) = reusing("0.0.0.0").bind(&channel, port_of(bound));
        assert_eq!(errno, 0);
        destroy(&[one, late, bound, beside]);
    }
}

#[test]
fn a_chosen_port_is_a_free_one_of_the_ephemeral_range() {
    let range = std::fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range").unwrap();
    let [low, high] = range.split_whitespace().map(|text| text.parse::<u16>().unwrap()).collect::<Vec<_>>()[..] else {
        panic!("{range}");
    };
    let channel = Channel::new();
    let ids: Vec<_> = (0..40).map(|_| plain("127.0.0.1").bind(&channel, 0).0).collect();
    let mut ports: Vec<_> = ids.iter().map(|&id| port_of(id)).collect();
    assert!(ports.iter().all(|port| (low..=high).contains(port)), "{ports:?} beside {range}");
    ports.sort_unstable();
    ports.dedup();
    assert_eq!(ports.len(), ids.len());
    destroy(&ids);
}

#[test]
fn a_program_gets_the_tcp_port_of_its_listener_that_other_machines_reach() {
    let (passive, active) = (Channel::new(), Channel::new());
    for (ip, listens) in [("0.0.0.0", true), ("127.0.0.1", true), ("0.0.0.0", false)] {
        let id = passive.id(c::RDMA_PS_TCP);
        Transport::Tcp.select(id);
        // SAFETY: the id exists.
        unsafe {
            fine(rdma_bind_addr(id, sockaddr(&at("0.0.0.0", 0))));
            let port = port_of(id);
            if listens {
                fine(rdma_listen(id, 0));
                connects(&active, &passive, port, Transport::Tcp);
                // If the program does not get the TCP port, other machines must still reach the listener.
                let inside = Inside::new(); // forks of other tests must not copy a lock that is held here
                assert!(!service::leaving_tcp((Ipv4Addr::LOCALHOST, port).into(), || false));
                drop(inside);
                connects(&active, &passive, port, Transport::Tcp);
            }
            let wanted: IpAddr = ip.parse().unwrap();
            let tcp = TcpListener::bind((wanted, port)).unwrap();
            if !listens {
                fine(rdma_listen(id, 0));
            }
            TcpStream::connect((Ipv4Addr::LOCALHOST, port)).unwrap().write_all(b"tcp").unwrap();
            connects(&active, &passive, port, Transport::Unix);
            let mut said = Vec::new();
            tcp.accept().unwrap().0.read_to_end(&mut said).unwrap();
            assert_eq!(said, b"tcp");
        }
        destroy(&[id]);
    }
}

#[test]
fn a_signal_handler_may_bind_while_its_thread_holds_a_lock() {
    let channel = Channel::new();
    let id = channel.id(c::RDMA_PS_TCP);
    Transport::Tcp.select(id);
    // SAFETY: the id exists.
    unsafe {
        fine(rdma_bind_addr(id, sockaddr(&at("0.0.0.0", 0))));
        fine(rdma_listen(id, 0));
    }
    let port = port_of(id);
    // SAFETY: the id exists.
    let interrupted = unsafe { id::own(id) }.unwrap().line.state();
    assert_eq!(TcpListener::bind((Ipv4Addr::LOCALHOST, port)).unwrap_err().kind(), ErrorKind::AddrInUse);
    drop(interrupted);
    TcpListener::bind((Ipv4Addr::LOCALHOST, port)).unwrap();
    destroy(&[id]);
}

/// Checks that a request from an id of `channel` reaches the listener of `passive` at the port.
pub(super) fn connects(channel: &Channel, passive: &Channel, port: u16, transport: Transport) {
    let client = channel.resolved(c::RDMA_PS_TCP, port);
    transport.select(client);
    // SAFETY: the id exists.
    fine(unsafe { rdma_connect(client, &mut c::rdma_conn_param { qp_num: 1, ..param(b"") }) });
    let server = passive.expect(c::RDMA_CM_EVENT_CONNECT_REQUEST, 0).id;
    destroy(&[server]);
    channel.expect(c::RDMA_CM_EVENT_REJECTED, 28);
    destroy(&[client]);
}

/// Binds a TCP listener, and then the id, to one port.
fn bind_beside_tcp(id: *mut c::rdma_cm_id, ip: &str) -> TcpListener {
    let bind = |_| {
        let tcp = TcpListener::bind((ip.parse::<IpAddr>().unwrap(), 0)).unwrap();
        let port = tcp.local_addr().unwrap().port();
        // SAFETY: the id exists.
        let is_bound = unsafe { rdma_bind_addr(id, sockaddr(&at(ip, port))) } == 0;
        let is_taken = !is_bound && [libc::EADDRINUSE, libc::EADDRNOTAVAIL].contains(&errno());
        assert!(is_bound || is_taken, "errno {}", errno());
        is_bound.then_some(tcp)
    };
    (0..PORTS).find_map(bind).expect("some port is free")
}

/// Listens with an id, and then binds a TCP listener to the same port.
fn listen_before_tcp(channel: &Channel, ip: &str) -> (*mut c::rdma_cm_id, TcpListener) {
    let listen = |_| {
        let id = channel.id(c::RDMA_PS_TCP);
        // SAFETY: the id exists.
        unsafe {
            fine(rdma_bind_addr(id, sockaddr(&at(ip, 0))));
            fine(rdma_listen(id, 0));
        }
        match TcpListener::bind((ip.parse::<IpAddr>().unwrap(), port_of(id))) {
            Ok(tcp) => Some((id, tcp)),
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::AddrInUse);
                destroy(&[id]);
                None
            }
        }
    };
    (0..PORTS).find_map(listen).expect("some port is free")
}

#[test]
fn a_program_listens_for_tcp_and_for_rdma_at_one_port_in_either_order() {
    let (passive, active) = (Channel::new(), Channel::new());
    for (ip, tcp_first) in [("127.0.0.1", true), ("127.0.0.1", false), ("0.0.0.0", true), ("0.0.0.0", false)] {
        let (id, tcp) = if tcp_first {
            let id = passive.id(c::RDMA_PS_TCP);
            let tcp = bind_beside_tcp(id, ip);
            // SAFETY: the id exists.
            unsafe { fine(rdma_listen(id, 0)) };
            (id, tcp)
        } else {
            listen_before_tcp(&passive, ip)
        };
        let port = port_of(id);
        // The TCP listener must get the TCP connection, and the id the RDMA connection.
        TcpStream::connect((Ipv4Addr::LOCALHOST, port)).unwrap().write_all(b"tcp").unwrap();
        connects(&active, &passive, port, Transport::Unix);
        let mut said = Vec::new();
        tcp.accept().unwrap().0.read_to_end(&mut said).unwrap();
        assert_eq!(said, b"tcp");
        destroy(&[id]);
    }
}

#[test]
fn other_machines_reach_a_listener_by_tcp_unless_its_port_is_taken_there() {
    let (passive, active) = (Channel::new(), Channel::new());
    let (free, taken) = (passive.id(c::RDMA_PS_TCP), passive.id(c::RDMA_PS_TCP));
    [free, taken].into_iter().for_each(|id| Transport::Tcp.select(id));
    let holder = bind_beside_tcp(taken, "0.0.0.0");
    let port = holder.local_addr().unwrap().port();
    // SAFETY: the ids exist.
    unsafe {
        fine(rdma_bind_addr(free, sockaddr(&at("0.0.0.0", 0))));
        fine(rdma_listen(free, 0));
        fine(rdma_listen(taken, 0));
    }
    for transport in Transport::BOTH {
        connects(&active, &passive, port_of(free), transport);
    }
    connects(&active, &passive, port, Transport::Unix);
    // The TCP port of a destroyed listener is free again.
    let number = port_of(free);
    destroy(&[free, taken]);
    drop(TcpListener::bind((Ipv4Addr::UNSPECIFIED, number)).unwrap());
}

#[test]
fn both_ends_see_the_addresses_that_they_named() {
    let (passive, active) = (Channel::new(), Channel::new());
    let mut listeners = vec!["0.0.0.0"];
    if address::is_here((Ipv6Addr::LOCALHOST, 0).into()) {
        listeners.push("::");
    }
    for listening in listeners {
        let listener = passive.id(c::RDMA_PS_TCP);
        // SAFETY: the ids exist.
        unsafe {
            fine(rdma_bind_addr(listener, sockaddr(&at(listening, 0))));
            fine(rdma_listen(listener, 0));
            let port = port_of(listener);
            let targets = if listening == "::" { &["127.0.0.7", "::1"][..] } else { &["127.0.0.7"] };
            for &target in targets {
                let client = active.id(c::RDMA_PS_TCP);
                fine(rdma_resolve_addr(client, ptr::null_mut(), sockaddr(&at(target, port)), 1000));
                active.expect(c::RDMA_CM_EVENT_ADDR_RESOLVED, 0);
                fine(rdma_resolve_route(client, 1000));
                active.expect(c::RDMA_CM_EVENT_ROUTE_RESOLVED, 0);
                fine(rdma_connect(client, &mut c::rdma_conn_param { qp_num: 1, ..param(b"") }));
                let server = passive.expect(c::RDMA_CM_EVENT_CONNECT_REQUEST, 0).id;
                let [own, far] = addresses_of(server);
                assert_eq!(own, SocketAddr::new(target.parse().unwrap(), port));
                assert_eq!(addresses_of(client), [far, own]);
                destroy(&[server]);
                active.expect(c::RDMA_CM_EVENT_REJECTED, 28);
                destroy(&[client]);
            }
        }
        destroy(&[listener]);
    }
}

/// Forks a process that runs `body`, reports whether `body` succeeded, and waits until a signal kills it.
fn forked(body: impl FnOnce() -> bool) -> libc::pid_t {
    let (mut here, mut there) = UnixStream::pair().unwrap();
    // SAFETY: the child runs only the code below, and then ends without unwinding.
    let child = unsafe { libc::fork() };
    assert!(child >= 0);
    if child == 0 {
        let said = if body() { b"y" } else { b"n" };
        let _ = there.write_all(said);
        loop {
            // SAFETY: `pause` has no arguments.
            unsafe { libc::pause() };
        }
    }
    drop(there);
    let mut said = [0];
    here.read_exact(&mut said).unwrap();
    assert_eq!(&said, b"y");
    child
}

fn kill(child: libc::pid_t) {
    let mut status = 0;
    // SAFETY: the child was forked by this test, which has not waited for it yet.
    unsafe {
        libc::kill(child, libc::SIGKILL);
        assert_eq!(libc::waitpid(child, &raw mut status, 0), child);
    }
}

/// Returns the processor time that this process has used.
fn cpu() -> Duration {
    let mut usage = std::mem::MaybeUninit::<libc::rusage>::uninit();
    // SAFETY: a successful call fills in the structure.
    let usage = unsafe {
        assert_eq!(libc::getrusage(libc::RUSAGE_SELF, usage.as_mut_ptr()), 0);
        usage.assume_init()
    };
    [usage.ru_utime, usage.ru_stime]
        .map(|time| Duration::new(time.tv_sec.cast_unsigned(), time.tv_usec as u32 * 1000))
        .iter()
        .sum()
}

#[test]
fn a_listener_without_descriptors_waits_until_there_are_some() {
    let limit_to = |limit| {
        let mut limits = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
        // SAFETY: the calls read and fill in only this structure.
        unsafe {
            assert_eq!(libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limits), 0);
            let before = std::mem::replace(&mut limits.rlim_cur, limit);
            assert_eq!(libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limits), 0);
            before
        }
    };
    // Run the test in its own process, since the limit of descriptors applies to the whole process.
    let child = forked(|| {
        let waits = || {
            let passive = Channel::new();
            let (listener, port) = passive.listener(c::RDMA_PS_TCP, 0);
            let claim = port_of_this_machine();
            let before = limit_to(3);
            claim.call((Ipv4Addr::LOCALHOST, port).into()).unwrap();
            let (spent, watched) = (cpu(), Duration::from_millis(500));
            std::thread::sleep(watched);
            let spent = cpu() - spent;
            limit_to(before);
            let host = Host::of((Ipv4Addr::LOCALHOST, port).into());
            let said = [Message::Addresses { source: host, destination: host }.emit(), request().emit()].concat();
            SockRef::from(claim.socket()).send(&said).unwrap();
            let server = passive.expect(c::RDMA_CM_EVENT_CONNECT_REQUEST, 0).id;
            destroy(&[server, listener]);
            assert!(spent < watched / 2, "{spent:?} of {watched:?}");
        };
        std::panic::catch_unwind(std::panic::AssertUnwindSafe(waits)).is_ok()
    });
    kill(child);
}

/// Binds an abstract name as another user, and listens at that name.
fn squat(name: &str, user: u32) -> socket2::Socket {
    doorbell_testing::as_user(user, || {
        let socket = socket2::Socket::new(socket2::Domain::UNIX, socket2::Type::STREAM, None).unwrap();
        socket.bind(&socket2::SockAddr::unix(format!("\0doorbell-cm/{name}")).unwrap()).unwrap();
        socket.listen(1).unwrap();
        socket
    })
}

/// Returns whether a client has connected to another user's socket.
fn is_called(socket: &socket2::Socket) -> bool {
    socket.set_nonblocking(true).unwrap();
    socket.accept().is_ok()
}

fn may_be_others() -> bool {
    doorbell_testing::root_or_leave_out("tests that become another user")
}

/// Checks how a client chooses between listeners. While one program listens at any address, the kernel lets a program
/// of another user bind the name of a listener at one address.
#[test]
fn a_caller_prefers_the_listener_of_its_own_user() {
    if !may_be_others() {
        return;
    }
    let passive = Channel::new();
    let (chosen, _) = plain("0.0.0.0").bind(&passive, 0);
    let port = port_of(chosen);
    // SAFETY: the id exists.
    assert_eq!(unsafe { rdma_listen(chosen, 0) }, 0);
    let to: SocketAddr = (Ipv4Addr::LOCALHOST, port).into();
    let squatter = squat(&format!("listen/tcp/{port}/127.0.0.1"), 1000);
    port_of_this_machine().call(to).unwrap();
    assert!(!is_called(&squatter));
    destroy(&[chosen]);
    // If the client's user and root have no listener, the client uses the listener of another user. The client refuses
    // to choose between two such users.
    port_of_this_machine().call(to).unwrap();
    assert!(is_called(&squatter));
    let second = squat(&format!("listen/tcp/{port}/0.0.0.0"), 1001);
    assert_eq!(port_of_this_machine().call(to).unwrap_err().kind(), ErrorKind::ConnectionRefused);
    drop(second);
    // The test runs as root, so `twin` belongs to the client's user. The client prefers it to the listener of user
    // 1000.
    let twin = squat(&format!("listen/tcp/{port}/*"), 0);
    port_of_this_machine().call(to).unwrap();
    assert!(is_called(&twin) && !is_called(&squatter));
}

#[test]
fn names_of_other_users_are_no_ports_of_ours() {
    if !may_be_others() {
        return;
    }
    let (passive, channel) = (Channel::new(), Channel::new());
    let (chosen, _) = plain("127.0.0.1").bind(&passive, 0);
    let port = port_of(chosen);
    destroy(&[chosen]);
    let names = ["port/tcp/PORT/127.0.0.1", "port/tcp/PORT/0.0.0.0", "listen/tcp/PORT/127.0.0.1"];
    let squatters = names.map(|name| squat(&name.replace("PORT", &port.to_string()), 1000));
    let (chosen, errno) = plain("127.0.0.1").bind(&passive, port);
    assert_eq!(errno, 0);
    // SAFETY: the id exists.
    assert_eq!(unsafe { rdma_listen(chosen, 0) }, 0);
    // A second id of this user must still get an error.
    assert_eq!(plain("127.0.0.1").bind(&channel, port).1, libc::EADDRINUSE);
    assert_eq!(plain("0.0.0.0").bind(&channel, port).1, libc::EADDRNOTAVAIL);
    port_of_this_machine().call((Ipv4Addr::LOCALHOST, port).into()).unwrap();
    assert!(!squatters.iter().any(is_called));
    drop(squatters);
    // The id still has the port, although the name of the id has a suffix.
    assert_eq!(plain("127.0.0.1").bind(&channel, port).1, libc::EADDRINUSE);
    port_of_this_machine().call((Ipv4Addr::LOCALHOST, port).into()).unwrap();
    destroy(&[chosen]);
}

#[test]
fn a_caller_beside_another_users_name_shows_its_port() {
    if !may_be_others() {
        return;
    }
    let passive = Channel::new();
    let (chosen, _) = plain("127.0.0.1").bind(&passive, 0);
    let port = port_of(chosen);
    destroy(&[chosen]);
    let squatter = squat(&format!("port/udp/{port}/127.0.0.1"), 1000);
    let address = (Ipv4Addr::LOCALHOST, port).into();
    let bound = Bound { space: Space::Udp, address, only: false, reuse: false };
    let claim = Claim::take(bound).unwrap();
    let name = socket2::SockRef::from(claim.socket()).local_addr().unwrap();
    assert_eq!(caller(&name), Some(bound));
    drop(squatter);
}

#[test]
fn the_port_of_a_killed_listener_is_free() {
    let channel = Channel::new();
    let (chosen, _) = plain("127.0.0.1").bind(&channel, 0);
    let port = port_of(chosen);
    destroy(&[chosen]);
    let child = forked(|| {
        let (mut id, channel) = (ptr::null_mut(), rdma_create_event_channel());
        // SAFETY: the channel exists. If `rdma_create_id` succeeds, the id exists.
        unsafe {
            rdma_create_id(channel, &raw mut id, ptr::null_mut(), c::RDMA_PS_TCP) == 0
                && rdma_bind_addr(id, sockaddr(&local(port))) == 0
                && rdma_listen(id, 0) == 0
        }
    });
    let (id, errno) = plain("127.0.0.1").bind(&channel, port);
    assert_eq!(errno, libc::EADDRINUSE);
    kill(child);
    // SAFETY: the id exists.
    unsafe {
        fine(rdma_bind_addr(id, sockaddr(&local(port))));
        fine(rdma_listen(id, 0));
    }
    destroy(&[id]);
}

#[test]
fn a_forked_child_does_not_keep_its_parents_port() {
    let channel = Channel::new();
    let (listener, port) = channel.listener(c::RDMA_PS_TCP, 0);
    let child = forked(|| true);
    destroy(&[listener]);
    let (id, errno) = plain("127.0.0.1").bind(&channel, port);
    kill(child);
    assert_eq!(errno, 0);
    destroy(&[id]);
}

//! Tests of a host with many guests.

use std::collections::VecDeque;

use super::*;

/// A host whose thread is the test, and strangers of the own user.
struct Crowd {
    host: Host,
    local: SocketAddr,
    ring: OwnedFd,
    /// Strangers that have sent nothing, the oldest first.
    silent: VecDeque<OwnProcess>,
    strangers: Vec<OwnProcess>,
    /// Number of the next guest.
    next: Number,
    _mapping: Mapping,
    _udp: crate::UdpLink,
}

impl Crowd {
    fn new() -> Self {
        let udp = bind_udp(BindRequest { port: PORT, ..BindRequest::default() }).unwrap();
        let local = udp.local_socket_address();
        let shared = Arc::new(MeetingState::new(1).unwrap());
        let hosted = Some(connection::host_or_beside(local).unwrap());
        let within = Duration::from_secs(60);
        let mut host = Host::new(shared, local, udp.readable().unwrap(), within, hosted);
        host.admission.set_total(within);
        let (mapping, ring) = Mapping::create().unwrap();
        let (silent, strangers) = (VecDeque::new(), Vec::new());
        Self { host, local, ring, silent, strangers, next: 0, _mapping: mapping, _udp: udp }
    }

    fn connect(&mut self) -> (OwnProcess, Number) {
        self.next += 1;
        (call(self.local), self.next - 1)
    }

    fn invite(&self, stranger: &OwnProcess) {
        send(stranger, hello_from([127, 77, 43, 13].into()), Some(self.ring.as_raw_fd())).unwrap();
    }

    /// Connects a further stranger. Every second one sends an invitation.
    fn add_stranger(&mut self) {
        let (stranger, number) = self.connect();
        if number % 2 == 0 {
            self.silent.push_back(stranger);
        } else {
            self.invite(&stranger);
            self.strangers.push(stranger);
        }
    }

    /// Lets the host do one round, without waiting.
    fn round(&mut self) {
        self.host.shared.kick.signal();
        assert!(self.host.round());
    }

    /// Lets time pass in which the host waits for guests.
    fn pass(&mut self, time: Duration) {
        for _ in 0..time.as_millis().div_ceil(100) {
            self.host.begun -= Duration::from_millis(100);
            self.host.clock.return_at(self.host.begun.elapsed());
        }
    }

    fn has(&self, number: Number) -> bool {
        self.host.peers.iter().any(|peer| peer.guest == Some(number))
    }

    /// Lets the host work until it has handled all that was sent.
    fn settle(&mut self) {
        let is_ready = |connection: &OwnProcess| {
            let mut fds = [PollFd::new(connection.as_fd(), PollFlags::POLLIN)];
            poll(&mut fds, PollTimeout::ZERO).unwrap() > 0
        };
        eventually("the host has handled all guests", || {
            self.round();
            let connections = self.host.peers.iter().map(|peer| &peer.connection);
            !connections.chain(&self.host.listener).any(is_ready)
        });
    }

    /// Lets the host work until `is_over`. Before each round, a stranger connects, and up to five that were silent send
    /// an invitation. Returns the number of guests other than `own` that the host has handled.
    fn handled_until(&mut self, own: Number, is_over: impl Fn(&Host) -> bool) -> usize {
        self.host.handled.clear();
        for _ in 0..30 {
            self.add_stranger();
            for stranger in self.silent.drain(..self.silent.len().min(5)).collect::<Vec<_>>() {
                self.invite(&stranger);
                self.strangers.push(stranger);
            }
            self.round();
            if is_over(&self.host) {
                return self.host.handled.iter().filter(|&&number| number != own).count();
            }
        }
        panic!("30 rounds did not handle the guest, but {} strangers", self.host.handled.len());
    }
}

/// Strangers flood the host with connections and invitations. Between two steps of an honest guest, the host handles at
/// most one of them. The arrival of the guest is its first step.
#[test]
fn an_honest_guest_waits_for_at_most_one_stranger_per_step() {
    let mut crowd = Crowd::new();
    let mut bytes = [0; MAX_BYTES];
    for octet in 14..18 {
        let address = Ipv4Addr::new(127, 77, 43, octet);
        let udp = UdpSocket::bind((address, PORT)).unwrap();
        (0..30).for_each(|_| crowd.add_stranger());
        // The queue of connections has an order, so no other connection may be in it.
        crowd.settle();
        let (guest, own) = crowd.connect();
        let is_in = |host: &Host| host.peers.iter().any(|peer| peer.guest == Some(own));
        let before_arrival = crowd.handled_until(own, is_in);
        send(&guest, hello_from(address.into()), Some(crowd.ring.as_raw_fd())).unwrap();
        let before_invitation = crowd.handled_until(own, |host| host.handled.contains(&own));
        assert_eq!(answer(&guest), Some(Message::Welcome { version: VERSION, answer: Answer::Accepted }));
        let (length, _) = udp.recv_from(&mut bytes).unwrap();
        let Some(Datagram::Challenge { asked, .. }) = Datagram::parse(&bytes[..length]) else { panic!("no challenge") };
        send(&guest, Message::Proof { nonce: asked }, None).unwrap();
        let before_proof = crowd.handled_until(own, |host| host.handled.contains(&own));
        let is_it = |news: &News| matches!(news, News::Arrived { peer, .. } if peer.address == IpAddr::from(address));
        assert!(crowd.host.shared.reports[0].take().iter().any(is_it));
        let between = [before_arrival, before_invitation, before_proof];
        assert!(between.iter().all(|&count| count <= 1), "{between:?} strangers were handled before the three steps");
        crowd.strangers.clear();
        crowd.silent.clear();
        crowd.settle();
    }
}

/// All places of a host are taken by silent guests, the oldest of which may be evicted.
#[test]
fn a_guest_of_another_user_displaces_no_guest() {
    if !doorbell_testing::root_or_leave_out("tests that become another user") {
        return;
    }
    let mut crowd = Crowd::new();
    let _guests: Vec<_> = (0..guests::LIMITS.visitors).map(|_| crowd.connect()).collect();
    crowd.settle();
    eventually("the oldest guest may be evicted", || {
        crowd.round();
        crowd.host.admission.place_at() <= crowd.host.clock.counted()
    });
    let local = crowd.local;
    let other = doorbell_testing::as_user(65_534, || call(local));
    eventually("the guest of the other user is disconnected", || {
        crowd.round();
        matches!(connection::hear(&other), connection::Heard::Ended)
    });
    let is_in = |host: &Host, number| host.peers.iter().any(|peer| peer.guest == Some(number));
    assert!((0..guests::LIMITS.visitors as Number).all(|number| is_in(&crowd.host, number)), "a guest was evicted");
    let (_own, number) = crowd.connect();
    eventually("a guest of the own user takes the place of the oldest", || {
        crowd.round();
        is_in(&crowd.host, number)
    });
    assert!(!is_in(&crowd.host, 0) && is_in(&crowd.host, 1));
}

/// All places of a host are taken by guests that were asked for a proof, and one that has sent nothing.
#[test]
fn a_guest_has_a_second_for_its_proof_beside_a_crowd() {
    let mut crowd = Crowd::new();
    let (_silent, silent) = crowd.connect();
    crowd.settle();
    let from = crowd.host.clock.counted();
    for _ in 1..guests::LIMITS.visitors {
        let (guest, _) = crowd.connect();
        crowd.invite(&guest);
        crowd.strangers.push(guest);
    }
    crowd.settle();
    assert_eq!(crowd.host.admission.in_the_way(), Some(silent));
    crowd.pass(Duration::from_millis(100));
    let (new, _) = crowd.connect();
    crowd.invite(&new);
    crowd.settle();
    assert!(!crowd.has(silent), "the guest that is silent makes room first");
    let (_late, late) = crowd.connect();
    assert!(crowd.host.admission.place_at() >= from + Duration::from_secs(1));
    let left = crowd.host.admission.place_at().saturating_sub(crowd.host.clock.counted());
    crowd.pass(left);
    crowd.settle();
    assert!(crowd.has(late) && !crowd.has(1), "the guest that was asked first makes room after a second");
}

fn limit_descriptors(soft: u64) {
    let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
    nix::sys::resource::setrlimit(Resource::RLIMIT_NOFILE, soft, hard).unwrap();
}

fn open_files() -> impl Iterator<Item = File> {
    std::iter::from_fn(|| File::open("/dev/null").ok())
}

/// The descriptors of a process allow 50 peers, all of which are silent guests.
#[test]
fn guests_make_room_where_descriptors_bound_the_peers() {
    doorbell_testing::in_own_process(
        |_| {},
        || {
            let mut crowd = Crowd::new();
            // The ends of the test get high numbers, so that low numbers are free below the limit.
            limit_descriptors(400);
            let low: Vec<_> = open_files().take(200).collect();
            let _guests: Vec<_> = (0..50).map(|_| crowd.connect()).collect();
            drop(low);
            crowd.settle();
            limit_descriptors(100);
            assert_eq!((peers_max(), crowd.host.peers.len()), (50, 50));
            let (_own, number) = crowd.connect();
            crowd.pass(guests::LIMITS.patience);
            eventually("the new guest takes the place of the oldest", || {
                crowd.round();
                crowd.has(number)
            });
            assert!(!crowd.has(0) && crowd.has(1));
            // Guests find no place beside other peers, and the thread sleeps.
            limit_descriptors(0);
            crowd.host.admission = Admission::new(guests::LIMITS);
            assert!(!crowd.host.has_room());
            assert_eq!(crowd.host.guests_wake_at(), None);
            limit_descriptors(400);
        },
    );
}

/// A guest connects when the process has no descriptor left.
#[test]
fn a_silent_guest_makes_room_if_no_descriptor_is_left() {
    doorbell_testing::in_own_process(
        |_| {},
        || {
            let mut crowd = Crowd::new();
            let _guests: Vec<_> = (0..4).map(|_| crowd.connect()).collect();
            crowd.settle();
            let (_own, number) = crowd.connect();
            limit_descriptors(200);
            let files: Vec<_> = open_files().collect();
            assert!(!files.is_empty());
            crowd.pass(guests::LIMITS.patience);
            eventually("the new guest takes the descriptor of the oldest", || {
                crowd.round();
                crowd.has(number)
            });
            assert!(!crowd.has(0) && crowd.has(1));
        },
    );
}

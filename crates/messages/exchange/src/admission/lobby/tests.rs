use doorbell_testing::strangers;

use super::*;
use crate::admission::{Hello, Line};
use crate::setup::{SetupError, hello};

/// Time limit of one step of a test, longer than any step takes on a slow machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// An opening of two lines. The first line must be `token`, and the answer to the first line is `yes`.
#[derive(Clone, Debug)]
struct TwoLines {
    line: Line,
    has_token: bool,
}

impl Opening for TwoLines {
    type Admitted = Vec<u8>;
    type Refusal = String;

    fn hear(&mut self, _peer: &str, bytes: &[u8]) -> (usize, Verdict<Vec<u8>, String>) {
        let dismissed = |why: String| Verdict::Dismiss { reply: b"no\n".to_vec(), why: Some(why) };
        match self.line.take(bytes) {
            Err(error) => (bytes.len(), dismissed(error.to_string())),
            Ok((used, None)) => (used, Verdict::Continue),
            Ok((used, Some(line))) if self.has_token => (used, Verdict::Admit(line)),
            Ok((used, Some(line))) if line == b"token" => {
                self.has_token = true;
                (used, Verdict::Reply(b"yes\n".to_vec()))
            }
            Ok((used, Some(_))) => (used, dismissed("another token".to_owned())),
        }
    }
}

fn lobby(limits: Limits) -> Lobby<TwoLines> {
    let opening = TwoLines { line: Line::new(64 << 10), has_token: false };
    Lobby::new(TcpListener::bind("127.0.0.1:0").unwrap(), opening, limits).unwrap()
}

fn connect<O: Opening>(lobby: &Lobby<O>) -> TcpStream {
    let stream = TcpStream::connect(lobby.local_addr().unwrap()).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream
}

fn said(bytes: &[u8], lobby: &Lobby<TwoLines>) -> TcpStream {
    let mut stream = connect(lobby);
    stream.write_all(bytes).unwrap();
    stream
}

/// Handles visitors until no work is left.
fn settle(lobby: &mut Lobby<TwoLines>) -> Vec<Event<Vec<u8>, String>> {
    let mut events = Vec::new();
    loop {
        match lobby.step().unwrap() {
            Step::Event(event) => events.push(event),
            Step::Handled => {}
            Step::Idle => return events,
        }
    }
}

/// Lets time pass in which the lobby waits for visitors.
fn pass(lobby: &mut Lobby<TwoLines>, time: Duration) {
    for _ in 0..time.as_millis().div_ceil(100) {
        lobby.begun -= Duration::from_millis(100);
        lobby.clock.return_at(lobby.begun.elapsed());
    }
}

/// Handles visitors until a visitor is admitted. Returns the stream and the address of the admitted visitor.
fn admitted(lobby: &mut Lobby<TwoLines>) -> (TcpStream, SocketAddr, Vec<u8>) {
    let until = Instant::now() + PATIENCE;
    loop {
        match lobby.next(Some(until)).unwrap().expect("a visitor is admitted") {
            Event::Admitted { stream, from, opening, .. } => return (stream, from, opening),
            Event::Refused { .. } => {}
        }
    }
}

fn read(stream: &mut TcpStream, bytes: usize) -> Vec<u8> {
    let mut heard = vec![0; bytes];
    stream.read_exact(&mut heard).unwrap();
    heard
}

type Stepped = Step<Vec<u8>, String>;

/// Strangers of all kinds, of which the first ones never stop to send.
struct Crowd {
    kinds: Vec<Vec<u8>>,
    sending: Vec<TcpStream>,
    staying: Vec<TcpStream>,
    /// Number of strangers that have connected after the first ones.
    connected: usize,
}

impl Crowd {
    fn new(lobby: &mut Lobby<TwoLines>) -> Self {
        let kinds = strangers::kinds(b"token\n");
        let sending: Vec<_> = (0..48).map(|number| said(&kinds[number % kinds.len()], lobby)).collect();
        let until = Instant::now() + PATIENCE;
        while lobby.admission.len() < sending.len()
            || lobby.guests.values().any(|guest| guest.stream.peek(&mut [0]).is_ok())
        {
            assert!(Instant::now() < until);
            settle(lobby);
        }
        Self { kinds, sending, staying: Vec::new(), connected: 0 }
    }

    /// Steps the lobby until `is_over`. Before each step, a new stranger connects, and the others send a byte. Returns
    /// the number of strangers that the lobby handled, and the last step.
    fn handled_until(
        &mut self,
        lobby: &mut Lobby<TwoLines>,
        own: SocketAddr,
        is_over: impl Fn(&Lobby<TwoLines>, &Stepped) -> bool,
    ) -> (usize, Stepped) {
        lobby.handled.clear();
        for _ in 0..100 {
            self.sending.iter_mut().for_each(|stream| stream.write_all(b"y").unwrap());
            self.staying.push(said(&self.kinds[self.connected % self.kinds.len()], lobby));
            self.connected += 1;
            let step = lobby.step().unwrap();
            if is_over(lobby, &step) {
                return (lobby.handled.iter().filter(|&&from| from != own).count(), step);
            }
        }
        panic!("100 steps did not handle the client, but {} strangers", lobby.handled.len());
    }
}

/// Strangers flood the lobby with connections and bytes. Between two steps of an honest client, the lobby handles at
/// most one of them. The arrival of the client is its first step.
#[test]
fn an_honest_client_waits_for_at_most_one_stranger_per_step() {
    let mut lobby = lobby(Limits { total: PATIENCE, ..Limits::default() });
    let mut crowd = Crowd::new(&mut lobby);
    for _ in 0..4 {
        // The kernel's queue of connections has an order, so no other connection may be in it.
        settle(&mut lobby);
        crowd.staying.clear();
        settle(&mut lobby);
        let mut honest = connect(&lobby);
        let own = honest.local_addr().unwrap();
        let is_in = |lobby: &Lobby<TwoLines>, _: &Stepped| lobby.guests.values().any(|guest| guest.from == own);
        let (before_arrival, _) = crowd.handled_until(&mut lobby, own, is_in);
        honest.write_all(b"token\n").unwrap();
        let is_handled = |lobby: &Lobby<TwoLines>, _: &Stepped| lobby.handled.contains(&own);
        let (before_token, _) = crowd.handled_until(&mut lobby, own, is_handled);
        assert_eq!(read(&mut honest, 4), b"yes\n");
        honest.write_all(b"a line\nrest").unwrap();
        let (before_line, step) = crowd.handled_until(&mut lobby, own, is_handled);
        let Step::Event(Event::Admitted { mut stream, from, opening, .. }) = step else { panic!("{step:?}") };
        assert_eq!((from, &opening[..]), (own, &b"a line"[..]));
        assert_eq!(read(&mut stream, 4), b"rest", "bytes after the opening belong to the next protocol");
        let between = [before_arrival, before_token, before_line];
        assert!(between.iter().all(|&count| count <= 1), "{between:?} strangers were handled before the three steps");
    }
}

/// Many strangers have unread bytes when the instant comes.
#[test]
fn a_wait_ends_beside_strangers_that_are_ready() {
    let mut lobby = lobby(Limits { total: PATIENCE, ..Limits::default() });
    let mut crowd = Crowd::new(&mut lobby);
    crowd.sending.iter_mut().for_each(|stream| stream.write_all(b"y").unwrap());
    lobby.handled.clear();
    assert!(lobby.next(Some(Instant::now())).unwrap().is_none());
    assert_eq!(lobby.handled.len(), LATE_STEPS + 1);
}

/// The only place belongs to a visitor whose token arrives at the same time as another visitor.
#[test]
fn a_visitor_that_has_just_shown_its_token_keeps_its_place() {
    let mut lobby = lobby(Limits { visitors: 1, patience: Duration::from_millis(1), ..Limits::default() });
    let mut first = connect(&lobby);
    settle(&mut lobby);
    while !lobby.admission.has_place(lobby.clock.counted()) {
        settle(&mut lobby);
    }
    first.write_all(b"token\n").unwrap();
    let _second = connect(&lobby);
    lobby.is_arrivals_turn = true;
    assert!(matches!(lobby.step().unwrap(), Step::Handled));
    assert_eq!(lobby.guests.values().map(|guest| guest.from).collect::<Vec<_>>(), [first.local_addr().unwrap()]);
    assert_eq!(read(&mut first, 4), b"yes\n");
}

/// The strangers have got their answer, and do not close their connections.
#[test]
fn answered_strangers_hold_no_place() {
    let mut lobby = lobby(Limits { visitors: 2, patience: Duration::MAX, ..Limits::default() });
    let mut answered = [said(b"GET /\n", &lobby), said(b"GET /\n", &lobby)];
    assert_eq!(settle(&mut lobby).len(), 2);
    let honest = said(b"token\na line\n", &lobby);
    assert_eq!(admitted(&mut lobby).1, honest.local_addr().unwrap());
    answered.iter_mut().for_each(|stream| assert_eq!(read(stream, 3), b"no\n"));
}

#[test]
fn the_lobby_evicts_the_longest_silent_strangers_first() {
    let mut lobby = lobby(Limits { visitors: 8, patience: Duration::from_millis(1), ..Limits::default() });
    let strangers: Vec<TcpStream> = (0..40).map(|_| connect(&lobby)).collect();
    let mut honest = said(b"token\n", &lobby);
    let own = honest.local_addr().unwrap();
    let speaking = std::thread::spawn(move || {
        assert_eq!(read(&mut honest, 4), b"yes\n");
        honest.write_all(b"a line\n").unwrap();
        honest
    });
    let until = Instant::now() + PATIENCE;
    let mut evicted = Vec::new();
    loop {
        match lobby.next(Some(until)).unwrap().expect("the honest client is admitted") {
            Event::Admitted { from, .. } => break assert_eq!(from, own),
            Event::Refused { from, why: Why::Evicted } => evicted.push(from),
            Event::Refused { why, .. } => panic!("{why}"),
        }
    }
    let addresses: Vec<SocketAddr> = strangers.iter().map(|stream| stream.local_addr().unwrap()).collect();
    assert_eq!(evicted, addresses[..evicted.len()]);
    assert_eq!(evicted.len(), 33);
    speaking.join().unwrap();
}

#[test]
fn a_dripping_visitor_is_refused_in_bounded_time() {
    let mut lobby = lobby(Limits { total: Duration::from_millis(200), ..Limits::default() });
    let mut dripping = connect(&lobby);
    let from = dripping.local_addr().unwrap();
    let thread = std::thread::spawn(move || while dripping.write_all(b"x").is_ok() {});
    match lobby.next(Some(Instant::now() + PATIENCE)).unwrap() {
        Some(Event::Refused { from: it, why: Why::Deadline(_) | Why::Refused(_) }) => assert_eq!(it, from),
        other => panic!("{other:?}"),
    }
    drop(lobby);
    thread.join().unwrap();
}

/// Both visitors have unread bytes when the thread wakes after their deadlines.
#[test]
fn a_dripping_visitor_has_no_turn_after_its_deadline() {
    let mut lobby = lobby(Limits::default());
    let (mut dripping, mut late) = (said(b"x", &lobby), connect(&lobby));
    assert!(settle(&mut lobby).is_empty());
    dripping.write_all(b"x").unwrap();
    late.write_all(b"token\n").unwrap();
    let total = lobby.limits.total;
    pass(&mut lobby, 2 * total);
    lobby.handled.clear();
    let events = settle(&mut lobby);
    assert!(events.iter().all(|event| matches!(event, Event::Refused { why: Why::Deadline(_), .. })), "{events:?}");
    assert_eq!((events.len(), &lobby.handled[..]), (2, &[late.local_addr().unwrap()][..]));
}

/// Between two parts of the opening, the caller is away for longer than the total time of a visitor.
#[test]
fn an_opening_in_parts_outlasts_an_absence_of_the_caller() {
    let mut lobby = lobby(Limits { total: PATIENCE, ..Limits::default() });
    let mut honest = said(b"tok", &lobby);
    assert!(settle(&mut lobby).is_empty());
    for part in ["en", "\n", "a l"] {
        honest.write_all(part.as_bytes()).unwrap();
        lobby.begun -= 2 * PATIENCE;
        assert!(settle(&mut lobby).is_empty(), "{part:?}");
    }
    honest.write_all(b"ine\n").unwrap();
    lobby.begun -= 2 * PATIENCE;
    assert_eq!(admitted(&mut lobby).1, honest.local_addr().unwrap());
}

/// The process is stopped for longer than the total time of a visitor, within any wait of the lobby.
#[test]
fn a_visitor_outlasts_a_stop_of_the_listeners_process() {
    let mut lobby = lobby(Limits::default());
    assert_eq!(lobby.wakes_at(), None, "without visitors, the lobby sleeps");
    let mut honest = said(b"token\n", &lobby);
    for _ in 0..3 {
        assert!(settle(&mut lobby).is_empty());
        // The wait is short, so that a stop within the wait counts no more than a stop outside.
        let longest = lobby.begun + lobby.clock.real(lobby.clock.counted() + Duration::from_millis(100));
        assert!(lobby.wakes_at().is_some_and(|at| at <= longest));
        lobby.begun -= 2 * lobby.limits.total;
    }
    honest.write_all(b"a line\n").unwrap();
    assert_eq!(admitted(&mut lobby).1, honest.local_addr().unwrap());
}

/// Room for two visitors that have shown the token. A third one waits unread, and takes the place of one that is
/// admitted.
#[test]
fn a_visitor_waits_while_those_with_a_step_may_still_speak() {
    let mut lobby = lobby(Limits { stepped: 2, patience: Duration::MAX, ..Limits::default() });
    let mut first = [(); 2].map(|()| said(b"token\n", &lobby));
    assert!(settle(&mut lobby).is_empty());
    first.iter_mut().for_each(|stream| assert_eq!(read(stream, 4), b"yes\n"));
    let mut third = said(b"token\n", &lobby);
    assert!(settle(&mut lobby).is_empty());
    lobby.handled.clear();
    assert!(lobby.next(Some(Instant::now())).unwrap().is_none());
    assert_eq!((lobby.guests.len(), &lobby.handled[..]), (3, &[][..]), "a visitor that waits costs no time");
    first[0].write_all(b"a line\n").unwrap();
    assert_eq!(admitted(&mut lobby).1, first[0].local_addr().unwrap());
    assert!(settle(&mut lobby).is_empty());
    assert_eq!(read(&mut third, 4), b"yes\n");
    third.write_all(b"a line\n").unwrap();
    assert_eq!(admitted(&mut lobby).1, third.local_addr().unwrap());
}

/// The line of a visitor arrives when another visitor wants its place. Later, a visitor that is silent loses its place.
#[test]
fn a_visitor_with_a_step_gets_a_last_turn() {
    let limits = Limits { stepped: 1, patience: PATIENCE, total: Duration::MAX, ..Limits::default() };
    let mut lobby = lobby(limits);
    let mut first = said(b"token\n", &lobby);
    assert!(settle(&mut lobby).is_empty());
    let mut second = said(b"token\n", &lobby);
    assert!(settle(&mut lobby).is_empty());
    let waiting: Vec<Number> = lobby.parked.iter().copied().collect();
    first.write_all(b"a line\n").unwrap();
    pass(&mut lobby, PATIENCE);
    let event = lobby.turn(waiting[0], lobby.clock.counted());
    assert!(matches!(event, Some(Event::Admitted { from, .. }) if from == first.local_addr().unwrap()), "{event:?}");
    assert!(settle(&mut lobby).is_empty());
    assert_eq!(read(&mut second, 4), b"yes\n");
    let mut third = said(b"token\n", &lobby);
    assert!(settle(&mut lobby).is_empty());
    pass(&mut lobby, PATIENCE);
    match &settle(&mut lobby)[..] {
        [Event::Refused { from, why: Why::Evicted }] => assert_eq!(*from, second.local_addr().unwrap()),
        events => panic!("{events:?}"),
    }
    assert_eq!(read(&mut third, 4), b"yes\n");
}

/// A visitor has shown the token, and all other places are taken by two visitors that wait unread. Further visitors
/// arrive. They evict the visitor that is silent, and both others still have their turns, the older one first.
#[test]
fn a_crowd_evicts_no_visitor_that_waits_unread() {
    let limits = Limits { visitors: 3, stepped: 1, patience: PATIENCE, total: Duration::MAX, ..Limits::default() };
    let mut lobby = lobby(limits);
    let mut silent = said(b"token\n", &lobby);
    assert!(settle(&mut lobby).is_empty());
    assert_eq!(read(&mut silent, 4), b"yes\n");
    let mut waiting = [(); 2].map(|()| {
        let stream = said(b"token\n", &lobby);
        assert!(settle(&mut lobby).is_empty());
        stream
    });
    assert_eq!(lobby.parked.len(), 2);
    let _crowd: Vec<TcpStream> = (0..8).map(|_| said(b"token\n", &lobby)).collect();
    for stream in &mut waiting {
        pass(&mut lobby, PATIENCE);
        let from = silent.local_addr().unwrap();
        match &settle(&mut lobby)[..] {
            [Event::Refused { from: it, why: Why::Evicted }] => assert_eq!(*it, from),
            events => panic!("{events:?}"),
        }
        assert_eq!(read(stream, 4), b"yes\n");
        silent = stream.try_clone().unwrap();
    }
}

/// A visitor that has sent nothing does not wait for room, and makes room for others.
#[test]
fn a_silent_visitor_does_not_wait_for_room() {
    let limits = Limits { visitors: 3, stepped: 1, patience: PATIENCE, total: Duration::MAX, ..Limits::default() };
    let mut lobby = lobby(limits);
    let silent = connect(&lobby);
    assert!(settle(&mut lobby).is_empty());
    let _stepped = said(b"token\n", &lobby);
    assert!(settle(&mut lobby).is_empty());
    let event = lobby.turn(0, lobby.clock.counted());
    assert!(event.is_none() && lobby.parked.is_empty(), "{event:?}");
    let _waiting = said(b"token\n", &lobby);
    assert!(settle(&mut lobby).is_empty());
    assert_eq!((lobby.parked.len(), lobby.admission.in_the_way()), (1, Some(0)));
    drop(silent);
    assert!(matches!(&settle(&mut lobby)[..], [Event::Refused { why: Why::Ended(_), .. }]));
}

/// 40 strangers show the token and stay. The client comes after them. At most two visitors with a token exist at once.
#[test]
fn visitors_that_are_silent_after_a_step_make_room_for_the_next_one() {
    let limits = Limits { stepped: 2, patience: Duration::from_millis(1), total: PATIENCE, ..Limits::default() };
    let mut lobby = lobby(limits);
    let _strangers: Vec<TcpStream> = (0..40).map(|_| said(b"token\n", &lobby)).collect();
    let mut honest = said(b"token\n", &lobby);
    let own = honest.local_addr().unwrap();
    honest.set_nonblocking(true).unwrap();
    let until = Instant::now() + PATIENCE;
    let mut evicted = 0;
    loop {
        assert!(Instant::now() < until);
        match lobby.step().unwrap() {
            Step::Event(Event::Admitted { from, .. }) => break assert_eq!(from, own),
            Step::Event(Event::Refused { from, why }) => {
                assert!(from != own && matches!(why, Why::Evicted), "{from} was refused: {why}");
                evicted += 1;
            }
            Step::Idle | Step::Handled => {}
        }
        let stepped = lobby.guests.values().filter(|guest| guest.opening.as_ref().is_some_and(|it| it.has_token));
        assert!(stepped.count() <= 2);
        if honest.read(&mut [0; 4]).is_ok() {
            honest.write_all(b"a line\n").unwrap();
        }
    }
    assert!(evicted > 0);
}

#[test]
fn a_refused_visitor_reads_the_reason_while_still_sending() {
    let mut lobby = lobby(Limits::default());
    let mut refused = said(b"GET / HTTP/1.0\r\nHost: none\r\n\r\n", &lobby);
    match lobby.next(Some(Instant::now() + PATIENCE)).unwrap() {
        Some(Event::Refused { why: Why::Refused(why), .. }) => assert_eq!(why, "another token"),
        other => panic!("{other:?}"),
    }
    refused.write_all(&[b'z'; 1000]).unwrap();
    settle(&mut lobby);
    assert_eq!(read(&mut refused, 3), b"no\n");
    assert_eq!(refused.read(&mut [0]).unwrap(), 0);
    drop(refused);
    let until = Instant::now() + PATIENCE;
    while !lobby.guests.is_empty() {
        assert!(Instant::now() < until && settle(&mut lobby).is_empty());
    }
    let too_long = said(&[b'x'; 65 << 10], &lobby);
    match lobby.next(Some(Instant::now() + PATIENCE)).unwrap() {
        Some(Event::Refused { why: Why::Refused(why), .. }) => {
            assert_eq!(why, "a line is longer than 65536 B, the maximum")
        }
        other => panic!("{other:?}"),
    }
    drop(too_long);
}

#[test]
fn visitors_use_at_most_a_quarter_of_the_descriptors() {
    assert_eq!([1 << 20, 1024, 400, 3].map(|descriptors| most_visitors(256, descriptors)), [256, 256, 100, 1]);
}

/// Silent visitors cost no CPU time: the thread sleeps, even if the visitors have sent many bytes before.
#[test]
fn silent_visitors_with_much_unfinished_input_are_not_handled() {
    let mut lobby = lobby(Limits::default());
    let strangers: Vec<TcpStream> = (0..16).map(|_| said(&[b'x'; 60 << 10], &lobby)).collect();
    let until = Instant::now() + PATIENCE;
    while lobby.guests.values().map(|guest| guest.opening.as_ref().map_or(0, |it| it.line.bytes.len())).sum::<usize>()
        < strangers.len() * (60 << 10)
    {
        assert!(Instant::now() < until && settle(&mut lobby).is_empty());
    }
    lobby.handled.clear();
    assert!(lobby.next(Some(Instant::now() + Duration::from_millis(50))).unwrap().is_none());
    assert_eq!(lobby.handled, []);
}

#[test]
fn greetings_are_parsed_in_pieces_and_others_rejected() {
    let greeting = hello(&[]);
    for cut in 0..greeting.len() {
        let mut opening = Hello::new(0);
        let (used, verdict) = opening.hear("it", &greeting[..cut]);
        assert!(used == cut && matches!(verdict, Verdict::Continue), "{cut}");
        let rest = [&greeting[cut..], b"rest"].concat();
        let (used, verdict) = opening.hear("it", &rest);
        assert!(used == rest.len() - 4 && matches!(verdict, Verdict::Admit(theirs) if theirs.is_empty()), "{cut}");
    }
    let (_, verdict) = Hello::new(0).hear("it", b"GET / HTTP/1.0\r\n");
    let Verdict::Dismiss { why: Some(SetupError::NotDoorbell { got, .. }), .. } = verdict else {
        panic!("{verdict:?}")
    };
    assert_eq!(&got, b"GET / HT");
}

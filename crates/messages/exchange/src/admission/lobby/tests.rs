use super::*;
use crate::setup::hello;

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
    while let Some(event) = lobby.next(Some(Instant::now())).unwrap() {
        events.push(event);
    }
    events
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

/// Other visitors send no bytes, half a line, many bytes, or a valid beginning, and stay connected. Between two steps
/// of an honest client, the lobby handles at most one other visitor.
#[test]
fn an_honest_client_waits_for_at_most_one_stranger_per_step() {
    let mut lobby = lobby(Limits::default());
    let kinds: [&[u8]; 4] = [b"", b"half a", &[b'x'; 60 << 10], b"token\nhalf"];
    let mut strangers: Vec<TcpStream> = (0..48).map(|number| said(kinds[number % 4], &lobby)).collect();
    let until = Instant::now() + PATIENCE;
    while lobby.admission.len() < strangers.len()
        || lobby.guests.values().any(|guest| guest.stream.peek(&mut [0]).is_ok())
    {
        assert!(Instant::now() < until && settle(&mut lobby).is_empty());
    }
    let addresses: Vec<SocketAddr> = strangers.iter().map(|stream| stream.local_addr().unwrap()).collect();
    let mut honest = said(b"token\n", &lobby);
    let own = honest.local_addr().unwrap();
    lobby.handled.clear();
    // Every other visitor sends one byte while the honest client sends its lines.
    strangers.iter_mut().for_each(|stream| stream.write_all(b"y").unwrap());
    while !lobby.handled.contains(&own) {
        assert!(!matches!(lobby.step().unwrap(), Step::Event(_)));
    }
    assert_eq!(read(&mut honest, 4), b"yes\n");
    honest.write_all(b"a line\nrest").unwrap();
    strangers.iter_mut().for_each(|stream| stream.write_all(b"y").unwrap());
    let before = lobby.handled.len();
    let (mut stream, from, line) = admitted(&mut lobby);
    assert_eq!((from, &line[..]), (own, &b"a line"[..]));
    assert_eq!(read(&mut stream, 4), b"rest", "bytes after the opening belong to the next protocol");
    let between = lobby.handled[before..].iter().filter(|from| addresses.contains(from)).count();
    assert!(between <= 1, "{between} strangers were handled between two steps");
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

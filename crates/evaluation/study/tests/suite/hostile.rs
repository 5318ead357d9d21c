//! Server whose peer is a bare socket. The peer sends valid, changed, repeated and truncated lines in any order.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::common::fuzz::{Choices, line};
use crate::common::{MEMORY_BYTES, Rng, parameters};
use doorbell_exchange::asynchronous::Spin;
use doorbell_exchange::setup::{EndpointDescription, SetupError, VERSION};
use doorbell_study::executor::block_on;
use doorbell_study::session::{
    self, Client, FromServer, Introduction, Patience, Peer, Presence, SessionError, Terms, ToServer,
};
use doorbell_study::threads::OneThread;
use doorbell_verbs::Device;
use doorbell_verbs::soft::{self, SoftOptions};

fn device() -> Device {
    soft::open(&SoftOptions::default()).unwrap()
}

/// Returns the bytes that an invalid client sends: mostly a valid greeting, followed by lines.
fn script(seed: u64) -> Vec<u8> {
    let mut rng = Rng::new(seed);
    let mut bytes = [&b"DOORBELL"[..], &VERSION.to_be_bytes(), &[0; 4]].concat();
    let noise: Vec<u8> = (0..600).map(|_| rng.next() as u8).collect();
    let mut choices = Choices(&noise);
    let mut lines = Vec::new();
    if rng.chance(700) {
        let mut first = serde_json::json!({ "parameters": parameters() });
        match rng.below(6) {
            0 => first["parameters"]["window"] = 0.into(),
            1 => first["parameters"]["memory_bytes"] = (MEMORY_BYTES + 1).into(),
            _ => {}
        }
        lines.push(first.to_string());
    }
    if rng.chance(300) {
        lines.push(rng.pick(&["\"end\"".to_owned(), r#"{"point":{"bytes":17}}"#.to_owned()]).clone());
    }
    for _ in 0..rng.below(4) {
        lines.push(line(&mut choices).to_string());
    }
    if rng.chance(300) && !lines.is_empty() {
        lines.push(rng.pick(&lines).clone());
    }
    bytes.extend(lines.iter().flat_map(|line| format!("{line}\n").into_bytes()));
    if rng.chance(200) {
        bytes.truncate(rng.below(bytes.len() as u64) as usize);
    }
    if rng.chance(200) {
        let at = rng.below(bytes.len() as u64 + 1) as usize;
        bytes.insert(at, rng.next() as u8);
    }
    bytes
}

fn kind(ended: &Result<(), SessionError>) -> &'static str {
    match ended {
        Ok(()) => "ended",
        Err(SessionError::Setup(_)) => "no greeting",
        Err(SessionError::Control(_)) => "gone",
        Err(SessionError::Parameters(_)) => "parameters",
        Err(SessionError::Memory { .. }) => "memory",
        Err(SessionError::UnknownSize(_)) => "size",
        Err(SessionError::Unexpected(_)) => "unexpected",
        Err(_) => "another reason",
    }
}

/// The server rejects each session with a reason, or finds the peer gone. Meanwhile, another session of the same
/// process continues.
#[test]
fn invalid_input_ends_only_its_own_session() {
    let device = device();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let (is_over, healthy) = (AtomicBool::new(false), AtomicU64::new(0));
    let mut kinds: BTreeMap<&str, u64> = BTreeMap::new();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let other = TcpListener::bind("127.0.0.1:0").unwrap();
            while !is_over.load(Ordering::Relaxed) || healthy.load(Ordering::Relaxed) == 0 {
                let stream = TcpStream::connect(other.local_addr().unwrap()).unwrap();
                let (accepted, _) = other.accept().unwrap();
                let served = scope.spawn(|| session::serve(device.clone(), accepted, &Terms::open(MEMORY_BYTES)));
                let mut client = Client::new(&self::device(), stream, parameters()).unwrap();
                let result = client.measure(5000, |_| {}).unwrap();
                assert_eq!((result.messages, result.damaged), (200, 0));
                client.finish().unwrap();
                served.join().unwrap().unwrap();
                healthy.fetch_add(1, Ordering::Relaxed);
            }
        });
        for seed in 0..500 {
            let mut peer = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            let (accepted, _) = listener.accept().unwrap();
            let served = scope.spawn(|| session::serve(device.clone(), accepted, &Terms::open(MEMORY_BYTES)));
            // Ignore errors: a server that has already rejected the client may have closed the connection.
            let _ = peer.write_all(&script(seed));
            let _ = peer.shutdown(Shutdown::Write);
            let _ = peer.read_to_end(&mut Vec::new());
            let ended = served.join().unwrap_or_else(|_| panic!("seed {seed} failed"));
            *kinds.entry(kind(&ended)).or_default() += 1;
        }
        is_over.store(true, Ordering::Relaxed);
    });
    println!("{kinds:?}, and {} healthy sessions meanwhile", healthy.load(Ordering::Relaxed));
    for kind in ["ended", "no greeting", "gone", "parameters", "memory", "size", "unexpected"] {
        assert!(kinds.contains_key(kind), "no session ended with {kind:?}, only with {kinds:?}");
    }
}

/// A client that falls silent after its messages.
struct FallsSilent<'a> {
    messages: Vec<ToServer>,
    /// How long the server was ready to wait for each message.
    patiences: &'a Mutex<Vec<Patience>>,
}

impl Peer for FallsSilent<'_> {
    type Says = FromServer;
    type Hears = ToServer;

    async fn exchange(&mut self, _own: &[EndpointDescription]) -> Result<Vec<EndpointDescription>, SetupError> {
        Ok(Vec::new())
    }

    async fn send(&mut self, _message: FromServer) -> Result<(), SessionError> {
        Ok(())
    }

    async fn receive(&mut self, patience: Patience) -> Result<ToServer, SessionError> {
        self.patiences.lock().unwrap().push(patience);
        self.messages.pop().ok_or_else(|| SessionError::Control(std::io::ErrorKind::TimedOut.into()))
    }

    async fn until_heard(&mut self, _busy: impl FnMut()) -> Result<(), SessionError> {
        Ok(())
    }

    async fn watched<T>(&self, body: impl Future<Output = Result<T, SessionError>>) -> Result<T, SessionError> {
        body.await
    }

    fn look(&self) -> Result<Presence, SessionError> {
        Ok(Presence::Silent)
    }
}

/// A client that has shown a token may take its time. Any other client must ask for a point soon.
#[test]
fn only_a_client_with_a_token_may_be_silent() {
    let device = device();
    for (token, last) in [(None, Patience::Request), ("secret".parse().ok(), Patience::Endless)] {
        let patiences = Mutex::default();
        let introduction = Introduction { token: token.clone(), ..Introduction::default() };
        let messages = vec![ToServer::Parameters(Box::new(parameters())), ToServer::Introduce(Box::new(introduction))];
        let peer = FallsSilent { messages, patiences: &patiences };
        let terms = Terms { token, ..Terms::open(MEMORY_BYTES) };
        let ended = block_on(session::answer(&device, peer, &OneThread(Spin), &terms));
        assert_eq!(kind(&ended), "gone", "{ended:?}");
        assert_eq!(patiences.into_inner().unwrap(), [Patience::Answer, Patience::Answer, last]);
    }
}

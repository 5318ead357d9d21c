//! Servers and clients of every protocol under single faults. One lost packet must not stop a server. A client must get
//! the error of a bad completion and the errno of a refused post.

use std::collections::VecDeque;
use std::time::Duration;

use doorbell_exchange::{Config, ConnectionError, Connector, MessageConnection, Received, Submit, with_connector};
use doorbell_protocols::Protocol;
use doorbell_verbs::soft::{self, LinkChoice, SoftOptions};
use doorbell_verbs::{Device, PostErrorKind};

/// Time after which a test fails, longer than any test takes on a slow machine.
const PATIENCE_NS: u64 = 120_000_000_000;

/// Number of requests of a client.
const REQUESTS: usize = 200;

const LINKS: [LinkChoice; 2] = [LinkChoice::Udp, LinkChoice::Shm];

fn device(link: LinkChoice, plan: Option<&str>) -> Device {
    let faults = plan.map(|plan| plan.parse().expect("a fault plan"));
    soft::open(&SoftOptions { link: Some(link), faults, ..SoftOptions::default() }).expect("a software RNIC opens")
}

/// A client and a server, each with its device.
struct Pair<C> {
    client: C,
    server: C,
    devices: [Device; 2],
}

/// Connects a client with a server. Each has a fault plan, if given.
fn pair<P: Connector>(protocol: &P, link: LinkChoice, plans: [Option<&str>; 2]) -> Pair<P::Connection> {
    // Connections to a dead peer end soon.
    let config = Config::default().timeout_exponent(12).retry_count(3).keepalive(Duration::from_millis(50));
    let devices = plans.map(|plan| device(link, plan));
    let end = |device: &Device| {
        let pd = device.create_pd().expect("a protection domain");
        protocol.endpoint(&pd, &config, None).unwrap_or_else(|error| panic!("{error}"))
    };
    let (client, server) = (end(&devices[0]), end(&devices[1]));
    let (of_client, of_server) = (protocol.describe(&client), protocol.describe(&server));
    let client = protocol.connect(client, &of_server).unwrap_or_else(|error| panic!("{error}"));
    let server = protocol.connect(server, &of_client).unwrap_or_else(|error| panic!("{error}"));
    Pair { client, server, devices }
}

fn request(number: usize) -> Vec<u8> {
    (0..100 + number % 50).map(|at| (at * 7 + number) as u8).collect()
}

/// Which end failed, and its error.
#[derive(Debug)]
enum Failed {
    Client(ConnectionError),
    Server(ConnectionError),
}

impl<C: MessageConnection> Pair<C> {
    /// Sends requests one after the other. The server answers each with its bytes.
    fn serve_all(&mut self, name: &str) -> Result<(), Failed> {
        let until_ns = self.devices[0].now_ns() + PATIENCE_NS;
        let mut replies: VecDeque<Vec<u8>> = VecDeque::new();
        let (mut asked, mut answered) = (0, 0);
        while answered < REQUESTS {
            let now_ns = self.devices[0].now_ns();
            assert!(now_ns < until_ns, "{name}: the server is stuck after {answered} of {asked} requests");
            if asked == answered && send(&mut self.client, &request(asked)).map_err(Failed::Client)? {
                asked += 1;
            }
            self.client.poll().map_err(Failed::Client)?;
            if let Some(reply) = self.client.receive().map_err(Failed::Client)? {
                assert_eq!(reply.to_vec(), request(answered), "{name}");
                answered += 1;
            }
            self.server.poll().map_err(Failed::Server)?;
            if let Some(message) = self.server.receive().map_err(Failed::Server)? {
                replies.push_back(message.to_vec());
            }
            if let Some(reply) = replies.front()
                && send(&mut self.server, reply).map_err(Failed::Server)?
            {
                replies.pop_front();
            }
        }
        Ok(())
    }

    /// Returns the number of packets that the plans dropped.
    fn dropped(&self) -> u64 {
        self.devices.iter().map(|device| device.link_counters().fault_dropped).sum()
    }
}

/// Sends a message. Returns whether the connection accepted it.
fn send<C: MessageConnection>(connection: &mut C, message: &[u8]) -> Result<bool, ConnectionError> {
    let is_accepted = matches!(connection.send(message)?, Submit::Accepted(_));
    connection.flush()?;
    Ok(is_accepted)
}

/// Waits until a connection notices that its peer is gone.
fn error_of<C: MessageConnection>(mut connection: C, device: &Device, name: &str) -> ConnectionError {
    let until_ns = device.now_ns() + PATIENCE_NS;
    loop {
        assert!(device.now_ns() < until_ns, "{name}: the connection to a dead peer does not end");
        if let Err(error) = connection.poll().and_then(|_| connection.receive().map(drop)) {
            return error;
        }
    }
}

/// Rebuilds ROCm/mori#655 with each protocol: after one lost acknowledgement, a server waited forever.
#[test]
fn one_lost_acknowledgement_stops_no_server() {
    let plan = Some("drop direction=out opcode=ack nth=2");
    for link in LINKS {
        for protocol in Protocol::ALL {
            let name = protocol.name();
            for plans in [[plan, None], [None, plan]] {
                with_connector!(protocol, connector => {
                    let mut pair = pair(&connector, link, plans);
                    let served = pair.serve_all(name);
                    assert!(served.is_ok(), "{name} over {link:?}: {served:?}");
                    // Some protocols acknowledge only by the responses of READs.
                    assert!(pair.dropped() == 1 || protocol != Protocol::SendReceive, "{name}: {}", pair.dropped());
                });
            }
        }
    }
}

/// Rebuilds the injected error completions of ROCm/rocm-systems#6948 and meta-pytorch/torchcomms#4145.
#[test]
fn a_bad_completion_ends_both_ends_of_a_connection() {
    for link in LINKS {
        for protocol in Protocol::ALL {
            let name = protocol.name();
            with_connector!(protocol, connector => {
                let mut pair = pair(&connector, link, [Some("completion nth=1 status=rem-access-err"), None]);
                let failed = pair.serve_all(name).expect_err("the first completion is bad");
                assert!(!matches!(failed, Failed::Server(ConnectionError::PeerClosed)), "{name} over {link:?}");
                let Pair { client, server, devices } = pair;
                let error = error_of(client, &devices[0], name);
                assert!(!matches!(error, ConnectionError::PeerClosed), "{name} over {link:?}: {error}");
                let error = error_of(server, &devices[1], name);
                assert!(!matches!(error, ConnectionError::PeerClosed), "{name} over {link:?}: {error}");
            });
        }
    }
}

/// Rebuilds the injected errors of posts of ROCm/rocm-systems#6948 and meta-pytorch/torchcomms#4145.
#[test]
fn a_client_gets_the_errno_of_a_refused_post() {
    // The first posts connect the client.
    let rule = |operation| format!("post-error operation={operation} nth=5.. errno=ENOSPC");
    let plan = ["send", "write", "read", "fetch-add", "compare-swap"].map(rule).join(";");
    for link in LINKS {
        for protocol in Protocol::ALL {
            let name = protocol.name();
            with_connector!(protocol, connector => {
                let mut pair = pair(&connector, link, [Some(&plan), None]);
                let Err(Failed::Client(ConnectionError::Post(error))) = pair.serve_all(name) else {
                    panic!("{name} over {link:?}: the client got no error of a post");
                };
                assert_eq!(error.kind, PostErrorKind::Refused { errno: 28 }, "{name}");
            });
        }
    }
}

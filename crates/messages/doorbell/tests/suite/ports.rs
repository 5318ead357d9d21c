//! A port that flaps for longer than the retries of its queue pairs last. Queue pairs that failed meanwhile stay dead
//! after the port has come up. So the program must drop them and connect again.

use std::net::SocketAddr;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use doorbell::exchange::send_receive::Connection;
use doorbell::verbs::{AsyncEvent, PortOrder};
use doorbell::{Blocking, Config, ConnectionError, Device, Options};

/// Time limit of one step of a test, longer than any step takes on a slow machine.
const PATIENCE: Duration = Duration::from_secs(120);

/// Number of messages between two changes of the port.
const MESSAGES: u64 = 20;

/// Returns options whose retries end after half a second.
fn options() -> Options {
    let config = Config::default().timeout(Duration::from_millis(100)).retry_count(3);
    Options::default().config(config.keepalive(Duration::from_millis(200)))
}

/// One of several ways to the server: a device, and a connection on it.
struct Rail {
    device: Device,
    server: SocketAddr,
    connection: Option<Blocking<Connection>>,
    is_up: bool,
    exchanged: u64,
}

impl Rail {
    /// Starts a server that echoes the messages of this number of connections, one after the other.
    fn new(connections: usize) -> (Self, JoinHandle<()>) {
        let listener = Device::open().unwrap().listen("127.0.0.1:0", options()).unwrap();
        let server = listener.local_addr().unwrap();
        let serving = thread::spawn(move || {
            for _ in 0..connections {
                let mut connection = listener.accept(PATIENCE).unwrap();
                while let Ok(message) = connection.receive().map(|message| message.to_vec()) {
                    if connection.send(&message).is_err() {
                        break;
                    }
                }
            }
        });
        (Self { device: Device::open().unwrap(), server, connection: None, is_up: true, exchanged: 0 }, serving)
    }

    /// Returns whether the rail can be used. Connects again if the connection has failed and the port is up.
    fn is_ready(&mut self) -> bool {
        while let Some(event) = self.device.verbs().poll_event() {
            match event {
                AsyncEvent::PortError(_) => self.is_up = false,
                AsyncEvent::PortActive(_) => self.is_up = true,
                _ => {}
            }
        }
        if self.is_up && self.connection.is_none() {
            self.connection = Some(self.device.connect(self.server, options(), PATIENCE).unwrap());
        }
        self.is_up
    }

    /// Exchanges one message. After a failure, drops the connection, since its queue pair is dead.
    fn exchange(&mut self, number: u64) -> Result<(), ConnectionError> {
        let connection = self.connection.as_mut().expect("the rail is connected");
        let message = number.to_be_bytes();
        let sent = connection.send(&message).map(|_| ());
        let answer = sent.and_then(|()| connection.receive().map(|answer| answer.to_vec()));
        match answer {
            Ok(answer) => assert_eq!(answer, message),
            Err(error) => {
                self.connection = None;
                return Err(error);
            }
        }
        self.exchanged += 1;
        Ok(())
    }
}

/// Exchanges messages over all rails in turns, except those that cannot be used. Returns the number of messages of each
/// rail.
fn exchange_all(rails: &mut [Rail; 2]) -> [u64; 2] {
    let before = [rails[0].exchanged, rails[1].exchanged];
    for number in 0..MESSAGES {
        let preferred = number as usize % 2;
        let chosen = if rails[preferred].is_ready() { preferred } else { 1 - preferred };
        assert!(rails[chosen].is_ready(), "no rail is up");
        rails[chosen].exchange(number).unwrap();
    }
    [rails[0].exchanged - before[0], rails[1].exchanged - before[1]]
}

/// Rebuilds kvcache-ai/Mooncake#3596: after a flap of the port, queue pairs stayed dead.
#[test]
fn a_rail_whose_port_flapped_is_connected_again() {
    let ((first, first_server), (second, second_server)) = (Rail::new(2), Rail::new(1));
    let mut rails = [first, second];
    assert_eq!(exchange_all(&mut rails), [MESSAGES / 2; 2]);
    rails[0].device.verbs().order_port(PortOrder::Down).unwrap();
    // A message is on its way when the port goes down, so the queue pair fails after its retries.
    let error = rails[0].exchange(0).unwrap_err();
    assert!(matches!(error, ConnectionError::PeerUnreachable(_)), "{error}");
    assert_eq!(exchange_all(&mut rails), [0, MESSAGES], "messages on a rail that is down");
    rails[0].device.verbs().order_port(PortOrder::Up).unwrap();
    assert_eq!(exchange_all(&mut rails), [MESSAGES / 2; 2], "the rail is not used again");
    drop(rails);
    first_server.join().unwrap();
    second_server.join().unwrap();
}

//! An exporter: `GET /metrics` in the OpenMetrics text format, which Prometheus reads.
//!
//! `httparse` parses the requests, and the admission of clients serves the few answers. An HTTP server does not fit:
//! `tiny_http` has no deadline per client, and `hyper` requires an async runtime.

use std::cell::RefCell;
use std::convert::Infallible;
use std::io;
use std::net::TcpListener;
use std::process::ExitCode;
use std::rc::Rc;
use std::time::Duration;

use super::show_news;
use crate::failure::{Failure, Usage};
use crate::output::{note, print_note};
use doorbell_counters::export::http::{answer, refuse_long_head};
use doorbell_counters::{Look, Monitor, News};
use doorbell_exchange::admission::{Clients, Limits, Opening, Verdict};

/// Maximum bytes of the head of a request.
const MAX_REQUEST_BYTES: usize = 8 << 10;
/// End of the head of a request.
const END: &[u8] = b"\r\n\r\n";
/// Time after which a client is dropped that has not sent its request and read the answer.
const PATIENCE: Duration = Duration::from_secs(5);

struct Exporter {
    monitor: RefCell<(Monitor, News)>,
}

/// Opening of a client, which is the head of the client's request. The answer to the request ends the connection.
#[derive(Clone)]
struct Request {
    exporter: Rc<Exporter>,
    head: Vec<u8>,
}

impl Opening for Request {
    type Admitted = Infallible;
    type Refusal = Infallible;

    fn hear(&mut self, _peer: &str, bytes: &[u8]) -> (usize, Verdict<Infallible, Infallible>) {
        // `END` may have begun in the bytes that arrived earlier.
        let searched = self.head.len().saturating_sub(END.len() - 1);
        self.head.extend_from_slice(bytes);
        let end = self.head[searched..].windows(END.len()).position(|bytes| bytes == END);
        let reply = match end {
            Some(end) => {
                self.head.truncate(searched + end + END.len());
                answer(&std::mem::take(&mut self.head), || self.exporter.look())
            }
            None if self.head.len() <= MAX_REQUEST_BYTES => return (bytes.len(), Verdict::Continue),
            None => refuse_long_head(MAX_REQUEST_BYTES),
        };
        (bytes.len(), Verdict::Dismiss { reply, why: None })
    }
}

/// Serves until the process ends.
#[allow(unreachable_code, reason = "admission itself answers every client, so `Clients::wait` returns none")]
pub(super) fn serve(monitor: Monitor, address: &str) -> Result<ExitCode, Failure> {
    let address = match address.parse::<u16>() {
        Ok(port) => format!("127.0.0.1:{port}"),
        Err(_) => address.to_owned(),
    };
    if !address.rsplit_once(':').is_some_and(|(host, port)| !host.is_empty() && port.parse::<u16>().is_ok()) {
        return Err(Usage(format!("--prometheus is {address:?}, allowed is HOST:PORT or a port, 0 to 65535")).into());
    }
    let cannot = |error: io::Error| format!("cannot listen on {address}: {error}");
    let listener = TcpListener::bind(&address).map_err(cannot)?;
    note!("serving http://{}/metrics", listener.local_addr().map_err(cannot)?);
    let exporter = Rc::new(Exporter { monitor: RefCell::new((monitor, News::default())) });
    let limits = Limits { total: PATIENCE, ..Limits::default() };
    let mut clients = Clients::with_limits(listener, Request { exporter, head: Vec::new() }, limits, print_note)?;
    loop {
        clients.wait();
    }
}

impl Exporter {
    fn look(&self) -> Look {
        let (monitor, news) = &mut *self.monitor.borrow_mut();
        let look = monitor.look();
        show_news(news, &look);
        look
    }
}

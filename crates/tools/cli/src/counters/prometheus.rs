//! An exporter: `GET /metrics` in the OpenMetrics text format, which Prometheus reads.
//!
//! `httparse` parses the requests, and the admission of clients serves the few answers. An HTTP server does not fit:
//! `tiny_http` has no deadline per client, and `hyper` requires an async runtime.

use std::cell::RefCell;
use std::convert::Infallible;
use std::net::TcpListener;
use std::process::ExitCode;
use std::rc::Rc;
use std::time::Duration;
use std::{fmt, io};

use doorbell_counters::{Common, Interval, Look, Monitor, is_gauge};
use doorbell_exchange::admission::{Limits, Opening, Verdict};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::text::encode;
use prometheus_client::encoding::{DescriptorEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::Registry;

use super::PrintedSentences;
use crate::admission::Clients;
use crate::failure::{Failure, Usage};
use crate::output::note;

const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
/// Maximum bytes of the head of a request.
const MAX_REQUEST_BYTES: usize = 8 << 10;
/// Maximum number of header fields in the head of a request.
const MAX_HEADERS: usize = 64;
/// End of the head of a request.
const END: &[u8] = b"\r\n\r\n";
/// Time after which a client is dropped that has not sent its request and read the answer.
const PATIENCE: Duration = Duration::from_secs(5);

/// The devices at the time of a request.
#[derive(Debug)]
pub(super) struct Scrape(pub(super) Vec<Interval>);

impl Collector for Scrape {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let devices = || self.0.iter().filter(|device| !device.sample.ended);
        for common in Common::ALL {
            let name = format!("doorbell_rdma_{}", common.name());
            let mut family = encoder.encode_descriptor(&name, common.description(), None, MetricType::Counter)?;
            for device in devices() {
                // Omit a counter that the device lacks.
                if let Some(total) = common.total(&device.sample.raw) {
                    let labels = [("device", device.sample.identity.label.as_str())];
                    family.encode_family(&labels)?.encode_counter::<NoLabelSet, _, u64>(&total, None)?;
                }
            }
        }
        self.vendors(&mut encoder, MetricType::Counter)?;
        self.vendors(&mut encoder, MetricType::Gauge)?;
        let help = "RDMA devices of this machine";
        let mut family = encoder.encode_descriptor("doorbell_rdma_device", help, None, MetricType::Info)?;
        for device in devices() {
            let identity = &device.sample.identity;
            let text = |value: Option<String>| value.unwrap_or_default();
            let labels = [
                ("device", identity.label.clone()),
                ("kind", identity.kind.name().to_owned()),
                ("name", identity.name.clone()),
                ("port", text(identity.port.map(|port| port.to_string()))),
                ("address", text(identity.address.map(|address| address.to_string()))),
                ("gid", text(identity.gid.map(|gid| gid.to_string()))),
                ("udp_port", text(identity.udp_port.map(|port| port.to_string()))),
                ("program", text(identity.program.clone())),
                ("pid", text(identity.pid.map(|pid| pid.to_string()))),
                ("netdev", text(identity.netdev.clone())),
                ("driver", text(identity.driver.clone())),
            ];
            // An empty label value equals an absent label (OpenMetrics 1.0).
            let labels: Vec<_> = labels.into_iter().filter(|(_, value)| !value.is_empty()).collect();
            family.encode_info(&labels)?;
        }
        Ok(())
    }
}

impl Scrape {
    /// Encodes the vendors' counters, or for `MetricType::Gauge` the vendors' levels, under the vendors' names.
    fn vendors(&self, encoder: &mut DescriptorEncoder<'_>, kind: MetricType) -> Result<(), fmt::Error> {
        let levels = matches!(kind, MetricType::Gauge);
        let (name, help) = match levels {
            false => ("doorbell_rdma_vendor", "Counters under the names of the device's vendor"),
            true => ("doorbell_rdma_vendor_level", "Levels, which may fall, under the names of the device's vendor"),
        };
        let mut family = encoder.encode_descriptor(name, help, None, kind)?;
        for device in self.0.iter().filter(|device| !device.sample.ended) {
            for (name, value) in device.sample.raw.iter().filter(|(name, _)| is_gauge(name) == levels) {
                let label = device.sample.identity.label.as_str();
                let labels = [("device", label), ("set", name.set.name()), ("counter", name.name.as_str())];
                let mut metric = family.encode_family(&labels)?;
                if levels {
                    metric.encode_gauge(value)?;
                } else {
                    metric.encode_counter::<NoLabelSet, _, u64>(value, None)?;
                }
            }
        }
        Ok(())
    }
}

/// Returns the text of a scrape.
pub(super) fn text(look: Look) -> Result<String, fmt::Error> {
    let mut registry = Registry::default();
    registry.register_collector(Box::new(Scrape(look.devices)));
    let mut text = String::new();
    encode(&mut text, &registry)?;
    Ok(text)
}

struct Exporter {
    monitor: RefCell<(Monitor, PrintedSentences)>,
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
                self.exporter.answer(&std::mem::take(&mut self.head))
            }
            None if self.head.len() <= MAX_REQUEST_BYTES => return (bytes.len(), Verdict::Continue),
            None => {
                let why = format!("the head of a request has at most {MAX_REQUEST_BYTES} bytes");
                Answer::plain("431 Request Header Fields Too Large", &why).to_bytes(false)
            }
        };
        (bytes.len(), Verdict::Dismiss { reply, why: None })
    }
}

/// Serves until the process ends.
#[allow(unreachable_code, reason = "admission itself answers every client, so `Clients::next` returns none")]
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
    let exporter = Rc::new(Exporter { monitor: RefCell::new((monitor, PrintedSentences::default())) });
    let limits = Limits { total: PATIENCE, ..Limits::default() };
    let mut clients = Clients::with_limits(listener, Request { exporter, head: Vec::new() }, limits)?;
    loop {
        clients.next();
    }
}

/// Status, content type and content of an HTTP answer.
struct Answer {
    status: &'static str,
    content_type: &'static str,
    content: String,
}

impl Answer {
    fn plain(status: &'static str, content: &str) -> Self {
        Self { status, content_type: "text/plain; charset=utf-8", content: format!("{content}\n") }
    }

    fn to_bytes(&self, is_head: bool) -> Vec<u8> {
        let Self { status, content_type, content } = self;
        let length = content.len();
        let mut response = format!(
            "HTTP/1.1 {status}\r\nContent-Type: {content_type}\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n"
        );
        if !is_head {
            response.push_str(content);
        }
        response.into_bytes()
    }
}

impl Exporter {
    /// Returns the answer to a request with this head.
    fn answer(&self, head: &[u8]) -> Vec<u8> {
        let mut headers = [httparse::EMPTY_HEADER; MAX_HEADERS];
        let mut request = httparse::Request::new(&mut headers);
        let (method, target) = match request.parse(head) {
            Ok(_) => (request.method.unwrap_or_default(), request.path.unwrap_or_default()),
            Err(error) => {
                let why = format!("the request is not HTTP/1: {error}");
                return Answer::plain("400 Bad Request", &why).to_bytes(false);
            }
        };
        let path = target.split('?').next().unwrap_or_default();
        let answer = match (method, path) {
            ("GET" | "HEAD", "/metrics") => self.metrics(),
            ("GET" | "HEAD", "/") => Answer::plain("200 OK", "RDMA counters are at /metrics"),
            ("GET" | "HEAD", _) => Answer::plain("404 Not Found", "use the path /metrics"),
            _ => Answer::plain("405 Method Not Allowed", "use the method GET"),
        };
        answer.to_bytes(method == "HEAD")
    }

    fn metrics(&self) -> Answer {
        let (monitor, said) = &mut *self.monitor.borrow_mut();
        let look = monitor.look();
        said.notes(&look);
        match text(look) {
            Ok(content) => Answer { status: "200 OK", content_type: CONTENT_TYPE, content },
            Err(error) => Answer::plain("500 Internal Server Error", &error.to_string()),
        }
    }
}

//! An exporter: `GET /metrics` in the OpenMetrics text format, which Prometheus reads.
//!
//! `httparse` reads the requests. Their few answers are served here, since servers for threads keep no deadline per client
//! (`tiny_http`), and others bring an async runtime (`hyper`).

use std::fmt;
use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::process::ExitCode;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use doorbell_counters::{Common, Interval, Look, Monitor, is_gauge};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::text::encode;
use prometheus_client::encoding::{DescriptorEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::Registry;

use super::Said;
use crate::output::note;
use crate::{Failure, Usage};

const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
/// Longest head of a request.
const MAX_REQUEST_BYTES: usize = 8 << 10;
/// Most lines of that head.
const MAX_HEADERS: usize = 64;
/// A client that takes longer to ask, or to take the answer, is left alone.
const PATIENCE: Duration = Duration::from_secs(5);
/// Most clients that are served at the same time.
const MAX_CLIENTS: usize = 16;

/// The devices as they were when they were asked for.
#[derive(Debug)]
pub(super) struct Scrape(pub(super) Vec<Interval>);

impl Collector for Scrape {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let devices = || self.0.iter().filter(|device| !device.sample.ended);
        for common in Common::ALL {
            let name = format!("doorbell_rdma_{}", common.name());
            let mut family = encoder.encode_descriptor(&name, common.description(), None, MetricType::Counter)?;
            for device in devices() {
                // What a device does not count has no line.
                if let Some(total) = common.total(&device.sample.raw) {
                    let labels = [("device", device.sample.identity.label.as_str())];
                    family.encode_family(&labels)?.encode_counter::<NoLabelSet, _, u64>(&total, None)?;
                }
            }
        }
        self.vendors(&mut encoder, MetricType::Counter)?;
        self.vendors(&mut encoder, MetricType::Gauge)?;
        let help = "RDMA devices that there are";
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
            // A label without a value is as good as none (OpenMetrics 1.0).
            let labels: Vec<_> = labels.into_iter().filter(|(_, value)| !value.is_empty()).collect();
            family.encode_info(&labels)?;
        }
        Ok(())
    }
}

impl Scrape {
    /// All counters, or all levels, under the vendors' names.
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

/// The text of a scrape.
pub(super) fn text(look: Look) -> Result<String, fmt::Error> {
    let mut registry = Registry::default();
    registry.register_collector(Box::new(Scrape(look.devices)));
    let mut text = String::new();
    encode(&mut text, &registry)?;
    Ok(text)
}

struct Exporter {
    monitor: Mutex<(Monitor, Said)>,
    clients: AtomicUsize,
}

/// Serves until the process is ended.
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
    let exporter = Arc::new(Exporter { monitor: Mutex::new((monitor, Said::default())), clients: AtomicUsize::new(0) });
    loop {
        match listener.accept() {
            Ok((stream, _)) => exporter.serve(stream),
            Err(error) => {
                // A client that went again, or no descriptors for now: neither ends the exporter.
                note!("a client was not accepted: {error}");
                std::thread::sleep(Duration::from_millis(100));
            }
        }
    }
}

/// What a client is told beside the content.
struct Answer {
    status: &'static str,
    content_type: &'static str,
    content: String,
}

impl Answer {
    fn plain(status: &'static str, content: &str) -> Self {
        Self { status, content_type: "text/plain; charset=utf-8", content: format!("{content}\n") }
    }
}

impl Exporter {
    /// Serves one client, beside others.
    fn serve(self: &Arc<Self>, mut stream: TcpStream) {
        if self.clients.fetch_add(1, Ordering::Relaxed) >= MAX_CLIENTS {
            self.clients.fetch_sub(1, Ordering::Relaxed);
            let busy = Answer::plain("503 Service Unavailable", &format!("too many clients (maximum {MAX_CLIENTS})"));
            let _ = stream.set_nonblocking(true);
            let _ = respond(&mut stream, &busy, false);
            return;
        }
        let exporter = Arc::clone(self);
        let spawned = std::thread::Builder::new().name("exporter".into()).spawn(move || {
            // A client that does not ask as it should, or goes, is its own affair.
            let _ = exporter.converse(stream);
            exporter.clients.fetch_sub(1, Ordering::Relaxed);
        });
        if spawned.is_err() {
            self.clients.fetch_sub(1, Ordering::Relaxed);
        }
    }

    fn converse(&self, mut stream: TcpStream) -> io::Result<()> {
        stream.set_write_timeout(Some(PATIENCE))?;
        let Some(head) = read_head(&mut stream)? else {
            let long = Answer::plain(
                "431 Request Header Fields Too Large",
                &format!("the head of a request has at most {MAX_REQUEST_BYTES} bytes"),
            );
            return respond(&mut stream, &long, false);
        };
        let mut headers = [httparse::EMPTY_HEADER; MAX_HEADERS];
        let mut request = httparse::Request::new(&mut headers);
        let (method, target) = match request.parse(&head) {
            Ok(_) => (request.method.unwrap_or_default(), request.path.unwrap_or_default()),
            Err(error) => {
                let bad = Answer::plain("400 Bad Request", &format!("the request is not HTTP/1: {error}"));
                return respond(&mut stream, &bad, false);
            }
        };
        let path = target.split('?').next().unwrap_or_default();
        let answer = match (method, path) {
            ("GET" | "HEAD", "/metrics") => self.metrics(),
            ("GET" | "HEAD", "/") => Answer::plain("200 OK", "RDMA counters are at /metrics"),
            ("GET" | "HEAD", _) => Answer::plain("404 Not Found", "there is only /metrics"),
            _ => Answer::plain("405 Method Not Allowed", "there is only GET"),
        };
        respond(&mut stream, &answer, method == "HEAD")
    }

    fn metrics(&self) -> Answer {
        let mut guard = self.monitor.lock().unwrap_or_else(PoisonError::into_inner);
        let (monitor, said) = &mut *guard;
        let look = monitor.look();
        said.notes(&look);
        drop(guard);
        match text(look) {
            Ok(content) => Answer { status: "200 OK", content_type: CONTENT_TYPE, content },
            Err(error) => Answer::plain("500 Internal Server Error", &error.to_string()),
        }
    }
}

/// Reads up to the empty line, which ends what is returned; `None` if there is none within the bound.
fn read_head(stream: &mut TcpStream) -> io::Result<Option<Vec<u8>>> {
    let until = Instant::now() + PATIENCE;
    let mut head = Vec::new();
    let mut piece = [0; 1024];
    loop {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        stream.set_read_timeout(Some(left))?;
        match stream.read(&mut piece)? {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            bytes => head.extend_from_slice(&piece[..bytes]),
        }
        if let Some(end) = head.windows(4).position(|bytes| bytes == b"\r\n\r\n") {
            head.truncate(end + 4);
            return Ok(Some(head));
        }
        if head.len() > MAX_REQUEST_BYTES {
            return Ok(None);
        }
    }
}

fn respond(stream: &mut TcpStream, answer: &Answer, is_head: bool) -> io::Result<()> {
    let Answer { status, content_type, content } = answer;
    let mut response = format!(
        "HTTP/1.1 {status}\r\nContent-Type: {content_type}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
        content.len()
    );
    if !is_head {
        response.push_str(content);
    }
    stream.write_all(response.as_bytes())?;
    stream.shutdown(Shutdown::Write)
}

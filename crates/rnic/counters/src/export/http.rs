//! `GET /metrics`: answers to requests of Prometheus.

use super::openmetrics::text;
use crate::Look;

const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
/// Maximum number of header fields in the head of a request.
const MAX_HEADERS: usize = 64;

/// Returns the answer to a request with this head. `look` reads the devices.
pub fn answer(head: &[u8], look: impl FnOnce() -> Look) -> Vec<u8> {
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
        ("GET" | "HEAD", "/metrics") => match text(look()) {
            Ok(content) => Answer { status: "200 OK", content_type: CONTENT_TYPE, content },
            Err(error) => Answer::plain("500 Internal Server Error", &error.to_string()),
        },
        ("GET" | "HEAD", "/") => Answer::plain("200 OK", "RDMA counters are at /metrics"),
        ("GET" | "HEAD", _) => Answer::plain("404 Not Found", "use the path /metrics"),
        _ => Answer::plain("405 Method Not Allowed", "use the method GET"),
    };
    answer.to_bytes(method == "HEAD")
}

/// Returns the answer to a request whose head is longer than `most` bytes.
pub fn refuse_long_head(most: usize) -> Vec<u8> {
    let why = format!("the head of a request has at most {most} bytes");
    Answer::plain("431 Request Header Fields Too Large", &why).to_bytes(false)
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

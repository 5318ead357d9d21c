//! The page of judged captures: findings, and a picture of the packets of each queue pair over time.

use maud::{Markup, html};

use crate::page::document;

/// Judged capture.
#[derive(Clone, Debug, PartialEq)]
pub struct JudgedCapture {
    /// Name of the file.
    pub file: String,
    /// Sentences about the whole capture.
    pub remarks: Vec<String>,
    /// Findings: packet, severity, rule, expected contents and found contents.
    pub findings: Vec<[String; 5]>,
    /// Timelines of the queue pairs.
    pub timelines: Vec<Timeline>,
}

/// Packets in one direction between two queue pairs.
#[derive(Clone, Debug, PartialEq)]
pub struct Timeline {
    /// Names of both queue pairs.
    pub title: String,
    /// Sentence about the direction.
    pub remark: String,
    /// Packets in the order of the capture.
    pub points: Vec<TimelinePoint>,
}

/// Packet of a timeline.
#[derive(Clone, Debug, PartialEq)]
pub struct TimelinePoint {
    /// Number of the packet in the file.
    pub packet: u64,
    /// Seconds since the start of the capture.
    pub at_s: f64,
    /// PSN; `None` for a packet without a meaningful PSN.
    pub psn: Option<u32>,
    /// Name of the kind, which the legend explains.
    pub kind: &'static str,
    /// Whether the packet violates a rule.
    pub is_finding: bool,
}

/// Width and height of a picture, and the margin around the points.
const WIDTH: f64 = 900.0;
const HEIGHT: f64 = 240.0;
const MARGIN: f64 = 12.0;

/// Number of colors that the style sheet defines.
const COLORS: usize = 8;

/// Renders the page.
pub fn judged_captures_html(captures: &[JudgedCapture]) -> String {
    let body = html! {
        header {
            p.kicker { "Doorbell wire check" }
            h1 { "Packets against the rules of IBTA" }
        }
        main { @for capture in captures { (section(capture)) } }
    };
    document(html! { "Doorbell wire check" }, body)
}

fn section(capture: &JudgedCapture) -> Markup {
    html! {
        section {
            h2 { (capture.file) }
            @for remark in &capture.remarks { p { (remark) } }
            @if !capture.findings.is_empty() {
                div.scroll tabindex="0" { table {
                    thead { tr { @for name in ["packet", "severity", "rule", "expected", "found"] { th { (name) } } } }
                    tbody { @for cells in &capture.findings { tr { @for cell in cells { td { (cell) } } } } }
                } }
            }
            @for timeline in &capture.timelines { (draw(timeline)) }
        }
    }
}

/// Returns the number of PSNs from the first PSN to another one, modulo 2^24. The result is negative for PSNs in the
/// half before.
fn offset(first: u32, psn: u32) -> f64 {
    const NUMBERS: u32 = 1 << 24;
    let ahead = psn.wrapping_sub(first) % NUMBERS;
    if ahead < NUMBERS / 2 { f64::from(ahead) } else { f64::from(ahead) - f64::from(NUMBERS) }
}

/// Returns the position of a value between two values, in pixels from the margin.
fn place(value: f64, (least, most): (f64, f64), pixels: f64) -> f64 {
    let share = if most > least { (value - least) / (most - least) } else { 0.5 };
    MARGIN + share * (pixels - 2.0 * MARGIN)
}

/// Returns the least and the greatest value.
fn range(values: impl Iterator<Item = f64>) -> (f64, f64) {
    values.fold((f64::INFINITY, f64::NEG_INFINITY), |(least, most), value| (least.min(value), most.max(value)))
}

fn draw(timeline: &Timeline) -> Markup {
    let points = &timeline.points;
    let first = points.iter().find_map(|point| point.psn).unwrap_or(0);
    let times = range(points.iter().map(|point| point.at_s));
    let psns = range(points.iter().filter_map(|point| point.psn).map(|psn| offset(first, psn)));
    let mut kinds: Vec<&str> = Vec::new();
    for point in points {
        if !kinds.contains(&point.kind) {
            kinds.push(point.kind);
        }
    }
    let color = |kind: &str| {
        let index = kinds.iter().position(|known| *known == kind).unwrap_or(0);
        format!("fill:var(--c{})", index % COLORS)
    };
    let mark = |point: &TimelinePoint| {
        let x = place(point.at_s, times, WIDTH);
        // Packets without a PSN are at the bottom.
        let y = point.psn.map_or(HEIGHT - 4.0, |psn| HEIGHT - place(offset(first, psn), psns, HEIGHT));
        let psn = point.psn.map_or(String::new(), |psn| format!(", PSN 0x{psn:06x}"));
        let text = format!("packet {}: {}{psn}, {:.6} s", point.packet, point.kind, point.at_s);
        let (x, y) = (format!("{x:.1}"), format!("{y:.1}"));
        html! {
            @if point.is_finding {
                line x1=(x) x2=(x) y1="0" y2=(HEIGHT.to_string()) style="stroke:var(--differs);stroke-width:1" {}
            }
            circle cx=(x) cy=(y) r="2.5" style=(color(point.kind)) { title { (text) } }
        }
    };
    let view_box = format!("0 0 {WIDTH} {HEIGHT}");
    html! {
        h3 { (timeline.title) }
        p { (timeline.remark) }
        @if !points.is_empty() {
            svg viewBox=(view_box) role="img" aria-label=(timeline.title) style="width:100%" {
                @for point in points { (mark(point)) }
            }
            p.setting {
                "Time to the right, PSN upwards. A line marks a finding. "
                @for &kind in &kinds {
                    svg viewBox="0 0 10 10" width="10" height="10" { circle cx="5" cy="5" r="4" style=(color(kind)) {} }
                    " " (kind) " "
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_has_each_packet_and_escapes_names() {
        let point = |packet, psn, is_finding| TimelinePoint {
            packet,
            at_s: packet as f64,
            psn: Some(psn),
            kind: if is_finding { "NAK" } else { "request" },
            is_finding,
        };
        let capture = JudgedCapture {
            file: "<b>.pcap".to_owned(),
            remarks: vec!["2 packets".to_owned()],
            findings: vec![["2", "error", "msn", "1", "2"].map(str::to_owned)],
            timelines: vec![Timeline {
                title: "A to B".to_owned(),
                remark: String::new(),
                points: vec![point(1, 0xff_ffff, false), point(2, 1, true)],
            }],
        };
        let page = judged_captures_html(&[capture]);
        assert!(page.contains("&lt;b&gt;.pcap") && !page.contains("<b>.pcap"), "{page}");
        for text in ["packet 1: request, PSN 0xffffff", "packet 2: NAK, PSN 0x000001", "<td>msn</td>"] {
            assert!(page.contains(text), "{text:?} is missing in {page}");
        }
        assert_eq!(page.matches("stroke:var(--differs)").count(), 1);
    }

    #[test]
    fn psns_wrap() {
        assert_eq!((offset(0xff_ffff, 1), offset(1, 0xff_ffff)), (2.0, -2.0));
        assert_eq!((place(5.0, (0.0, 10.0), 124.0), place(3.0, (3.0, 3.0), 24.0)), (62.0, 12.0));
    }
}

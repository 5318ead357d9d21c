//! Checks that the plot in docs/wire.md shows the results of `message_cost`.
//!
//! `DOORBELL_UPDATE_PLOTS=1 cargo test -p doorbell-wire --test suite efficiency_plot::` writes the plot.

use std::fmt::Write as _;
use std::path::Path;

use doorbell_wire::{MessageKind, OuterKind, PathMtu, Transport, message_cost};

const LEFT: f64 = 60.0;
const TOP: f64 = 20.0;
const WIDTH: f64 = 600.0;
const HEIGHT: f64 = 320.0;
/// Plotted points per doubling of the message size.
const STEPS: u32 = 8;
/// Doublings of the message size, which grows from 1 to 2^20 bytes.
const DOUBLINGS: u32 = 20;

/// Colours from light to dark, in the order of growing path MTU.
const COLOURS: [&str; 5] = ["#7fb3d5", "#4a90c4", "#2471a3", "#1a5276", "#0e2f44"];

fn x(step: u32) -> f64 {
    LEFT + WIDTH * f64::from(step) / f64::from(STEPS * DOUBLINGS)
}

fn y(share: f64) -> f64 {
    TOP + HEIGHT * (1.0 - share)
}

/// Returns the goodput of a WRITE over IPv4.
fn share(bytes: u64, mtu: PathMtu) -> f64 {
    message_cost(MessageKind::Write, Transport::Rc, bytes, mtu, OuterKind::IPV4).unwrap().goodput_share()
}

fn text(svg: &mut String, x: f64, y: f64, anchor: &str, colour: &str, text: &str) {
    let _ = writeln!(svg, "<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\" fill=\"{colour}\">{text}</text>");
}

fn plot() -> String {
    let (width, height) = (LEFT + WIDTH + 110.0, TOP + HEIGHT + 60.0);
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" font-family=\"sans-serif\" \
         font-size=\"12\">\n\
         <title>Goodput of WRITEs over IPv4, as a share of the line, over payload and path MTU</title>\n\
         <rect width=\"{width}\" height=\"{height}\" fill=\"#ffffff\"/>\n"
    );
    for percent in (0..=100).step_by(20) {
        let at = y(f64::from(percent) / 100.0);
        let right = LEFT + WIDTH;
        let _ = writeln!(svg, "<path d=\"M{LEFT:.1} {at:.1}H{right:.1}\" stroke=\"#dddddd\" fill=\"none\"/>");
        text(&mut svg, LEFT - 8.0, at + 4.0, "end", "#333333", &format!("{percent} %"));
    }
    for doubling in (0..=DOUBLINGS).step_by(2) {
        let label = match doubling {
            0..10 => format!("{} B", 1 << doubling),
            10..20 => format!("{} KiB", 1 << (doubling - 10)),
            _ => "1 MiB".to_owned(),
        };
        text(&mut svg, x(doubling * STEPS), TOP + HEIGHT + 20.0, "middle", "#333333", &label);
    }
    text(&mut svg, LEFT + WIDTH / 2.0, TOP + HEIGHT + 45.0, "middle", "#333333", "payload of a WRITE");
    let mut label_y = f64::INFINITY;
    for (mtu, colour) in PathMtu::ALL.into_iter().zip(COLOURS) {
        let mut line = String::new();
        for step in 0..=STEPS * DOUBLINGS {
            let bytes = (f64::from(step) / f64::from(STEPS)).exp2().round() as u64;
            let _ = write!(line, "{}{:.1} {:.1}", if step == 0 { 'M' } else { 'L' }, x(step), y(share(bytes, mtu)));
        }
        let _ = writeln!(svg, "<path d=\"{line}\" stroke=\"{colour}\" stroke-width=\"1.8\" fill=\"none\"/>");
        // Each label stands at the right end of its line. Lines can end close together, so each label stands at least
        // 14 units above the previous label.
        label_y = (y(share(1 << DOUBLINGS, mtu)) + 4.0).min(label_y - 14.0);
        text(&mut svg, LEFT + WIDTH + 8.0, label_y, "start", colour, &format!("path MTU {mtu}"));
    }
    svg + "</svg>\n"
}

#[test]
fn the_stored_plot_matches_message_cost() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../docs/wire-efficiency.svg");
    let plot = plot();
    if std::env::var_os("DOORBELL_UPDATE_PLOTS").is_some() {
        std::fs::write(&path, &plot).unwrap();
    }
    let kept = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(
        kept == plot,
        "the plot {} differs from message_cost: set DOORBELL_UPDATE_PLOTS=1 to rewrite the plot",
        path.display()
    );
}

//! A plot of samples over time: one panel per quantity, one line per process.

use std::fmt::Write as _;

/// Maximum number of points of a line. This is about one point for each pixel.
const POINTS_MAX: usize = 600;

/// Line of one process.
pub(super) struct Line {
    pub(super) name: String,
    pub(super) points: Vec<(f64, f64)>,
}

/// Lines that share an axis.
pub(super) struct Panel {
    pub(super) title: &'static str,
    pub(super) lines: Vec<Line>,
}

const WIDTH: f64 = 900.0;
const HEIGHT: f64 = 220.0;
const LEFT: f64 = 90.0;
const RIGHT: f64 = 170.0;
const TOP: f64 = 30.0;
const BOTTOM: f64 = 30.0;
const COLOURS: [&str; 6] = ["#1b6ca8", "#d1495b", "#2e8b57", "#8e5ea2", "#e08e0b", "#555555"];

/// Draws panels below each other. Each vertical axis begins at 0, so that growth is not magnified.
pub(super) fn svg(panels: &[Panel]) -> String {
    let height = HEIGHT * panels.len() as f64;
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" font-family=\"sans-serif\" \
         font-size=\"11\">\n<rect width=\"{WIDTH}\" height=\"{height}\" fill=\"white\"/>\n"
    );
    for (number, panel) in panels.iter().enumerate() {
        draw(&mut out, panel, HEIGHT * number as f64);
    }
    out + "</svg>\n"
}

fn draw(out: &mut String, panel: &Panel, top: f64) {
    let points = || panel.lines.iter().flat_map(|line| &line.points);
    let last_x = points().map(|point| point.0).fold(1.0, f64::max);
    let most = points().map(|point| point.1).fold(1.0, f64::max);
    let (inner_width, inner_height) = (WIDTH - LEFT - RIGHT, HEIGHT - TOP - BOTTOM);
    let x = |value: f64| LEFT + value / last_x * inner_width;
    let y = |value: f64| top + TOP + (1.0 - value / most) * inner_height;
    let mut text = |x: f64, y: f64, anchor: &str, colour: &str, text: &str| {
        // Writing to a string cannot fail.
        let _ =
            writeln!(out, "<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\" fill=\"{colour}\">{text}</text>");
    };
    text(LEFT, top + TOP - 10.0, "start", "black", panel.title);
    for part in [0.0, 0.5, 1.0] {
        text(LEFT - 6.0, y(most * part) + 4.0, "end", "black", &format!("{:.0}", most * part));
        text(x(last_x * part), top + HEIGHT - 12.0, "middle", "black", &format!("{:.0} s", last_x * part));
    }
    for (number, line) in panel.lines.iter().enumerate() {
        let colour = COLOURS[number % COLOURS.len()];
        text(WIDTH - RIGHT + 10.0, top + TOP + 14.0 * number as f64 + 8.0, "start", colour, &line.name);
    }
    let (left, bottom, right) = (LEFT, y(0.0), WIDTH - RIGHT);
    let _ = writeln!(out, "<path d=\"M{left} {:.1}V{bottom:.1}H{right}\" fill=\"none\" stroke=\"black\"/>", y(most));
    for (number, line) in panel.lines.iter().enumerate() {
        let step = line.points.len().div_ceil(POINTS_MAX).max(1);
        let points: Vec<_> =
            line.points.iter().step_by(step).map(|point| format!("{:.1},{:.1}", x(point.0), y(point.1))).collect();
        let colour = COLOURS[number % COLOURS.len()];
        let _ = writeln!(out, "<polyline points=\"{}\" fill=\"none\" stroke=\"{colour}\"/>", points.join(" "));
    }
}

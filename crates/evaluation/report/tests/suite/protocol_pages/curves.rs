//! Curves over the message size: latency and throughput of all variants of a protocol, simulated and measured.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use doorbell_protocols::Protocol;
use doorbell_record::{Environment, PointRecord, Quantity, Spread};
use time::UtcDateTime;

use crate::common::{MEASURED, RECORDS, SIMULATED};

const WIDTH: f64 = 900.0;
const HEIGHT: f64 = 320.0;
const LEFT: f64 = 60.0;
const RIGHT: f64 = 260.0;
const TOP: f64 = 34.0;
const BOTTOM: f64 = 40.0;
/// Binary logarithm of the largest message size on the axis.
const DOUBLINGS: f64 = 20.0;
const COLOURS: [&str; 8] = ["#0072b2", "#d55e00", "#009e73", "#b0559a", "#8a6500", "#3d9bd1", "#6a4fb3", "#333a40"];

/// Curve of one configuration: protocol, window and batch.
type Key = (Protocol, usize, usize);
/// Points of a curve: message size in bytes, and the spread over all repetitions.
type Points = Vec<(f64, Spread)>;

/// Plot of one quantity.
struct Panel {
    title: String,
    measured: BTreeMap<Key, Points>,
    simulated: BTreeMap<Key, Points>,
}

/// Style of a curve: colour, attribute for dashes, and colour inside points.
#[derive(Clone, Copy)]
struct Style {
    colour: &'static str,
    dash: &'static str,
    fill: &'static str,
}

/// Plots of one protocol, one below the other.
pub(crate) struct Figure {
    family: &'static str,
    panels: [Panel; 2],
    measured: Environment,
    simulated: Environment,
}

impl Figure {
    /// Returns the plots of the family `family`: its experiments `latency` and `bandwidth`.
    pub(crate) fn new(family: &'static str, measured: &[PointRecord], simulated: &[PointRecord]) -> Self {
        let panel = |what: &str, quantity: Quantity, title: &str| {
            let name = format!("{family}/{what}");
            let of = |records: &[PointRecord]| points(records.iter().filter(|it| it.experiment == name), quantity);
            let panel = Panel { title: title.to_owned(), measured: of(measured), simulated: of(simulated) };
            assert!(!panel.measured.is_empty() && !panel.simulated.is_empty(), "{RECORDS} has no records of {name}");
            panel
        };
        Self {
            family,
            panels: [
                panel("latency", Quantity::MedianLatency, "Latency: median of half a round trip, us"),
                panel("bandwidth", Quantity::Throughput, "Throughput of one connection, Gb/s"),
            ],
            measured: newest(measured, family),
            simulated: newest(simulated, family),
        }
    }

    /// Returns the part of the page with the plots and their origin.
    pub(crate) fn section(&self) -> String {
        let Self { family, measured, simulated, .. } = self;
        let testbed = simulated.testbed.as_ref().map(|testbed| testbed.name.as_str()).expect("simulated records");
        format!(
            "## Curves\n\n![Latency and throughput over the message size]({family}.svg)\n\n\
             - Lines: simulated on the testbed `{testbed}`, {}.\n\
             - Points: measured with the software RNIC between two processes of one machine, {}. The machine has {} \
             processors ({}) and Linux {}. Bars reach from the least to the greatest repetition.\n\
             - *Unbatched* and *batched* are the configurations of `--config`, with windows that shrink for large messages.\n\
             - Records: `{SIMULATED}` and `{MEASURED}` in [{RECORDS}](../../{RECORDS}).\n",
            date(simulated),
            date(measured),
            measured.cpus,
            measured.cpu,
            measured.kernel,
        )
    }

    /// Draws the plots.
    pub(crate) fn svg(&self) -> String {
        let height = HEIGHT * self.panels.len() as f64;
        let family = self.family;
        let mut svg = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" font-family=\"sans-serif\" \
             font-size=\"12\">\n\
             <title>Latency and throughput of {family} over the message size</title>\n\
             <rect width=\"{WIDTH}\" height=\"{height}\" fill=\"#ffffff\"/>\n"
        );
        for (number, panel) in self.panels.iter().enumerate() {
            panel.draw(&mut svg, HEIGHT * number as f64);
        }
        svg + "</svg>\n"
    }
}

/// Returns the environment of the newest record of a family.
fn newest(records: &[PointRecord], family: &str) -> Environment {
    let of_family = records.iter().filter(|it| it.experiment.split('/').next() == Some(family));
    let newest = of_family.max_by_key(|record| record.environment.unix_time_s).expect("records of the family");
    newest.environment.clone()
}

fn date(environment: &Environment) -> String {
    let seconds = i64::try_from(environment.unix_time_s).unwrap();
    UtcDateTime::from_unix_timestamp(seconds).unwrap().date().to_string()
}

fn points<'a>(records: impl Iterator<Item = &'a PointRecord>, quantity: Quantity) -> BTreeMap<Key, Points> {
    let mut curves: BTreeMap<Key, Points> = BTreeMap::new();
    for record in records {
        let parameters = &record.parameters;
        let Some(spread) = record.spread(quantity) else { continue };
        let key = (parameters.protocol, parameters.window, parameters.batch);
        curves.entry(key).or_default().push((record.x, spread));
    }
    curves.values_mut().for_each(|points| points.sort_by(|a, b| a.0.total_cmp(&b.0)));
    curves
}

impl Panel {
    /// Returns the configurations of all curves.
    fn keys(&self) -> Vec<Key> {
        let keys: BTreeSet<Key> = self.simulated.keys().chain(self.measured.keys()).copied().collect();
        keys.into_iter().collect()
    }

    /// Returns the name of a curve: the variant if the plot has several variants, and the configuration if it has
    /// several configurations.
    fn name(&self, (protocol, window, batch): Key) -> String {
        let keys = self.keys();
        let configuration = match (window, batch) {
            (1, _) => "sequential",
            (_, 1) => "unbatched",
            _ => "batched",
        };
        let variant = keys.iter().any(|key| key.0 != protocol).then_some(protocol.variant());
        let configuration = keys.iter().any(|key| (key.1, key.2) != (window, batch)).then_some(configuration);
        let parts: Vec<&str> = variant.into_iter().chain(configuration).collect();
        if parts.is_empty() { protocol.variant().to_owned() } else { parts.join(", ") }
    }

    /// Returns the style of a curve. In a plot of several variants, each variant has a colour, and batches have dashes.
    fn style(&self, key: Key) -> Style {
        let keys = self.keys();
        let variants: BTreeSet<Protocol> = keys.iter().map(|key| key.0).collect();
        let solid = |number: usize| {
            let colour = COLOURS[number % COLOURS.len()];
            Style { colour, dash: "", fill: colour }
        };
        if variants.len() == 1 {
            return solid(keys.iter().take_while(|other| **other != key).count());
        }
        let style = solid(variants.iter().take_while(|other| **other != key.0).count());
        if key.2 > 1 { Style { dash: " stroke-dasharray=\"6 3\"", fill: "#ffffff", ..style } } else { style }
    }

    /// Returns the decimal exponents of the least and the greatest value of the axis.
    fn decades(&self) -> (i32, i32) {
        let spreads = || self.simulated.values().chain(self.measured.values()).flatten().map(|(_, spread)| spread);
        let least = spreads().map(|spread| spread.least).fold(f64::INFINITY, f64::min);
        let most = spreads().map(|spread| spread.most).fold(0.0, f64::max);
        assert!(least > 0.0, "{}: the axis is logarithmic", self.title);
        (least.log10().floor() as i32, most.log10().ceil() as i32)
    }

    fn draw(&self, svg: &mut String, top: f64) {
        let (low, high) = self.decades();
        let (inner_width, inner_height) = (WIDTH - LEFT - RIGHT, HEIGHT - TOP - BOTTOM);
        let (right, bottom) = (LEFT + inner_width, top + HEIGHT - BOTTOM);
        let x = |bytes: f64| LEFT + bytes.max(1.0).log2() / DOUBLINGS * inner_width;
        let y = |value: f64| bottom - (value.log10() - f64::from(low)) / f64::from(high - low) * inner_height;
        text(svg, LEFT, top + TOP - 12.0, "start", "#333333", &self.title);
        for decade in low..=high {
            let value = 10_f64.powi(decade);
            let at = y(value);
            let _ = writeln!(svg, "<path d=\"M{LEFT:.1} {at:.1}H{right:.1}\" stroke=\"#dddddd\" fill=\"none\"/>");
            text(svg, LEFT - 8.0, at + 4.0, "end", "#333333", &value.to_string());
        }
        for (bytes, label) in
            [(1, "1 B"), (16, "16 B"), (256, "256 B"), (4096, "4 KiB"), (65_536, "64 KiB"), (1 << 20, "1 MiB")]
        {
            text(svg, x(f64::from(bytes)), bottom + 20.0, "middle", "#333333", label);
        }
        for (number, key) in self.keys().into_iter().enumerate() {
            let Style { colour, dash, fill } = self.style(key);
            let row = top + TOP + 8.0 + 18.0 * number as f64;
            let begin = right + 16.0;
            let line = format!("stroke=\"{colour}\" stroke-width=\"1.8\"{dash} fill=\"none\"");
            let _ = writeln!(svg, "<path d=\"M{begin:.1} {row:.1}h22\" {line}/>");
            text(svg, begin + 28.0, row + 4.0, "start", colour, &self.name(key));
            if let Some(points) = self.simulated.get(&key) {
                let places: Vec<String> =
                    points.iter().map(|(bytes, spread)| format!("{:.1},{:.1}", x(*bytes), y(spread.median))).collect();
                let _ = writeln!(svg, "<polyline points=\"{}\" {line}/>", places.join(" "));
            }
            for (bytes, spread) in self.measured.get(&key).into_iter().flatten() {
                let (at, least, most) = (x(*bytes), y(spread.least), y(spread.most));
                let _ = writeln!(svg, "<path d=\"M{at:.1} {least:.1}V{most:.1}\" stroke=\"{colour}\" fill=\"none\"/>");
                let place = format!("cx=\"{at:.1}\" cy=\"{:.1}\" r=\"3.5\"", y(spread.median));
                let _ = writeln!(svg, "<circle {place} stroke=\"{colour}\" fill=\"{fill}\"/>");
            }
        }
    }
}

fn text(svg: &mut String, x: f64, y: f64, anchor: &str, colour: &str, text: &str) {
    // Writing to a string cannot fail.
    let _ = writeln!(svg, "<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\" fill=\"{colour}\">{text}</text>");
}

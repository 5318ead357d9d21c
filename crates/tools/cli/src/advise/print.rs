//! Output of recommendations: text and JSON.

use std::fmt::Write as _;
use std::io;

use doorbell_model::advise::{Advice, Answer, Change, LeftOut, Need, Row, grouped, next_best, useful, with_options};
use doorbell_model::explain::per_second;
use doorbell_model::parameters::Parameters;
use doorbell_record::{Parameters as Measured, SizeMix};
use doorbell_sim::Testbed;
use doorbell_sim::advise::{Simulated, departs, measured};
use doorbell_sim::session::PointError;
use serde_json::{Value, json};

use crate::model::about;
use crate::output::{line, note, us, wrapped};

/// Result of the simulation of an advice.
pub(super) type Tried = Result<Simulated, PointError>;

/// Testbed on which the first recommendations were simulated, with their results.
pub(super) type Checked<'a> = Option<(&'a Testbed, Vec<Tried>)>;

/// Prints an answer: its sentence first, then all protocols, the ones left out, and changes.
pub(super) fn text(parameters: &Parameters, need: &Need, answer: &Answer, checked: &Checked<'_>) -> io::Result<()> {
    about(parameters);
    pattern(need);
    note!("Not in these figures: copies between rings and the destinations of messages, waking up, loss.");
    let longest = need.sizes.iter().map(|(bytes, _)| *bytes).chain(need.reply_bytes).max().unwrap_or(0);
    if let Some(sentence) = parameters.beyond_published(longest) {
        note!("{sentence}");
    }
    line(&answer.sentence)?;
    line("")?;
    rows(need, &answer.rows)?;
    let first = answer.rows.first().map(|row| &row.best);
    if let Some((testbed, tried)) = checked {
        line(format_args!("\nSimulated on {}, with the same pattern:", testbed.name))?;
        for (row, tried) in answer.rows.iter().zip(tried) {
            line(format_args!("  {}: {}", row.best.protocol, judged(need, &row.best, tried)))?;
        }
        if let Some((row, simulated)) = better_by_simulation(&answer.rows, tried) {
            let (rate, time) = (per_second(simulated.messages_per_s), us(simulated.latency_ns));
            let first = with_options(&row.best);
            line(format_args!("By simulation, take {first}: {rate} {}, {time} us alone.", unit(need)))?;
        }
    }
    ending(need, first, "After a change of the need:", (&answer.left_out, &answer.changes))
}

/// Prints the pattern of all figures, and that they are those of a mix.
fn pattern(need: &Need) {
    note!("Pattern of all figures: {}.", need.peers);
    if need.sizes.len() > 1 {
        note!("All figures are means over one mix of {} sizes.", need.sizes.len());
    }
}

/// Protocols without a row, and first recommendations after changes.
pub(super) type Others<'a> = (&'a [LeftOut], &'a [Change]);

/// Prints the protocols that are left out, the changes, the command that measures the first advice, and its page.
fn ending(need: &Need, first: Option<&Advice>, title: &str, (left_out, changes): Others<'_>) -> io::Result<()> {
    if !left_out.is_empty() {
        line("\nLeft out:")?;
        left_out.iter().try_for_each(|LeftOut { protocol, reason }| line(format_args!("  {protocol}: {reason}")))?;
    }
    line(format_args!("\n{title}"))?;
    changes.iter().try_for_each(|change| line(format_args!("  {}", changed(need, first, change))))?;
    let Some(first) = first else { return Ok(()) };
    line(format_args!("\n{} is described in {}.", first.protocol, first.protocol.page()))?;
    match measured(need, first) {
        Some(parameters) => line(format_args!("Measure the first protocol here:\n  {}", command(&parameters))),
        None => Ok(()),
    }
}

/// Returns a line about the recommendations that are equal to the one above, broken at 100 columns.
fn equal(ties: &[Advice]) -> String {
    let names: Vec<String> =
        ties.iter().map(|tie| format!("{} (window {}, batch {})", tie.protocol, tie.window, tie.batch)).collect();
    wrapped(&format!("  equal within 5 %: {}", names.join(", "))).replace('\n', "\n    ")
}

/// Returns the command that measures a stream with these parameters.
fn command(parameters: &Measured) -> String {
    let Measured { protocol, window, batch, depth, connections, serving, .. } = parameters;
    let sizes = match &parameters.mix {
        Some(SizeMix(rows)) => {
            let rows: Vec<String> = rows.iter().map(|(bytes, weight)| format!("{bytes}:{weight}")).collect();
            format!("--sizes {}", rows.join(","))
        }
        None => format!("-s {}", parameters.sizes.first().copied().unwrap_or(0)),
    };
    let mut text = format!("doorbell bench bw {sizes}");
    if let Some(reply) = parameters.reply {
        let _ = write!(text, " --reply {reply}");
    }
    let _ = write!(text, " --protocol {protocol} -t {window} -l {batch} -r {depth} -q {connections}");
    let _ = write!(text, " --threads {}", serving.threads);
    if serving.server_threads > 0 {
        let _ = write!(text, " --server-threads {}", serving.server_threads);
    }
    let plain = Measured::plain(parameters.kind, parameters.operation, 0);
    let others = [
        (serving.shared_receives.is_some(), " --use-srq".to_owned()),
        (parameters.events, " -e".to_owned()),
        (parameters.bidirectional, " -b".to_owned()),
        (parameters.mtu.is_some(), format!(" -m {}", parameters.mtu.unwrap_or(0))),
        (parameters.rate.is_some(), format!(" --rate {}", parameters.rate.unwrap_or(0.0))),
        (parameters.think_us > 0, format!(" --think {}", parameters.think_us)),
        (
            parameters.memory_bytes != plain.memory_bytes,
            format!(" --memory {}", parameters.memory_bytes.div_ceil(1 << 20)),
        ),
    ];
    text.extend(others.into_iter().filter_map(|(is_given, option)| is_given.then_some(option)));
    text
}

/// Returns the unit of the rates of a need.
fn unit(need: &Need) -> &'static str {
    if need.reply_bytes.is_some() { "requests/s" } else { "messages/s" }
}

fn rows(need: &Need, rows: &[Row]) -> io::Result<()> {
    line(format_args!(
        "{:<29} {:>6} {:>5} {:>5} {:>3} {:>9} {:>10} {:>11} {:>14}",
        "protocol",
        "window",
        "batch",
        "depth",
        "SRQ",
        "alone, us",
        "loaded, us",
        unit(need),
        "send+recv KiB"
    ))?;
    for Row { best, ties } in rows {
        let kib = |bytes: u64| bytes.div_ceil(1024);
        line(format_args!(
            "{:<29} {:>6} {:>5} {:>5} {:>3} {:>9} {:>10} {:>11.0} {:>14}",
            best.protocol,
            best.window,
            best.batch,
            best.depth,
            if best.srq { "yes" } else { "-" },
            us(best.latency_ns),
            best.loaded_ns.map_or("-".to_owned(), us),
            best.messages_per_s,
            format!("{}+{}", kib(best.sender_bytes), kib(best.receiver_bytes))
        ))?;
        line(wrapped(&format!("  {}", best.reason)).replace('\n', "\n  "))?;
        if !ties.is_empty() {
            line(equal(ties))?;
        }
    }
    Ok(())
}

/// Returns the figures of the model that depart from the simulated ones, each with its name and both values.
fn departures(need: &Need, advice: &Advice, simulated: &Simulated) -> Vec<(&'static str, f64, f64)> {
    let rate = ("rate", useful(need, advice), simulated.messages_per_s);
    let latency = ("latency alone", advice.latency_ns, simulated.latency_ns);
    let loaded =
        advice.loaded_ns.zip(simulated.loaded_ns).map(|(model, simulated)| ("loaded latency", model, simulated));
    let figures = [rate, latency].into_iter().chain(loaded);
    figures.filter(|(_, model, simulated)| departs(*model, *simulated)).collect()
}

/// Factor from which on a simulated figure is better than that of the first advice.
const BETTER: f64 = 1.25;
/// Factor down to which the other simulated figure is about the same.
const SAME: f64 = 0.95;

/// Returns the simulated advice that beats the first one in rate or latency without a loss in the other. Returns `None`
/// if the simulation confirms the first one.
fn better_by_simulation<'a>(rows: &'a [Row], tried: &'a [Tried]) -> Option<(&'a Row, &'a Simulated)> {
    let first = tried.first()?.as_ref().ok()?;
    let beats = |other: &Simulated| {
        let (rate, time) = (other.messages_per_s / first.messages_per_s, first.latency_ns / other.latency_ns);
        rate >= BETTER && time >= SAME || time >= BETTER && rate >= SAME
    };
    let others = rows.iter().zip(tried).skip(1).filter_map(|(row, tried)| Some((row, tried.as_ref().ok()?)));
    others.filter(|(_, simulated)| beats(simulated)).max_by(|a, b| a.1.messages_per_s.total_cmp(&b.1.messages_per_s))
}

/// Returns a clause about the simulated latency with load, if there is one.
fn loaded(simulated: &Simulated) -> String {
    simulated.loaded_ns.map_or_else(String::new, |ns| format!(", {} us loaded", us(ns)))
}

/// Returns the simulated figures of an advice, and whether the model agrees.
fn judged(need: &Need, advice: &Advice, tried: &Tried) -> String {
    let simulated = match tried {
        Ok(simulated) => simulated,
        Err(error) => return format!("could not be simulated: {error}"),
    };
    let (rate, time) = (per_second(simulated.messages_per_s), us(simulated.latency_ns));
    let mut text = format!("{rate} {}, {time} us alone{}; ", unit(need), loaded(simulated));
    let departures = departures(need, advice, simulated);
    if departures.is_empty() {
        text += "the model agrees within 25 %";
    }
    for (index, (what, model, simulated)) in departures.into_iter().enumerate() {
        let percent = 100.0 * (model / simulated - 1.0);
        let side = if percent > 0.0 { "above" } else { "below" };
        let and = if index > 0 { ", and " } else { "" };
        let _ = write!(text, "{and}the model's {what} is {:.0} % {side}", percent.abs());
    }
    text
}

/// Returns a change with its first advice, and whether the protocol differs.
fn changed(need: &Need, advice: Option<&Advice>, change: &Change) -> String {
    let Change { what, peers, first } = change;
    let pattern =
        if *peers == need.peers { String::new() } else { format!(" ({}:{})", peers.senders, peers.receivers) };
    let what = format!("{what}{pattern}");
    match first {
        Ok(first) => {
            let is_same = advice.is_some_and(|advice| advice.protocol == first.protocol);
            let word = if is_same { "" } else { "; another protocol" };
            let rate = per_second(first.messages_per_s);
            let (unit, binds) = (unit(need), first.binding);
            let pace = if need.messages_per_s.is_some() { "at most " } else { "" };
            format!("{what:<26} {}: {pace}{rate} {unit}, {binds}{word}", with_options(first))
        }
        Err(error) => format!("{what:<26} no advice: {error}"),
    }
}

/// Prints an answer as one JSON object.
pub(super) fn json(parameters: &Parameters, need: &Need, answer: &Answer, checked: &Checked<'_>) -> io::Result<()> {
    let tried = checked.as_ref().map_or(&[][..], |(_, tried)| tried.as_slice());
    let row = |(index, row): (usize, &Row)| {
        let mut value = object(&row.best);
        value["ties"] = row.ties.iter().map(object).collect();
        if let Some(tried) = tried.get(index) {
            value["simulated"] = simulated(tried);
            if let Ok(simulated) = tried {
                let names = departures(need, &row.best, simulated).into_iter().map(|(what, ..)| what);
                value["departs_in"] = names.collect();
            }
        }
        value
    };
    let mut value = json!({
        "schema": "doorbell-advise/1",
        "answer": answer.sentence,
        "pattern": need.peers.to_string(),
        "parameters": parameters,
        "ranked": answer.rows.iter().enumerate().map(row).collect::<Vec<_>>(),
        "left_out": answer.left_out.iter().map(left_out).collect::<Vec<_>>(),
        "changes": answer.changes.iter().map(change).collect::<Vec<_>>(),
        "page": answer.rows.first().map(|row| row.best.protocol.page()),
    });
    if let Some((testbed, tried)) = checked {
        value["testbed"] = json!(testbed.name);
        let better = better_by_simulation(&answer.rows, tried);
        value["better_by_simulation"] = json!(better.map(|(row, _)| row.best.protocol.name()));
    }
    line(value)
}

/// Returns a protocol that is left out as a JSON object.
fn left_out(LeftOut { protocol, reason }: &LeftOut) -> Value {
    json!({ "protocol": protocol.name(), "reason": reason })
}

/// Returns a change with its first advice as a JSON object.
fn change(Change { what, peers, first }: &Change) -> Value {
    let mut value = json!({ "what": what, "pattern": peers.to_string() });
    match first {
        Ok(first) => value["first"] = object(first),
        Err(error) => value["failed"] = json!(error.to_string()),
    }
    value
}

/// Returns the recommendations with their simulated figures, in groups of equal ones.
fn groups(need: &Need, tried: &[(Tried, Advice)]) -> Vec<Row> {
    let with_figures = |(tried, advice): &(Tried, Advice)| {
        let Simulated { latency_ns, loaded_ns, messages_per_s, .. } = tried.as_ref().ok()?;
        let (latency_ns, loaded_ns, messages_per_s) = (*latency_ns, *loaded_ns, *messages_per_s);
        Some(Advice { latency_ns, loaded_ns, messages_per_s, ..advice.clone() })
    };
    grouped(need, tried.iter().filter_map(with_figures))
}

/// Prints recommendations in the order of their simulated figures, with the figures of the model beside them. Those
/// that are equal to an earlier one by simulation have no row of their own.
pub(super) fn by_simulation(
    as_json: bool,
    testbed: &Testbed,
    need: &Need,
    tried: &[(Tried, Advice)],
    others: Others<'_>,
) -> io::Result<()> {
    let groups = groups(need, tried);
    let sentence = match tried.first() {
        Some((Ok(simulated), advice)) => format!(
            "Take {}: {} {} and {} us alone{}, simulated on {}{}; {}.",
            with_options(advice),
            per_second(simulated.messages_per_s),
            unit(need),
            us(simulated.latency_ns),
            loaded(simulated),
            testbed.name,
            simulated.bottleneck.map_or_else(String::new, |limit| format!("; the limit is {limit}")),
            next_best(need, &groups)
        ),
        _ => format!("No advice could be simulated on {}.", testbed.name),
    };
    if as_json {
        let with_result = |(tried, advice): &(Tried, Advice)| {
            let mut value = object(advice);
            value["simulated"] = simulated(tried);
            value
        };
        let ranked: Vec<Value> = tried.iter().map(with_result).collect();
        return line(json!({
            "schema": "doorbell-advise/1",
            "answer": sentence,
            "pattern": need.peers.to_string(),
            "testbed": testbed.name,
            "ranked": ranked,
            "left_out": others.0.iter().map(left_out).collect::<Vec<_>>(),
            "changes": others.1.iter().map(change).collect::<Vec<_>>(),
            "page": tried.first().map(|(_, advice)| advice.protocol.page()),
        }));
    }
    pattern(need);
    note!("Simulated figures are of {} in virtual time; the model's stand beside them.", testbed.name);
    line(sentence)?;
    line("")?;
    line(format_args!(
        "{:<29} {:>6} {:>5} {:>5} {:>3} {:>9} {:>10} {:>9} {:>9} {:>9}   limit",
        "protocol", "window", "batch", "depth", "SRQ", "alone, us", "loaded, us", "rate/s", "model, us", "model/s"
    ))?;
    for (tried, advice) in tried {
        if groups.iter().any(|row| row.ties.iter().any(|tie| tie.protocol == advice.protocol)) {
            continue;
        }
        let none = || "-".to_owned();
        let [latency, loaded, rate, limit] = match tried {
            Ok(simulated) => [
                us(simulated.latency_ns),
                simulated.loaded_ns.map_or_else(none, us),
                format!("{:.0}", simulated.messages_per_s),
                simulated.bottleneck.map_or_else(none, |limit| limit.to_string()),
            ],
            Err(error) => {
                note!("{} could not be simulated: {error}", advice.protocol);
                [none(), none(), none(), none()]
            }
        };
        line(format_args!(
            "{:<29} {:>6} {:>5} {:>5} {:>3} {latency:>9} {loaded:>10} {rate:>9} {:>9} {:>9.0}   {limit}",
            advice.protocol,
            advice.window,
            advice.batch,
            advice.depth,
            if advice.srq { "yes" } else { "-" },
            us(advice.latency_ns),
            advice.messages_per_s
        ))?;
        match groups.iter().find(|row| row.best.protocol == advice.protocol) {
            Some(row) if !row.ties.is_empty() => line(equal(&row.ties))?,
            _ => {}
        }
    }
    let first = tried.iter().find(|(tried, _)| tried.is_ok()).map(|(_, advice)| advice);
    ending(need, first, "After a change of the need, by the model:", others)
}

fn simulated(tried: &Tried) -> Value {
    match tried {
        Ok(simulated) => json!({
            "latency_ns": simulated.latency_ns,
            "loaded_ns": simulated.loaded_ns,
            "messages_per_s": simulated.messages_per_s,
            "bottleneck": simulated.bottleneck.map(|limit| {
                json!({ "station": limit.station.name(), "share": limit.share, "binds": limit.binds() })
            }),
            "notes": simulated.notes,
        }),
        Err(error) => json!({ "failed": error.to_string() }),
    }
}

fn object(advice: &Advice) -> Value {
    json!({
        "protocol": advice.protocol.name(),
        "window": advice.window,
        "batch": advice.batch,
        "depth": advice.depth,
        "srq": advice.srq,
        "latency_ns": advice.latency_ns,
        "loaded_ns": advice.loaded_ns,
        "messages_per_s": advice.messages_per_s,
        "sender_bytes": advice.sender_bytes,
        "receiver_bytes": advice.receiver_bytes,
        "bottleneck": advice.binding.name(),
        "reason": advice.reason,
    })
}

#[cfg(test)]
mod tests {
    use doorbell_model::advise::{Goal, answer};

    use super::*;

    #[test]
    fn a_first_advice_that_the_simulation_refutes_has_a_better_one() {
        let answer = answer(&Parameters::t1(), &Need::new(64, Goal::Latency)).unwrap();
        assert!(answer.rows.len() >= 3);
        let simulated = |latency_ns: f64, messages_per_s: f64| -> Tried {
            Ok(Simulated { latency_ns, loaded_ns: None, messages_per_s, bottleneck: None, notes: Vec::new() })
        };
        for (second, third, better) in [
            (simulated(2000.0, 1.2e6), simulated(2000.0, 0.9e6), None),
            (simulated(2000.0, 1.3e6), simulated(2050.0, 1.5e6), Some(2)),
            (simulated(1500.0, 1.0e6), simulated(8000.0, 9.0e6), Some(1)),
        ] {
            let tried = [simulated(2000.0, 1e6), second, third];
            let found = better_by_simulation(&answer.rows, &tried).map(|(row, _)| row.best.protocol);
            assert_eq!(found, better.map(|index: usize| answer.rows[index].best.protocol));
        }
    }

    #[test]
    fn equal_simulated_figures_have_one_row() {
        let need = Need::new(64, Goal::Latency);
        let all: Vec<Advice> = answer(&Parameters::t1(), &need).unwrap().rows.into_iter().map(|row| row.best).collect();
        let simulated = |latency_ns: f64| -> Tried {
            Ok(Simulated { latency_ns, loaded_ns: None, messages_per_s: 1e6, bottleneck: None, notes: Vec::new() })
        };
        let tried: Vec<(Tried, Advice)> = [2000.0, 2040.0, 2600.0].map(simulated).into_iter().zip(all).collect();
        let groups = groups(&need, &tried);
        assert_eq!((groups.len(), groups[0].ties.len()), (2, 1));
        assert_eq!(groups[0].best.protocol, tried[0].1.protocol);
        assert!(next_best(&need, &groups).ends_with("takes 30 % longer alone"), "{}", next_best(&need, &groups));
        assert!(equal(&groups[0].ties).starts_with("  equal within 5 %: "));
    }
}

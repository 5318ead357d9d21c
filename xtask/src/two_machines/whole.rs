//! The whole study between machines, beside one on loopback. It takes a quarter of an hour, so it is no part of the tests.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde_json::Value;

use super::cluster::{Cluster, check};
use super::{ONE_LOST_IN, TwoMachines};
use crate::programs::{self, doorbell};
use crate::shell::{command, output_of, target};
use crate::test::StepEnd;

/// Longer than a study takes, however slow the machine.
const PATIENCE: Duration = Duration::from_secs(1800);

/// Runs all of `study --quick` between two machines and among four of which one loses packets, and has both judged. The records
/// stay in `out`.
pub(crate) fn hosts(out: Option<&Path>) -> Result<(), String> {
    if let Some(StepEnd::LeftOut(why) | StepEnd::Failed(why)) = TwoMachines::are_impossible() {
        return Err(why);
    }
    programs::build()?;
    let out = out.map_or_else(|| target().join("xtask").join("hosts"), Path::to_owned);
    std::fs::create_dir_all(&out).map_err(|error| format!("{}: {error}", out.display()))?;
    let two = Cluster::new(2, 9000)?;
    let between = study(&two, &out.join("two"), 4096)?;
    let here = on_loopback(&two, &out.join("loopback"))?;
    let ratio = between.as_secs_f64() / here.as_secs_f64();
    println!(
        "two machines: {:.0} s, on loopback {:.0} s: {ratio:.2} times that",
        between.as_secs_f64(),
        here.as_secs_f64()
    );
    drop(two);
    let four = Cluster::new(4, 1500)?;
    four.lose_packets(3)?;
    let time = study(&four, &out.join("four"), 1024)?;
    println!("four machines, one in {ONE_LOST_IN} packets to one of them is lost: {:.0} s", time.as_secs_f64());
    Ok(())
}

/// A study in an empty directory.
fn fresh(directory: &Path) -> Result<(), String> {
    match std::fs::remove_dir_all(directory) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(format!("{}: {error}", directory.display())),
        _ => Ok(()),
    }
}

/// How long a study of everything takes, far memory included, whose points are all there, with packets as predicted.
fn study(cluster: &Cluster, directory: &Path, mtu: u64) -> Result<Duration, String> {
    fresh(directory)?;
    let begun = Instant::now();
    let records = cluster.study_into(directory, &[], PATIENCE)?;
    let time = begun.elapsed();
    let resent = check(&records, mtu, cluster.machines())?;
    println!("{}: {} points, {resent} packets sent again", directory.display(), records.len());
    cluster.study_into(directory, &["far-memory"], PATIENCE)?;
    judge(directory)?;
    Ok(time)
}

/// The same on one machine, over UDP.
fn on_loopback(cluster: &Cluster, directory: &Path) -> Result<Duration, String> {
    fresh(directory)?;
    let (doorbell, out) = (doorbell(), directory.to_string_lossy());
    let words = ["study", "--quick", "-d", "doorbell0", "--link", "udp", "--out", &out];
    let begun = Instant::now();
    output_of(cluster.command(0, &doorbell.to_string_lossy(), &words))?;
    Ok(begun.elapsed())
}

/// What the report finds of each claim: all of them are judged.
fn judge(directory: &Path) -> Result<(), String> {
    let page: PathBuf = directory.join("report.html");
    let mut report = command(doorbell(), &["report", "--json", "--out"]);
    report.arg(&page).arg(directory);
    let said = output_of(report)?;
    let report: Value = serde_json::from_str(&said).map_err(|error| format!("{}: {error}", directory.display()))?;
    let mut outcomes: BTreeMap<&str, usize> = BTreeMap::new();
    for verdict in report["verdicts"].as_array().map_or(&[][..], Vec::as_slice) {
        let outcome = verdict["outcome"].as_str().unwrap_or("none");
        *outcomes.entry(outcome).or_default() += 1;
        if outcome != "holds" {
            println!("  {}: {outcome}: {}", verdict["experiment"].as_str().unwrap_or_default(), verdict["because"]);
        }
    }
    let counts: Vec<String> = outcomes.iter().map(|(outcome, count)| format!("{count} {outcome}")).collect();
    println!("{}: {}", page.display(), counts.join(", "));
    match outcomes.get("not measured") {
        None if !outcomes.is_empty() => Ok(()),
        _ => Err(format!("{}: not all claims are judged", page.display())),
    }
}

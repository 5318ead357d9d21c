//! The whole default study between machines, compared with a study on loopback. The comparison takes a quarter of an
//! hour, so `test` does not run it.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde_json::Value;

use super::cluster::{Cluster, check};
use super::{ONE_LOST_IN, TwoMachines};
use crate::programs::{self, doorbell};
use crate::shell::{command, output_of, target};
use crate::test::StepEnd;

/// Time after which a study counts as hanging. No study takes this long, even on a slow machine.
const PATIENCE: Duration = Duration::from_secs(1800);

/// Runs all of `study` between two machines, and among four machines of which one loses packets. Checks that
/// the reports can judge the claims. The records stay in `out`.
pub(crate) fn hosts(out: Option<&Path>) -> Result<(), String> {
    if let Some(StepEnd::LeftOut(why) | StepEnd::Failed(why)) = TwoMachines::are_impossible() {
        return Err(why);
    }
    programs::build()?;
    let out = out.map_or_else(|| target().join("xtask").join("hosts"), Path::to_owned);
    std::fs::create_dir_all(&out).map_err(|error| format!("{}: {error}", out.display()))?;
    let two = Cluster::new(2, 9000)?;
    let (here, left_out) = on_loopback(&two, &out.join("loopback"))?;
    let (between, missing) = study(&two, &out.join("two"), 4096)?;
    let (here, between) = (here.as_secs_f64(), between.as_secs_f64());
    println!("two machines: {between:.0} s; on loopback: {here:.0} s; ratio {:.2}", between / here);
    is_judged(&missing, &left_out)?;
    drop(two);
    let four = Cluster::new(4, 1500)?;
    four.lose_packets(3)?;
    let (time, missing) = study(&four, &out.join("four"), 1024)?;
    println!("four machines, one in {ONE_LOST_IN} packets to one of them is lost: {:.0} s", time.as_secs_f64());
    is_judged(&missing, &left_out)
}

/// Checks that a study between machines measured all claims that the study on loopback measured. Claims that no quick
/// study measures are in both sets.
fn is_judged(missing: &BTreeSet<String>, left_out: &BTreeSet<String>) -> Result<(), String> {
    match missing.difference(left_out).next() {
        None => Ok(()),
        Some(claim) => Err(format!("the study between machines did not measure the claim: {claim}")),
    }
}

/// Removes the records of an earlier study.
fn fresh(directory: &Path) -> Result<(), String> {
    match std::fs::remove_dir_all(directory) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(format!("{}: {error}", directory.display())),
        _ => Ok(()),
    }
}

/// Runs all experiments, and checks that the numbers of packets are as predicted. Returns the duration without the
/// experiments of far memory, and the claims that were not measured.
fn study(cluster: &Cluster, directory: &Path, mtu: u64) -> Result<(Duration, BTreeSet<String>), String> {
    fresh(directory)?;
    let begun = Instant::now();
    let records = cluster.study_into(directory, &[], PATIENCE)?;
    let time = begun.elapsed();
    let resent = check(&records, mtu, cluster.machines())?;
    println!("{}: {} points, {resent} retransmitted packets", directory.display(), records.len());
    cluster.study_into(directory, &["far-memory"], PATIENCE)?;
    Ok((time, judge(directory)?))
}

/// Runs all experiments on one machine, over UDP. Returns the same values as [`study`].
fn on_loopback(cluster: &Cluster, directory: &Path) -> Result<(Duration, BTreeSet<String>), String> {
    fresh(directory)?;
    let (doorbell, out) = (doorbell(), directory.to_string_lossy());
    let study = |experiments: &[&str]| {
        let words = [&["study", "-d", "doorbell0", "--link", "udp", "--out", &out], experiments].concat();
        output_of(cluster.command(0, &doorbell.to_string_lossy(), &words))
    };
    let begun = Instant::now();
    study(&[])?;
    let time = begun.elapsed();
    study(&["far-memory"])?;
    Ok((time, judge(directory)?))
}

/// Prints the claims that do not hold, and counts of all verdicts. Returns the claims that were not measured.
fn judge(directory: &Path) -> Result<BTreeSet<String>, String> {
    let page: PathBuf = directory.join("report.html");
    let mut report = command(doorbell(), &["report", "--json", "--out"]);
    report.arg(&page).arg(directory);
    let said = output_of(report)?;
    let report: Value = serde_json::from_str(&said).map_err(|error| format!("{}: {error}", directory.display()))?;
    let (mut outcomes, mut missing) = (BTreeMap::<String, usize>::new(), BTreeSet::new());
    for verdict in report["verdicts"].as_array().map_or(&[][..], Vec::as_slice) {
        let text = |name: &str| verdict[name].as_str().unwrap_or_default().to_owned();
        let claim = format!("{}: {}{}", text("experiment"), text("published"), text("goal"));
        let outcome = text("outcome");
        match outcome.as_str() {
            "not measured" => drop(missing.insert(claim)),
            "holds" => {}
            outcome => println!("  {claim}: {outcome}: {}", text("because")),
        }
        *outcomes.entry(outcome).or_default() += 1;
    }
    let counts: Vec<String> = outcomes.iter().map(|(outcome, count)| format!("{count} {outcome}")).collect();
    println!("{}: {}", page.display(), counts.join(", "));
    if outcomes.is_empty() { Err(format!("{} has no verdicts", page.display())) } else { Ok(missing) }
}

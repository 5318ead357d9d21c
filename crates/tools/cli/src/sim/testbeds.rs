//! `doorbell sim testbeds`: the parameters of a testbed's parts.

use std::io;

use clap::Args;
use doorbell_sim::Testbed;
use doorbell_sim::testbed::{Parameter, all};
use serde_json::{Value, json};

use super::arguments::{Replaced, read_testbed};
use crate::failure::{Failure, Usage};
use crate::output::line;

#[derive(Args)]
pub(crate) struct Testbeds {
    /// Testbed to print: a name, or a file with the layout of data/testbeds/*.toml [default: list all]
    #[arg(value_name = "NAME|FILE")]
    testbed: Option<String>,
    #[command(flatten)]
    replaced: Replaced,
    /// Print one JSON object instead of text
    #[arg(long)]
    json: bool,
}

pub(super) fn run(arguments: &Testbeds) -> Result<(), Failure> {
    let Some(name) = &arguments.testbed else {
        if !arguments.replaced.is_empty() {
            return Err(Usage("--set must be given with a testbed: name one".to_owned()).into());
        }
        return Ok(list(arguments.json)?);
    };
    let testbed = arguments.replaced.apply(&read_testbed(name)?)?;
    if arguments.json {
        line(json!({ "schema": "doorbell-sim-testbed/1", "testbed": whole(&testbed) }))?;
        return Ok(());
    }
    Ok(print(&testbed)?)
}

fn list(is_json: bool) -> io::Result<()> {
    if is_json {
        let testbeds: Vec<Value> = all().iter().map(about).collect();
        return line(json!({ "schema": "doorbell-sim-testbeds/1", "testbeds": testbeds }));
    }
    line(format_args!("{:<18} {:<10} {:>6} {:>6}   about", "name", "short name", "values", "fitted"))?;
    for testbed in all() {
        let (values, fitted) = counts(testbed);
        let short = doorbell_data::names(&testbed.name).map_or("-", |names| names.short);
        line(format_args!("{:<18} {short:<10} {values:>6} {fitted:>6}   {}", testbed.name, testbed.about))?;
    }
    Ok(())
}

/// Returns the number of parameters, and the number of fitted parameters.
fn counts(testbed: &Testbed) -> (usize, usize) {
    let parameters = || testbed.parameters();
    (parameters().count(), parameters().filter(|parameter| parameter.is_fitted).count())
}

fn print(testbed: &Testbed) -> io::Result<()> {
    let Testbed { name, about, hardware, published, open_points, .. } = testbed;
    line(format_args!("{name}: {about}; {hardware}"))?;
    if let Some(published) = published {
        line(format_args!("It stands for the published testbed {published}."))?;
    }
    for point in open_points {
        line(format_args!("open: {point}"))?;
    }
    let mut part = String::new();
    for Parameter { path, about, value, unit, source, is_fitted, .. } in testbed.parameters() {
        let (of, name) = path.split_once('.').unwrap_or(("", &path));
        if of != part {
            of.clone_into(&mut part);
            line("")?;
            line(format_args!("[{of}]"))?;
        }
        let fitted = if is_fitted { "fitted" } else { "" };
        line(format_args!("{name:<20} {value:>18} {unit:<5} {fitted:<6}  {about}"))?;
        line(format_args!("{:<20} {source}", ""))?;
    }
    Ok(())
}

fn about(testbed: &Testbed) -> Value {
    let (values, fitted) = counts(testbed);
    json!({
        "name": testbed.name,
        "about": testbed.about,
        "hardware": testbed.hardware,
        "published": testbed.published,
        "values": values,
        "fitted": fitted,
    })
}

fn whole(testbed: &Testbed) -> Value {
    let parameter = |parameter: Parameter<'_>| {
        json!({
            "path": parameter.path,
            "about": parameter.about,
            "value": parameter.value,
            "unit": parameter.unit,
            "allowed": parameter.allowed,
            "source": parameter.source,
            "fitted": parameter.is_fitted,
        })
    };
    let mut whole = about(testbed);
    whole["open_points"] = json!(testbed.open_points);
    whole["parameters"] = testbed.parameters().map(parameter).collect();
    whole
}

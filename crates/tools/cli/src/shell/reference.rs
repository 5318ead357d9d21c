//! Reference pages in Markdown, from the program itself: commands with their options, settings, records, statuses of
//! completions, counters, and fields of testbeds.

use std::fmt::Write as _;

use clap::{Arg, Command};
use doorbell_record::{
    Counted, Environment, Fitted, HostResult, Latency, PointRecord, PointResult, RunRecord, SETTINGS,
};
use doorbell_sim::testbed;
use doorbell_verbs::{Counters, LinkCounters, Status};

/// Returns the commands that are not hidden.
pub(super) fn visible(command: &Command) -> impl Iterator<Item = &Command> {
    command.get_subcommands().filter(|command| !command.is_hide_set())
}

/// Returns the names of the pages and their texts.
pub(super) fn pages(command: &Command) -> [(&'static str, String); 6] {
    let mut commands = String::from("# Commands and options\n");
    add_command(&mut commands, command);
    [
        ("commands.md", commands),
        ("settings.md", settings()),
        ("records.md", records()),
        ("statuses.md", statuses()),
        ("counters.md", counters()),
        ("testbed-fields.md", testbed_fields()),
    ]
}

/// Adds the sections of a command and its subcommands.
fn add_command(page: &mut String, command: &Command) {
    let name = command.get_bin_name().unwrap_or("doorbell");
    let about = command.get_long_about().or(command.get_about()).map(ToString::to_string).unwrap_or_default();
    let usage = command.clone().render_usage().to_string();
    let _ =
        write!(page, "\n## {name}\n\n{}\n\n```text\n{}\n```\n", escaped(&about), usage.trim_start_matches("Usage: "));
    let shown: Vec<&Arg> = command.get_arguments().filter(|argument| !argument.is_hide_set()).collect();
    let mut headings: Vec<Option<&str>> = Vec::new();
    for argument in &shown {
        if !headings.contains(&argument.get_help_heading()) {
            headings.push(argument.get_help_heading());
        }
    }
    for heading in headings {
        let _ = write!(page, "\n| {} | meaning |\n|---|---|\n", heading.map_or("option".to_owned(), cell));
        for argument in shown.iter().filter(|argument| argument.get_help_heading() == heading) {
            let _ = writeln!(page, "| `{}` | {} |", names(argument).replace('|', "\\|"), cell(&meaning(argument)));
        }
    }
    if let Some(examples) = command.get_after_help() {
        let _ = write!(page, "\n```text\n{}\n```\n", examples.to_string().trim_end());
    }
    visible(command).for_each(|command| add_command(page, command));
}

/// Returns the names of an option with its value, or the name of a positional argument.
fn names(argument: &Arg) -> String {
    let value = argument.get_value_names().map(|names| names.join(" ")).unwrap_or_default();
    if argument.is_positional() {
        return value;
    }
    let short = argument.get_short().map(|short| format!("-{short}"));
    let long = argument.get_long().map(|long| format!("--{long}"));
    let names = short.into_iter().chain(long).collect::<Vec<_>>().join(", ");
    if argument.get_action().takes_values() { format!("{names} <{value}>") } else { names }
}

/// Returns the help of an argument, with the values, the default and the environment variable that clap knows.
fn meaning(argument: &Arg) -> String {
    let help = argument.get_long_help().or(argument.get_help());
    let mut text = help.map(ToString::to_string).unwrap_or_default();
    let values: Vec<String> = argument
        .get_possible_values()
        .iter()
        .filter(|value| !value.is_hide_set())
        .map(|value| value.get_name().to_owned())
        .collect();
    let takes_values = argument.get_action().takes_values();
    if takes_values && !values.is_empty() && !argument.is_hide_possible_values_set() {
        let _ = write!(text, " [values: {}]", values.join(", "));
    }
    let defaults: Vec<_> = argument.get_default_values().iter().map(|value| value.to_string_lossy()).collect();
    if takes_values && !defaults.is_empty() && !argument.is_hide_default_value_set() {
        let _ = write!(text, " [default: {}]", defaults.join(", "));
    }
    if let Some(variable) = argument.get_env() {
        let _ = write!(text, " [environment: {}]", variable.to_string_lossy());
    }
    text
}

/// Returns the page of the settings of a measurement.
fn settings() -> String {
    let mut page = String::from(
        "# Settings of a measurement\n\nA record has each setting in `parameters`. `doorbell sim sweep` varies those with \
        a name in sweeps.\n\n| setting | in JSON | option | in sweeps | allowed | meaning | not in the model |\n\
        |---|---|---|---|---|---|---|\n",
    );
    for setting in SETTINGS {
        let code =
            |text: &str| if text.is_empty() { "-".to_owned() } else { format!("`{}`", text.replace('|', "\\|")) };
        let option = setting.option.map(|option| match option.short {
            Some(short) => format!("-{short}, --{}", option.long),
            None => format!("--{}", option.long),
        });
        let _ = writeln!(
            page,
            "| {} | {} | {} | {} | {} | {} | {} |",
            cell(setting.name),
            code(setting.field),
            code(&option.unwrap_or_default()),
            code(setting.sweep.unwrap_or_default()),
            cell(&setting.allowed(None)),
            cell(setting.about),
            cell(setting.unmodelled.unwrap_or("-")),
        );
    }
    page
}

/// Returns the page of the JSON of records.
fn records() -> String {
    let mut page = String::from(
        "# Records\n\n`doorbell study` writes one point to each file, and `doorbell bench --json` prints one run. The \
        page on settings has the fields of `parameters`. A value of both ends has the fields `client` for the asking \
        end and `server` for the other one. A field without a value is null or missing.\n",
    );
    let tables = [
        ("Point", PointRecord::FIELDS),
        ("Run", RunRecord::FIELDS),
        ("Environment", Environment::FIELDS),
        ("Result", PointResult::FIELDS),
        ("Latency", Latency::FIELDS),
        ("Fitted sizes", Fitted::FIELDS),
        ("Counted packets", Counted::FIELDS),
        ("Result of a host", HostResult::FIELDS),
    ];
    for (title, fields) in tables {
        let _ = write!(page, "\n## {title}\n\n| field | contents |\n|---|---|\n");
        for (name, about) in fields {
            let _ = writeln!(page, "| `{name}` | {} |", cell(&without_targets(about)));
        }
    }
    page
}

/// Returns a text of Markdown with the labels of links instead of the links.
fn without_targets(text: &str) -> String {
    let mut plain = String::new();
    let mut rest = text;
    while let Some((before, link)) = rest.split_once('[') {
        let (label, after) = link.split_once(']').unwrap_or((link, ""));
        plain.extend([before, label]);
        rest = after.strip_prefix('(').and_then(|target| target.split_once(')')).map_or(after, |(_, after)| after);
    }
    plain + rest
}

/// Returns the page of the statuses of failed completions, with their causes.
fn statuses() -> String {
    let mut page = String::from(
        "# Failed completions\n\n`doorbell run --explain` prints the first causes of a failed completion, `doorbell \
        wire decode` those of a request that failed in a capture, and `doorbell audit` those of a status that a \
        benchmark printed.\n\nA failed completion names an effect. Each section has the number that programs print, the causes \
        with the most frequent one first, and a check for each. Only the first failed completion of a queue pair has \
        a cause: all later ones are flushed.\n",
    );
    for status in Status::FAILED {
        let (number, text, symbol) = (status.number(), status.text(), status.symbol());
        let _ = write!(page, "\n## {number}: {text}\n\n`{symbol}`: {}.\n\n", status.describe());
        page.push_str("| probable cause | check |\n|---|---|\n");
        for cause in status.causes() {
            let _ = writeln!(page, "| {} | {} |", cell(cause.cause), cell(cause.check));
        }
    }
    page
}

/// Returns the page of the counters.
fn counters() -> String {
    let mut page = String::from(
        "# Counters\n\n`doorbell counters`, `doorbell run --stats` and records have these names. They are those of \
        vendors where vendors have such a counter.\n",
    );
    let tables = [
        ("Counters of a software RNIC", Counters::NAMES, Counters::ABOUT),
        ("Counters of its link", LinkCounters::NAMES, LinkCounters::ABOUT),
    ];
    for (title, names, about) in tables {
        let _ = write!(page, "\n## {title}\n\n| counter | meaning |\n|---|---|\n");
        for (name, about) in names.iter().zip(about) {
            let _ = writeln!(page, "| `{name}` | {} |", cell(about));
        }
    }
    page
}

/// Returns the page of the fields of a testbed. All testbeds have the same fields.
fn testbed_fields() -> String {
    let mut page = String::from(
        "# Fields of testbeds\n\nThe file of a testbed has these fields. The name before the dot is the TOML table of \
        the field. `--set` takes the name with the dot.\n\n| field | meaning | allowed |\n|---|---|---|\n",
    );
    for parameter in testbed::all().iter().take(1).flat_map(|testbed| testbed.parameters()) {
        let _ = writeln!(page, "| `{}` | {} | {} |", parameter.path, cell(parameter.about), cell(&parameter.allowed));
    }
    page
}

/// Returns a text as a cell of a table.
fn cell(text: &str) -> String {
    escaped(&text.split_whitespace().collect::<Vec<_>>().join(" ")).replace('|', "\\|")
}

/// Returns a text without words that Markdown takes as HTML.
fn escaped(text: &str) -> String {
    text.replace('<', "\\<")
}

#[cfg(test)]
mod tests {
    use clap::ArgAction;

    use super::*;

    #[test]
    fn commands_have_sections_with_their_options() {
        let size =
            Arg::new("size").short('s').long("size").value_name("BYTES").help("Size, as in <N>").default_value("16");
        let quiet =
            Arg::new("quiet").long("quiet").help("Print less").action(ArgAction::SetTrue).help_heading("Output");
        let hidden = Arg::new("hidden").long("hidden").hide(true);
        let bench = Command::new("bench").about("Measure").args([size, quiet, hidden]).after_help("Examples:\n  a | b");
        let mut command = Command::new("doorbell").subcommand(bench).disable_help_subcommand(true);
        command.build();
        let [(_, page), ..] = pages(&command);
        for expected in [
            "\n## doorbell bench\n\nMeasure\n\n```text\ndoorbell bench [OPTIONS]\n```\n",
            "| `-s, --size <BYTES>` | Size, as in \\<N> [default: 16] |\n",
            "\n| Output | meaning |\n|---|---|\n| `--quiet` | Print less |\n",
            "```text\nExamples:\n  a | b\n```\n",
        ] {
            assert!(page.contains(expected), "{expected:?} in {page}");
        }
        assert!(!page.contains("hidden"), "{page}");
    }

    #[test]
    fn pages_have_all_settings_fields_statuses_and_counters() {
        let [_, (_, settings), (_, records), (_, statuses), (_, counters), _] = pages(&Command::new("doorbell"));
        assert!(
            SETTINGS.iter().all(|setting| settings.contains(&format!("| {} | ", cell(setting.name)))),
            "{settings}"
        );
        for (name, _) in PointRecord::FIELDS.iter().chain(PointResult::FIELDS) {
            assert!(records.contains(&format!("| `{name}` | ")), "{name}");
        }
        assert!(PointRecord::FIELDS[0].1.contains(PointRecord::FORMAT), "{}", PointRecord::FIELDS[0].1);
        assert!(
            PointRecord::FIELDS[1].1.contains(&format!(": {}.", PointRecord::SCHEMA)),
            "{}",
            PointRecord::FIELDS[1].1
        );
        assert!(RunRecord::FIELDS[0].1.contains(RunRecord::SCHEMA), "{}", RunRecord::FIELDS[0].1);
        for status in Status::FAILED {
            assert!(statuses.contains(&format!("\n`{}`: ", status.symbol())), "{}", status.symbol());
        }
        for name in Counters::NAMES.iter().chain(LinkCounters::NAMES) {
            assert!(counters.contains(&format!("| `{name}` | ")), "{name}");
        }
        assert!(counters.contains("| `tx_data_bytes` | Bytes of the packets in `tx_data_packets`. |\n"), "{counters}");
    }

    #[test]
    fn links_of_descriptions_lose_their_targets() {
        assert_eq!(without_targets(" A [`b`](Self::b) and [`C::d`], (e)."), " A `b` and `C::d`, (e).");
        assert_eq!(without_targets("none"), "none");
    }

    #[test]
    fn every_testbed_has_the_fields_of_the_page() {
        let page = testbed_fields();
        for testbed in testbed::all() {
            for parameter in testbed.parameters() {
                let row = format!("| `{}` | {} | ", parameter.path, cell(parameter.about));
                assert!(page.contains(&row), "{}: {row}", testbed.name);
            }
            assert_eq!(page.matches("\n| `").count(), testbed.parameters().count(), "{}", testbed.name);
        }
        assert!(page.contains(" | one of \"cut-through\", \"store-and-forward\" |\n"), "{page}");
    }
}

//! Options of a measurement, from the table of settings.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser, ValueParser};
use clap::parser::ValueSource;
use clap::{Arg, ArgAction, ArgMatches, Args, Command, FromArgMatches};
use doorbell_exchange::send_receive::Config;
use doorbell_protocols::Protocol;
use doorbell_record::settings::{
    CONNECTIONS, CommandOption, MESSAGES, MIX, PROTOCOL, Range, SHARED_RECEIVES, SINGLE_RECEIVER, SIZE, Value, WINDOW,
};
use doorbell_record::{Parameters, ParametersError, SETTINGS, Setting, SizeMix};

use crate::failure::Usage;
use crate::quantity;

/// Another name of the operation `cas`, which predictions have.
const COMPARE_SWAP: &str = "compare-swap";

/// Maximum bytes of a file with a histogram of sizes.
const MAX_HISTOGRAM: u64 = 1 << 20;

/// Settings that the user gave, or that have a default.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    given: Vec<(&'static Setting, Vec<Value>)>,
    /// Settings whose option stands on the command line.
    explicit: Vec<&'static Setting>,
    /// Whether the sizes are those of requests.
    pub(super) are_requests: bool,
    /// Sizes of a mix, each with its weight.
    sizes: Vec<(u64, f64)>,
    /// File with the histogram of a mix.
    sizes_from: Option<PathBuf>,
    /// Number of clients, each with a connection and a thread.
    pub(super) clients: Option<usize>,
    /// Whether all powers of two are measured.
    pub(super) all: bool,
    /// Name of a window and a batch.
    pub(super) config: Option<String>,
}

impl Settings {
    /// Returns the values of a setting, or `None` if the user gave none and there is no default.
    pub(super) fn values(&self, setting: &Setting) -> Option<&[Value]> {
        self.given.iter().find(|(given, _)| *given == setting).map(|(_, values)| &values[..])
    }

    /// Returns whether the option of a setting stands on the command line.
    pub(super) fn is_explicit(&self, setting: &Setting) -> bool {
        self.explicit.contains(&setting)
    }

    /// Returns the mix of sizes, if the user gave one.
    pub(super) fn mix(&self) -> Result<Option<SizeMix>, Usage> {
        let Some(file) = &self.sizes_from else {
            return Ok((!self.sizes.is_empty()).then(|| SizeMix::from(&self.sizes[..])));
        };
        read_histogram(file).map(Some)
    }

    /// Changes the parameters to the given settings.
    pub(super) fn apply(&self, parameters: &mut Parameters) -> Result<(), Usage> {
        for (setting, values) in &self.given {
            if let Some(&wrong) = values.iter().find(|&&value| !setting.set(parameters, value)) {
                return Err(self.usage(&setting.refuse(setting.show(wrong), setting.allowed(None))));
            }
        }
        Ok(())
    }

    /// Returns the error with the name of the option that sets the rejected value.
    pub(super) fn usage(&self, error: &ParametersError) -> Usage {
        let sizes = match self {
            Self { sizes_from: Some(_), .. } => Some("--sizes-from"),
            Self { sizes, .. } if !sizes.is_empty() => Some("--sizes"),
            Self { are_requests: true, .. } => Some("--request"),
            _ => None,
        };
        let option = match error.setting {
            setting if *setting == SIZE || *setting == MIX => sizes,
            setting if *setting == CONNECTIONS => self.clients.map(|_| "--clients"),
            _ => None,
        };
        Usage(option.map_or_else(|| error.in_options(), |option| error.in_option(option)))
    }
}

/// Reads the mix of `--sizes-from`.
pub(crate) fn read_histogram(file: &Path) -> Result<SizeMix, Usage> {
    let shown = file.display().to_string();
    let mut text = String::new();
    let read = File::open(file).and_then(|opened| opened.take(MAX_HISTOGRAM + 1).read_to_string(&mut text));
    read.map_err(|error| Usage(format!("--sizes-from {shown}: {error}")))?;
    if text.len() as u64 > MAX_HISTOGRAM {
        return Err(Usage(format!("--sizes-from {shown}: the file is longer than {MAX_HISTOGRAM} B, the maximum")));
    }
    SizeMix::from_csv(&shown, &text).map_err(Usage)
}

/// Returns the help of `--protocol`.
pub(crate) fn protocol_help() -> String {
    format!("{}: {}. {} lists a page for each", PROTOCOL.about, Protocol::NAMES.join(", "), Protocol::PAGES)
}

/// Returns all settings with an option.
fn options() -> impl Iterator<Item = (&'static Setting, CommandOption)> {
    SETTINGS.iter().filter_map(|setting| Some((*setting, setting.option?)))
}

/// Returns the parser of the value of an option.
fn parser(setting: &'static Setting, value: &str) -> ValueParser {
    let whole = |number| Value::Whole(number);
    match (setting.range, value) {
        (Range::Words(words), _) => {
            let value = move |word: String| {
                let word: &str = if word == COMPARE_SWAP { "cas" } else { &word };
                setting.parse(word).ok_or("a word that the table lacks")
            };
            let named = |word| match word {
                "cas" => PossibleValue::new(word).alias(COMPARE_SWAP),
                _ => PossibleValue::new(word),
            };
            ValueParser::new(PossibleValuesParser::new(words().into_iter().map(named)).try_map(value))
        }
        (Range::Real(..), "SECONDS") => ValueParser::new(|text: &str| quantity::seconds(text).map(Value::Real)),
        (Range::Real(..), _) => ValueParser::new(|text: &str| quantity::rate(text).map(Value::Real)),
        (Range::OneOf(_), _) => ValueParser::new(move |text: &str| {
            setting.parse(text).ok_or_else(|| format!("{setting} must be {}", setting.allowed(None)))
        }),
        (_, "BYTES") => ValueParser::new(move |text: &str| quantity::bytes(text).map(whole)),
        (_, "MIB") => ValueParser::new(move |text: &str| {
            quantity::mebibytes(text).map(|mib| whole((mib as u64).saturating_mul(1 << 20)))
        }),
        _ => ValueParser::new(move |text: &str| quantity::count(text).map(whole)),
    }
}

/// Returns the option of a setting.
fn argument(setting: &'static Setting, option: CommandOption) -> Arg {
    let CommandOption { short, long, value, default, note, heading } = option;
    let help = if *setting == PROTOCOL { protocol_help() } else { format!("{}{note}", setting.about) };
    let argument = Arg::new(long).long(long).help(help).help_heading(heading);
    let argument = short.into_iter().fold(argument, Arg::short);
    let Some(value) = value else { return argument.action(ArgAction::SetTrue) };
    let argument = argument.value_name(value).value_parser(parser(setting, value)).hide_possible_values(true);
    let argument = default.into_iter().fold(argument, |argument, default| argument.default_value(default));
    if *setting == SIZE {
        argument.value_delimiter(',').action(ArgAction::Append).conflicts_with("all")
    } else if *setting == MESSAGES {
        argument.conflicts_with("duration")
    } else if *setting == WINDOW {
        argument.visible_alias("outstanding")
    } else if *setting == SHARED_RECEIVES {
        argument.num_args(0..=1).require_equals(true).default_missing_value("lock")
    } else {
        argument
    }
}

/// Adds the options of a mix of sizes.
fn with_mix(command: Command, heading: &'static str) -> Command {
    let sizes = Arg::new("sizes")
        .long("sizes")
        .value_name("BYTES:WEIGHT")
        .value_parser(ValueParser::new(quantity::weighted_bytes))
        .value_delimiter(',')
        .action(ArgAction::Append)
        .conflicts_with_all(["size", "all", "request"])
        .help("Mix of sizes with weights, as in 64:0.9,64K:0.1: one point with messages of all sizes")
        .help_heading(heading);
    let from = Arg::new("sizes-from")
        .long("sizes-from")
        .value_name("FILE")
        .value_parser(ValueParser::path_buf())
        .conflicts_with_all(["size", "all", "request", "sizes"])
        .help("Mix of sizes from a histogram in CSV, with rows BYTES,WEIGHT")
        .help_heading(heading);
    command.arg(sizes).arg(from)
}

impl Args for Settings {
    fn augment_args(command: Command) -> Command {
        options().fold(command, |command, (setting, option)| {
            let command = command.arg(argument(setting, option));
            let own = |id| Arg::new(id).long(id).help_heading(option.heading);
            if *setting == SIZE {
                let help = "Measure all powers of two from 2 B to 8 MiB; over ud, up to the MTU of -m, or 1024 B";
                let all = own("all").short('a').action(ArgAction::SetTrue).help(help);
                let help = "Request sizes in bytes, as -s; implies --op request-response, unless --reply is 0";
                let request = own("request").value_name("BYTES").value_parser(parser(setting, "BYTES")).help(help);
                let request = request.value_delimiter(',').action(ArgAction::Append);
                with_mix(command.arg(all).arg(request.conflicts_with_all(["size", "all"])), option.heading)
            } else if *setting == CONNECTIONS {
                let help = "Clients, each with a connection and a thread: -q N --threads N. The default pattern is N:N, \
                            as many threads on the answering side; --server-threads 1 makes it N:1, the default of \
                            `doorbell advise --clients N`";
                let clients = own("clients").value_name("N").value_parser(ValueParser::new(quantity::count::<usize>));
                command.arg(clients.help(help).conflicts_with("connections"))
            } else if *setting == SINGLE_RECEIVER {
                let help = "Window and batch by name: sequential (1 unacknowledged), unbatched (64, posted one by one), \
                            batched (256, eight per post)";
                command.arg(own("config").value_name("NAME").help(help).hide_possible_values(true).value_parser(Config::NAMES))
            } else {
                command
            }
        })
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl FromArgMatches for Settings {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let plain = Parameters::plain(doorbell_record::Kind::Bandwidth, doorbell_record::Operation::Send, 0);
        let values = |setting: &Setting, option: CommandOption| match option.value {
            Some(_) => matches.get_many(option.long).into_iter().flatten().copied().collect(),
            // The option turns the setting on, or off if it is on by default.
            None if matches.get_flag(option.long) => vec![Value::On((setting.get)(&plain) == [Value::On(false)])],
            None => Vec::new(),
        };
        let requests: Vec<Value> = matches.get_many("request").into_iter().flatten().copied().collect();
        let are_requests = !requests.is_empty();
        let given = options().map(|(setting, option)| match setting {
            setting if are_requests && *setting == SIZE => (setting, requests.clone()),
            setting => (setting, values(setting, option)),
        });
        let is_explicit = |option: &CommandOption| matches.value_source(option.long) == Some(ValueSource::CommandLine);
        let explicit = options().filter(|(_, option)| is_explicit(option)).map(|(setting, _)| setting);
        Ok(Self {
            explicit: explicit.collect(),
            are_requests,
            sizes: matches.get_many("sizes").into_iter().flatten().copied().collect(),
            sizes_from: matches.get_one("sizes-from").cloned(),
            clients: matches.get_one("clients").copied(),
            given: given.filter(|(_, values)| !values.is_empty()).collect(),
            all: matches.get_flag("all"),
            config: matches.get_one("config").cloned(),
        })
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operations_have_the_names_of_predictions_too() {
        use doorbell_record::settings::OPERATION;
        let command = Command::new("toy").arg(argument(&OPERATION, OPERATION.option.unwrap()));
        let given = |name: &str| -> Value {
            let matches = command.clone().try_get_matches_from(["toy", "--op", name]).unwrap();
            *matches.get_one("op").expect("an operation")
        };
        assert_eq!(given("compare-swap"), given("cas"));
        assert_ne!(given("fetch-add"), given("cas"));
    }

    #[test]
    fn errors_name_the_option_that_was_given() {
        let said = |arguments: &[&str], setting: &'static Setting| {
            let command = Settings::augment_args(Command::new("toy"));
            let matches = command.try_get_matches_from([&["toy"][..], arguments].concat()).unwrap();
            Settings::from_arg_matches(&matches).unwrap().usage(&setting.refuse("5", "6")).0
        };
        for (arguments, setting, named) in [
            (&["-s", "5"][..], &SIZE, "the message size (-s)"),
            (&["--request", "5"], &SIZE, "the message size (--request)"),
            (&["--sizes", "5"], &SIZE, "the message size (--sizes)"),
            (&["--sizes-from", "five.csv"], &SIZE, "the message size (--sizes-from)"),
            (&["--sizes-from", "five.csv"], &MIX, "the mix of sizes (--sizes-from)"),
            (&["--sizes", "5"], &MIX, "the mix of sizes (--sizes)"),
            (&["--clients", "5"], &CONNECTIONS, "the number of connections (--clients)"),
            (&["-q", "5"], &CONNECTIONS, "the number of connections (-q)"),
            (&["--clients", "5"], &WINDOW, "the window (-t)"),
        ] {
            assert_eq!(said(arguments, setting), format!("{named} is 5, allowed is 6"));
        }
    }

    #[test]
    fn a_toy_setting_has_an_option() {
        static TOY: Setting = Setting {
            about: "Naps of the receiver",
            range: Range::Whole(1, 9),
            option: Some(CommandOption {
                short: Some('z'),
                long: "naps",
                value: Some("N"),
                default: Some("1"),
                note: ", as in 1e0",
                heading: "Toys",
            }),
            ..Setting::named("the number of naps", "")
        };
        let command = || Command::new("toy").arg(argument(&TOY, TOY.option.unwrap()));
        let given = |arguments: &[&str]| {
            let matches = command().try_get_matches_from(arguments).map_err(|error| error.to_string())?;
            Ok::<Value, String>(*matches.get_one("naps").expect("the option has a default"))
        };
        assert_eq!(given(&["toy"]), Ok(Value::Whole(1)));
        assert_eq!(given(&["toy", "--naps", "5"]), Ok(Value::Whole(5)));
        assert!(given(&["toy", "-z", "x"]).unwrap_err().contains("'--naps <N>': must be a whole number"));
        let help = command().render_help().to_string();
        assert!(help.contains("Toys:\n  -z, --naps <N>  Naps of the receiver, as in 1e0 [default: 1]"), "{help}");
    }
}

//! Files of an installed command: completions for shells, and manual pages.

mod reference;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Args, Command, ValueEnum};
use clap_complete::Shell;
use doorbell_output::files;

use crate::failure::{Failure, Usage};
use crate::output::{note, write_text};
use reference::visible;

#[derive(Args)]
pub(crate) struct Completions {
    /// Shell for which the script is printed
    #[arg(value_enum, value_name = "SHELL")]
    shell: Completed,
}

/// Shells with tested completions.
#[derive(Clone, Copy, ValueEnum)]
enum Completed {
    Bash,
    Zsh,
    Fish,
}

impl From<Completed> for Shell {
    fn from(shell: Completed) -> Self {
        match shell {
            Completed::Bash => Self::Bash,
            Completed::Zsh => Self::Zsh,
            Completed::Fish => Self::Fish,
        }
    }
}

/// Examples of paths at which a shell finds the script when it starts.
pub(crate) const COMPLETIONS: &str = "\
Examples:
  doorbell completions bash > ~/.local/share/bash-completion/completions/doorbell
  doorbell completions zsh > ~/.zfunc/_doorbell   (a folder of fpath)
  doorbell completions fish > ~/.config/fish/completions/doorbell.fish";

/// Prints completions.
pub(crate) fn completions(arguments: &Completions, mut command: Command) -> Result<ExitCode, Failure> {
    let mut text = Vec::new();
    clap_complete::generate(Shell::from(arguments.shell), &mut command, "doorbell", &mut text);
    write_text(&String::from_utf8_lossy(&text))?;
    Ok(ExitCode::SUCCESS)
}

#[derive(Args)]
pub(crate) struct Man {
    /// Print the page of this command, such as bench bw [default: the page of doorbell itself]
    #[arg(value_name = "COMMAND")]
    path: Vec<String>,
    /// Write the pages of all commands to this folder, with names such as doorbell-bench-bw.1
    #[arg(long, value_name = "FOLDER", conflicts_with = "path")]
    out: Option<PathBuf>,
    /// Write reference pages in Markdown instead: commands, settings, records, statuses, counters, fields of testbeds
    #[arg(long, requires = "out")]
    markdown: bool,
}

/// Examples of reading a page.
pub(crate) const MAN: &str = "\
Examples:
  doorbell man bench bw | man -l -
  doorbell man --out /usr/local/share/man/man1";

/// Prints the page of one command, or writes the pages of all commands.
pub(crate) fn man(arguments: &Man, command: Command) -> Result<ExitCode, Failure> {
    let mut command = command.disable_help_subcommand(true);
    command.build();
    if let Some(folder) = &arguments.out {
        files::own_directory(folder).map_err(|error| format!("{} cannot be made: {error}", folder.display()))?;
        let pages =
            if arguments.markdown { write_reference(folder, &command)? } else { write_pages(folder, &command)? };
        note!("{pages} pages written to {}", folder.display());
        return Ok(ExitCode::SUCCESS);
    }
    let mut chosen = &command;
    for name in &arguments.path {
        chosen = visible(chosen).find(|command| command.get_name() == name).ok_or_else(|| {
            let names: Vec<&str> = visible(chosen).map(Command::get_name).collect();
            let allowed =
                if names.is_empty() { "no commands".to_owned() } else { format!("only {}", names.join(", ")) };
            Usage(format!("{} has no command {name:?}, {allowed}", chosen.get_bin_name().unwrap_or("doorbell")))
        })?;
    }
    write_text(&String::from_utf8_lossy(&page(chosen)?))?;
    Ok(ExitCode::SUCCESS)
}

/// Returns the name of a command's page: the words of the command, joined by hyphens.
fn page_name(command: &Command) -> &str {
    command.get_display_name().unwrap_or("doorbell")
}

fn page(command: &Command) -> Result<Vec<u8>, Failure> {
    let mut text = Vec::new();
    clap_mangen::Man::new(command.clone()).render(&mut text)?;
    Ok(text)
}

/// Writes the pages of a command and its subcommands. Returns their number.
fn write_pages(folder: &Path, command: &Command) -> Result<usize, Failure> {
    write_page(&folder.join(page_name(command)).with_extension("1"), &page(command)?)?;
    visible(command).try_fold(1, |pages, command| Ok(pages + write_pages(folder, command)?))
}

/// Writes the reference pages. Returns their number.
fn write_reference(folder: &Path, command: &Command) -> Result<usize, Failure> {
    let pages = reference::pages(command);
    pages.iter().try_for_each(|(name, text)| write_page(&folder.join(name), text.as_bytes()))?;
    Ok(pages.len())
}

fn write_page(file: &Path, text: &[u8]) -> Result<(), Failure> {
    files::replace(file, text).map_err(|error| format!("{} cannot be written: {error}", file.display()).into())
}

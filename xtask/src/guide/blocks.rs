//! Blocks of commands in pages, and the comparison of outputs with the lines that a page shows.

/// Text before the properties of the next block of commands, in an HTML comment.
const PROPERTIES: &str = "<!-- commands: ";

/// Text before the properties of all further blocks of a page.
const OF_PAGE: &str = "<!-- commands of this page: ";

/// First line of a block of commands.
const FENCE: &str = "```console";

/// Fences of shells. Their blocks have no prompts, so the check could not tell commands from output.
const OTHER_FENCES: [&str; 3] = ["```sh", "```bash", "```shell"];

/// Line of a page that stands for any number of lines.
const GAP: &str = "...";

/// A command of a page, with the output that the page shows.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Command {
    /// Number of its line in the page.
    pub(super) line: usize,
    pub(super) text: String,
    /// Lines of output. Without lines, the output is not compared.
    pub(super) output: Vec<String>,
    pub(super) properties: Properties,
    /// Whether the command runs beside the next one, as in another terminal.
    pub(super) in_background: bool,
}

/// Properties of a block of commands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Properties {
    /// Words with a digit differ from run to run.
    figures_vary: bool,
    /// Each command but the last has a terminal of its own. Only the last one is checked.
    in_terminals: bool,
    /// Exit status of the last command of the block. The status of other commands is 0.
    pub(super) status: i32,
    is_run: bool,
}

impl Properties {
    /// Parses `figures vary`, `in terminals`, `status N` and `not run: REASON`, separated by semicolons, up to the end
    /// of a comment.
    fn parse(text: &str) -> Result<Self, String> {
        let text = text.strip_suffix(" -->").ok_or("the comment must end there")?;
        let mut properties = Self { is_run: true, ..Self::default() };
        for property in text.split("; ") {
            match property.split_once(' ').unwrap_or((property, "")) {
                ("figures", "vary") => properties.figures_vary = true,
                ("in", "terminals") => properties.in_terminals = true,
                ("status", number) => {
                    properties.status = number.parse().map_err(|_| format!("status {number}: must be a number"))?;
                }
                ("not", reason) if reason.len() > "run: ".len() && reason.starts_with("run: ") => {
                    properties.is_run = false;
                }
                _ => {
                    let allowed = "must be `figures vary`, `in terminals`, `status N` or `not run: REASON`";
                    return Err(format!("{property:?} is no property of commands: {allowed}"));
                }
            }
        }
        Ok(properties)
    }
}

/// Returns the commands of a page's `console` blocks that a test can run. Properties before a block of another kind are
/// an error, since they would hold for a later block.
pub(super) fn commands(page: &str) -> Result<Vec<Command>, String> {
    let mut commands = Vec::new();
    let mut usual = Properties { is_run: true, ..Properties::default() };
    let mut properties = usual;
    let mut lines = page.lines().zip(1..);
    while let Some((text, line)) = lines.next() {
        let shown = text.trim_start();
        let indentation = text.len() - shown.len();
        let failed = |why: String| format!("line {line}: {why}");
        let is_other = shown.starts_with("```") && shown != FENCE;
        if properties != usual && (is_other || shown.starts_with(PROPERTIES) || shown.starts_with(OF_PAGE)) {
            return Err(failed(format!("the properties above must be followed by a block {FENCE}")));
        }
        if let Some(given) = shown.strip_prefix(OF_PAGE) {
            usual = Properties::parse(given).map_err(failed)?;
            properties = usual;
        } else if let Some(given) = shown.strip_prefix(PROPERTIES) {
            properties = Properties::parse(given).map_err(failed)?;
        } else if OTHER_FENCES.contains(&shown) {
            return Err(failed(format!("commands must be in a block {FENCE}, each after `$ `")));
        } else if shown == FENCE {
            let block = lines.by_ref().take_while(|(text, _)| text.trim_start() != "```");
            let block: Vec<(&str, usize)> =
                block.map(|(text, line)| (text.get(indentation..).unwrap_or_default(), line)).collect();
            if properties.is_run {
                commands.extend(of_block(&block, properties)?);
            }
            properties = usual;
        }
    }
    if properties != usual {
        return Err(format!("the last properties must be followed by a block {FENCE}"));
    }
    Ok(commands)
}

/// Returns the commands of a block. A backslash at the end of a line continues a command, as does a text of the shell
/// up to the line `END`.
fn of_block(block: &[(&str, usize)], properties: Properties) -> Result<Vec<Command>, String> {
    let mut commands: Vec<Command> = Vec::new();
    for &(text, line) in block {
        match (text.strip_prefix("$ "), commands.last_mut()) {
            (Some(text), _) => {
                let properties = Properties { status: 0, ..properties };
                let (text, output) = (text.to_owned(), Vec::new());
                commands.push(Command { line, text, output, properties, in_background: false });
            }
            (None, Some(command)) if command.output.is_empty() && command.continues() => {
                command.text.push('\n');
                command.text.push_str(text);
            }
            (None, Some(command)) => command.output.push(text.to_owned()),
            (None, None) => return Err(format!("line {line}: a block of commands must begin with `$ `")),
        }
    }
    if let Some((last, others)) = commands.split_last_mut() {
        last.properties.status = properties.status;
        others.iter_mut().for_each(|command| command.in_background = properties.in_terminals);
    }
    Ok(commands)
}

impl Command {
    /// Returns whether the next line belongs to the command.
    fn continues(&self) -> bool {
        self.text.ends_with('\\') || (self.text.contains("<<'END'") && !self.text.ends_with("\nEND"))
    }

    /// Compares an output with the lines of the page. The error names the first line that the output lacks.
    pub(super) fn compare(&self, output: &str) -> Result<(), String> {
        if self.output.is_empty() {
            return Ok(());
        }
        let found: Vec<String> = output.lines().map(|line| self.comparable(line)).collect();
        let mut at = 0;
        let mut is_gap = false;
        for line in &self.output {
            if line == GAP {
                is_gap = true;
                continue;
            }
            let expected = self.comparable(line);
            let matches = |found: &String| match expected.strip_suffix(" ...") {
                Some(begin) => found.starts_with(begin),
                None => *found == expected,
            };
            let next = if is_gap { found[at..].iter().position(matches).map(|skipped| at + skipped) } else { Some(at) };
            match next {
                Some(next) if found.get(next).is_some_and(matches) => at = next + 1,
                _ => return Err(format!("the output has no line {line:?} at its place:\n{output}")),
            }
            is_gap = false;
        }
        if !is_gap && at < found.len() {
            return Err(format!("the page ends its output before the line {:?}:\n{output}", found[at]));
        }
        Ok(())
    }

    /// Returns a line with single spaces. If figures vary, `#` stands for each word with a digit.
    fn comparable(&self, line: &str) -> String {
        let varies = |word: &str| self.properties.figures_vary && word.contains(|letter: char| letter.is_ascii_digit());
        line.split_whitespace().map(|word| if varies(word) { "#" } else { word }).collect::<Vec<_>>().join(" ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(page: &str) -> Vec<(String, Vec<String>)> {
        commands(page).unwrap().into_iter().map(|command| (command.text, command.output)).collect()
    }

    fn command(properties: &str, output: &str) -> Command {
        let page = format!("<!-- commands: {properties} -->\n```console\n$ x\n{output}\n```\n");
        commands(&page).unwrap().remove(0)
    }

    #[test]
    fn blocks_have_commands_with_outputs() {
        let page = "```console\n$ a \\\n    b\nout\n$ c\n```\n\n```toml\nd\n```\n";
        assert_eq!(texts(page), [("a \\\n    b".to_owned(), vec!["out".to_owned()]), ("c".to_owned(), vec![])]);
        let page = "```console\n$ cat > x <<'END'\n$a\nEND\nout\n```\n";
        assert_eq!(texts(page), [("cat > x <<'END'\n$a\nEND".to_owned(), vec!["out".to_owned()])]);
        assert!(commands("```console\nout\n```\n").unwrap_err().contains("line 2"));
        let error = commands("\n```sh\na\n```\n").unwrap_err();
        assert!(error.starts_with("line 2: commands must be in a block ```console"), "{error}");
    }

    #[test]
    fn blocks_of_lists_lose_their_indentation() {
        let page = "1. List:\n   ```console\n   $ a\n     out\n\n   end\n   ```\n";
        let output = ["  out", "", "end"].map(str::to_owned).to_vec();
        assert_eq!(texts(page), [("a".to_owned(), output)]);
        let page = "1. List:\n   <!-- commands: not run: another host -->\n\n   ```console\n   there$ a\n   ```\n";
        assert!(texts(page).is_empty());
    }

    #[test]
    fn all_commands_but_the_last_have_terminals() {
        let page = "<!-- commands: in terminals -->\n```console\n$ a\n$ b\n```\n```console\n$ c\n$ d\n```\n";
        let background: Vec<bool> = commands(page).unwrap().iter().map(|command| command.in_background).collect();
        assert_eq!(background, [true, false, false, false]);
    }

    #[test]
    fn properties_hold_for_one_block() {
        let page = "<!-- commands: not run: no network -->\n```console\n$ a\n```\n```console\n$ b\n$ c\n```\n";
        assert_eq!(texts(page), [("b".to_owned(), vec![]), ("c".to_owned(), vec![])]);
        let page = "<!-- commands of this page: not run: a table -->\n```console\n$ a\n```\n```console\n$ b\n```\n";
        assert!(texts(page).is_empty());
        let page = "<!-- commands: figures vary; status 3 -->\n\n```console\n$ a\n$ b\n```\n";
        let statuses: Vec<i32> = commands(page).unwrap().iter().map(|command| command.properties.status).collect();
        assert_eq!(statuses, [0, 3]);
        for wrong in ["figures", "status x", "not run", "not run: "] {
            let error = commands(&format!("<!-- commands: {wrong} -->\n")).unwrap_err();
            assert!(error.contains("line 1"), "{error}");
        }
    }

    #[test]
    fn properties_without_a_block_of_commands_are_an_error() {
        let given = "<!-- commands: not run: no network -->\n";
        for next in ["```toml\na\n```\n", given, "<!-- commands of this page: status 1 -->\n"] {
            let error = commands(&format!("{given}{next}```console\n$ a\n```\n")).unwrap_err();
            assert_eq!(error, "line 2: the properties above must be followed by a block ```console");
        }
        assert!(commands(given).unwrap_err().contains("the last properties"));
        assert!(commands("<!-- commands of this page: status 1 -->\n```toml\n```\n").unwrap().is_empty());
    }

    #[test]
    fn outputs_match_line_by_line() {
        let exact = command("status 0", "a  1\n...\nb 2 ...");
        assert_eq!(exact.compare("a 1\nx\ny\nb 2 and more\n"), Ok(()));
        assert!(exact.compare("a 2\nb 2\n").unwrap_err().contains("\"a  1\""));
        assert!(exact.compare("a 1\nx\n").unwrap_err().contains("b 2"));
        assert!(exact.compare("a 1\nb 2\nc\n").unwrap_err().contains("before the line \"c\""));
        let varying = command("figures vary", "rate 1.5 M/s\n...");
        assert_eq!(varying.compare("rate 27 M/s\nx\n"), Ok(()));
        assert!(varying.compare("rate fast M/s\n").is_err());
    }
}

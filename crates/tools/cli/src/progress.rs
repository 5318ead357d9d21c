//! Progress bar of long commands.

use std::cell::Cell;
use std::time::{Duration, Instant};

use doorbell_campaign::rounds::Progress;
use doorbell_output::escape;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use crate::output::{note, stderr_is_terminal};

/// Returns a progress bar of `length` steps, of which `already` are done. The bar is hidden if standard error is no
/// terminal.
pub(crate) fn bar(length: u64, already: u64) -> ProgressBar {
    let is_shown = stderr_is_terminal();
    let target = if is_shown { ProgressDrawTarget::stderr_with_hz(10) } else { ProgressDrawTarget::hidden() };
    let bar = ProgressBar::with_draw_target(Some(length), target);
    let style = ProgressStyle::with_template("[{bar:30}] {percent:>3} %  {eta:>4} left  {wide_msg}")
        .unwrap_or_else(|_| ProgressStyle::default_bar());
    bar.set_style(style);
    bar.set_position(already);
    bar.reset_eta();
    bar.enable_steady_tick(Duration::from_millis(500));
    bar
}

/// Shows escaped text beside the bar. The text has names of experiments and testbeds, which come from untrusted files.
#[expect(clippy::disallowed_methods, reason = "the text is escaped")]
pub(crate) fn show(bar: &ProgressBar, text: &str) {
    bar.set_message(escape(text).into_owned());
}

/// Progress of simulated messages: a bar, or lines on standard error if that is no terminal.
pub(crate) struct MessageBar {
    bar: ProgressBar,
    /// Time of the last line.
    last_line: Cell<Instant>,
}

impl MessageBar {
    /// Minimum time between two lines. A command that ends earlier writes none.
    const LINE_EVERY: Duration = Duration::from_secs(10);

    /// Returns the bar of `length` messages.
    pub(crate) fn new(length: u64) -> Self {
        Self { bar: bar(length, 0), last_line: Cell::new(Instant::now()) }
    }

    /// Shows the point that is simulated now.
    pub(crate) fn show(&self, point: &str) {
        show(&self.bar, point);
    }

    /// Shows that `messages` messages have been simulated.
    pub(crate) fn reach(&self, messages: u64) {
        self.bar.set_position(messages);
        if self.bar.is_hidden() && self.last_line.get().elapsed() >= Self::LINE_EVERY {
            self.last_line.set(Instant::now());
            let percent = 100.0 * messages as f64 / self.bar.length().unwrap_or(messages).max(1) as f64;
            note!("{percent:.0} %  {}", self.bar.message());
        }
    }
}

impl Drop for MessageBar {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}

/// Progress of candidates that are simulated one after the other: a line on standard error after each of them, as soon
/// as the command has taken some seconds.
pub(crate) struct Candidates {
    of: usize,
    done: usize,
    started: Instant,
}

impl Candidates {
    /// Duration up to which a command writes no lines.
    const QUIET: Duration = Duration::from_secs(3);

    /// Returns the progress of `of` candidates.
    pub(crate) fn new(of: usize) -> Self {
        Self { of, done: 0, started: Instant::now() }
    }

    /// Counts a candidate that has been simulated, and writes its line.
    pub(crate) fn finish(&mut self, name: &str) {
        if let Some(line) = self.line(name, self.started.elapsed()) {
            note!("{line}");
        }
    }

    /// Counts a candidate. Returns its line if the command has taken long enough and other candidates follow.
    fn line(&mut self, name: &str, elapsed: Duration) -> Option<String> {
        self.done += 1;
        let is_shown = elapsed >= Self::QUIET && self.done < self.of;
        is_shown.then(|| format!("simulated {} of {} in {:.0} s: {name}", self.done, self.of, elapsed.as_secs_f64()))
    }
}

/// Progress of a study: a bar, or lines on standard error if that is no terminal. A study measures in rounds over all
/// experiments. Each round but the last has a line at its end, and each experiment when its last measurement is done.
pub(crate) struct StudyBar {
    bar: ProgressBar,
}

impl StudyBar {
    /// Returns the bar of `length` measurements, of which `already` are done.
    pub(crate) fn new(length: u64, already: u64) -> Self {
        Self { bar: bar(length, already) }
    }

    /// Returns a line with the share of measurements that are done.
    fn line(&self, text: &str) -> String {
        let share = self.bar.position() as f64 / self.bar.length().unwrap_or(0).max(1) as f64;
        format!("{:>3.0} %  {text}", 100.0 * share)
    }

    /// Writes a line, unless the bar is shown.
    fn write(&self, text: &str) {
        if self.bar.is_hidden() {
            note!("{}", self.line(text));
        }
    }
}

impl Progress for StudyBar {
    fn show(&self, point: &str) {
        show(&self.bar, point);
    }

    fn advance(&self) {
        self.bar.inc(1);
    }

    fn finish(&self, experiment: &str) {
        self.write(experiment);
    }

    fn end_round(&self, round: usize, rounds: usize) {
        self.write(&format!("round {round} of {rounds}"));
    }

    fn note(&self, text: &str) {
        self.bar.suspend(|| note!("{text}"));
    }
}

impl Drop for StudyBar {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_beside_the_bar_is_escaped() {
        let bar = ProgressBar::hidden();
        show(&bar, "testbed \u{1b}[2J");
        assert_eq!(bar.message(), "testbed \\u001b[2J");
    }

    #[test]
    fn lines_state_the_share_of_measurements() {
        let bar = StudyBar::new(8, 2);
        assert_eq!(bar.line("round 1 of 3"), " 25 %  round 1 of 3");
        (0..2).for_each(|_| bar.advance());
        assert_eq!(bar.line("send-receive/latency"), " 50 %  send-receive/latency");
        assert_eq!(StudyBar::new(0, 0).line("nothing"), "  0 %  nothing");
    }

    #[test]
    fn candidates_have_lines_once_a_command_takes_long() {
        let mut candidates = Candidates::new(4);
        let after = Duration::from_secs;
        assert_eq!(candidates.line("direct-read", after(2)), None);
        assert_eq!(
            candidates.line("direct-write", after(70)).as_deref(),
            Some("simulated 2 of 4 in 70 s: direct-write")
        );
        assert!(candidates.line("shared-write", after(71)).is_some());
        assert_eq!(candidates.line("send-receive", after(72)), None, "the result follows");
    }

    /// Lines of progress state a share of the length, also if the bar itself is hidden.
    #[test]
    fn a_bar_has_its_length_without_a_terminal() {
        let bar = bar(200, 50);
        assert_eq!((bar.length(), bar.position()), (Some(200), 50));
    }
}

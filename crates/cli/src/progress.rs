//! The bar of long commands.

use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use crate::output::stderr_is_terminal;

/// A progress bar of `length` steps, of which `already` are done. Without a terminal on standard error it is hidden.
pub(crate) fn bar(length: u64, already: u64) -> ProgressBar {
    let bar = if stderr_is_terminal() {
        ProgressBar::with_draw_target(Some(length), ProgressDrawTarget::stderr_with_hz(10))
    } else {
        ProgressBar::hidden()
    };
    let style = ProgressStyle::with_template("[{bar:30}] {percent:>3} %  {eta:>4} left  {wide_msg}")
        .unwrap_or_else(|_| ProgressStyle::default_bar());
    bar.set_style(style);
    bar.set_position(already);
    bar.reset_eta();
    bar.enable_steady_tick(Duration::from_millis(500));
    bar
}

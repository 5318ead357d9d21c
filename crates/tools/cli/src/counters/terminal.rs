//! Live view on a terminal.

use std::collections::VecDeque;
use std::mem::ManuallyDrop;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use doorbell_counters::{COMMON, Common, Interval, Look, Monitor, News, Pace};
use ratatui::Frame;
use ratatui::crossterm::event::{self, KeyCode, KeyEvent, KeyModifiers};
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Modifier, Style, Stylize};
use ratatui::text::Line;
use ratatui::widgets::{Cell, Paragraph, Row, Sparkline, Table, TableState};

use super::{NO_DEVICE, mib, short};
use crate::ending::Screen;
use crate::failure::Failure;

/// Maximum number of stored intervals per device, which fill a wide screen.
const HISTORY: usize = 240;
/// Number of intervals for which a closed device stays on the screen.
const STAYS: usize = 10;

/// A device on the screen.
struct Tracked {
    latest: Interval,
    /// Rates of each common counter, the latest last.
    history: [VecDeque<Option<f64>>; COMMON],
    /// Number of intervals since the device was closed.
    closed_for: Option<usize>,
}

/// Contents of the screen.
pub(super) struct View {
    interval: Duration,
    devices: Vec<Tracked>,
    selected: usize,
    news: News,
    note: Option<String>,
}

impl View {
    pub(super) fn new(interval: Duration) -> Self {
        Self { interval, devices: Vec::new(), selected: 0, news: News::default(), note: None }
    }

    /// Adds the reading at the end of an interval.
    pub(super) fn update(&mut self, look: Look) {
        if let Some(sentence) = self.news.of(&look).pop() {
            self.note = Some(sentence);
        }
        let selected = self.devices.get(self.selected).map(|device| device.latest.sample.clone());
        for device in &mut self.devices {
            device.closed_for = device.closed_for.map(|intervals| intervals + 1);
        }
        for interval in look.devices {
            let is_same = |device: &&mut Tracked| {
                let (known, new) = (&device.latest.sample, &interval.sample);
                known.identity.label == new.identity.label && known.incarnation == new.incarnation
            };
            let index = match self.devices.iter_mut().find(is_same) {
                Some(device) => {
                    device.latest = interval;
                    continue_history(device);
                    continue;
                }
                None => self
                    .devices
                    .partition_point(|device| device.latest.sample.identity.label <= interval.sample.identity.label),
            };
            let mut device =
                Tracked { latest: interval, history: std::array::from_fn(|_| VecDeque::new()), closed_for: None };
            continue_history(&mut device);
            self.devices.insert(index, device);
        }
        self.devices.retain(|device| device.closed_for.is_none_or(|intervals| intervals <= STAYS));
        // Keep the selected device selected, even if its position has changed.
        let same = selected.and_then(|selected| {
            self.devices.iter().position(|device| {
                let sample = &device.latest.sample;
                sample.identity.label == selected.identity.label && sample.incarnation == selected.incarnation
            })
        });
        self.selected = same.unwrap_or(self.selected).min(self.devices.len().saturating_sub(1));
    }

    /// Handles a key. Returns `false` if the view must end.
    pub(super) fn press(&mut self, key: KeyEvent) -> bool {
        match key.code {
            KeyCode::Char('q') | KeyCode::Esc => return false,
            KeyCode::Char('c') if key.modifiers.contains(KeyModifiers::CONTROL) => return false,
            KeyCode::Down | KeyCode::Char('j') | KeyCode::Tab => {
                self.selected = (self.selected + 1).min(self.devices.len().saturating_sub(1));
            }
            KeyCode::Up | KeyCode::Char('k') | KeyCode::BackTab => self.selected = self.selected.saturating_sub(1),
            _ => {}
        }
        true
    }

    /// Draws the whole screen.
    pub(super) fn render(&self, frame: &mut Frame<'_>) {
        // A header and at most 12 devices, so that space is left for the details of the selected device.
        let rows = 1 + self.devices.len().clamp(1, 12) as u16;
        let areas = Layout::vertical([
            Constraint::Length(1),
            Constraint::Max(rows),
            Constraint::Length(1),
            Constraint::Fill(1),
            Constraint::Length(1),
        ]);
        let [title, devices, name, detail, foot] = areas.areas(frame.area());
        let seconds = self.interval.as_secs_f64();
        let head = format!("RDMA counters per second, every {seconds} s");
        frame.render_widget(Line::from(head).bold(), title);
        self.render_devices(frame, devices);
        if let Some(device) = self.devices.get(self.selected) {
            let label = &device.latest.sample.identity.label;
            frame.render_widget(Line::from(format!("{label}: {}", device.latest.owner())).bold(), name);
            render_detail(device, frame, detail);
        }
        let keys = "q quits, up and down select";
        let note = self.note.as_ref().map_or_else(|| keys.to_owned(), |note| format!("{keys} | {note}"));
        frame.render_widget(Paragraph::new(note).style(Style::new().dim()), foot);
    }

    fn render_devices(&self, frame: &mut Frame<'_>, area: Rect) {
        if self.devices.is_empty() {
            frame.render_widget(Paragraph::new(format!("{NO_DEVICE}; waiting for one")), area);
            return;
        }
        let titles = ["device", "tx packets", "tx MiB", "rx packets", "rx MiB", "resent"];
        let header = Row::new(titles.iter().enumerate().map(|(column, title)| cell(column, (*title).to_owned())));
        let rows = self.devices.iter().map(|device| {
            let rate = |common| device.latest.rates.as_ref().and_then(|rates| rates.per_second(common));
            let closed = if device.closed_for.is_some() { " (closed)" } else { "" };
            let cells = [
                format!("{}{closed}", device.latest.sample.identity.label),
                short(rate(Common::TxPackets)),
                mib(rate(Common::TxBytes)),
                short(rate(Common::RxPackets)),
                mib(rate(Common::RxBytes)),
                short(rate(Common::Retransmissions)),
            ];
            let style = if device.closed_for.is_some() { Style::new().dim() } else { Style::new() };
            Row::new(cells.into_iter().enumerate().map(|(column, text)| cell(column, text))).style(style)
        });
        let widths = [
            Constraint::Fill(1),
            Constraint::Length(11),
            Constraint::Length(9),
            Constraint::Length(11),
            Constraint::Length(9),
            Constraint::Length(8),
        ];
        let table = Table::new(rows, widths)
            .header(header.style(Style::new().add_modifier(Modifier::UNDERLINED)))
            .row_highlight_style(Style::new().reversed());
        frame.render_stateful_widget(table, area, &mut TableState::new().with_selected(self.selected));
    }
}

/// Returns a cell. Numbers are aligned right.
fn cell(column: usize, text: String) -> Cell<'static> {
    let line = Line::from(text);
    Cell::from(if column == 0 { line } else { line.right_aligned() })
}

/// Adds the latest rates to the history.
fn continue_history(device: &mut Tracked) {
    if device.latest.sample.ended {
        device.closed_for.get_or_insert(0);
    }
    for common in Common::ALL {
        let history = &mut device.history[common as usize];
        history.push_back(device.latest.rates.as_ref().and_then(|rates| rates.per_second(common)));
        if history.len() > HISTORY {
            history.pop_front();
        }
    }
}

/// Draws one line for each counter: its name, its rate, and the history of the rate.
fn render_detail(device: &Tracked, frame: &mut Frame<'_>, area: Rect) {
    let columns = Layout::horizontal([Constraint::Length(16), Constraint::Length(12), Constraint::Fill(1)]).spacing(1);
    for (row, common) in area.rows().zip(Common::ALL) {
        let [name, rate, spark] = columns.areas(row);
        let history = &device.history[common as usize];
        let latest = history.back().copied().flatten();
        let is_bytes = matches!(common, Common::TxBytes | Common::RxBytes);
        let text = if is_bytes {
            latest.map_or_else(|| "-".to_owned(), |_| format!("{} MiB", mib(latest)))
        } else {
            short(latest)
        };
        frame.render_widget(Line::from(common.name()), name);
        frame.render_widget(Line::from(text).right_aligned(), rate);
        let skip = history.len().saturating_sub(usize::from(spark.width));
        // The bars show integers: multiply rates by 1000, so that a rate below 1 is visible.
        let bars = history.iter().skip(skip).map(|rate| rate.map(|rate| (rate * 1000.0).ceil() as u64));
        frame.render_widget(Sparkline::default().data(bars).absent_value_symbol("·"), spark);
    }
    // The rest of the screen shows those other counters of the vendor that change.
    let mut moving: Vec<_> = device.latest.rates.iter().flat_map(|rates| rates.others_per_second()).collect();
    moving.retain(|(_, rate)| *rate > 0.0);
    for (row, (name, rate)) in area.rows().skip(COMMON + 1).zip(moving) {
        let [left, right] = Layout::horizontal([Constraint::Length(29), Constraint::Fill(1)]).spacing(1).areas(row);
        frame.render_widget(Line::from(short(Some(rate))).right_aligned(), left);
        frame.render_widget(Line::from(name.to_string()), right);
    }
}

/// Shows the view until the count is reached, the user quits, or a signal arrives.
pub(super) fn run(mut monitor: Monitor, mut pace: Pace) -> Result<ExitCode, Failure> {
    let screen = Screen::take()?;
    let mut view = View::new(pace.step());
    view.update(monitor.look());
    // The panic hook of ratatui restores the terminal too. Do not drop the `Terminal`: `screen` shows the cursor
    // again. If the terminal has gone, the drop would write to standard error, which has gone as well. This panics,
    // and a panic during a panic aborts the process.
    let mut terminal = ManuallyDrop::new(ratatui::try_init()?);
    let mut draw = |view: &View| -> std::io::Result<()> {
        let _drawing = screen.draw();
        terminal.draw(|frame| view.render(frame)).map(drop)
    };
    let shown = (|| -> std::io::Result<()> {
        while let Some(at) = pace.next_look() {
            draw(&view)?;
            loop {
                let left = at.saturating_duration_since(Instant::now());
                if left.is_zero() {
                    break;
                }
                // If the terminal has gone, `poll` never returns, and the thread of `screen` ends the process.
                if event::poll(left)? {
                    if let Some(key) = event::read()?.as_key_press_event()
                        && !view.press(key)
                    {
                        return Ok(());
                    }
                    draw(&view)?;
                }
            }
            view.update(monitor.look());
        }
        Ok(())
    })();
    screen.restore()?;
    shown?;
    Ok(ExitCode::SUCCESS)
}

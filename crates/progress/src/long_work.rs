//! Long work, with its line on the terminal and its answer to a signal.
//!
//! A thread of its own draws the line and looks for a signal, so that both work while the command waits for a device or for a
//! daemon. The thread reads how far the work is; the work need not report.

use crate::amount::{WorkAmount, WorkUnit};
use crate::signals::{held_signal, hold, release};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::io::{IsTerminal, Write, stderr};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// The time between two looks at the work and at signals.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// Work that takes no longer than this shows no line on a terminal.
const SHOW_AFTER: Duration = Duration::from_millis(300);

/// The time between two plain lines without a terminal.
const TELL_EVERY: Duration = Duration::from_secs(10);

/// A shell adds this to the number of the signal that ended a program.
const EXIT_CODE_BY_SIGNAL: u8 = 128;

/// The line on the terminal, if one is shown.
static SHOWN: Mutex<Option<ProgressBar>> = Mutex::new(None);

/// The effect of a signal on long work.
pub enum OnInterrupt {
    /// The process prints "interrupted: " and this text about the amount that was done, and exits with 128 and the number of
    /// the signal. For work that may end at any moment, as after a SIGKILL.
    Exit(Box<dyn FnOnce(&WorkAmount) -> String + Send>),
    /// The work looks at [`held_signal`] where it can stop.
    Hold,
    /// Signals do what they did before.
    Nothing,
}

/// Long work under way. It ends when this is dropped: the line is erased, and signals end the process again. Work may begin before
/// the work in front of it ends, so that no signal comes between the two.
pub struct LongWork {
    end: Option<Sender<()>>,
    watcher: Option<JoinHandle<()>>,
    holds_signals: bool,
}

impl LongWork {
    /// Begins work that the user knows as `what`, such as "checking /srv/store". `amount` says how much of it is done.
    pub fn start(
        what: impl Into<String>,
        amount: impl FnMut() -> WorkAmount + Send + 'static,
        on_interrupt: OnInterrupt,
    ) -> LongWork {
        let holds_signals = !matches!(on_interrupt, OnInterrupt::Nothing);
        if holds_signals {
            hold();
        }
        let (end, ended) = channel();
        let watch = WorkWatch { what: what.into(), amount, on_interrupt, line: None, shown: None };
        let watcher = std::thread::Builder::new().name("progress".into()).spawn(move || watch.run(&ended));
        if watcher.is_err() && holds_signals {
            // Without the thread no one would answer.
            release();
        }
        LongWork { end: Some(end), watcher: watcher.ok(), holds_signals }
    }
}

impl Drop for LongWork {
    fn drop(&mut self) {
        drop(self.end.take());
        // An error is a panic of that thread, which has printed its reason.
        let _ = self.watcher.take().map(JoinHandle::join);
        if self.holds_signals {
            release();
        }
    }
}

/// Calls `print`, which prints to the terminal, while no line of progress is in its way.
pub fn print_above_progress<R>(print: impl FnOnce() -> R) -> R {
    let shown = SHOWN.lock().unwrap_or_else(PoisonError::into_inner);
    match &*shown {
        Some(line) => line.suspend(print),
        None => print(),
    }
}

/// Prints `text` as the last line of work that stopped because of a [`held_signal`]. Returns the exit code of the process.
pub fn exit_code_of_interrupt(text: &str) -> u8 {
    print_interrupted(text);
    EXIT_CODE_BY_SIGNAL + held_signal().unwrap_or(0)
}

fn print_interrupted(text: &str) {
    print_line(&format!("interrupted: {text}"));
}

/// The state of the thread that shows a work.
struct WorkWatch<F> {
    what: String,
    amount: F,
    on_interrupt: OnInterrupt,
    line: Option<ProgressBar>,
    /// The amount that the line showed last.
    shown: Option<WorkAmount>,
}

impl<F: FnMut() -> WorkAmount> WorkWatch<F> {
    fn run(mut self, ended: &Receiver<()>) {
        let is_terminal =
            stderr().is_terminal() && std::env::var_os("TERM").is_none_or(|name| name != "dumb");
        let begun = Instant::now();
        let mut told = begun;
        while ended.recv_timeout(LOOK_EVERY) == Err(RecvTimeoutError::Timeout) {
            if let (Some(signal), OnInterrupt::Exit(_)) = (held_signal(), &self.on_interrupt) {
                self.exit(signal);
            }
            if is_terminal && begun.elapsed() >= SHOW_AFTER {
                self.draw();
            } else if !is_terminal && told.elapsed() >= TELL_EVERY {
                told = Instant::now();
                let amount = (self.amount)();
                print_line(&match amount.unit {
                    WorkUnit::Unknown => format!("{}: {} s so far", self.what, begun.elapsed().as_secs()),
                    _ => format!("{}: {amount}", self.what),
                });
            }
        }
        self.erase();
    }

    fn draw(&mut self) {
        let amount = (self.amount)();
        let what = &self.what;
        let line = self.line.get_or_insert_with(|| {
            // Hidden, because each call below would draw it half done.
            let line = ProgressBar::hidden().with_message(what.clone());
            *SHOWN.lock().unwrap_or_else(PoisonError::into_inner) = Some(line.clone());
            line
        });
        if let Some(total) = amount.total {
            line.set_length(total.max(amount.done));
        }
        line.set_position(amount.done);
        let kind = |amount: &WorkAmount| (amount.unit, amount.total.is_some());
        if self.shown.replace(amount).as_ref().map(kind) != Some(kind(&amount)) {
            line.set_style(style(&amount));
            // What was done until now says nothing about the rate.
            line.reset_eta();
        }
        if line.is_hidden() {
            line.set_draw_target(ProgressDrawTarget::stderr());
        }
        line.tick();
    }

    fn erase(&mut self) {
        if let Some(line) = self.line.take() {
            line.finish_and_clear();
            *SHOWN.lock().unwrap_or_else(PoisonError::into_inner) = None;
        }
    }

    fn exit(&mut self, signal: u8) {
        let OnInterrupt::Exit(text) = std::mem::replace(&mut self.on_interrupt, OnInterrupt::Nothing) else {
            return;
        };
        self.erase();
        print_interrupted(&text(&(self.amount)()));
        std::process::exit(i32::from(EXIT_CODE_BY_SIGNAL + signal))
    }
}

/// Prints a line to standard error. A failure is ignored, because no other way is left.
fn print_line(line: &str) {
    let _ = stderr().write_all(format!("{line}\n").as_bytes());
}

/// How the line looks.
fn style(amount: &WorkAmount) -> ProgressStyle {
    let template = match (amount.unit, amount.total) {
        (WorkUnit::Bytes, Some(_)) => {
            "{wide_msg} [{bar:10}] {binary_bytes} of {binary_total_bytes}, {binary_bytes_per_sec}, {eta} left"
        }
        (WorkUnit::Bytes, None) => "{wide_msg} {spinner} {binary_bytes}, {binary_bytes_per_sec}, {elapsed}",
        (WorkUnit::Things(_), Some(_)) => {
            "{wide_msg} [{bar:10}] {human_pos} of {human_len}, {per_sec}, {eta} left"
        }
        (WorkUnit::Things(_), None) => "{wide_msg} {spinner} {human_pos}, {per_sec}, {elapsed}",
        (WorkUnit::Unknown, _) => "{wide_msg} {spinner} {elapsed}",
    };
    ProgressStyle::with_template(template)
        .expect("the templates are right")
        .progress_chars("=> ")
        .tick_chars("-\\|/ ")
}

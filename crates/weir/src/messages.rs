//! Where messages go, and how they look. Results go to standard output, and are not messages.
//!
//! A message is a `tracing` event with nothing but its text: an error or a warning begins with that word. A
//! daemon that systemd runs sends its messages to the journal with their priority. Everything else writes
//! them to standard error, which for a daemon in the background is its [log file](crate::log_files).

use progress::print_above_progress;
use rustix::fs::fstat;
use std::fmt::{Debug, Write as _};
use std::io::{Write as _, stderr};
use tracing::field::{Field, Visit};
use tracing::{Event, Level, Metadata, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::layer::{Context, SubscriberExt};

/// Set by systemd: the device and inode of the journal's socket, if standard output or standard error leads
/// there.
const JOURNAL_STREAM: &str = "JOURNAL_STREAM";

/// Sends messages to standard error from now on.
pub(crate) fn start_on_stderr() {
    start(StderrLayer);
}

/// Sends the messages of a daemon to the journal from now on if standard error leads there, else to standard
/// error.
pub(crate) fn start_of_daemon() {
    match tracing_journald::layer() {
        Ok(journal) if stderr_is_journal() => start(journal),
        _ => start(StderrLayer),
    }
}

/// Whether the journal gets what is written to standard error.
pub(crate) fn stderr_is_journal() -> bool {
    let Ok(stream) = std::env::var(JOURNAL_STREAM) else { return false };
    fstat(stderr()).is_ok_and(|found| stream == format!("{}:{}", found.st_dev, found.st_ino))
}

fn start(layer: impl Layer<tracing_subscriber::Registry> + Send + Sync) {
    let subscriber = tracing_subscriber::registry().with(layer);
    tracing::subscriber::set_global_default(subscriber).expect("messages are set up once");
}

/// Writes each message as a line to standard error.
struct StderrLayer;

impl<S: Subscriber> Layer<S> for StderrLayer {
    /// Messages of lower levels are for who changes weir.
    fn enabled(&self, message: &Metadata<'_>, _: Context<'_, S>) -> bool {
        *message.level() <= Level::INFO
    }

    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        let mut line = String::from(prefix(*event.metadata().level()));
        event.record(&mut MessageText(&mut line));
        line.push('\n');
        // A message that cannot be written must not end the process.
        let _ = print_above_progress(|| stderr().write_all(line.as_bytes()));
    }
}

/// The word that a message of this level begins with.
fn prefix(level: Level) -> &'static str {
    match level {
        Level::ERROR => "error: ",
        Level::WARN => "warning: ",
        _ => "",
    }
}

/// Appends the text of a message.
struct MessageText<'a>(&'a mut String);

impl Visit for MessageText<'_> {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        if field.name() == "message" {
            let _ = write!(self.0, "{value:?}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_and_warnings_say_so() {
        assert_eq!([Level::ERROR, Level::WARN, Level::INFO].map(prefix), ["error: ", "warning: ", ""]);
    }
}

//! `weir top`: the mounts of this machine on a screen that is refreshed.
//!
//! A sampler asks the daemons, a model makes figures and histories of their answers, and the screen is drawn from the model alone.
//! Every event arrives as a [`TopEvent`] at one thread.

mod model;
mod sampler;
mod screen;
mod view;

use crate::cli::TopArgs;
use crate::error::WeirError;
use client::WeirMount;
use model::{MountSample, WatchedMounts};
use ratatui::DefaultTerminal;
use ratatui::crossterm::event::{self, Event};
use sampler::Sampler;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use signal_hook::low_level::emulate_default_handler;
use std::collections::BTreeMap;
use std::io::{self, IsTerminal};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;
use view::{KeyOutcome, TopView};

/// An event while the screen is shown.
enum TopEvent {
    /// A round of questions begins: the directories of all mounts, with their stores.
    Round { round: u64, mounted: BTreeMap<PathBuf, PathBuf> },
    /// An answer about a mount.
    Sample(Box<MountSample>),
    /// A key was pressed, or the size of the terminal has changed.
    Terminal(Event),
    /// The terminal cannot be read any more.
    TerminalLost(io::Error),
    /// A signal that ends programs.
    Signal(i32),
}

/// Why the program ends.
enum TopEnd {
    Quit,
    Signal(i32),
}

pub(crate) fn run(args: &TopArgs) -> Result<(), WeirError> {
    if !io::stdin().is_terminal() || !io::stdout().is_terminal() {
        return Err(WeirError::NoTerminal);
    }
    let only = args.dir.as_deref().map(WeirMount::at).transpose()?.map(|mount| mount.dir().to_owned());
    let (tell, events) = channel();
    let interval = Duration::from_secs(args.interval);
    let chosen: Arc<Mutex<Option<PathBuf>>> = Arc::new(Mutex::new(only.clone()));
    forward_signals(tell.clone())?;
    Sampler { interval, only, chosen: chosen.clone(), events: tell.clone() }.start()?;
    // Also restores the terminal when the program panics.
    let mut terminal = ratatui::try_init().map_err(screen_error)?;
    let shown = forward_input(tell).and_then(|()| show(&mut terminal, interval, &events, &chosen));
    // Shows the cursor again.
    drop(terminal);
    let restored = ratatui::try_restore();
    match shown? {
        TopEnd::Quit => restored.map_err(screen_error),
        // The caller sees which signal it was. After a SIGHUP there may be no terminal to restore.
        TopEnd::Signal(signal) => emulate_default_handler(signal).map_err(screen_error),
    }
}

fn screen_error(source: io::Error) -> WeirError {
    WeirError::Screen { source }
}

/// Signals become events, so that the terminal is restored before they end the program.
fn forward_signals(events: Sender<TopEvent>) -> Result<(), WeirError> {
    let mut signals = Signals::new([SIGHUP, SIGINT, SIGTERM]).map_err(screen_error)?;
    let forward = move || {
        for signal in signals.forever() {
            if events.send(TopEvent::Signal(signal)).is_err() {
                return;
            }
        }
    };
    thread::Builder::new().name("signals".into()).spawn(forward).map(drop).map_err(screen_error)
}

fn forward_input(events: Sender<TopEvent>) -> Result<(), WeirError> {
    let forward = move || {
        loop {
            let (event, is_last) = match event::read() {
                Ok(event) => (TopEvent::Terminal(event), false),
                Err(error) => (TopEvent::TerminalLost(error), true),
            };
            if events.send(event).is_err() || is_last {
                return;
            }
        }
    };
    let spawned = thread::Builder::new().name("input".into()).spawn(forward);
    spawned.map(drop).map_err(screen_error)
}

/// Draws after each event, until the user or a signal ends the program.
fn show(
    terminal: &mut DefaultTerminal,
    interval: Duration,
    events: &Receiver<TopEvent>,
    chosen: &Mutex<Option<PathBuf>>,
) -> Result<TopEnd, WeirError> {
    let mut mounts = WatchedMounts::new(interval);
    let mut view = TopView::default();
    // The mounts as they were when the user paused.
    let mut paused: Option<WatchedMounts> = None;
    loop {
        let shown = paused.as_ref().unwrap_or(&mounts);
        *lock(chosen) = view.chosen_dir(shown).map(Path::to_owned);
        terminal.draw(|frame| screen::draw(frame, shown, &view)).map_err(screen_error)?;
        // All events that are there are handled before the next drawing. The senders live as long as this thread.
        let first = events.recv().expect("the signals' thread does not end");
        for event in std::iter::once(first).chain(events.try_iter()) {
            match event {
                TopEvent::Round { round, mounted } => mounts.begin_round(round, mounted),
                TopEvent::Sample(sample) => mounts.add(*sample),
                TopEvent::Terminal(Event::Key(key)) => {
                    let shown = paused.as_ref().unwrap_or(&mounts);
                    if view.press(key, shown) == KeyOutcome::Quit {
                        return Ok(TopEnd::Quit);
                    }
                    match (view.is_paused, &paused) {
                        (true, None) => paused = Some(mounts.clone()),
                        (false, Some(_)) => paused = None,
                        _ => {}
                    }
                }
                // Drawing takes the new size by itself.
                TopEvent::Terminal(_) => {}
                TopEvent::TerminalLost(source) => return Err(WeirError::Screen { source }),
                TopEvent::Signal(signal) => return Ok(TopEnd::Signal(signal)),
            }
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

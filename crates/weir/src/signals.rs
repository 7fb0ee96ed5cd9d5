//! What SIGTERM, SIGINT and SIGHUP do to a daemon.
//!
//! | when | what happens |
//! | --- | --- |
//! | before the mount is there | the process ends as usual; nothing but what a recovery writes was written |
//! | nobody works on the mount | it is unmounted, and everything is written back |
//! | somebody does | nobody new may enter; it is unmounted when the last has left |
//! | a second time, then | everything is written back and the process ends; who is still there gets ENOTCONN |
//! | while everything is being written back already | nothing more |

use crate::control_address::DeviceNumber;
use crate::mount_point::device_of;
use crate::storage_stack::WorkerStopper;
use crate::tell;
use crate::unmount::{UnmountMode, unmount};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Signals that are kept from now on, until somebody watches them: in between, one would leave a dead mount.
pub(crate) struct HeldSignals(Signals);

/// What a watcher needs.
pub(crate) struct SignalHandler {
    pub(crate) dir: PathBuf,
    /// Tells our mount from another one on the same directory.
    pub(crate) device: DeviceNumber,
    pub(crate) stopper: WorkerStopper,
    /// False once requests are no longer taken.
    pub(crate) serving: Arc<AtomicBool>,
    /// What is left to do before the process ends by itself.
    pub(crate) before_exit: Box<dyn Fn() + Send>,
}

/// Keeps signals from ending the process.
pub(crate) fn hold() -> io::Result<HeldSignals> {
    Signals::new([SIGTERM, SIGINT, SIGHUP]).map(HeldSignals)
}

impl HeldSignals {
    /// Acts on them from now on, those that came meanwhile included.
    pub(crate) fn watch(mut self, watched: SignalHandler) -> io::Result<()> {
        let watch = move || {
            for _ in self.0.forever() {
                watched.leave();
            }
        };
        std::thread::Builder::new().name("signals".into()).spawn(watch).map(drop)
    }
}

impl SignalHandler {
    fn leave(&self) {
        let dir = self.dir.display();
        if !self.serving.load(Ordering::Acquire) {
            tell(&format!("{dir}: already writing everything back"));
        } else if !self.is_mounted() {
            self.end();
        } else if unmount(&self.dir, UnmountMode::WhenIdle).is_err() {
            tell(&format!(
                "{dir}: busy; it is unmounted when no program uses it any more, or with the next signal"
            ));
            if let Err(why) = unmount(&self.dir, UnmountMode::Detach) {
                tell(&format!("{dir}: unmounting: {why}"));
            }
        }
    }

    /// Whether new users still find us.
    fn is_mounted(&self) -> bool {
        device_of(&self.dir).is_ok_and(|device| device == self.device)
    }

    /// Ends the process under its users.
    fn end(&self) -> ! {
        tell(&format!("{}: ending; programs lose the files that they have open there", self.dir.display()));
        let drained = self.stopper.stop_and_drain();
        if let Err(error) = &drained {
            tell(&format!("{}: not everything was written back: {error}", self.dir.display()));
        }
        (self.before_exit)();
        std::process::exit(i32::from(drained.is_err()))
    }
}

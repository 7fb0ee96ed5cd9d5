//! The daemon's reaction to SIGTERM, SIGINT and SIGHUP.
//!
//! | state of the mount | reaction to a signal |
//! | --- | --- |
//! | does not exist yet | the process ends as usual; only a recovery may have written to the media |
//! | no program uses it | the daemon unmounts it, writes everything back, and ends |
//! | programs use it | no other program may enter; the kernel unmounts it when the last program leaves |
//! | programs still use it, second signal | the daemon writes all data back and ends; programs get ENOTCONN |
//! | the daemon already writes everything back | none |

use crate::control_address::DeviceNumber;
use crate::mount_point::device_of;
use crate::storage_stack::WorkerStopper;
use crate::unmount::{UnmountMode, unmount};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Signals that are held back until a thread watches them. A signal that ended the process before that would
/// leave a dead mount.
pub(crate) struct HeldSignals(Signals);

/// Reacts to the signals of one mount.
pub(crate) struct SignalHandler {
    pub(crate) dir: PathBuf,
    /// Distinguishes this daemon's mount from another mount on the same directory.
    pub(crate) device: DeviceNumber,
    pub(crate) stopper: WorkerStopper,
    /// False once requests are no longer taken.
    pub(crate) serving: Arc<AtomicBool>,
    /// Called before the signal handler ends the process.
    pub(crate) before_exit: Box<dyn Fn() + Send>,
}

/// Keeps signals from ending the process.
pub(crate) fn hold() -> io::Result<HeldSignals> {
    Signals::new([SIGTERM, SIGINT, SIGHUP]).map(HeldSignals)
}

impl HeldSignals {
    /// Reacts to signals from now on, including those that were held back.
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
            tracing::info!("{dir}: already writing everything back");
        } else if !self.is_mounted() {
            self.end();
        } else if unmount(&self.dir, UnmountMode::WhenIdle).is_err() {
            tracing::info!(
                "{dir}: busy; it is unmounted when no program uses it any more, or with the next signal"
            );
            if let Err(why) = unmount(&self.dir, UnmountMode::Detach) {
                tracing::warn!("{dir}: unmounting: {why}");
            }
        }
    }

    /// Whether the mount table still has this daemon's mount on the directory.
    fn is_mounted(&self) -> bool {
        device_of(&self.dir).is_ok_and(|device| device == self.device)
    }

    /// Writes everything back and ends the process, although programs still use the mount.
    fn end(&self) -> ! {
        tracing::info!("{}: ending; programs lose the files that they have open there", self.dir.display());
        let drained = self.stopper.stop_and_drain();
        if let Err(error) = &drained {
            tracing::error!("{}: not everything was written back: {error}", self.dir.display());
        }
        (self.before_exit)();
        std::process::exit(i32::from(drained.is_err()))
    }
}

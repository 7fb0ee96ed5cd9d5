//! The daemon's reaction to SIGTERM, SIGINT and SIGHUP.
//!
//! | state of a mount | reaction to a signal |
//! | --- | --- |
//! | does not exist yet | the process ends as usual; only a recovery may have written to the media |
//! | is wanted beside others | it is not made |
//! | no program uses it | the daemon unmounts it |
//! | programs use it | no other program may enter; the kernel unmounts it when the last program leaves |
//! | all are gone | the daemon writes everything back, and ends |
//! | programs still use some, second signal | the daemon writes all data back and ends; programs get ENOTCONN |
//! | the daemon already writes everything back | none |
//!
//! Exports end at once; what their clients wrote is durable then.

use crate::mount_point::device_of;
use crate::mounted_volume::MountedVolume;
use crate::store_daemon::StoreDaemon;
use crate::unmount::{UnmountMode, unmount};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use stack::WorkerStopper;
use std::io;
use std::sync::Arc;
use store::VolumeId;

/// Signals that are held back until a thread watches them. A signal that ended the process before that would
/// leave a dead mount.
pub(crate) struct HeldSignals(Signals);

/// Reacts to the signals of a daemon.
pub(crate) struct SignalHandler {
    pub(crate) daemon: Arc<StoreDaemon>,
    pub(crate) stopper: WorkerStopper,
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

impl HeldSignals {
    /// Reacts to the signals of a daemon that began with the export of `volume`. The first one ends that export; from the
    /// second on the daemon reacts as a daemon of mounts does.
    pub(crate) fn watch_export(
        mut self,
        daemon: &Arc<StoreDaemon>,
        volume: VolumeId,
        stopper: WorkerStopper,
    ) -> io::Result<()> {
        let watched = SignalHandler { daemon: daemon.clone(), stopper };
        let watch = move || {
            let mut signals = self.0.forever();
            if signals.next().is_some() {
                watched.end_export(volume);
                if !watched.daemon.exports().is_empty() || !watched.daemon.mounts().is_empty() {
                    tracing::info!(
                        "this export has ended; the process still serves other volumes of the store, until they end or the next \
                         signal comes"
                    );
                }
            }
            for _ in signals {
                watched.leave();
            }
        };
        std::thread::Builder::new().name("signals".into()).spawn(watch).map(drop)
    }
}

impl SignalHandler {
    fn end_export(&self, volume: VolumeId) {
        if let Err(refusal) = self.daemon.end_export(volume) {
            tracing::error!("{}: {}", self.daemon.stack.media.name.display(), refusal.why);
        }
    }

    fn leave(&self) {
        let mounts = self.daemon.leave();
        let exports = self.daemon.exports();
        exports.iter().for_each(|&volume| self.end_export(volume));
        if mounts.is_empty() && !exports.is_empty() {
            return;
        }
        if mounts.is_empty() {
            tracing::info!("{}: already writing everything back", self.daemon.stack.media.name.display());
        } else if !mounts.iter().any(|mount| is_in_table(mount)) {
            self.end(&mounts);
        } else {
            mounts.iter().filter(|mount| is_in_table(mount)).for_each(|mount| unmount_soon(mount));
        }
    }

    /// Writes everything back and ends the process, although programs still use the mounts.
    fn end(&self, mounts: &[Arc<MountedVolume>]) -> ! {
        for mount in mounts {
            tracing::info!(
                "{}: ending; programs lose the files that they have open there",
                mount.dir.display()
            );
        }
        let drained = self.stopper.stop_and_drain();
        if let Err(error) = &drained {
            let store = self.daemon.stack.media.name.display();
            tracing::error!("{store}: not everything was written back: {error}");
        }
        self.daemon.remove_empty_log();
        std::process::exit(i32::from(drained.is_err()))
    }
}

/// Whether the mount table still has this mount on its directory, and not another one.
fn is_in_table(mount: &MountedVolume) -> bool {
    device_of(&mount.dir).is_ok_and(|device| device == mount.device)
}

/// Unmounts now, or when no program uses the mount any more.
fn unmount_soon(mount: &MountedVolume) {
    if unmount(&mount.dir, UnmountMode::WhenIdle).is_ok() {
        return;
    }
    let dir = mount.dir.display();
    tracing::info!("{dir}: busy; it is unmounted when no program uses it any more, or with the next signal");
    if let Err(why) = unmount(&mount.dir, UnmountMode::Detach) {
        tracing::warn!("{dir}: unmounting: {why}");
    }
}

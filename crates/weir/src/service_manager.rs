//! What the daemon tells the service manager that started it, as `Type=notify` of systemd asks: that it serves, that it ends, and
//! that it lives. A daemon that no service manager started tells nothing.

use cache::Cache;
use sd_notify::NotifyState;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Signs of life in the time after which the service manager ends a silent daemon.
const SIGNS_PER_LIMIT: u32 = 4;

/// Says that programs can use the store at `store`.
pub(crate) fn say_ready(store: &Path) {
    tell(&[NotifyState::Ready, NotifyState::Status(&format!("{} is mounted", store.display()))]);
}

/// Says that no program uses the store at `store` any more, and that everything is being written back.
pub(crate) fn say_ending(store: &Path) {
    let status = format!("writing everything back to {}", store.display());
    tell(&[NotifyState::Stopping, NotifyState::Status(&status)]);
}

/// Gives signs of life until `serving` is false, if the service manager wants them, in a thread of its own. There is none while
/// the lock of the cache, which every operation needs, cannot be had. A device that does not answer does not hold it.
pub(crate) fn start_watchdog(cache: Cache, serving: Arc<AtomicBool>) -> io::Result<()> {
    let Some(limit) = sd_notify::watchdog_enabled() else { return Ok(()) };
    let live = move || {
        while serving.load(Ordering::Acquire) {
            let _ = cache.status();
            tell(&[NotifyState::Watchdog]);
            std::thread::sleep(limit / SIGNS_PER_LIMIT);
        }
    };
    std::thread::Builder::new().name("watchdog".into()).spawn(live).map(drop)
}

/// The service manager may be gone. That is no reason to end.
fn tell(states: &[NotifyState<'_>]) {
    let _ = sd_notify::notify(states);
}

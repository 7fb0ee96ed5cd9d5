//! The settings that `weir run` passes in the environment.

use rustix::fs::Stat;
use std::ffi::OsString;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use weir_library::WeirOptions;

static SETTINGS: OnceLock<RunSettings> = OnceLock::new();
static IS_ACTIVE: AtomicBool = AtomicBool::new(false);
/// The process that `weir run --explain` became; 0 without `--explain`.
static EXPLAINS: AtomicU32 = AtomicU32::new(0);

/// A copy of standard error, for `--explain`.
static MESSAGES: OnceLock<OwnedFd> = OnceLock::new();
/// The file that was standard error when the program began.
static STANDARD_ERROR: OnceLock<Stat> = OnceLock::new();
/// The lowest number of the copy.
const MESSAGES_MIN: i32 = 400;

/// The store of the program.
pub(crate) struct RunSettings {
    pub(crate) store: PathBuf,
    pub(crate) options: WeirOptions,
    /// The absolute path that stands for the volume's root, beside the marker.
    pub(crate) prefix: Option<Vec<u8>>,
}

/// Reads the environment. Without `WEIR_RUN_STORE`, the shim passes every call on.
pub(crate) fn read() {
    let Some(store) = std::env::var_os("WEIR_RUN_STORE") else { return };
    let mut options = WeirOptions::default();
    if let Ok(volume) = std::env::var("WEIR_RUN_VOLUME") {
        options.volume = volume;
    }
    options.volatile_buffer = std::env::var_os("WEIR_RUN_VOLATILE_BUFFER").is_some();
    if let Some(bytes) = std::env::var("WEIR_RUN_MEMORY").ok().and_then(|bytes| bytes.parse().ok()) {
        options.memory_bytes = bytes;
    }
    let prefix = std::env::var_os("WEIR_RUN_PREFIX").map(OsString::into_vec);
    if let Ok(stat) = rustix::fs::fstat(rustix::stdio::stderr()) {
        STANDARD_ERROR.get_or_init(|| stat);
    }
    let explained = std::env::var("WEIR_RUN_EXPLAIN").ok().and_then(|pid| pid.parse().ok());
    EXPLAINS.store(explained.unwrap_or_default(), Ordering::Relaxed);
    if explained.is_some() {
        // Coreutils close their standard error before we print.
        if let Ok(copy) = rustix::io::fcntl_dupfd_cloexec(rustix::stdio::stderr(), MESSAGES_MIN) {
            crate::descriptors::set_own(copy.as_raw_fd(), true);
            MESSAGES.get_or_init(|| copy);
        }
    }
    let is_first = SETTINGS.set(RunSettings { store: store.into(), options, prefix }).is_ok();
    IS_ACTIVE.store(is_first, Ordering::Release);
}

/// Whether there is a store for this program.
pub(crate) fn is_active() -> bool {
    IS_ACTIVE.load(Ordering::Acquire)
}

/// The process that `weir run --explain` became. `None` without `--explain`: then calls are not counted.
pub(crate) fn explains() -> Option<u32> {
    Some(EXPLAINS.load(Ordering::Relaxed)).filter(|&pid| pid != 0)
}

pub(crate) fn get() -> Option<&'static RunSettings> {
    SETTINGS.get()
}

/// Whether standard error is what it was when the program began: the program may have put a file with data there.
fn has_standard_error() -> bool {
    let now = rustix::fs::fstat(rustix::stdio::stderr());
    STANDARD_ERROR
        .get()
        .is_some_and(|then| now.is_ok_and(|now| (now.st_dev, now.st_ino) == (then.st_dev, then.st_ino)))
}

/// Tells the user something, on standard error.
pub(crate) fn say(what: &str) {
    let line = format!("weir run: {what}\n");
    // Nobody is left to tell if this fails.
    let _ = match MESSAGES.get() {
        Some(copy) => rustix::io::write(copy, line.as_bytes()),
        None if has_standard_error() => rustix::io::write(rustix::stdio::stderr(), line.as_bytes()),
        None => return,
    };
}

//! The signals by which a user interrupts a command.

use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::flag;
use signal_hook::low_level::pipe;
use std::ffi::c_int;
use std::fs;
use std::io::{self, PipeWriter};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock, Once};

/// The signals that interrupt long work.
const INTERRUPTING: [c_int; 2] = [SIGINT, SIGTERM];

/// The number of the last signal that came during long work; 0 if none did.
static HELD: LazyLock<Arc<AtomicUsize>> = LazyLock::new(Arc::default);

/// Pieces of long work under way that hold signals.
static HOLDERS: AtomicUsize = AtomicUsize::new(0);

/// Whether there are none. A signal then ends the process.
static IS_AT_REST: LazyLock<Arc<AtomicBool>> = LazyLock::new(|| Arc::new(AtomicBool::new(true)));

/// Holds signals from now on, until [`release`].
pub(crate) fn hold() {
    static CAUGHT: Once = Once::new();
    CAUGHT.call_once(|| {
        let ignored = ignored_signals();
        for signal in INTERRUPTING.into_iter().filter(|signal| ignored & (1 << (signal - 1)) == 0) {
            // If that fails, the signal ends the process as usual. The order counts: the first action ends the process.
            let _ = flag::register_conditional_default(signal, IS_AT_REST.clone())
                .and_then(|_| flag::register_usize(signal, HELD.clone(), signal as usize));
        }
    });
    HOLDERS.fetch_add(1, Ordering::SeqCst);
    IS_AT_REST.store(false, Ordering::SeqCst);
}

/// Lets the next signal end the process again, unless other work still holds it. One thread calls this and [`hold`].
pub(crate) fn release() {
    if HOLDERS.fetch_sub(1, Ordering::SeqCst) == 1 {
        IS_AT_REST.store(true, Ordering::SeqCst);
    }
}

/// Lets the first signal write a byte to `pipe`, for work in another process, and counts it as [held](held_signal). The second
/// signal ends this process.
///
/// # Errors
/// Those of preparing the pipe. Signals then end the process as before.
pub fn pass_signals_to(pipe: &PipeWriter) -> io::Result<()> {
    let has_one = Arc::new(AtomicBool::new(false));
    let ignored = ignored_signals();
    for signal in INTERRUPTING.into_iter().filter(|signal| ignored & (1 << (signal - 1)) == 0) {
        pipe::register(signal, pipe.try_clone()?)?;
        // The order counts: the first signal does not yet see its own mark.
        flag::register_conditional_default(signal, has_one.clone())?;
        flag::register(signal, has_one.clone())?;
        flag::register_usize(signal, HELD.clone(), signal as usize)?;
    }
    Ok(())
}

/// The signal that came during long work, if one did.
pub fn held_signal() -> Option<u8> {
    u8::try_from(HELD.load(Ordering::SeqCst)).ok().filter(|&signal| signal > 0)
}

/// The signals that this process was started to ignore, as `nohup` or a shell's background job is. Bit 0 is signal 1.
fn ignored_signals() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0)
}

//! The interpreter around us: its lock, forks, panics.

use pyo3::prelude::*;
use std::panic::{set_hook, take_hook};
use std::sync::Once;
use weir_library::{HandleTable, Weir, set_wait_wrapper};

use crate::file::OpenFile;

pub(crate) static STORES: HandleTable<Weir> = HandleTable::new();
pub(crate) static FILES: HandleTable<OpenFile> = HandleTable::new();

/// Prepares the library for the interpreter.
pub(crate) fn prepare() {
    static IS_PREPARED: Once = Once::new();
    IS_PREPARED.call_once(|| {
        set_wait_wrapper(release_interpreter);
        // A panic must not become an exception: what it left half done would be used again.
        let print = take_hook();
        set_hook(Box::new(move |panic| {
            print(panic);
            std::process::abort();
        }));
    });
}

/// Waits without the interpreter's lock. The library calls this wherever it waits, and holds no lock that another thread would
/// wait for with the interpreter's lock.
fn release_interpreter(wait: &mut (dyn FnMut() + Send)) {
    let is_done = Python::try_attach(|py| py.detach(&mut *wait)).is_some();
    if !is_done {
        // The interpreter is ending, and has no lock for us.
        wait();
    }
}

/// Forgets what the parent of this forked process has opened: its files fail with EBADF here.
#[pyfunction]
pub(crate) fn forget_of_parent() {
    FILES.forget_of_parent();
    STORES.forget_of_parent();
}

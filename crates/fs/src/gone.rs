//! Files whose last opener went after their last name: freed many at a time.
//!
//! The kernel remembers every file that it was told of, so most files are unlinked while they are held, and each is
//! freed by an operation of its own, when the kernel forgets it. Small ones wait for company: sixteen then share one
//! transaction. On the media they are in the orphan list until then, so a crash frees them at the next opening.

use crate::cost;
use crate::format::{Hot, Slot};
use crate::fs::Core;
use std::sync::{Arc, Mutex};

/// As many as share a transaction. More would save little, and hold back more.
pub(crate) const TOGETHER: usize = 16;

/// Files above this size do not wait, so all that wait together hold back at most 1 MiB of space.
const WAITING_BYTES_MAX: u64 = 64 << 10;

/// A slot, and the generation of the inode in it that is to be freed.
type Inode = (Slot, u32);

/// Those that wait.
#[derive(Default)]
pub(crate) struct Gone(Mutex<Vec<Inode>>);

impl Gone {
    /// Adds an inode with neither names nor openers; frees it and those that waited if that is worth a transaction.
    pub(crate) fn add(&self, core: &Arc<Core>, slot: Slot, hot: &Hot) {
        let mut waiting = self.0.lock().expect("no panic while holding the list of those that wait");
        waiting.push((slot, hot.generation.get()));
        if waiting.len() < TOGETHER && hot.size() <= WAITING_BYTES_MAX {
            return;
        }
        let all = std::mem::take(&mut *waiting);
        drop(waiting);
        free(core, all);
    }

    /// Frees all that wait.
    pub(crate) fn free(&self, core: &Arc<Core>) {
        let all =
            std::mem::take(&mut *self.0.lock().expect("no panic while holding the list of those that wait"));
        if !all.is_empty() {
            free(core, all);
        }
    }
}

/// Those that fail stay orphans: they go at the next opening. So do all that waited with one that fails.
fn free(core: &Arc<Core>, inodes: Vec<Inode>) {
    let cost = cost::free(inodes.len());
    // The newest first: it is the last in the orphan list, so no other takes its place there.
    let work = move |tx: &mut crate::arena::Transaction<'_>| {
        inodes.iter().rev().try_for_each(|&(slot, generation)| tx.free_unheld(slot, generation))
    };
    core.enter(cost, work, Box::new(|_| {}));
}

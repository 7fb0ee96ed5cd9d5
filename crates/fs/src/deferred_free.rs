//! Files whose last opener went after their last name: freed many at a time.
//!
//! The kernel remembers every file that it was told of, so most files are unlinked while they are held, and each is
//! freed by an operation of its own, when the kernel forgets it. Small ones wait for company: sixteen then share one
//! transaction. On the media they are in the orphan list until then, so a crash frees them at the next opening.

use crate::cost;
use crate::format::{Inode, InodeSlot};
use crate::fs::FsCore;
use std::sync::{Arc, Mutex};

/// As many as share a transaction. More would save little, and hold back more.
pub(crate) const FREED_TOGETHER: usize = 16;

/// Files above this size do not wait, so all that wait together hold back at most 1 MiB of space.
const DEFERRED_FILE_BYTES_MAX: u64 = 64 << 10;

/// A slot, and the generation of the inode in it that is to be freed.
type OrphanId = (InodeSlot, u32);

/// Those that wait.
#[derive(Default)]
pub(crate) struct DeferredFrees(Mutex<Vec<OrphanId>>);

impl DeferredFrees {
    /// Adds an inode with neither names nor openers; frees it and those that waited if that is worth a transaction.
    pub(crate) fn add(&self, core: &Arc<FsCore>, slot: InodeSlot, inode: &Inode) {
        let mut waiting = self.0.lock().expect("no panic while holding the list of those that wait");
        waiting.push((slot, inode.generation.get()));
        if waiting.len() < FREED_TOGETHER && inode.size() <= DEFERRED_FILE_BYTES_MAX {
            return;
        }
        let all = std::mem::take(&mut *waiting);
        drop(waiting);
        free(core, all);
    }

    /// Frees all that wait.
    pub(crate) fn free_all(&self, core: &Arc<FsCore>) {
        let all =
            std::mem::take(&mut *self.0.lock().expect("no panic while holding the list of those that wait"));
        if !all.is_empty() {
            free(core, all);
        }
    }
}

/// Those that fail stay orphans: they go at the next opening. So do all that waited with one that fails.
fn free(core: &Arc<FsCore>, inodes: Vec<OrphanId>) {
    let cost = cost::free_orphans(inodes.len());
    // The newest first: it is the last in the orphan list, so no other takes its place there.
    let work = move |tx: &mut crate::arena::FsTransaction<'_>| {
        inodes.iter().rev().try_for_each(|&(slot, generation)| tx.free_unheld(slot, generation))
    };
    core.run_transaction(cost, work, Box::new(|_| {}));
}

//! Files of which a client (the kernel) may have pages in its own cache. After a write that bypasses that
//! cache, the front end looks here to invalidate old pages.

use crate::arena::OpenFileState;
use crate::fs::Fs;
use crate::types::Ino;
use std::time::Duration;

/// A note that a client may have cached pages of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ClientCacheNote {
    /// The time of the note, by the monotonic clock.
    noted_at: Duration,
    /// The age of the note.
    pub age: Duration,
}

impl Fs {
    /// Notes that a client may cache pages of a file from now on. Valid until it is
    /// [cleared](Fs::clear_client_cache_note) or the file has no opener any more. Does nothing without an
    /// opener.
    pub fn note_client_caching(&self, ino: Ino) {
        let now = self.core().monotonic();
        self.with_open_file(ino, |opens| opens.cached_at = Some(now));
    }

    /// The newest note that a client may cache pages of this file.
    pub fn client_cache_note(&self, ino: Ino) -> Option<ClientCacheNote> {
        let noted_at = self.with_open_file(ino, |opens| opens.cached_at)??;
        Some(ClientCacheNote { noted_at, age: self.core().monotonic().saturating_sub(noted_at) })
    }

    /// Clears a note because the client's pages were invalidated. A newer note stays.
    pub fn clear_client_cache_note(&self, ino: Ino, kept: ClientCacheNote) {
        self.with_open_file(ino, |opens| {
            opens.cached_at = opens.cached_at.filter(|&noted_at| noted_at != kept.noted_at);
        });
    }

    /// Calls `look` with what memory knows of an open file; `None` if the file is not open.
    fn with_open_file<T>(&self, ino: Ino, look: impl FnOnce(&mut OpenFileState) -> T) -> Option<T> {
        let state = self.core().read_state();
        let (slot, ..) = state.find_inode(ino).ok()?;
        let mut opens = state.open_files.lock().expect("no panic while holding the open counts");
        opens.get_mut(&slot.0).map(look)
    }
}

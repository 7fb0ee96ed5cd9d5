//! The files whose pages a holder may keep in its own memory, as the kernel does. A front end looks here after a write that goes around
//! these pages, to have old ones dropped.

use crate::arena::OpenFileState;
use crate::fs::Fs;
use crate::types::Ino;
use std::time::Duration;

/// A note that a holder may keep pages of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ClientCacheNote {
    /// By the monotonic clock.
    noted_at: Duration,
    /// How long ago they were last noted.
    pub age: Duration,
}

impl Fs {
    /// Pages of this file may be kept from now on, until they are [forgotten](Fs::forget_kept_pages), or nobody holds it any more. No effect
    /// where nobody holds it.
    pub fn note_client_caching(&self, ino: Ino) {
        let now = self.core().monotonic();
        self.with_open_file(ino, |opens| opens.cached_at = Some(now));
    }

    /// The newest note that pages of this file may be kept, if there is one.
    pub fn client_cache_note(&self, ino: Ino) -> Option<ClientCacheNote> {
        let noted_at = self.with_open_file(ino, |opens| opens.cached_at)??;
        Some(ClientCacheNote { noted_at, age: self.core().monotonic().saturating_sub(noted_at) })
    }

    /// No pages of this file are kept, unless some were noted after `kept`.
    pub fn clear_client_cache_note(&self, ino: Ino, kept: ClientCacheNote) {
        self.with_open_file(ino, |opens| {
            opens.cached_at = opens.cached_at.filter(|&noted_at| noted_at != kept.noted_at);
        });
    }

    /// Looks at the record of a file's holders; `None` if the file has none.
    fn with_open_file<T>(&self, ino: Ino, look: impl FnOnce(&mut OpenFileState) -> T) -> Option<T> {
        let state = self.core().read_state();
        let (slot, ..) = state.find_inode(ino).ok()?;
        let mut opens = state.open_files.lock().expect("no panic while holding the open counts");
        opens.get_mut(&slot.0).map(look)
    }
}

//! The files whose pages a holder may keep in its own memory, as the kernel does. A front end looks here after a write that goes around
//! these pages, to have old ones dropped.

use crate::arena::Opens;
use crate::fs::Fs;
use crate::types::Ino;
use std::time::Duration;

/// A note that a holder may keep pages of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KeptPages {
    /// By the monotonic clock.
    noted_at: Duration,
    /// How long ago they were last noted.
    pub age: Duration,
}

impl Fs {
    /// Pages of this file may be kept from now on, until they are [forgotten](Fs::forget_kept_pages), or nobody holds it any more. No effect
    /// where nobody holds it.
    pub fn note_kept_pages(&self, ino: Ino) {
        let now = self.core().monotonic();
        self.of_holders(ino, |opens| opens.pages_kept_at = Some(now));
    }

    /// The newest note that pages of this file may be kept, if there is one.
    pub fn kept_pages(&self, ino: Ino) -> Option<KeptPages> {
        let noted_at = self.of_holders(ino, |opens| opens.pages_kept_at)??;
        Some(KeptPages { noted_at, age: self.core().monotonic().saturating_sub(noted_at) })
    }

    /// No pages of this file are kept, unless some were noted after `kept`.
    pub fn forget_kept_pages(&self, ino: Ino, kept: KeptPages) {
        self.of_holders(ino, |opens| {
            opens.pages_kept_at = opens.pages_kept_at.filter(|&noted_at| noted_at != kept.noted_at);
        });
    }

    /// Looks at the record of a file's holders; `None` if the file has none.
    fn of_holders<T>(&self, ino: Ino, look: impl FnOnce(&mut Opens) -> T) -> Option<T> {
        let state = self.core().read();
        let (slot, ..) = state.find(ino).ok()?;
        let mut opens = state.opens.lock().expect("no panic while holding the open counts");
        opens.get_mut(&slot.0).map(look)
    }
}

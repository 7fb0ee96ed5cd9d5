//! Which files somebody who holds them, as the kernel does, may keep pages of: so a front end knows whom to tell of a change that goes
//! around these pages.

use crate::arena::Opens;
use crate::fs::Fs;
use crate::types::Ino;
use std::time::Duration;

/// That pages of a file may be kept.
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

    /// Whether pages of this file may be kept.
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

    /// What is known of a file while somebody holds it; `None` where nobody does.
    fn of_holders<T>(&self, ino: Ino, look: impl FnOnce(&mut Opens) -> T) -> Option<T> {
        let state = self.core().read();
        let (slot, ..) = state.find(ino).ok()?;
        let mut opens = state.opens.lock().expect("no panic while holding the open counts");
        opens.get_mut(&slot.0).map(look)
    }
}

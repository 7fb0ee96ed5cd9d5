//! Why bytes are appended to the buffer: what fills it, and whether other rules would help.

/// Why bytes are appended to the buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AppendCause {
    /// A sync logs pages that bypassed the buffer.
    Sync,
    /// The same for a background sync that a critical task waits for.
    LentSync,
    /// A write covers only a part of a page.
    PartOfPage,
    /// Names, sizes, holes and clones change. Counts bypassed pages that a new name needs, and the frames of
    /// transactions, too.
    Metadata,
    /// The buffer has the change already, in a group that is to be released.
    Relogged,
    /// A whole page is written and may not bypass the buffer; or it bypassed, and later a change depends on it,
    /// or the store is too slow.
    WholePage,
}

impl AppendCause {
    const COUNT: usize = AppendCause::WholePage as usize + 1;
}

/// Bytes appended to the buffer, by cause.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct AppendedBytes([u64; AppendCause::COUNT]);

impl AppendedBytes {
    /// The bytes that were appended for this cause.
    pub fn of(&self, cause: AppendCause) -> u64 {
        self.0[cause as usize]
    }

    /// All bytes that were appended.
    pub fn total(&self) -> u64 {
        self.0.iter().sum()
    }

    pub(crate) fn add(&mut self, cause: AppendCause, bytes: u64) {
        self.0[cause as usize] += bytes;
    }
}

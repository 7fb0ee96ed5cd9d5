//! What callers say: changes, costs, limits.

use device::{BLOCK_BYTES, ObjectId};
use std::time::Duration;

/// A change of one object's bytes, part of an atomic transaction.
#[derive(Debug, Clone, Copy)]
pub enum Change<'a> {
    /// Bytes from `offset` on become `bytes`.
    Write {
        /// The object.
        object: ObjectId,
        /// Position in the object, in bytes.
        offset: u64,
        /// The new bytes.
        bytes: &'a [u8],
    },
    /// Bytes become zeros; whole pages become holes. `len` may reach past everything that exists.
    Zero {
        /// The object.
        object: ObjectId,
        /// Position in the object, in bytes.
        offset: u64,
        /// How many bytes.
        len: u64,
    },
    /// The object and all its pages go; its id is never used again.
    Delete {
        /// The object.
        object: ObjectId,
    },
}

impl Change<'_> {
    /// Pages that this change may make dirty.
    pub(crate) fn pages(&self) -> u64 {
        match *self {
            Change::Write { bytes: [], .. } | Change::Delete { .. } => 0,
            Change::Write { offset, bytes, .. } => {
                let last = offset + bytes.len() as u64 - 1;
                last / BLOCK_BYTES as u64 - offset / BLOCK_BYTES as u64 + 1
            }
            // Only the two edges can be pages that are zeroed in part.
            Change::Zero { .. } => 2,
        }
    }

    /// The bytes that its records carry, without their headers.
    pub(crate) fn bytes(&self) -> u64 {
        match self {
            Change::Write { bytes, .. } => bytes.len() as u64,
            Change::Zero { .. } | Change::Delete { .. } => 0,
        }
    }
}

/// What an operation may need, stated when it enters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Cost {
    /// Pages that it may make dirty.
    pub pages: u64,
    /// Bytes that its records may hold, without their headers.
    pub bytes: u64,
    /// Records that it may write: one for each page that a change touches.
    pub records: u64,
    /// Whether it only gives space back (unlink, truncate to less): such operations use the last reserve.
    pub frees: bool,
}

impl Cost {
    /// What `changes` need.
    pub fn of(changes: &[Change<'_>]) -> Cost {
        changes.iter().fold(Cost::default(), |cost, change| Cost {
            pages: cost.pages + change.pages(),
            bytes: cost.bytes + change.bytes(),
            records: cost.records + change.pages() + 1,
            frees: false,
        })
    }
}

/// When and how pages are fetched (*Non-blocking Writes to Files*, section 4).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum FetchMode {
    /// A write to an absent page waits for the page, as other file systems do: the baseline.
    Blocking,
    /// A page is fetched when a reader asks for what its delta does not cover, or when it is written back.
    #[default]
    Lazy,
}

/// Limits and ages.
#[derive(Debug, Clone)]
pub struct Settings {
    /// When pages are fetched.
    pub fetch: FetchMode,
    /// Memory for pages and deltas, in bytes. Clean pages beyond it are dropped.
    pub memory_bytes_max: u64,
    /// Of these, how much may be newer than the store. Beyond half of it pages are written back; at all of it writers wait.
    pub dirty_bytes_max: u64,
    /// What was not synced is durable after this long.
    pub commit_interval: Duration,
    /// How far the store may lag behind the oldest change that is not stored.
    pub dirty_age_max: Duration,
    /// How long writers that find no space wait while nothing can be written back, before they get the store's error.
    pub store_patience: Duration,
    /// Where a commit takes less than this (as measured), a sync makes it in its own thread: handing it over would
    /// take longer. Zero: never.
    pub commit_inline_below: Duration,
    /// Blocks of log after which a checkpoint is due: what a recovery reads at most.
    pub checkpoint_blocks: u64,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            fetch: FetchMode::Lazy,
            memory_bytes_max: 512 << 20,
            dirty_bytes_max: 256 << 20,
            commit_interval: Duration::from_secs(1),
            dirty_age_max: Duration::from_secs(300),
            // A disk's own time-out: one that comes back within it was never away.
            store_patience: Duration::from_secs(30),
            // Two switches between threads, on a busy machine.
            commit_inline_below: Duration::from_micros(50),
            // 256 MiB: read back in about a second by anything faster than a single disk.
            checkpoint_blocks: 65536,
        }
    }
}

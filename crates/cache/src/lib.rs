#![doc = include_str!("../README.md")]
use buffer::Buffer;
use device::{Clock, ObjectId, Sequence};
use std::sync::Arc;
use std::time::Duration;
use store::{Store, StoreError};

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

/// What an operation may need, stated when it enters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Cost {
    /// Pages that it may make dirty.
    pub pages: u64,
    /// Bytes that its records may hold, without their headers.
    pub bytes: u64,
    /// Records that it may write.
    pub records: u64,
    /// Whether it only gives space back (unlink, truncate to less): such operations use the last reserve.
    pub frees: bool,
}

/// Permission to apply one transaction within its cost. Dropping it gives back what was not used.
pub struct Credit {}

/// When and how pages are fetched (*Non-blocking Writes to Files*, section 4).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum FetchMode {
    /// A write to an absent page waits for the page, as other file systems do: the baseline.
    Blocking,
    /// A page is fetched when somebody reads what its delta does not cover, or when it goes home.
    #[default]
    Lazy,
}

/// Limits and ages.
#[derive(Debug, Clone)]
pub struct Settings {
    /// When pages are fetched.
    pub fetch: FetchMode,
    /// Memory for pages and deltas, in bytes.
    pub memory_bytes_max: u64,
    /// Of these, how much may be newer than the store.
    pub dirty_bytes_max: u64,
    /// What nobody synced is durable after this long.
    pub commit_interval: Duration,
    /// How far the store may lag.
    pub dirty_age_max: Duration,
}

/// Why an operation failed.
#[derive(Debug, Clone, thiserror::Error)]
pub enum CacheError {
    /// The store failed or is full.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The buffer failed.
    #[error(transparent)]
    Buffer(#[from] buffer::BufferError),
    /// A single transaction is larger than the buffer allows.
    #[error("a transaction of {bytes} bytes is over the limit of {limit}")]
    TooBig {
        /// Its size.
        bytes: u64,
        /// The limit.
        limit: u64,
    },
}

/// A completion. Called once, with no lock held, maybe on the caller's own thread before the call returns.
pub type Then<T> = Box<dyn FnOnce(Result<T, CacheError>) + Send>;

/// Background work. Each kind may be stepped by one thread at a time or by several.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Task {
    /// Makes what was appended durable and completes syncs.
    Commit,
    /// Reads pages that somebody waits for.
    Fetch,
    /// Takes pages home, and with them cuts and deletions.
    WriteBack,
    /// Keeps recovery short.
    Checkpoint,
}

/// What a step did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Progress {
    /// Something: call again.
    Worked,
    /// Nothing to do now.
    Idle,
}

/// Pages and deltas.
pub struct Cache {}

impl Cache {
    /// Opens the stack above `store`: reads the buffer's records into deltas, begins a new incarnation on both.
    pub fn open(
        store: Arc<Store>,
        buffer_device: Arc<dyn device::Device>,
        clock: Arc<dyn Clock>,
        settings: Settings,
    ) -> Result<Cache, CacheError> {
        let _ = (store, buffer_device, clock, settings);
        let _: Option<Buffer> = None;
        unimplemented!()
    }

    /// Asks for room; `then` gets it at once where there is room, else when there is.
    pub fn admit(&self, cost: Cost, then: Then<Credit>) {
        let _ = (cost, then);
        unimplemented!()
    }

    /// Makes all of `changes` visible, in order, as one transaction: after a crash it is there as a whole or not
    /// at all, and only if every transaction before it is. Never waits. The caller orders its own calls.
    pub fn apply(&self, credit: &mut Credit, changes: &[Change<'_>]) -> Result<Sequence, CacheError> {
        let _ = (credit, changes);
        unimplemented!()
    }

    /// Reads `len` bytes from `offset` on: holes read as zeros. In `FetchMode::Blocking`, `fetch` is also what a
    /// write waits for.
    pub fn read(&self, object: ObjectId, offset: u64, len: usize, then: Then<Vec<u8>>) {
        let _ = (object, offset, len, then);
        unimplemented!()
    }

    /// In `FetchMode::Blocking`, completes once every page that this range covers only in part is in memory; in
    /// lazy mode at once.
    pub fn prepare_write(&self, object: ObjectId, offset: u64, len: usize, then: Then<()>) {
        let _ = (object, offset, len, then);
        unimplemented!()
    }

    /// Reads in the caller's thread, waiting for the device: for opening and checking, not for requests.
    pub fn read_now(&self, object: ObjectId, offset: u64, len: usize) -> Result<Vec<u8>, CacheError> {
        let _ = (object, offset, len);
        unimplemented!()
    }

    /// Completes when every change applied before the call is durable. Causes no store I/O while the buffer has
    /// room.
    pub fn sync(&self, then: Then<()>) {
        let _ = then;
        unimplemented!()
    }

    /// Does a bounded piece of background work in the caller's thread.
    pub fn step(&self, task: Task) -> Progress {
        let _ = task;
        unimplemented!()
    }

    /// Waits until there may be work of this kind, at most `timeout`.
    pub fn wait(&self, task: Task, timeout: Duration) {
        let _ = (task, timeout);
        unimplemented!()
    }

    /// Takes everything home and checkpoints, in the caller's thread: for a clean unmount.
    pub fn drain(&self) -> Result<(), CacheError> {
        unimplemented!()
    }

    /// The store below: for its counters and space.
    pub fn store(&self) -> &Arc<Store> {
        unimplemented!()
    }
}

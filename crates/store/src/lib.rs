#![doc = include_str!("../README.md")]
use device::{Block, Device, DeviceError, Incarnation, ObjectId, Page, PageNo, Sequence, StoreId};
use std::ops::Range;
use std::sync::Arc;

/// How to lay out a new store.
#[derive(Debug, Clone)]
pub struct Layout {
    /// Identity of the store.
    pub id: StoreId,
    /// Blocks of a segment; `None`: capacity / 256, between 1 and 128 MiB.
    pub segment_blocks: Option<u32>,
}

/// One change of the map, part of an atomic vector.
#[derive(Debug, Clone)]
pub enum Change {
    /// The page's bytes from now on, and the highest sequence that they contain.
    Write {
        /// The object.
        object: ObjectId,
        /// The page.
        page: PageNo,
        /// All its bytes.
        bytes: Arc<Page>,
        /// The highest sequence whose change these bytes contain.
        home: Sequence,
    },
    /// Pages become holes, but only those whose home is below `sequence`.
    Cut {
        /// The object.
        object: ObjectId,
        /// Which pages.
        pages: Range<PageNo>,
        /// The cut's place in the one order.
        sequence: Sequence,
    },
    /// The object and all its pages go.
    Delete {
        /// The object.
        object: ObjectId,
        /// The deletion's place in the one order.
        sequence: Sequence,
    },
    /// `to`, which has no pages, becomes what `from` is.
    Clone {
        /// The source.
        from: ObjectId,
        /// The new object.
        to: ObjectId,
        /// The clone's place in the one order.
        sequence: Sequence,
    },
}

/// What the store holds for a page.
#[derive(Debug)]
pub enum Found {
    /// Nothing: the page is zeros.
    Hole,
    /// Its bytes, and the highest sequence they contain.
    Page {
        /// The bytes, verified.
        bytes: Box<Page>,
        /// Their home sequence.
        home: Sequence,
    },
}

/// One page wanted from [`Store::read`].
#[derive(Debug)]
pub struct Want {
    /// The object.
    pub object: ObjectId,
    /// The page.
    pub page: PageNo,
    /// The answer, once `read` has returned.
    pub found: Result<Found, StoreError>,
}

/// The log-structured store.
pub struct Store {}

/// Blocks by what they are to the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Space {
    /// All blocks in segments.
    pub total: u64,
    /// Blocks that a map entry, a node or a root needs: an upper bound.
    pub live: u64,
    /// Blocks in free segments and the unwritten rest of open ones.
    pub free: u64,
    /// Free blocks promised to writers.
    pub reserved: u64,
}

/// Why the store could not do what it was asked.
#[derive(Debug, Clone, thiserror::Error)]
pub enum StoreError {
    /// The device failed.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// No room.
    #[error("the store is full")]
    Full,
    /// Bytes on the medium are not what was written.
    #[error("{device}: block {place}: {what}: checksum is {found:08x}, expected {expected:08x}")]
    Corrupt {
        /// Which device.
        device: String,
        /// Where.
        place: Block,
        /// What lies there.
        what: String,
        /// The checksum that was written down.
        expected: u32,
        /// The checksum of what is there.
        found: u32,
    },
}

impl Store {
    /// Lays out an empty store on `device` and makes it durable. Overwrites what was there.
    pub fn format(device: &dyn Device, layout: &Layout) -> Result<(), StoreError> {
        let _ = (device, layout);
        unimplemented!()
    }

    /// Opens and recovers the store on `device`. Writes nothing: what is damaged stays as it was.
    pub fn open(device: Arc<dyn Device>) -> Result<Store, StoreError> {
        let _ = device;
        unimplemented!()
    }

    /// x
    pub fn clean(&self) -> Result<bool, StoreError> { unimplemented!() }
    /// x
    pub fn can_clean(&self) -> bool { unimplemented!() }
    /// Which store this is.
    pub fn id(&self) -> StoreId {
        unimplemented!()
    }

    /// The incarnation found at opening, or the one begun since.
    pub fn incarnation(&self) -> Incarnation {
        unimplemented!()
    }

    /// The highest sequence that the store has seen.
    pub fn newest_sequence(&self) -> Sequence {
        unimplemented!()
    }

    /// Makes `incarnation`, which must be higher than the one found, durable. Before it, nothing may be applied.
    pub fn begin(&self, incarnation: Incarnation) -> Result<(), StoreError> {
        let _ = incarnation;
        unimplemented!()
    }

    /// Reads many pages with many reads in flight; each gets its own answer.
    pub fn read(&self, wants: &mut [Want]) {
        let _ = wants;
        unimplemented!()
    }

    /// The home sequence of a page; `None` for a hole. May read map nodes.
    pub fn home(&self, object: ObjectId, page: PageNo) -> Result<Option<Sequence>, StoreError> {
        let _ = (object, page);
        unimplemented!()
    }

    /// Applies all of `vector` or nothing; durable on return.
    pub fn apply(&self, vector: &[Change]) -> Result<(), StoreError> {
        let _ = vector;
        unimplemented!()
    }

    /// Promises room for `pages` more pages going home, map nodes included.
    pub fn reserve(&self, pages: u64) -> Result<(), StoreError> {
        let _ = pages;
        unimplemented!()
    }

    /// Gives back a promise for `pages` pages: used, or not needed after all.
    pub fn release(&self, pages: u64) {
        let _ = pages;
        unimplemented!()
    }

    /// Makes the map durable so that recovery starts here, and frees segments that no root needs any more.
    pub fn checkpoint(&self) -> Result<(), StoreError> {
        unimplemented!()
    }

    /// Blocks written to the log since the last checkpoint: what recovery would have to read.
    pub fn blocks_since_checkpoint(&self) -> u64 {
        unimplemented!()
    }

    /// How full it is.
    pub fn space(&self) -> Space {
        unimplemented!()
    }
}

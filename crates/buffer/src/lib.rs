#![doc = include_str!("../README.md")]
use device::{Device, DeviceError, Incarnation, ObjectId, PageNo, Sequence, StoreId};
use std::ops::Range;
use std::sync::Arc;

/// One visible change, as the buffer keeps it. Byte positions are within one page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Record<'a> {
    /// Bytes of a page change.
    Write {
        /// The object.
        object: ObjectId,
        /// The page.
        page: PageNo,
        /// Position of the first byte in the page.
        start: u16,
        /// The new bytes; they end within the page.
        bytes: &'a [u8],
    },
    /// Bytes of a page become zeros.
    Zero {
        /// The object.
        object: ObjectId,
        /// The page.
        page: PageNo,
        /// Position of the first byte in the page.
        start: u16,
        /// How many; they end within the page.
        len: u16,
    },
    /// Whole pages become holes.
    Cut {
        /// The object.
        object: ObjectId,
        /// The first page.
        from: PageNo,
        /// The page after the last.
        to: PageNo,
    },
    /// The object goes.
    Delete {
        /// The object.
        object: ObjectId,
    },
    /// `to` becomes what `from` is. Reserved in format version 1.
    Clone {
        /// The source.
        from: ObjectId,
        /// The new object.
        to: ObjectId,
    },
}

/// The number of a commit group: groups are numbered in the order of the log, without gaps, for ever.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct GroupNo(pub u64);

/// Where an appended transaction will lie.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Appended {
    /// The sequence of the transaction's first record; the others follow without gaps.
    pub first: Sequence,
    /// The sequence of its last record.
    pub last: Sequence,
    /// The commit group that holds the whole of it.
    pub group: GroupNo,
}

/// One transaction read back at recovery.
#[derive(Debug)]
pub struct Replayed<'a> {
    /// Sequence of the first record.
    pub first: Sequence,
    /// Whether every record has the next sequence, or all of them are one page's delta, re-logged, with `first`.
    pub merged: bool,
    /// The group it was found in.
    pub group: GroupNo,
    /// Its records, in order.
    pub records: &'a [Record<'a>],
}

/// Why the buffer could not do what it was asked.
#[derive(Debug, Clone, thiserror::Error)]
pub enum BufferError {
    /// The device failed. After a failed write or flush every later append and commit says so again.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// No room until something goes home.
    #[error("the buffer is full")]
    Full,
}

/// The non-volatile home of records that have not gone home yet.
pub struct Buffer {}

impl Buffer {
    /// Lays out an empty buffer for store `id` on the whole of `device`, writing every block once so that later
    /// writes allocate nothing in a file system below, and makes it durable.
    pub fn format(device: &dyn Device, id: StoreId) -> Result<(), BufferError> {
        let _ = (device, id);
        unimplemented!()
    }

    /// Opens the buffer of store `id` and hands every durable transaction to `replay`, in the order of the log.
    /// Writes nothing.
    pub fn open(
        device: Arc<dyn Device>,
        id: StoreId,
        replay: &mut dyn FnMut(Replayed<'_>),
    ) -> Result<Buffer, BufferError> {
        let _ = (device, id, replay);
        unimplemented!()
    }

    /// x
    pub fn footprint(records: u64, bytes: u64) -> u64 { records + bytes }
    /// x
    pub fn transaction_bytes_max(&self) -> u64 { unimplemented!() }
    /// x
    pub fn filling(&self) -> GroupNo { unimplemented!() }
    /// The incarnation found at opening, or the one begun since.
    pub fn incarnation(&self) -> Incarnation {
        unimplemented!()
    }

    /// The highest sequence in the buffer.
    pub fn newest_sequence(&self) -> Sequence {
        unimplemented!()
    }

    /// Makes `incarnation` durable; sequences go on after `newest`. Before it, nothing may be appended.
    pub fn begin(&self, incarnation: Incarnation, newest: Sequence) -> Result<(), BufferError> {
        let _ = (incarnation, newest);
        unimplemented!()
    }

    /// Adds a transaction to the open group, in memory: it gets the next sequences, and survives a crash as a
    /// whole or not at all, and only if everything appended before it does. Never waits for the device.
    pub fn append(&self, records: &[Record<'_>]) -> Result<Appended, BufferError> {
        let _ = records;
        unimplemented!()
    }

    /// Adds the surviving delta of one page again, under its own newest sequence, so that older groups can go.
    pub fn append_merged(&self, newest: Sequence, records: &[Record<'_>]) -> Result<GroupNo, BufferError> {
        let _ = (newest, records);
        unimplemented!()
    }

    /// Makes everything appended before the call durable and returns the highest durable sequence. Callers at the
    /// same time share one flush.
    pub fn commit(&self) -> Result<Sequence, BufferError> {
        unimplemented!()
    }

    /// The highest durable sequence.
    pub fn durable(&self) -> Sequence {
        unimplemented!()
    }

    /// The highest appended sequence.
    pub fn appended(&self) -> Sequence {
        unimplemented!()
    }

    /// Groups that may still be needed: from the oldest on media to the one being filled.
    pub fn groups(&self) -> Range<GroupNo> {
        unimplemented!()
    }

    /// Says that no group before `oldest_needed` is needed. Its space is used again after the next commit.
    pub fn release(&self, oldest_needed: GroupNo) {
        let _ = oldest_needed;
        unimplemented!()
    }

    /// Bytes of records, headers and padding included, that can surely be appended before `Full`.
    pub fn room_bytes(&self) -> u64 {
        unimplemented!()
    }

    /// Bytes that the log can hold in all.
    pub fn capacity_bytes(&self) -> u64 {
        unimplemented!()
    }

    /// Bytes appended and not yet handed to the device.
    pub fn open_bytes(&self) -> u64 {
        unimplemented!()
    }
}

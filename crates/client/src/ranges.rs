//! Ranges of files that the daemon changes together.

use crate::connection::ControlClient;
use crate::error::ClientError;
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, memfd_create};
use serde::{Deserialize, Serialize};
use serde_json::json;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::fs::FileExt;

/// The most ranges of a vector.
pub const RANGES_MAX: usize = 64;

/// The most bytes that a vector may write, and the most that it may compare. Bytes that are cloned, moved or deleted do not
/// count.
pub const BYTES_MAX: u64 = 1 << 20;

/// A place in one of the files that were sent along.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct FilePlace {
    /// The number of the file among those sent along, from 0.
    pub file: usize,
    /// In bytes, from the start of the file.
    pub offset: u64,
}

/// One part of a vector. Offsets and lengths are in bytes.
///
/// The request `change_ranges` has a list of these in its field `ranges`. The files come along as descriptors, in the order
/// of their numbers. If there is a write, a memfd comes last, with the bytes of all writes one after the other.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RangeChange {
    /// Writes the next `len` bytes of the memfd.
    Write {
        /// The start of the range that is written.
        to: FilePlace,
        /// The length of the range.
        len: u64,
    },
    /// Shares whole pages.
    Clone {
        /// The start of the range whose pages are shared.
        from: FilePlace,
        /// The start of the range that gets the pages.
        to: FilePlace,
        /// The length of both ranges.
        len: u64,
    },
    /// Shares whole pages and leaves a hole where they were.
    Move {
        /// The start of the range that becomes a hole.
        from: FilePlace,
        /// The start of the range that gets the pages.
        to: FilePlace,
        /// The length of both ranges.
        len: u64,
    },
    /// Leaves a hole.
    Delete {
        /// The start of the range.
        at: FilePlace,
        /// The length of the range.
        len: u64,
    },
    /// Nothing is changed unless both ranges have the same bytes.
    ExpectEqual {
        /// The start of one range.
        one: FilePlace,
        /// The start of the other range.
        other: FilePlace,
        /// The length of both ranges.
        len: u64,
    },
}

/// The reply to the request `change_ranges`, unless it is an error.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "outcome", rename_all = "snake_case")]
pub enum RangesReply {
    /// All of it is done, and durable.
    Changed,
    /// Nothing was changed: the two ranges of an expectation differ.
    Differs {
        /// The number of the expectation in the vector, from 0.
        range: usize,
    },
    /// Nothing was changed: the ranges to be compared were dropped from memory again and again.
    Busy,
}

/// The outcome of a vector.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum VectorOutcome {
    /// All of it is done, and durable.
    Changed,
    /// Nothing was changed: the two ranges of an expectation differ.
    Differs {
        /// The number of the expectation in the vector, from 0.
        range: usize,
    },
}

/// Ranges of files that are changed together: all of them or none.
///
/// All changed files lie on one mount; a move changes its source, too. Cloned files may lie on other mounts of the store, and
/// compared ones on those of read-only volumes. A file must be open for writing if a range of it is changed, and for reading if
/// a range of it is cloned, moved or compared.
///
/// # Promises
///
/// - **Rights.** A changed file loses its set-user-ID and set-group-ID bits first, also if the vector then changes nothing.
/// - **Atomic.** After a crash of the machine or of the daemon, either all of the changes are there or none.
/// - **Durable.** When [`ControlClient::change_ranges`] returns [`VectorOutcome::Changed`], no crash takes the changes back.
///   A crash before that leaves all of them or none, and so does an error that says nothing about the changes, such as
///   [`ClientError::NoAnswer`].
/// - **Compared before.** Expectations are about the files as they are before the changes of the vector, wherever they stand
///   in it. Nothing changes between the comparison and the changes. The daemon compares in memory: if the ranges were dropped
///   from it three times, the vector fails with [`ClientError::Busy`].
/// - **Seen.** Every read that begins later sees the changes. A read under way may see some pages as they were and others as
///   they are. A read of a cloned or moved range waits until the store has it.
///
/// # Limits
///
/// - A vector has at most [`RANGES_MAX`] ranges. It writes at most [`BYTES_MAX`] bytes, and compares at most [`BYTES_MAX`]
///   bytes.
/// - Clones and moves are of whole pages: their offsets are multiples of 4096 bytes, and so is the length, unless the target
///   ends with the range, and for a move the source as well. Offsets and lengths of writes, deletions and expectations are
///   any.
/// - A clone or move of more than 128 MiB has offsets that agree modulo 512 KiB.
/// - All ranges lie within their files: set a file's size before. So the kernel, which appends to files at the ends that it
///   knows, need not learn of another one.
/// - A range that is changed overlaps neither another one that is changed nor the source of a clone or move.
///
/// # Mapped files
///
/// The daemon does not know bytes that a program changed in a shared mapping (`mmap`) until the program syncs them with
/// `msync` or `fdatasync`. Until then no clone, move or expectation sees them, and their later write-back may overwrite what
/// the vector changed. [`ControlClient::change_ranges`] syncs nothing.
///
/// # Example
///
/// A page is replaced only if it is still the one that was read:
///
/// ```no_run
/// use client::{RangeVector, VectorOutcome, WeirMount};
/// use std::fs::File;
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let table = File::options().read(true).write(true).open("/mnt/table")?;
/// let known = File::open("/mnt/known")?;
/// let mut daemon = WeirMount::of_file(&table)?.connect()?;
/// let mut vector = RangeVector::new();
/// vector.expect_equal((&table, 8192), (&known, 0), 4096).write(&table, 8192, &[7; 4096]);
/// match daemon.change_ranges(&vector)? {
///     VectorOutcome::Changed => println!("replaced"),
///     VectorOutcome::Differs { .. } => println!("another program was faster"),
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Default)]
pub struct RangeVector<'a> {
    /// Each file once, in the order of their numbers.
    files: Vec<BorrowedFd<'a>>,
    changes: Vec<RangeChange>,
    /// The bytes of all writes.
    written: Vec<u8>,
}

impl<'a> RangeVector<'a> {
    /// A vector without ranges.
    pub fn new() -> RangeVector<'a> {
        RangeVector::default()
    }

    /// Writes `bytes` at `offset`.
    pub fn write(&mut self, file: &'a impl AsFd, offset: u64, bytes: &[u8]) -> &mut Self {
        let to = self.place((file, offset));
        self.written.extend_from_slice(bytes);
        self.add(RangeChange::Write { to, len: bytes.len() as u64 })
    }

    /// Gives the range at `to` the pages of the range at `from`, without copying their bytes. Whole pages: see [`RangeVector`].
    pub fn clone_range(
        &mut self,
        from: (&'a impl AsFd, u64),
        to: (&'a impl AsFd, u64),
        len: u64,
    ) -> &mut Self {
        let from = self.place(from);
        let to = self.place(to);
        self.add(RangeChange::Clone { from, to, len })
    }

    /// Gives the range at `to` the pages of the range at `from`, which becomes a hole. Whole pages: see [`RangeVector`].
    pub fn move_range(
        &mut self,
        from: (&'a impl AsFd, u64),
        to: (&'a impl AsFd, u64),
        len: u64,
    ) -> &mut Self {
        let from = self.place(from);
        let to = self.place(to);
        self.add(RangeChange::Move { from, to, len })
    }

    /// Makes `len` bytes at `offset` a hole, which reads as zeros. The file keeps its size.
    pub fn delete(&mut self, file: &'a impl AsFd, offset: u64, len: u64) -> &mut Self {
        let at = self.place((file, offset));
        self.add(RangeChange::Delete { at, len })
    }

    /// Changes nothing unless the two ranges of `len` bytes have the same bytes.
    pub fn expect_equal(
        &mut self,
        one: (&'a impl AsFd, u64),
        other: (&'a impl AsFd, u64),
        len: u64,
    ) -> &mut Self {
        let one = self.place(one);
        let other = self.place(other);
        self.add(RangeChange::ExpectEqual { one, other, len })
    }

    fn add(&mut self, change: RangeChange) -> &mut Self {
        self.changes.push(change);
        self
    }

    /// A place in a file, which gets a number if it has none.
    fn place(&mut self, (file, offset): (&'a impl AsFd, u64)) -> FilePlace {
        let file = file.as_fd();
        // A descriptor that is borrowed stays open, so that its number means the same file all the time.
        let known = self.files.iter().position(|known| known.as_raw_fd() == file.as_raw_fd());
        let number = known.unwrap_or_else(|| {
            self.files.push(file);
            self.files.len() - 1
        });
        FilePlace { file: number, offset }
    }

    /// Fails if the vector exceeds a limit.
    fn ensure_within_limits(&self) -> Result<(), ClientError> {
        let ranges = self.changes.len();
        if ranges > RANGES_MAX {
            return Err(ClientError::TooManyRanges { ranges });
        }
        let written = self.written.len() as u64;
        if written > BYTES_MAX {
            return Err(ClientError::TooManyBytesWritten { bytes: written });
        }
        let compared = self.changes.iter().map(|change| match change {
            RangeChange::ExpectEqual { len, .. } => *len,
            _ => 0,
        });
        let compared = compared.fold(0, u64::saturating_add);
        if compared > BYTES_MAX {
            return Err(ClientError::TooManyBytesCompared { bytes: compared });
        }
        Ok(())
    }

    /// A file in memory with the bytes of all writes, which nobody can change; `None` if nothing is written.
    fn written_as_memfd(&self) -> io::Result<Option<File>> {
        let has_writes = self.changes.iter().any(|change| matches!(change, RangeChange::Write { .. }));
        if !has_writes {
            return Ok(None);
        }
        let memfd = memfd_create(c"weir-ranges", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
        let memfd = File::from(memfd);
        // Leaves the position at the start, which the daemon's descriptor shares.
        memfd.write_all_at(&self.written, 0)?;
        fcntl_add_seals(&memfd, SealFlags::SHRINK | SealFlags::GROW | SealFlags::WRITE | SealFlags::SEAL)?;
        Ok(Some(memfd))
    }
}

impl ControlClient {
    /// Changes ranges of files together; see [`RangeVector`] for what is promised. Waits until the changes are durable.
    ///
    /// A vector without ranges is answered without the daemon. Any user may send a vector: what may be done with a file, the
    /// kernel decided when it was opened.
    ///
    /// # Errors
    ///
    /// Nothing was changed after [`ClientError::TooManyRanges`], [`ClientError::TooManyBytesWritten`],
    /// [`ClientError::TooManyBytesCompared`] and [`ClientError::Memfd`], when nothing was sent, nor after
    /// [`ClientError::Refused`], when the daemon says why. After [`ClientError::Busy`], when memory is short, nothing was
    /// changed either, and the same vector may succeed. After other errors all of the changes may be
    /// made, or none.
    pub fn change_ranges(&mut self, vector: &RangeVector<'_>) -> Result<VectorOutcome, ClientError> {
        vector.ensure_within_limits()?;
        if vector.changes.is_empty() {
            return Ok(VectorOutcome::Changed);
        }
        let memfd = vector.written_as_memfd().map_err(|source| ClientError::Memfd { source })?;
        let mut descriptors = vector.files.clone();
        descriptors.extend(memfd.as_ref().map(AsFd::as_fd));
        let request = json!({ "operation": "change_ranges", "ranges": vector.changes });
        match self.report_with(&request, &descriptors)? {
            RangesReply::Changed => Ok(VectorOutcome::Changed),
            RangesReply::Differs { range } => Ok(VectorOutcome::Differs { range }),
            RangesReply::Busy => Err(self.busy()),
        }
    }
}

#[cfg(test)]
mod tests;

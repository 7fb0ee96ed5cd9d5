//! A file or block device as a [`Device`].

use crate::batch;
use crate::sparse::{self, SpareSpaceCache};
use device::{BLOCK_BYTES, Block, BlockRead, Device, DeviceError, DeviceOperation, Page};
use rustix::fs::{FallocateFlags, SeekFrom};
use rustix::io::Errno;
use rustix::ioctl::{Opcode, Setter, opcode};
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

/// A file or block device, opened by [`open`](HostDisk::open) or [`create`](HostDisk::create).
#[derive(Debug)]
pub struct HostDisk {
    file: OwnedFd,
    name: String,
    kind: DiskKind,
    blocks: AtomicU64,
    spare: SpareSpaceCache,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum DiskKind {
    File,
    /// A file all of which has space: nobody wanted it to be sparse, so it is not made so.
    Preallocated,
    BlockDevice,
}

/// `BLKDISCARD` of linux/fs.h. It takes a start and a length, in bytes.
const BLKDISCARD: Opcode = opcode::none(0x12, 119);

impl HostDisk {
    pub(crate) fn new(file: OwnedFd, path: &Path, kind: DiskKind, blocks: u64) -> HostDisk {
        let (spare, blocks) = (SpareSpaceCache::default(), AtomicU64::new(blocks));
        HostDisk { file, name: path.display().to_string(), kind, blocks, spare }
    }

    pub(crate) fn with_blocks(self, blocks: u64) -> HostDisk {
        HostDisk { blocks: AtomicU64::new(blocks), ..self }
    }

    /// All of a file has got space.
    pub(crate) fn into_preallocated(self) -> HostDisk {
        let kind = if self.kind == DiskKind::File { DiskKind::Preallocated } else { self.kind };
        HostDisk { kind, ..self }
    }

    /// How many bytes it has now. The end of a block device is its size; `stat` says 0 there.
    pub(crate) fn measure(&self) -> Result<u64, Errno> {
        rustix::fs::seek(&self.file, SeekFrom::End(0))
    }

    pub(crate) fn kind(&self) -> DiskKind {
        self.kind
    }

    pub(crate) fn file(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    /// Does `step`, which returns how many bytes it moved, until all of them moved.
    fn transfer_all(
        &self,
        at: Block,
        count: usize,
        mut step: impl FnMut(usize, u64) -> StepResult,
    ) -> StepEnd {
        let start = at.0 * BLOCK_BYTES as u64;
        let mut done = 0;
        while done < count * BLOCK_BYTES {
            match step(done, start + done as u64) {
                Ok(0) => return Err(IoFailure::Short(done)),
                Ok(moved) => done += moved,
                Err(Errno::INTR) => {}
                Err(errno) => return Err(IoFailure::Errno(errno)),
            }
        }
        Ok(())
    }

    fn read_singly(&self, reads: &mut [BlockRead], which: Vec<usize>) {
        for index in which {
            let read = &mut reads[index];
            read.result = self.read(read.at, &mut read.pages);
        }
    }

    fn check(&self, operation: DeviceOperation, at: Block, count: u64) -> Result<(), DeviceError> {
        match at.0.checked_add(count) {
            Some(end) if end <= self.blocks() => Ok(()),
            _ => {
                let reason = format!("past the end of the device, which has {} blocks", self.blocks());
                Err(self.error(operation, at, count, Errno::INVAL, reason))
            }
        }
    }

    fn error(
        &self,
        operation: DeviceOperation,
        at: Block,
        count: u64,
        errno: Errno,
        reason: String,
    ) -> DeviceError {
        DeviceError { device: self.name.clone(), operation, at, count, errno: errno.raw_os_error(), reason }
    }

    fn failed(&self, operation: DeviceOperation, at: Block, count: u64, failure: IoFailure) -> DeviceError {
        match failure {
            IoFailure::Errno(errno) => {
                let reason = std::io::Error::from(errno).to_string();
                self.error(operation, at, count, errno, reason)
            }
            IoFailure::Short(bytes) => {
                let reason = format!("the device ended after {bytes} bytes; was it made shorter?");
                self.error(operation, at, count, Errno::IO, reason)
            }
        }
    }

    fn discard(&self, at: Block, count: u64) -> Result<(), Errno> {
        let bytes = [at.0 * BLOCK_BYTES as u64, count * BLOCK_BYTES as u64];
        match self.kind {
            DiskKind::File | DiskKind::Preallocated => {
                let mode = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
                rustix::fs::fallocate(&self.file, mode, bytes[0], bytes[1])
            }
            DiskKind::BlockDevice => {
                // SAFETY: BLKDISCARD reads two 64-bit numbers behind its argument, which is what `Setter` passes,
                // and writes nothing to memory.
                unsafe { rustix::ioctl::ioctl(&self.file, Setter::<BLKDISCARD, [u64; 2]>::new(bytes)) }
            }
        }
    }
}

type StepResult = Result<usize, Errno>;
type StepEnd = Result<(), IoFailure>;

enum IoFailure {
    Errno(Errno),
    /// Nothing more to move after so many bytes.
    Short(usize),
}

impl Device for HostDisk {
    fn blocks(&self) -> u64 {
        self.blocks.load(Ordering::Acquire)
    }

    fn grow(&self, blocks: u64) -> Result<(), DeviceError> {
        let failed = |errno| self.failed(DeviceOperation::Grow, Block(0), blocks, IoFailure::Errno(errno));
        let bytes = |blocks: u64| blocks * BLOCK_BYTES as u64;
        let length = self.measure().map_err(failed)?;
        let end = length.max(bytes(blocks));
        let known = bytes(self.blocks());
        if self.kind == DiskKind::Preallocated && known < end {
            sparse::allocate(self.file(), known, end - known).map_err(|errno| {
                // Some file systems keep what lies behind a file's end until its length is set.
                let _ = rustix::fs::ftruncate(&self.file, length);
                failed(errno)
            })?;
        }
        if self.kind != DiskKind::BlockDevice && length < end {
            rustix::fs::ftruncate(&self.file, end).map_err(failed)?;
        }
        let found = self.measure().map_err(failed)? / BLOCK_BYTES as u64;
        self.blocks.fetch_max(found, Ordering::AcqRel);
        Ok(())
    }

    fn name(&self) -> &str {
        &self.name
    }

    fn read(&self, at: Block, into: &mut [Page]) -> Result<(), DeviceError> {
        let count = into.len();
        self.check(DeviceOperation::Read, at, count as u64)?;
        let bytes = Page::bytes_mut(into);
        self.transfer_all(at, count, |done, offset| rustix::io::pread(&self.file, &mut bytes[done..], offset))
            .map_err(|failure| self.failed(DeviceOperation::Read, at, count as u64, failure))
    }

    fn read_batch(&self, reads: &mut [BlockRead]) {
        let in_range =
            |read: &BlockRead| self.check(DeviceOperation::Read, read.at, read.pages.len() as u64).is_ok();
        let left = batch::read(self.file.as_fd(), reads, in_range);
        self.read_singly(reads, left);
    }

    fn read_batch_while(&self, reads: &mut [BlockRead], meanwhile: &mut dyn FnMut()) {
        let in_range =
            |read: &BlockRead| self.check(DeviceOperation::Read, read.at, read.pages.len() as u64).is_ok();
        let left = batch::read_while(self.file.as_fd(), reads, in_range, meanwhile);
        self.read_singly(reads, left);
    }

    fn write(&self, at: Block, from: &[Page]) -> Result<(), DeviceError> {
        let count = from.len();
        self.check(DeviceOperation::Write, at, count as u64)?;
        let bytes = Page::bytes(from);
        self.transfer_all(at, count, |done, offset| rustix::io::pwrite(&self.file, &bytes[done..], offset))
            .map_err(|failure| self.failed(DeviceOperation::Write, at, count as u64, failure))
    }

    fn flush(&self) -> Result<(), DeviceError> {
        loop {
            match rustix::fs::fdatasync(&self.file) {
                Ok(()) => return Ok(()),
                Err(Errno::INTR) => {}
                Err(errno) => {
                    return Err(self.failed(DeviceOperation::Flush, Block(0), 0, IoFailure::Errno(errno)));
                }
            }
        }
    }

    fn trim(&self, at: Block, count: u64) -> Result<(), DeviceError> {
        self.check(DeviceOperation::Trim, at, count)?;
        // What was allocated in full is to stay so.
        if count == 0 || self.kind == DiskKind::Preallocated {
            return Ok(());
        }
        match self.discard(at, count) {
            // Trimming is a hint: a device that does not know it loses nothing.
            Ok(()) | Err(Errno::OPNOTSUPP | Errno::NOSYS | Errno::NOTTY) => Ok(()),
            Err(errno) => Err(self.failed(DeviceOperation::Trim, at, count, IoFailure::Errno(errno))),
        }
    }

    fn allocate(&self, at: Block, count: u64) -> Result<(), DeviceError> {
        if self.kind == DiskKind::BlockDevice || count == 0 {
            return Ok(());
        }
        self.check(DeviceOperation::Allocate, at, count)?;
        let bytes = [at.0, count].map(|blocks| blocks * BLOCK_BYTES as u64);
        let outcome = sparse::allocate(self.file(), bytes[0], bytes[1]);
        self.spare.forget();
        outcome.map_err(|errno| self.failed(DeviceOperation::Allocate, at, count, IoFailure::Errno(errno)))
    }

    fn allocated(&self) -> Option<Vec<Range<Block>>> {
        match self.kind {
            DiskKind::File => Some(sparse::allocated(self.file(), self.blocks())),
            DiskKind::Preallocated | DiskKind::BlockDevice => None,
        }
    }

    fn spare_blocks(&self) -> Option<u64> {
        match self.kind {
            DiskKind::File => self.spare.blocks(self.file()),
            DiskKind::Preallocated | DiskKind::BlockDevice => None,
        }
    }
}

//! The contract for raw media.

use crate::address::Block;
use crate::page::Page;
use std::borrow::Cow;
use std::ops::Range;
use std::{fmt, io};

/// A raw medium, addressed in blocks.
///
/// A write is *accepted* when `write` returns. It is *durable* when a later `flush`, begun after the write
/// was accepted, returns without error. Until then an accepted write may reach the media or not, in any order
/// with other accepted writes. It may be torn at 512 bytes: each sector is the old or the new one, and can be
/// read (SQLite calls that powersafe overwrite).
///
/// A block that was never written, or was trimmed, reads as zeros or as old bytes until it is written again.
/// A caller that must know the difference keeps a checksum.
///
/// After a failed flush it is unknown which of the accepted writes are durable. A later flush that succeeds
/// does not change that.
///
/// Calls may come from many threads at once. They wait for the device, so workers make them, holding no lock
/// that a request needs.
pub trait Device: Send + Sync {
    /// The capacity, in blocks. Only [`grow`](Device::grow) changes it while the device is open.
    fn blocks(&self) -> u64;

    /// The device's name for an operator: a path, or a name in the simulator.
    fn name(&self) -> &str;

    /// Makes a file at least `blocks` blocks long. Any other medium is asked for its present size.
    ///
    /// The size found is the [capacity](Device::blocks) from then on, unless it is smaller than before. New
    /// blocks read as zeros or as old bytes; they are durable after a flush. After an error the capacity is
    /// unchanged.
    fn grow(&self, _blocks: u64) -> Result<(), DeviceError> {
        Ok(())
    }

    /// Fills `into` with the blocks from `at` on.
    fn read(&self, at: Block, into: &mut [Page]) -> Result<(), DeviceError>;

    /// Reads many ranges, in any order, as many at a time as the device likes. Returns when all are done.
    /// Each read gets its own result.
    fn read_batch(&self, reads: &mut [BlockRead]) {
        for read in reads {
            read.result = self.read(read.at, &mut read.pages);
        }
    }

    /// Like [`read_batch`](Device::read_batch), and calls `meanwhile` once: during the reads, if the device
    /// can do without this thread.
    fn read_batch_while(&self, reads: &mut [BlockRead], meanwhile: &mut dyn FnMut()) {
        meanwhile();
        self.read_batch(reads);
    }

    /// Writes `from` to the blocks from `at` on.
    fn write(&self, at: Block, from: &[Page]) -> Result<(), DeviceError>;

    /// Makes every write accepted before the call durable.
    fn flush(&self) -> Result<(), DeviceError>;

    /// Tells the device that the bytes of these blocks are no longer needed. They read as zeros or as the old
    /// bytes. Like a write, a trim is durable only after a flush.
    fn trim(&self, at: Block, count: u64) -> Result<(), DeviceError>;

    /// Reserves space for these blocks in the host file system, so that writing them cannot fail for lack of
    /// it until they are trimmed.
    ///
    /// The blocks keep their bytes. Like a write, an allocation is durable only after a flush. After an error
    /// no space was taken.
    fn allocate(&self, _at: Block, _count: u64) -> Result<(), DeviceError> {
        Ok(())
    }

    /// The blocks that are known to have space in the host file system, in order. Other blocks must be
    /// [allocated](Device::allocate) to be sure. `None`: every block has space always, even after a trim.
    fn allocated(&self) -> Option<Vec<Range<Block>>> {
        None
    }

    /// Whether all writes are lost when the device is closed, as with an [overlay](crate::OverlayDevice).
    fn forgets_writes(&self) -> bool {
        false
    }

    /// About how many more blocks the host file system can give to the device, at most a second old. `None`:
    /// unknown, or the device needs none.
    ///
    /// Returns at once, but may ask the host file system: the caller should hold no lock.
    fn spare_blocks(&self) -> Option<u64> {
        None
    }
}

/// One read of a batch.
pub struct BlockRead {
    /// The first block.
    pub at: Block,
    /// The memory for the bytes; its length is the number of blocks to read.
    pub pages: Vec<Page>,
    /// The result; meaningful after `read_batch` returns.
    pub result: Result<(), DeviceError>,
}

impl BlockRead {
    /// A read of `count` blocks from `at` on.
    pub fn new(at: Block, count: usize) -> BlockRead {
        BlockRead { at, pages: crate::page::pages(count), result: Ok(()) }
    }
}

/// The kind of a device's operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DeviceOperation {
    /// A read.
    Read,
    /// A write.
    Write,
    /// A flush.
    Flush,
    /// A trim.
    Trim,
    /// An allocation of space in the host file system.
    Allocate,
    /// More capacity.
    Grow,
}

/// A failed operation of a device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceError {
    /// The device's name.
    pub device: String,
    /// The operation that failed.
    pub operation: DeviceOperation,
    /// The first block; 0 for a flush and for growth.
    pub at: Block,
    /// The number of blocks; 0 for a flush, the whole new capacity for growth.
    pub count: u64,
    /// The operating system's error number; EIO where there is none.
    pub errno: i32,
    /// The reason, in words.
    pub reason: String,
}

impl std::error::Error for DeviceError {}

/// The error numbers for "no space left" and "quota exceeded", on every Linux.
const NO_SPACE: [i32; 2] = [28, 122];

impl DeviceError {
    /// Whether the host file system has no space left for the device: ENOSPC or EDQUOT.
    pub fn is_no_space(&self) -> bool {
        NO_SPACE.contains(&self.errno)
    }

    /// The next step for the operator.
    pub fn help(&self) -> Option<Cow<'static, str>> {
        Some(match io::Error::from_raw_os_error(self.errno).kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
                "free some space on the host file system, or give a smaller size".into()
            }
            _ => "look for messages of the device in the kernel's log (`dmesg`)".into(),
        })
    }
}

impl fmt::Display for DeviceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let verb = match self.operation {
            DeviceOperation::Read => "reading",
            DeviceOperation::Write => "writing",
            DeviceOperation::Flush => return write!(f, "{}: flushing: {}", self.device, self.reason),
            DeviceOperation::Trim => "trimming",
            DeviceOperation::Allocate => "allocating space for",
            DeviceOperation::Grow => return write!(f, "{}: making it larger: {}", self.device, self.reason),
        };
        write!(f, "{}: {verb} {} block(s) at block {}: {}", self.device, self.count, self.at, self.reason)
    }
}

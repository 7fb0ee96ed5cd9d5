//! The contract for raw media.

use crate::address::Block;
use crate::page::Page;
use std::borrow::Cow;
use std::ops::Range;
use std::{fmt, io};

/// A raw medium, addressed in blocks.
///
/// A write is *accepted* when `write` returns and *durable* when a later `flush`, begun after it was accepted,
/// returns without error. Until then it may reach the media or not, in any order with other accepted writes, and
/// may be torn at 512 bytes: each sector is the old or the new one, and can be read (SQLite calls that powersafe overwrite). A block that was never written, or was trimmed, reads as zeros or as old bytes until
/// it is written again: whoever needs to know keeps a checksum.
///
/// After a failed flush nobody knows which of the accepted writes are durable, not even after a later flush that
/// succeeds.
///
/// Calls may come from many threads at once. They wait for the device, so they are made by workers, holding no
/// lock that a request needs.
pub trait Device: Send + Sync {
    /// The capacity, in blocks. Only [`grow`](Device::grow) changes it while the device is open.
    fn blocks(&self) -> u64;

    /// What an operator calls this device: a path, or a name in the simulator.
    fn name(&self) -> &str;

    /// Makes a file so many blocks long, if it is shorter; of anything else, asks how large it is by now. Whatever is found is the
    /// [capacity](Device::blocks) from then on, unless it is smaller. What is new reads as zeros or as old bytes; it is durable after
    /// a flush. After an error the capacity is what it was.
    fn grow(&self, _blocks: u64) -> Result<(), DeviceError> {
        Ok(())
    }

    /// Fills `into` with the blocks from `at` on.
    fn read(&self, at: Block, into: &mut [Page]) -> Result<(), DeviceError>;

    /// Reads many places, in any order, as many at a time as the device likes, and returns when all are done.
    /// Every read gets its own result.
    fn read_batch(&self, reads: &mut [BlockRead]) {
        for read in reads {
            read.result = self.read(read.at, &mut read.pages);
        }
    }

    /// [`read_batch`](Device::read_batch), and does `meanwhile` once: while it reads, if the device can do without this thread.
    fn read_batch_while(&self, reads: &mut [BlockRead], meanwhile: &mut dyn FnMut()) {
        meanwhile();
        self.read_batch(reads);
    }

    /// Writes `from` to the blocks from `at` on.
    fn write(&self, at: Block, from: &[Page]) -> Result<(), DeviceError>;

    /// Makes every write accepted before the call durable.
    fn flush(&self) -> Result<(), DeviceError>;

    /// Tells the device that the bytes of these blocks are no longer needed. They read as zeros or as what they
    /// were. Like a write, it is durable only after a flush.
    fn trim(&self, at: Block, count: u64) -> Result<(), DeviceError>;

    /// Makes sure that writing these blocks needs no more space from what holds the device, until they are trimmed. What they
    /// hold stays. Like a write, it is durable only after a flush. After an error nothing was taken.
    fn allocate(&self, _at: Block, _count: u64) -> Result<(), DeviceError> {
        Ok(())
    }

    /// The blocks known to need no more space from what holds the device, in order; those of others must be
    /// [allocated](Device::allocate) to be sure. `None`: no block ever does, not even one that was trimmed.
    fn allocated(&self) -> Option<Vec<Range<Block>>> {
        None
    }

    /// Whether nothing that is written lasts longer than this device is open, as with an [overlay](crate::OverlayDevice).
    fn forgets_writes(&self) -> bool {
        false
    }

    /// How many blocks what holds the device can still give to it, about: not older than a second. `None`: nobody knows, or it needs
    /// none. Answers at once; it may ask the file system, so the caller holds no lock.
    fn spare_blocks(&self) -> Option<u64> {
        None
    }
}

/// One read of a batch.
pub struct BlockRead {
    /// The first block.
    pub at: Block,
    /// Where the bytes go; their number is the number of blocks.
    pub pages: Vec<Page>,
    /// How it went; meaningful after `read_batch` returns.
    pub result: Result<(), DeviceError>,
}

impl BlockRead {
    /// A read of `count` blocks from `at` on.
    pub fn new(at: Block, count: usize) -> BlockRead {
        BlockRead { at, pages: crate::page::pages(count), result: Ok(()) }
    }
}

/// What was asked of a device.
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
    /// An allocation of space below.
    Allocate,
    /// More capacity.
    Grow,
}

/// A device could not do what it was asked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceError {
    /// The device's name.
    pub device: String,
    /// What was asked.
    pub operation: DeviceOperation,
    /// The first block; 0 for a flush and for more capacity.
    pub at: Block,
    /// The number of blocks; 0 for a flush, all for more capacity.
    pub count: u64,
    /// The operating system's error number; EIO where there is none.
    pub errno: i32,
    /// Why, in words.
    pub reason: String,
}

impl std::error::Error for DeviceError {}

/// Error numbers of a file system that has no space left, or none for this user, on every Linux.
const NO_SPACE: [i32; 2] = [28, 122];

impl DeviceError {
    /// Whether what holds the device has no space left for it: ENOSPC or EDQUOT.
    pub fn is_no_space(&self) -> bool {
        NO_SPACE.contains(&self.errno)
    }

    /// The next step.
    pub fn help(&self) -> Option<Cow<'static, str>> {
        Some(match io::Error::from_raw_os_error(self.errno).kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
                "free some space on the file system below, or give a smaller size".into()
            }
            _ => "see the kernel's log (`dmesg`) for the device's own words".into(),
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

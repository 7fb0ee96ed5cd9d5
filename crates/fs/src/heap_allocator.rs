//! The heap: blocks of 32 bytes to 4 KiB for directories, link targets and extended attributes, in classes by
//! powers of two.
//!
//! A block lies within one page, so a change of it is a delta of one page. An allocated block comes from its
//! class's free list, else it is halved from a larger block, else it comes from a fresh page. Halves never
//! merge again: there are few classes, and directories grow through the same ones, so freed blocks are used.

use crate::arena::{Arena, FsTransaction, corrupt};
use crate::error::FsError;
use crate::format::{HEAP_LOG2_MAX, HEAP_LOG2_MIN, HEAP_UNITS_PER_PAGE, HeapBlock};
use zerocopy::IntoBytes;
use zerocopy::little_endian::U32;

/// The class for `bytes`, as the logarithm of its block size.
pub(crate) fn class_log2(bytes: usize) -> u32 {
    assert!(bytes <= 1 << HEAP_LOG2_MAX, "{bytes} bytes are more than a heap block");
    bytes.max(1).next_power_of_two().trailing_zeros().max(HEAP_LOG2_MIN)
}

/// Bytes of a block of this class.
pub(crate) fn class_bytes(log2: u32) -> usize {
    1 << log2
}

fn class_index(log2: u32) -> usize {
    (log2 - HEAP_LOG2_MIN) as usize
}

impl Arena {
    /// The free block after this one.
    pub(crate) fn next_free(&self, block: HeapBlock) -> Result<HeapBlock, FsError> {
        Ok(HeapBlock(self.get::<U32>(block.offset())?.get()))
    }

    pub(crate) fn block_bytes(&self, block: HeapBlock, log2: u32) -> Result<&[u8], FsError> {
        let inside =
            u64::from(block.0) + (1 << (log2 - HEAP_LOG2_MIN)) <= u64::from(self.header().heap_used.get());
        if block.is_none() || !inside || !block.0.is_multiple_of(1 << (log2 - HEAP_LOG2_MIN)) {
            return Err(corrupt(block.offset(), format!("a reference to a block of {} bytes", 1 << log2)));
        }
        self.bytes(block.offset(), class_bytes(log2))
    }
}

impl FsTransaction<'_> {
    /// Allocates a block of the class `log2`. It keeps its old bytes.
    pub(crate) fn allocate_block(&mut self, log2: u32) -> Result<HeapBlock, FsError> {
        let mut have = log2;
        while have <= HEAP_LOG2_MAX && self.header().heap_free[class_index(have)] == 0 {
            have += 1;
        }
        let block = if have > HEAP_LOG2_MAX {
            have = HEAP_LOG2_MAX;
            self.extend_heap()?
        } else {
            let block = HeapBlock(self.header().heap_free[class_index(have)].get());
            self.block_bytes(block, have)?;
            let next = self.next_free(block)?;
            self.change_header(|header| header.heap_free[class_index(have)] = U32::new(next.0));
            block
        };
        while have > log2 {
            have -= 1;
            self.free_block(HeapBlock(block.0 + (1 << (have - HEAP_LOG2_MIN))), have);
        }
        Ok(block)
    }

    /// Frees a block of the class `log2`.
    pub(crate) fn free_block(&mut self, block: HeapBlock, log2: u32) {
        let next = self.header().heap_free[class_index(log2)];
        self.write(block.offset(), next.as_bytes());
        self.change_header(|header| header.heap_free[class_index(log2)] = U32::new(block.0));
    }

    /// Frees pages from `first` to `last` that are linked like free pages.
    pub(crate) fn free_page_chain(&mut self, first: HeapBlock, last: HeapBlock) {
        let class = class_index(HEAP_LOG2_MAX);
        let next = self.header().heap_free[class];
        self.write(last.offset(), next.as_bytes());
        self.change_header(|header| header.heap_free[class] = U32::new(first.0));
    }

    fn extend_heap(&mut self) -> Result<HeapBlock, FsError> {
        let used = self.header().heap_used.get();
        let after = used.checked_add(HEAP_UNITS_PER_PAGE).ok_or(FsError::NoSpace)?;
        self.change_header(|header| header.heap_used = U32::new(after));
        // The page must be readable before anything is written to its end.
        let last = HeapBlock(used).offset() + class_bytes(HEAP_LOG2_MAX) as u64 - 1;
        self.extend_to(last);
        Ok(HeapBlock(used))
    }
}

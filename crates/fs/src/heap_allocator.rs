//! The heap: blocks of 32 bytes to 4 KiB for names and link targets, by power-of-two classes.
//!
//! A block lies within one page, so a change of it is a delta of one page. A block is taken from its class's free
//! list, else halved from a larger one, else from a fresh page. Halves never merge again: classes are few and
//! directories keep growing through the same ones, so what is freed gets used.

use crate::arena::{Arena, FsTransaction, corrupt};
use crate::error::FsError;
use crate::format::{HEAP_LOG2_MAX, HEAP_LOG2_MIN, HEAP_UNITS_PER_PAGE, HeapBlock};
use zerocopy::IntoBytes;
use zerocopy::little_endian::U32;

/// The class that `bytes` need, as the logarithm of its block size.
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
    /// A block of the class `log2`; its bytes are whatever they were.
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

    /// Frees pages that are linked as free ones are, from `first` to `last`.
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
        // Reading the page must work even before anything is written to its end.
        let last = HeapBlock(used).offset() + class_bytes(HEAP_LOG2_MAX) as u64 - 1;
        self.extend_to(last);
        Ok(HeapBlock(used))
    }
}

//! The heap blocks of an inode's attributes: one block of the class that fits the records, or as many whole
//! pages as they need. Blocks are linked like free blocks, so freeing all of them changes one reference, in
//! the last, however many there are.

use super::XATTRS_BYTES_MAX;
use crate::arena::{Arena, FsTransaction, corrupt};
use crate::error::FsError;
use crate::format::{HEAP_LOG2_MAX, HEAP_LOG2_MIN, HeapBlock, Inode, XattrBlockHead};
use crate::heap_allocator::{class_bytes, class_log2};
use zerocopy::IntoBytes;
use zerocopy::little_endian::{U16, U32};

/// Bytes of each block's head.
const HEAD: usize = size_of::<XattrBlockHead>();

/// Bytes of records in one page.
const PART_BYTES: usize = (1 << HEAP_LOG2_MAX) - HEAD;

/// Most blocks of one inode.
pub(crate) const XATTR_BLOCKS_MAX: usize = XATTRS_BYTES_MAX.div_ceil(PART_BYTES);

/// Blocks for a string of `bytes` bytes.
pub(crate) fn blocks_for(bytes: usize) -> usize {
    bytes.div_ceil(PART_BYTES)
}

/// One block of a chain.
#[derive(Debug, Clone, Copy)]
pub(crate) struct XattrBlock {
    pub(crate) block: HeapBlock,
    pub(crate) log2: u32,
    used: usize,
}

impl Arena {
    /// The blocks of an inode's attributes, in order.
    pub(crate) fn xattr_blocks(&self, inode: &Inode) -> Result<Vec<XattrBlock>, FsError> {
        let (mut links, mut next) = (Vec::new(), inode.xattrs());
        while !next.is_none() {
            let head: XattrBlockHead = self.get(next.offset())?;
            let (log2, used) = (u32::from(head.size_log2), usize::from(head.used.get()));
            let after = HeapBlock(head.next.get());
            let whole = log2 == HEAP_LOG2_MAX && used == PART_BYTES;
            let sane = (HEAP_LOG2_MIN..=HEAP_LOG2_MAX).contains(&log2)
                && (1..=class_bytes(log2) - HEAD).contains(&used)
                && (links.is_empty() || log2 == HEAP_LOG2_MAX)
                && (after.is_none() || whole)
                && links.len() < XATTR_BLOCKS_MAX;
            if !sane {
                return Err(corrupt(next.offset(), format!("a block of attributes with head {head:?}")));
            }
            links.push(XattrBlock { block: next, log2, used });
            next = after;
        }
        Ok(links)
    }

    /// The string of an inode's attributes.
    pub(crate) fn xattrs(&self, inode: &Inode) -> Result<Vec<u8>, FsError> {
        let links = self.xattr_blocks(inode)?;
        let mut string = Vec::with_capacity(links.iter().map(|link| link.used).sum());
        for link in links {
            string.extend_from_slice(&self.block_bytes(link.block, link.log2)?[HEAD..HEAD + link.used]);
        }
        Ok(string)
    }
}

impl FsTransaction<'_> {
    /// Makes `string` the records of `inode`. The caller writes the inode.
    pub(crate) fn write_xattrs(&mut self, inode: &mut Inode, string: &[u8]) -> Result<(), FsError> {
        if string.is_empty() {
            self.free_xattrs(inode)?;
            inode.set_xattrs(HeapBlock::NONE);
            return Ok(());
        }
        let log2 = if string.len() <= PART_BYTES { class_log2(HEAD + string.len()) } else { HEAP_LOG2_MAX };
        let old = self.xattr_blocks(inode)?;
        let mut blocks: Vec<HeapBlock> = Vec::new();
        if old.first().is_some_and(|first| first.log2 == log2) {
            blocks.extend(old.iter().map(|link| link.block));
        } else {
            self.free_xattrs(inode)?;
        }
        let parts = blocks_for(string.len());
        if blocks.len() > parts {
            // The surplus pages are linked already. Only pages are ever more than one.
            self.free_page_chain(blocks[parts], *blocks.last().expect("more than none"));
            blocks.truncate(parts);
        }
        while blocks.len() < parts {
            blocks.push(self.allocate_block(log2)?);
        }
        for (index, part) in string.chunks(PART_BYTES).enumerate() {
            let head = XattrBlockHead {
                next: U32::new(blocks.get(index + 1).map_or(0, |next| next.0)),
                used: U16::new(part.len() as u16),
                size_log2: log2 as u8,
                reserved: 0,
            };
            self.write(blocks[index].offset(), head.as_bytes());
            self.write(blocks[index].offset() + HEAD as u64, part);
        }
        inode.set_xattrs(blocks[0]);
        Ok(())
    }

    /// Frees all blocks of an inode's attributes. The inode must not refer to them any more.
    pub(crate) fn free_xattrs(&mut self, inode: &Inode) -> Result<(), FsError> {
        match self.xattr_blocks(inode)?[..] {
            [] => {}
            [only] => self.free_block(only.block, only.log2),
            [first, .., last] => self.free_page_chain(first.block, last.block),
        }
        Ok(())
    }
}

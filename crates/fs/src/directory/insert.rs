//! Adds names. A full leaf is compacted if enough of it is removed names, else it moves to a block of the
//! next class, else it splits. A split adds a child to the node above, which may split in turn.

use super::NameTree;
use super::key::{KEYS_PER_HASH, hash_in};
use super::node::{
    CHILDREN_MAX, HEAD, LEAF_LOG2_MIN, LEVELS_MAX, LeafName, NAME_HEAD, NameLeaf, encode_leaf, encode_name,
    inner_children,
};
use super::path::{FoundName, LeafPath, PathStep, descend};
use crate::arena::FsTransaction;
use crate::error::FsError;
use crate::format::{DirChild, HEAP_LOG2_MAX, HeapBlock, InodeSlot, kind_number};
use crate::heap_allocator::{class_bytes, class_log2};
use crate::types::FileKind;
use zerocopy::IntoBytes;
use zerocopy::little_endian::{U16, U32, U64};

/// Attempts to make space: six doublings grow a leaf to a page, then a split or two make space for any name.
const ATTEMPTS: usize = 8;

impl NameTree {
    /// Adds a name, which must not exist.
    pub(crate) fn insert(
        &mut self,
        tx: &mut FsTransaction<'_>,
        hash: u64,
        name: &[u8],
        slot: InodeSlot,
        kind: FileKind,
    ) -> Result<(), FsError> {
        let need = NAME_HEAD + name.len();
        if self.root.is_none() {
            let log2 = class_log2(HEAD + need).max(LEAF_LOG2_MIN);
            self.root = self.new_leaf(tx, log2, &[])?;
        }
        for _ in 0..ATTEMPTS {
            let (path, block) = descend(tx.arena(), self.root, hash)?;
            let leaf = NameLeaf::read(tx.arena(), block)?;
            let log2 = u32::from(leaf.head.size_log2);
            if usize::from(leaf.head.used.get()) + need <= class_bytes(log2) {
                let key = unused_key(&leaf, hash)?;
                append_name(tx, block, key, slot, kind, name)?;
                return Ok(());
            }
            self.make_space(tx, &path, block, need)?;
        }
        Err(FsError::NoSpace)
    }

    pub(crate) fn new_leaf(
        &mut self,
        tx: &mut FsTransaction<'_>,
        log2: u32,
        names: &[LeafName<'_>],
    ) -> Result<HeapBlock, FsError> {
        let block = tx.allocate_block(log2)?;
        tx.write(block.offset(), &encode_leaf(log2, names));
        self.bytes += class_bytes(log2) as u64;
        Ok(block)
    }

    fn make_space(
        &mut self,
        tx: &mut FsTransaction<'_>,
        path: &LeafPath,
        block: HeapBlock,
        need: usize,
    ) -> Result<(), FsError> {
        let copy = tx
            .arena()
            .block_bytes(block, u32::from(NameLeaf::read(tx.arena(), block)?.head.size_log2))?
            .to_vec();
        let leaf = NameLeaf::of(&copy, block)?;
        let names = leaf.sorted()?;
        let log2 = u32::from(leaf.head.size_log2);
        let used = usize::from(leaf.head.used.get());
        let dead = usize::from(leaf.head.dead.get());
        // Compacts only if a quarter is removed names, so that their removals pay for the work.
        if used - dead + need <= class_bytes(log2) && dead * 4 >= class_bytes(log2) {
            tx.write(block.offset(), &encode_leaf(log2, &names));
            return Ok(());
        }
        if log2 == HEAP_LOG2_MAX {
            return self.split_leaf(tx, path, block, &names);
        }
        // Only a leaf that is, or was, the root is smaller than a page.
        let grown = self.new_leaf(tx, (log2 + 1).max(class_log2((used - dead + need).min(4096))), &names)?;
        self.free_block(tx, block, log2);
        self.repoint(tx, path, grown)
    }

    fn split_leaf(
        &mut self,
        tx: &mut FsTransaction<'_>,
        path: &LeafPath,
        block: HeapBlock,
        names: &[LeafName<'_>],
    ) -> Result<(), FsError> {
        let middle = middle_of(names).ok_or(FsError::NoSpace)?;
        let (left, right) = names.split_at(middle);
        tx.write(block.offset(), &encode_leaf(HEAP_LOG2_MAX, left));
        let fresh = self.new_leaf(tx, HEAP_LOG2_MAX, right)?;
        self.add_child(tx, &path.steps, hash_in(right[0].key), fresh)
    }

    /// Adds a child after the one through which the path goes.
    fn add_child(
        &mut self,
        tx: &mut FsTransaction<'_>,
        steps: &[PathStep],
        key: u64,
        block: HeapBlock,
    ) -> Result<(), FsError> {
        let mut new = DirChild { key: U64::new(key), block: U32::new(block.0) };
        for step in steps.iter().rev() {
            let mut children = inner_children(tx.arena(), step.block)?.to_vec();
            children.insert(step.index + 1, new);
            if children.len() <= CHILDREN_MAX {
                tx.write_inner(step.block, step.level, &children);
                return Ok(());
            }
            let right = children.split_off(children.len() / 2);
            tx.write_inner(step.block, step.level, &children);
            let fresh = self.new_inner(tx, step.level, &right)?;
            new = DirChild { key: right[0].key, block: U32::new(fresh.0) };
        }
        let level = self.levels(tx.arena())? + 1;
        if level > LEVELS_MAX {
            return Err(FsError::NoSpace);
        }
        let first = DirChild { key: U64::new(0), block: U32::new(self.root.0) };
        self.root = self.new_inner(tx, level, &[first, new])?;
        Ok(())
    }

    fn new_inner(
        &mut self,
        tx: &mut FsTransaction<'_>,
        level: u8,
        children: &[DirChild],
    ) -> Result<HeapBlock, FsError> {
        let block = tx.allocate_block(HEAP_LOG2_MAX)?;
        tx.write_inner(block, level, children);
        self.bytes += class_bytes(HEAP_LOG2_MAX) as u64;
        Ok(block)
    }

    /// Frees a block of the tree.
    pub(crate) fn free_block(&mut self, tx: &mut FsTransaction<'_>, block: HeapBlock, log2: u32) {
        tx.free_block(block, log2);
        self.bytes -= class_bytes(log2) as u64;
    }

    /// Makes the node above the end of `path`, or the root, refer to `block` instead.
    fn repoint(
        &mut self,
        tx: &mut FsTransaction<'_>,
        path: &LeafPath,
        block: HeapBlock,
    ) -> Result<(), FsError> {
        let Some(step) = path.steps.last() else {
            self.root = block;
            return Ok(());
        };
        let mut children = inner_children(tx.arena(), step.block)?.to_vec();
        children[step.index].block = U32::new(block.0);
        tx.write_inner(step.block, step.level, &children);
        Ok(())
    }
}

/// Points an existing name at another inode.
pub(crate) fn replace_name(tx: &mut FsTransaction<'_>, found: FoundName, slot: InodeSlot, kind: FileKind) {
    let at = found.leaf.offset() + found.at as u64 + 8;
    tx.write(at, U32::new(slot.0).as_bytes());
    tx.write(at + 4, &[kind_number(kind)]);
}

/// The first unused key for `hash`. All names of one hash are in one leaf.
fn unused_key(leaf: &NameLeaf<'_>, hash: u64) -> Result<u64, FsError> {
    let mut taken = 0u32;
    for name in leaf.names_of(hash) {
        taken |= 1 << (name?.key - hash);
    }
    let rank = u64::from(taken.trailing_ones());
    if rank < KEYS_PER_HASH { Ok(hash + rank) } else { Err(FsError::NoSpace) }
}

fn append_name(
    tx: &mut FsTransaction<'_>,
    block: HeapBlock,
    key: u64,
    slot: InodeSlot,
    kind: FileKind,
    name: &[u8],
) -> Result<(), FsError> {
    let mut head = NameLeaf::read(tx.arena(), block)?.head;
    let mut bytes = Vec::with_capacity(NAME_HEAD + name.len());
    encode_name(key, slot, kind, name, &mut bytes);
    tx.write(block.offset() + u64::from(head.used.get()), &bytes);
    head.used += U16::new(bytes.len() as u16);
    head.live += 1;
    tx.write(block.offset(), head.as_bytes());
    Ok(())
}

/// Where to split sorted names: near the middle of their bytes, never between two names of one hash.
fn middle_of(names: &[LeafName<'_>]) -> Option<usize> {
    let total: usize = names.iter().map(LeafName::bytes).sum();
    let mut before = 0;
    let mut best: Option<(usize, usize)> = None;
    for (index, pair) in names.windows(2).enumerate() {
        before += pair[0].bytes();
        let distance = (before * 2).abs_diff(total);
        let allowed = hash_in(pair[0].key) != hash_in(pair[1].key);
        if allowed && best.is_none_or(|(_, least)| distance < least) {
            best = Some((index + 1, distance));
        }
    }
    best.map(|(index, _)| index)
}

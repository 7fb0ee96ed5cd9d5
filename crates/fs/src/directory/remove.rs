//! Removes names. A name is marked, or cut off if it is the last one in its leaf. A leaf without names is
//! freed, and nodes without children with it.
//!
//! A sparse node joins a neighbour if both together leave space to grow. Two sparse ones always do, so of two
//! neighbours that lose names one is not sparse: a directory that lost nearly all names has lost nearly all
//! its blocks.

use super::NameTree;
use super::node::{
    CHILDREN_MAX, HEAD, LEAF_LOG2_MIN, NAME_HEAD, NameLeaf, block_head, encode_leaf, inner_children,
};
use super::path::{LeafPath, PathStep, descend, find_in};
use crate::arena::FsTransaction;
use crate::error::FsError;
use crate::format::{DirBlockHead, DirChild, DirNameHead, HEAP_LOG2_MAX, HeapBlock};
use crate::heap_allocator::{class_bytes, class_log2};
use std::mem::offset_of;
use zerocopy::IntoBytes;
use zerocopy::little_endian::U16;

/// Bytes and children of two nodes that may join: a quarter of the page stays free, so that the next few
/// names do not split it again.
const JOINED_BYTES_MAX: usize = (1 << HEAP_LOG2_MAX) / 4 * 3;
const JOINED_CHILDREN_MAX: usize = CHILDREN_MAX / 4 * 3;

/// A node with less is sparse. Two of these can join, and the halves of a split have a little more.
const SPARSE_BYTES: usize = JOINED_BYTES_MAX / 2;
const SPARSE_CHILDREN: usize = JOINED_CHILDREN_MAX / 2;

impl NameTree {
    /// Removes a name.
    pub(crate) fn remove(
        &mut self,
        tx: &mut FsTransaction<'_>,
        hash: u64,
        name: &[u8],
    ) -> Result<(), FsError> {
        if self.root.is_none() {
            return Err(FsError::NotFound);
        }
        let (path, block) = descend(tx.arena(), self.root, hash)?;
        let leaf = NameLeaf::read(tx.arena(), block)?;
        let mut head = leaf.head;
        let found = find_in(&leaf, hash, name)?.ok_or(FsError::NotFound)?;
        if head.live == 1 {
            self.free_block(tx, block, u32::from(head.size_log2));
            return self.prune(tx, path);
        }
        let bytes = (NAME_HEAD + name.len()) as u16;
        head.live -= 1;
        if found.at + usize::from(bytes) == usize::from(head.used.get()) {
            head.used -= U16::new(bytes);
        } else {
            head.dead += U16::new(bytes);
            tx.write(block.offset() + (found.at + offset_of!(DirNameHead, kind)) as u64, &[0]);
        }
        tx.write(block.offset(), head.as_bytes());
        match path.steps.last() {
            None => self.shrink_root(tx, block, head),
            Some(_) if live_bytes(head) < SPARSE_BYTES => self.join_leaf(tx, path),
            Some(_) => Ok(()),
        }
    }

    /// Moves a leaf that is the whole tree into a smaller block, twice as large as it needs.
    fn shrink_root(
        &mut self,
        tx: &mut FsTransaction<'_>,
        block: HeapBlock,
        head: DirBlockHead,
    ) -> Result<(), FsError> {
        let (log2, live) = (u32::from(head.size_log2), live_bytes(head));
        if log2 == LEAF_LOG2_MIN || live * 4 > class_bytes(log2) {
            return Ok(());
        }
        let copy = tx.arena().block_bytes(block, log2)?.to_vec();
        let names = NameLeaf::of(&copy, block)?.sorted()?;
        self.root = self.new_leaf(tx, class_log2(live * 2).max(LEAF_LOG2_MIN), &names)?;
        self.free_block(tx, block, log2);
        Ok(())
    }

    /// Joins the sparse leaf at the end of `path` to a neighbour below the same node, if one has space.
    fn join_leaf(&mut self, tx: &mut FsTransaction<'_>, path: LeafPath) -> Result<(), FsError> {
        let step = *path.steps.last().expect("a leaf with neighbours has a node above");
        let children = inner_children(tx.arena(), step.block)?.to_vec();
        for right in right_siblings(step.index, children.len()) {
            let (left, gone) = (child_block(&children, right - 1), child_block(&children, right));
            let (left_head, gone_head) = (block_head(tx.arena(), left)?, block_head(tx.arena(), gone)?);
            if live_bytes(left_head) + live_bytes(gone_head) - HEAD > JOINED_BYTES_MAX {
                continue;
            }
            let copy = |block| tx.arena().block_bytes(block, HEAP_LOG2_MAX).map(<[u8]>::to_vec);
            let (left_bytes, gone_bytes) = (copy(left)?, copy(gone)?);
            let mut names = NameLeaf::of(&left_bytes, left)?.sorted()?;
            names.extend(NameLeaf::of(&gone_bytes, gone)?.sorted()?);
            tx.write(left.offset(), &encode_leaf(HEAP_LOG2_MAX, &names));
            self.free_block(tx, gone, HEAP_LOG2_MAX);
            return self.drop_child(tx, path, right);
        }
        Ok(())
    }

    /// Removes the freed leaf at the end of `path` from the tree, and with it nodes without other children.
    fn prune(&mut self, tx: &mut FsTransaction<'_>, path: LeafPath) -> Result<(), FsError> {
        match path.steps.last().map(|step| step.index) {
            Some(index) => self.drop_child(tx, path, index),
            None => {
                self.root = HeapBlock::NONE;
                Ok(())
            }
        }
    }

    /// Removes a child, whose block is freed already, of the node at the end of `path`.
    fn drop_child(
        &mut self,
        tx: &mut FsTransaction<'_>,
        mut path: LeafPath,
        mut index: usize,
    ) -> Result<(), FsError> {
        loop {
            let Some(step) = path.steps.pop() else {
                self.root = HeapBlock::NONE;
                return Ok(());
            };
            let mut children = inner_children(tx.arena(), step.block)?.to_vec();
            children.remove(index);
            let above = path.steps.last().copied();
            if children.is_empty() {
                self.free_block(tx, step.block, HEAP_LOG2_MAX);
                index = above.map_or(0, |above| above.index);
            } else if let Some(above) = above
                && let Some(gone) = self.join_inner(tx, above, step, &children)?
            {
                index = gone;
            } else {
                tx.write_inner(step.block, step.level, &children);
                break;
            }
        }
        while block_head(tx.arena(), self.root)?.level > 0 {
            let &[only] = inner_children(tx.arena(), self.root)? else { break };
            let old = std::mem::replace(&mut self.root, HeapBlock(only.block.get()));
            self.free_block(tx, old, HEAP_LOG2_MAX);
        }
        Ok(())
    }

    /// Joins the node of `step`, which is left with `children`, to a neighbour below the node of `above`, if
    /// both have few. Returns the index of the child that `above` loses then.
    fn join_inner(
        &mut self,
        tx: &mut FsTransaction<'_>,
        above: PathStep,
        step: PathStep,
        children: &[DirChild],
    ) -> Result<Option<usize>, FsError> {
        if children.len() >= SPARSE_CHILDREN {
            return Ok(None);
        }
        let siblings = inner_children(tx.arena(), above.block)?.to_vec();
        for right in right_siblings(above.index, siblings.len()) {
            let (left, gone) = (child_block(&siblings, right - 1), child_block(&siblings, right));
            let of = |block: HeapBlock| match block == step.block {
                true => Ok(children.to_vec()),
                false => inner_children(tx.arena(), block).map(<[DirChild]>::to_vec),
            };
            let (mut joined, mut more) = (of(left)?, of(gone)?);
            if joined.len() + more.len() > JOINED_CHILDREN_MAX {
                continue;
            }
            // A first child's key is ignored, and may be wrong; the node above has the right one.
            more[0].key = siblings[right].key;
            joined.extend(more);
            tx.write_inner(left, step.level, &joined);
            self.free_block(tx, gone, HEAP_LOG2_MAX);
            return Ok(Some(right));
        }
        Ok(None)
    }
}

/// Bytes of a leaf without removed names, including the head.
fn live_bytes(head: DirBlockHead) -> usize {
    usize::from(head.used.get()) - usize::from(head.dead.get())
}

/// For the child at `index` and each of its neighbours, the index of the right one of the two.
fn right_siblings(index: usize, children: usize) -> impl Iterator<Item = usize> {
    [index + 1, index].into_iter().filter(move |right| (1..children).contains(right))
}

fn child_block(children: &[DirChild], index: usize) -> HeapBlock {
    HeapBlock(children[index].block.get())
}

//! Finds the leaf for a key.

use super::NameTree;
use super::node::{self, NameLeaf, inner_children};
use crate::arena::{Arena, corrupt};
use crate::error::FsError;
use crate::format::{DirChild, HeapBlock, InodeSlot};
use crate::types::FileKind;

/// An inner node on a path, and the index of the child through which the path goes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PathStep {
    pub(crate) block: HeapBlock,
    pub(crate) level: u8,
    pub(crate) index: usize,
}

/// The path from the root to a leaf.
#[derive(Debug, Default)]
pub(crate) struct LeafPath {
    /// The root's first.
    pub(crate) steps: Vec<PathStep>,
    /// Keys of the tree below this one, and not before the leaf, are in the leaf; `None` in the last leaf.
    pub(crate) end: Option<u64>,
}

/// A name that was found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct FoundName {
    pub(crate) leaf: HeapBlock,
    /// The offset of the name's head in the block.
    pub(crate) at: usize,
    pub(crate) slot: InodeSlot,
    pub(crate) kind: FileKind,
}

/// The child through which the path to `key` goes. The first child's key is ignored: the path goes through it
/// if no other child fits, so a node that lost its first child needs no change in the node above.
fn child_for(children: &[DirChild], key: u64) -> usize {
    children[1..].partition_point(|child| child.key.get() <= key)
}

/// The leaf for `key`, and the path to it. The tree must not be empty.
pub(crate) fn descend(arena: &Arena, root: HeapBlock, key: u64) -> Result<(LeafPath, HeapBlock), FsError> {
    let (mut path, mut block) = (LeafPath::default(), root);
    let mut level = node::block_head(arena, root)?.level;
    while level > 0 {
        let children = inner_children(arena, block)?;
        let index = child_for(children, key);
        if let Some(next) = children.get(index + 1) {
            path.end = Some(next.key.get());
        }
        path.steps.push(PathStep { block, level, index });
        block = HeapBlock(children[index].block.get());
        let below = node::block_head(arena, block)?.level;
        if below + 1 != level {
            return Err(corrupt(
                block.offset(),
                format!("a directory block of level {below} below level {level}"),
            ));
        }
        level = below;
    }
    Ok((path, block))
}

impl NameTree {
    /// Finds `name`, whose hash is `hash`.
    pub(crate) fn find(&self, arena: &Arena, hash: u64, name: &[u8]) -> Result<Option<FoundName>, FsError> {
        if self.root.is_none() {
            return Ok(None);
        }
        let (_, block) = descend(arena, self.root, hash)?;
        find_in(&NameLeaf::read(arena, block)?, hash, name)
    }

    /// Inner levels.
    pub(crate) fn levels(&self, arena: &Arena) -> Result<u8, FsError> {
        if self.root.is_none() { Ok(0) } else { Ok(node::block_head(arena, self.root)?.level) }
    }
}

pub(crate) fn find_in(leaf: &NameLeaf<'_>, hash: u64, name: &[u8]) -> Result<Option<FoundName>, FsError> {
    let found = leaf.find(hash, name)?;
    Ok(found.map(|one| FoundName { leaf: leaf.block, at: one.at, slot: one.slot, kind: one.kind }))
}

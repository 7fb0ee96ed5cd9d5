//! Directories: names in the order of their keys.
//!
//! A directory is a tree of heap blocks. A small one is a single leaf, whose block doubles from 64 bytes to a
//! page. Then the leaf splits, and inner nodes of one page each lead to leaves. Both shapes list names in the
//! same order, so a cookie, which is a name's key, stays valid while a directory grows and shrinks.
//!
//! `node` reads and writes blocks, `path` finds the leaf for a key, `insert` and `remove` change trees,
//! `list` reads them in order.

mod insert;
mod key;
mod list;
mod node;
mod path;
mod remove;

pub(crate) use insert::replace_name;
#[cfg(test)]
pub(crate) use key::KEYS_PER_HASH;
pub(crate) use key::{hash_in, hash_of};
pub(crate) use node::{LEVELS_MAX, LeafName, NameLeaf, inner_children};
pub(crate) use path::FoundName;

use crate::arena::FsTransaction;
use crate::error::FsError;
use crate::format::{HeapBlock, Inode, InodeSlot};

/// A directory's tree, as its inode describes it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct NameTree {
    pub(crate) root: HeapBlock,
    /// Bytes of all blocks: the directory's size.
    pub(crate) bytes: u64,
}

impl NameTree {
    pub(crate) fn of(inode: &Inode) -> NameTree {
        NameTree { root: inode.root(), bytes: inode.size() }
    }

    /// Writes root and size into the directory's inode.
    pub(crate) fn store(self, tx: &mut FsTransaction<'_>, directory: InodeSlot) -> Result<(), FsError> {
        let mut inode = tx.inode(directory)?;
        inode.set_root(self.root);
        inode.set_size(self.bytes);
        tx.set_inode(directory, &inode);
        Ok(())
    }
}

//! Taking a name away. It is marked, or cut off where it is the last one written; a leaf without names goes, and
//! nodes without children with it. Half-empty neighbours are not merged: names come back more often than they stay
//! away, and an empty directory is nothing at all.

use super::Tree;
use super::node::{HEAD, Leaf, NAME_HEAD, head, inner};
use super::path::{Path, descend, find_in};
use crate::error::FsError;
use crate::format::{HEAP_LOG2_MAX, HeapBlock, NameHead};
use crate::transaction::Transaction;
use std::mem::offset_of;
use zerocopy::IntoBytes;
use zerocopy::little_endian::U16;

impl Tree {
    /// Takes away a name that is there.
    pub(crate) fn remove(&mut self, tx: &mut Transaction<'_>, hash: u64, name: &[u8]) -> Result<(), FsError> {
        if self.root.is_none() {
            return Err(FsError::NotFound);
        }
        let (path, block) = descend(tx.arena(), self.root, hash)?;
        let leaf = Leaf::read(tx.arena(), block)?;
        let mut head = leaf.head;
        let found = find_in(&leaf, hash, name)?.ok_or(FsError::NotFound)?;
        if head.live == 1 {
            self.give(tx, block, u32::from(head.size_log2));
            return self.prune(tx, path);
        }
        let bytes = (NAME_HEAD + name.len()) as u16;
        head.live -= 1;
        if found.at + usize::from(bytes) == usize::from(head.used.get()) {
            head.used -= U16::new(bytes);
        } else {
            head.dead += U16::new(bytes);
            tx.write(block.offset() + (found.at + offset_of!(NameHead, kind)) as u64, &[0]);
        }
        tx.write(block.offset(), head.as_bytes());
        Ok(())
    }

    /// The leaf at the end of `path` is gone: so are the nodes that led to nothing else.
    fn prune(&mut self, tx: &mut Transaction<'_>, mut path: Path) -> Result<(), FsError> {
        loop {
            let Some(step) = path.steps.pop() else {
                self.root = HeapBlock::NONE;
                return Ok(());
            };
            let mut children = inner(tx.arena(), step.block)?.to_vec();
            children.remove(step.index);
            if !children.is_empty() {
                tx.write_inner(step.block, step.level, &children);
                break;
            }
            self.give(tx, step.block, HEAP_LOG2_MAX);
        }
        while head(tx.arena(), self.root)?.level > 0 {
            let &[only] = inner(tx.arena(), self.root)? else { break };
            let old = std::mem::replace(&mut self.root, HeapBlock(only.block.get()));
            self.give(tx, old, HEAP_LOG2_MAX);
        }
        debug_assert!(usize::from(head(tx.arena(), self.root)?.used.get()) > HEAD);
        Ok(())
    }
}

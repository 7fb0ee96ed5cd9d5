//! Blocks of a directory's tree. A leaf's names are appended in any order, and marked when they are removed.
//! An inner node's children are in the order of their keys.

use super::key::hash_in;
use crate::arena::{Arena, FsTransaction, corrupt};
use crate::error::FsError;
use crate::format::{
    DirBlockHead, DirChild, DirNameHead, HEAP_LOG2_MAX, HEAP_LOG2_MIN, HeapBlock, InodeSlot, kind_number,
    kind_of,
};
use crate::heap_allocator::class_bytes;
use crate::types::FileKind;
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, IntoBytes};

pub(crate) const HEAD: usize = size_of::<DirBlockHead>();
pub(crate) const NAME_HEAD: usize = size_of::<DirNameHead>();

/// The most children of an inner node.
pub(crate) const CHILDREN_MAX: usize = (class_bytes_const(HEAP_LOG2_MAX) - HEAD) / size_of::<DirChild>();

const fn class_bytes_const(log2: u32) -> usize {
    1 << log2
}

/// The most inner levels of a tree. A split leaves at least 170 children, so six levels hold more names than
/// there are inodes.
pub(crate) const LEVELS_MAX: u8 = 6;

/// The smallest leaf. Most directories of sources or mail need at least this.
pub(crate) const LEAF_LOG2_MIN: u32 = 6;

/// A leaf, borrowed from the arena.
pub(crate) struct NameLeaf<'a> {
    pub(crate) block: HeapBlock,
    pub(crate) head: DirBlockHead,
    bytes: &'a [u8],
}

/// A name in a leaf.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct LeafName<'a> {
    /// The offset of the name's head in the block.
    pub(crate) at: usize,
    pub(crate) key: u64,
    pub(crate) slot: InodeSlot,
    pub(crate) kind: FileKind,
    pub(crate) name: &'a [u8],
}

impl LeafName<'_> {
    /// Bytes in the leaf.
    pub(crate) fn bytes(&self) -> usize {
        NAME_HEAD + self.name.len()
    }
}

/// A block's head, checked against the block.
pub(crate) fn block_head(arena: &Arena, block: HeapBlock) -> Result<DirBlockHead, FsError> {
    let head: DirBlockHead = arena.get(block.offset())?;
    let log2 = u32::from(head.size_log2);
    let used = usize::from(head.used.get());
    let sane = (HEAP_LOG2_MIN..=HEAP_LOG2_MAX).contains(&log2)
        && (HEAD..=class_bytes(log2)).contains(&used)
        && head.level <= LEVELS_MAX;
    if sane {
        Ok(head)
    } else {
        Err(corrupt(block.offset(), format!("a directory block with head {head:?}")))
    }
}

impl<'a> NameLeaf<'a> {
    pub(crate) fn read(arena: &'a Arena, block: HeapBlock) -> Result<NameLeaf<'a>, FsError> {
        let head = block_head(arena, block)?;
        if head.level != 0 {
            return Err(corrupt(block.offset(), "a leaf of a directory has a level"));
        }
        let bytes = arena.block_bytes(block, u32::from(head.size_log2))?;
        Ok(NameLeaf { block, head, bytes: &bytes[..usize::from(head.used.get())] })
    }

    /// A leaf in bytes that were copied from `block`.
    pub(crate) fn of(bytes: &'a [u8], block: HeapBlock) -> Result<NameLeaf<'a>, FsError> {
        let cut = || corrupt(block.offset(), "a leaf of a directory is cut off");
        let (&head, _) = DirBlockHead::ref_from_prefix(bytes).map_err(|_| cut())?;
        let bytes = bytes.get(..usize::from(head.used.get())).ok_or_else(cut)?;
        Ok(NameLeaf { block, head, bytes })
    }

    /// The names, without removed ones, in the order of their insertion.
    pub(crate) fn names(&self) -> impl Iterator<Item = Result<LeafName<'a>, FsError>> + use<'a> {
        let bytes = self.bytes;
        let block = self.block;
        let mut at = HEAD;
        std::iter::from_fn(move || {
            while at < bytes.len() {
                let here = at;
                let Ok((head, rest)) = DirNameHead::ref_from_prefix(&bytes[here..]) else {
                    at = bytes.len();
                    return Some(Err(corrupt(block.offset() + here as u64, "a name's head is cut off")));
                };
                let Some(name) = rest.get(..usize::from(head.len)) else {
                    at = bytes.len();
                    return Some(Err(corrupt(block.offset() + here as u64, "a name is cut off")));
                };
                at += NAME_HEAD + name.len();
                if let Some(kind) = kind_of(head.kind) {
                    let key = head.key.get();
                    let slot = InodeSlot(head.slot.get());
                    return Some(Ok(LeafName { at: here, key, slot, kind, name }));
                }
            }
            None
        })
    }

    /// The names with this hash, without removed ones. Look-ups come here, and a leaf has some hundred names, so of
    /// others only the keys are read.
    pub(crate) fn names_of(
        &self,
        hash: u64,
    ) -> impl Iterator<Item = Result<LeafName<'a>, FsError>> + use<'a> {
        let bytes = self.bytes;
        let block = self.block;
        let mut at = HEAD;
        std::iter::from_fn(move || {
            while let Some(head) = bytes.get(at..at + NAME_HEAD) {
                let head = DirNameHead::ref_from_bytes(head).expect("exactly its size, and no alignment");
                let here = at;
                let start = at + NAME_HEAD;
                at = start + usize::from(head.len);
                let key = head.key.get();
                if hash_in(key) != hash {
                    continue;
                }
                if let (Some(kind), Some(name)) = (kind_of(head.kind), bytes.get(start..at)) {
                    let slot = InodeSlot(head.slot.get());
                    return Some(Ok(LeafName { at: here, key, slot, kind, name }));
                }
            }
            let end = std::mem::replace(&mut at, bytes.len());
            (end != bytes.len()).then(|| {
                Err(corrupt(block.offset() + end as u64, "a leaf of a directory ends within a name"))
            })
        })
    }

    /// Finds the name `wanted`, whose hash is `hash`.
    pub(crate) fn find(&self, hash: u64, wanted: &[u8]) -> Result<Option<LeafName<'a>>, FsError> {
        self.names_of(hash).find(|name| name.as_ref().map_or(true, |name| name.name == wanted)).transpose()
    }

    /// The names, without removed ones, in the order of their keys.
    pub(crate) fn sorted(&self) -> Result<Vec<LeafName<'a>>, FsError> {
        let mut names = self.names().collect::<Result<Vec<_>, _>>()?;
        names.sort_unstable_by_key(|name| name.key);
        Ok(names)
    }
}

/// The children of an inner node.
pub(crate) fn inner_children(arena: &Arena, block: HeapBlock) -> Result<&[DirChild], FsError> {
    let head = block_head(arena, block)?;
    let bytes = arena.block_bytes(block, u32::from(head.size_log2))?;
    let children = usize::from(head.live.get());
    match bytes.get(HEAD..HEAD + children * size_of::<DirChild>()) {
        Some(bytes) if head.level > 0 && children > 0 => {
            Ok(<[DirChild]>::ref_from_bytes(bytes).expect("a whole number of children"))
        }
        _ => Err(corrupt(block.offset(), format!("an inner directory block with head {head:?}"))),
    }
}

/// Appends the bytes of a name in a leaf to `into`.
pub(crate) fn encode_name(key: u64, slot: InodeSlot, kind: FileKind, name: &[u8], into: &mut Vec<u8>) {
    let head = DirNameHead {
        key: U64::new(key),
        slot: U32::new(slot.0),
        kind: kind_number(kind),
        len: name.len() as u8,
    };
    into.extend_from_slice(head.as_bytes());
    into.extend_from_slice(name);
}

/// The bytes of a leaf with `names` only.
pub(crate) fn encode_leaf(log2: u32, names: &[LeafName<'_>]) -> Vec<u8> {
    let mut bytes = vec![0; HEAD];
    for name in names {
        encode_name(name.key, name.slot, name.kind, name.name, &mut bytes);
    }
    assert!(bytes.len() <= class_bytes(log2), "the names fit the leaf");
    let head = DirBlockHead {
        level: 0,
        size_log2: log2 as u8,
        used: U16::new(bytes.len() as u16),
        live: U16::new(names.len() as u16),
        dead: U16::new(0),
    };
    bytes[..HEAD].copy_from_slice(head.as_bytes());
    bytes
}

impl FsTransaction<'_> {
    /// Writes an inner node.
    pub(crate) fn write_inner(&mut self, block: HeapBlock, level: u8, children: &[DirChild]) {
        assert!(children.len() <= CHILDREN_MAX, "the children fit the node");
        let bytes = children.as_bytes();
        let head = DirBlockHead {
            level,
            size_log2: HEAP_LOG2_MAX as u8,
            used: U16::new((HEAD + bytes.len()) as u16),
            live: U16::new(children.len() as u16),
            dead: U16::new(0),
        };
        self.write(block.offset(), head.as_bytes());
        self.write(block.offset() + HEAD as u64, bytes);
    }
}

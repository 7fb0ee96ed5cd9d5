//! The most that each operation may need. The cache reserves it for an operation that waits. Without a wait
//! it reserves what the changes take.

use crate::acl::ACL_BYTES_MAX;
use crate::format::PAGE_BYTES;
use crate::xattr::{XATTR_HEAD, XATTR_NAME_BYTES_MAX, blocks_for};
use cache::{ObjectChange, SpaceClaim, TransactionCost};
use device::{PageNo, PageTransfer, VolumeId};

/// The inodes of any operation: two inodes with their times, the header, two owners, two entries of the
/// orphan list, two freed heap blocks (of a target and of extended attributes), and two more inodes. Each is
/// a record of at most its own size. Names are not included.
const INODE_CHANGES: TransactionCost =
    TransactionCost { pages: 21, bytes: 21 * 96, records: 26, ..TransactionCost::NONE };

/// The access list and the default list that a new inode may inherit, at most a page each, and the mark of atomic
/// writes, in three blocks. Always stated, because the directory may get them before the operation is made.
const INHERITED_XATTRS: TransactionCost =
    TransactionCost { pages: 3, bytes: 2 * ACL_BYTES_MAX as u64 + 256, records: 14, ..TransactionCost::NONE };

/// The access list after a new mode, in at most two blocks, and a removed capability: it is marked, or the
/// other attributes move into a smaller block.
const PRIVILEGE_CHANGES: TransactionCost =
    TransactionCost { pages: 6, bytes: 2 * PAGE_BYTES + 256, records: 24, ..TransactionCost::NONE };

/// The cost of two operations in one transaction.
pub(crate) fn plus(one: TransactionCost, other: TransactionCost) -> TransactionCost {
    TransactionCost {
        pages: one.pages + other.pages,
        bytes: one.bytes + other.bytes,
        records: one.records + other.records,
        claim: one.claim.max(other.claim),
        run: one.run.max(other.run),
        bypass_pages: one.bypass_pages + other.bypass_pages,
        transfers: one.transfers + other.transfers,
        origin: one.origin,
    }
}

/// Changing names in a directory whose tree has `levels` inner levels.
///
/// On each level a node may be rewritten and split, and a block allocated from the heap may leave a free half
/// in each smaller class. One more level is included, in case the tree grows before the operation is
/// admitted.
fn name_changes(levels: u8) -> TransactionCost {
    let levels = u64::from(levels) + 2;
    TransactionCost {
        pages: 3 * levels,
        bytes: levels * (2 * PAGE_BYTES + 64),
        records: 10 * levels,
        ..TransactionCost::NONE
    }
}

/// A new name with a new inode. A link's target is one block.
pub(crate) fn make(levels: u8, target_bytes: usize) -> TransactionCost {
    plus(add(levels, target_bytes), INHERITED_XATTRS)
}

/// A new name, and its inode. A link's target is one block.
pub(crate) fn add(levels: u8, target_bytes: usize) -> TransactionCost {
    let target = TransactionCost {
        pages: 1,
        bytes: target_bytes as u64 + 64,
        records: 10,
        claim: SpaceClaim::Names,
        ..TransactionCost::NONE
    };
    plus(plus(INODE_CHANGES, name_changes(levels)), target)
}

/// Removing a name. Only that releases space, so it may use the last reserve.
pub(crate) fn remove(levels: u8) -> TransactionCost {
    // On each level a node loses a child and joins a neighbour; none is split.
    let levels = u64::from(levels) + 2;
    let names = TransactionCost {
        pages: 2 * levels,
        bytes: levels * 2 * PAGE_BYTES,
        records: 6 * levels,
        claim: SpaceClaim::Frees,
        ..TransactionCost::NONE
    };
    plus(INODE_CHANGES, names)
}

/// Moving a name between two directories.
pub(crate) fn rename(from_levels: u8, to_levels: u8) -> TransactionCost {
    let names = plus(add(to_levels, 0), remove(from_levels));
    TransactionCost { claim: SpaceClaim::Names, ..names }
}

/// Moving a name and leaving a new inode at the old name, which the cost of adding and removing covers.
pub(crate) fn rename_leaving_whiteout(from_levels: u8, to_levels: u8) -> TransactionCost {
    plus(rename(from_levels, to_levels), INHERITED_XATTRS)
}

/// Setting attributes. A file that gets shorter has one page zeroed in part, and releases others.
pub(crate) fn attributes(shrinks: bool) -> TransactionCost {
    let claim = if shrinks { SpaceClaim::Frees } else { SpaceClaim::Names };
    plus(
        plus(INODE_CHANGES, PRIVILEGE_CHANGES),
        TransactionCost { pages: 2, bytes: 0, records: 3, claim, ..TransactionCost::NONE },
    )
}

/// Setting an extended attribute of `value_bytes`, beside `present_bytes` of others, all of which may have to
/// move.
pub(crate) fn set_xattr(present_bytes: usize, value_bytes: usize) -> TransactionCost {
    let bytes = (present_bytes + XATTR_HEAD + XATTR_NAME_BYTES_MAX + value_bytes) as u64;
    let blocks = blocks_for(bytes as usize) as u64 + 1;
    plus(
        INODE_CHANGES,
        TransactionCost {
            pages: blocks,
            bytes: bytes + 32 * blocks,
            records: blocks + 12,
            claim: SpaceClaim::Names,
            ..TransactionCost::NONE
        },
    )
}

/// Removing an extended attribute. However many there are, one is marked, or the rest moves into one block.
pub(crate) fn remove_xattr() -> TransactionCost {
    TransactionCost { claim: SpaceClaim::Frees, ..plus(INODE_CHANGES, PRIVILEGE_CHANGES) }
}

/// Exchanging two names.
pub(crate) fn exchange() -> TransactionCost {
    TransactionCost { claim: SpaceClaim::Names, ..plus(INODE_CHANGES, INODE_CHANGES) }
}

/// Freeing several orphans in one transaction. Each changes its inode, the orphan that takes its place in the
/// list, two entries of that list, an owner, two freed heap blocks (of a target and of extended attributes)
/// and an object; the header is changed once.
pub(crate) fn free_orphans(orphans: usize) -> TransactionCost {
    let orphans = orphans as u64;
    TransactionCost {
        pages: 7 * orphans + 1,
        bytes: (7 * orphans + 1) * 96,
        records: 8 * orphans + 1,
        claim: SpaceClaim::Frees,
        ..TransactionCost::NONE
    }
}

/// Copying a range by sharing pages: the clone in the store, size and times.
pub(crate) fn copy_range(pages: u64, first: u64, at: u64) -> TransactionCost {
    // The cost does not depend on the objects.
    let from = VolumeId::MAIN.object(1, 0);
    let to = VolumeId::MAIN.object(2, 0);
    let transfer = PageTransfer::clone_range(from, PageNo(first)..PageNo(first + pages), to, PageNo(at));
    plus(TransactionCost::of(&[ObjectChange::Transfer(transfer)]), allocate(false))
}

/// Turning a range of a file into holes, with size and times. Unless the range is whole pages its edges are
/// zeroed, which may need new pages, so it must not use the last reserve.
pub(crate) fn allocate(whole_pages_go: bool) -> TransactionCost {
    let claim = if whole_pages_go { SpaceClaim::Frees } else { SpaceClaim::Data };
    plus(
        TransactionCost { pages: 3, bytes: 96, records: 6, ..TransactionCost::NONE },
        TransactionCost { pages: 2, bytes: 0, records: 3, claim, ..TransactionCost::NONE },
    )
}

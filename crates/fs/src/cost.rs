//! What operations may need at most, stated when they enter.

use crate::acl::ACL_BYTES_MAX;
use crate::xattr::{XATTR_HEAD, XATTR_NAME_BYTES_MAX, blocks_for};
use cache::{Change, Claim, Cost};
use device::{BLOCK_BYTES, PageNo, PageTransfer, VolumeId};

/// A page as a number of bytes.
const PAGE: u64 = BLOCK_BYTES as u64;

/// Two inodes with their times, the header, two owners, an orphan's two places, two freed heap blocks (of a target and
/// of extended attributes), and two more inodes: what any operation but the names themselves may touch, each a record of
/// at most its own size.
const INODES: Cost = Cost { pages: 21, bytes: 21 * 96, records: 26, ..Cost::NONE };

/// The access list and the default list that a new inode may get from its directory: at most a page each, so three
/// blocks. Stated always: the directory may get its list before the operation is let in.
const ACLS: Cost = Cost { pages: 3, bytes: 2 * ACL_BYTES_MAX as u64 + 256, records: 14, ..Cost::NONE };

/// An access list that follows the mode lies in two blocks at most. A capability that goes is marked; what is left may
/// move into a smaller block.
const POWERS: Cost = Cost { pages: 6, bytes: 2 * PAGE + 256, records: 24, ..Cost::NONE };

fn plus(one: Cost, other: Cost) -> Cost {
    Cost {
        pages: one.pages + other.pages,
        bytes: one.bytes + other.bytes,
        records: one.records + other.records,
        claim: one.claim.max(other.claim),
        run: one.run.max(other.run),
        bypass_pages: one.bypass_pages + other.bypass_pages,
    }
}

/// Changing names in a directory whose tree has `levels` inner levels: on each level a node may be rewritten and
/// split; a block taken from the heap may leave a free half in each smaller class. One level more, in case the tree
/// grows before the operation is let in.
fn names(levels: u8) -> Cost {
    let levels = u64::from(levels) + 2;
    Cost { pages: 3 * levels, bytes: levels * (2 * PAGE + 64), records: 10 * levels, ..Cost::NONE }
}

/// A new name, with a new inode. A link's target is one block.
pub(crate) fn make(levels: u8, target_bytes: usize) -> Cost {
    plus(add(levels, target_bytes), ACLS)
}

/// A new name, with what it leads to. A link's target is one block.
pub(crate) fn add(levels: u8, target_bytes: usize) -> Cost {
    let target =
        Cost { pages: 1, bytes: target_bytes as u64 + 64, records: 10, claim: Claim::Names, ..Cost::NONE };
    plus(plus(INODES, names(levels)), target)
}

/// A name that goes. Only then is space given back, so this may use the last reserve.
pub(crate) fn remove(levels: u8) -> Cost {
    // On each level a node loses a child and joins a neighbour, never splits.
    let levels = u64::from(levels) + 2;
    let names = Cost {
        pages: 2 * levels,
        bytes: levels * 2 * PAGE,
        records: 6 * levels,
        claim: Claim::Frees,
        ..Cost::NONE
    };
    plus(INODES, names)
}

/// A name that moves between two directories.
pub(crate) fn rename(from_levels: u8, to_levels: u8) -> Cost {
    let names = plus(add(to_levels, 0), remove(from_levels));
    Cost { claim: Claim::Names, ..names }
}

/// The same, and a new inode at the old name, for which adding and removing have space.
pub(crate) fn rename_leaving_whiteout(from_levels: u8, to_levels: u8) -> Cost {
    plus(rename(from_levels, to_levels), ACLS)
}

/// New attributes. A file that gets shorter has one page zeroed in part, and gives back the others.
pub(crate) fn attributes(shrinks: bool) -> Cost {
    let claim = if shrinks { Claim::Frees } else { Claim::Names };
    plus(plus(INODES, POWERS), Cost { pages: 2, bytes: 0, records: 3, claim, ..Cost::NONE })
}

/// An extended attribute of `value_bytes`, beside `present_bytes` of others: in the worst case all of them move.
pub(crate) fn set_xattr(present_bytes: usize, value_bytes: usize) -> Cost {
    let bytes = (present_bytes + XATTR_HEAD + XATTR_NAME_BYTES_MAX + value_bytes) as u64;
    let blocks = blocks_for(bytes as usize) as u64 + 1;
    plus(
        INODES,
        Cost {
            pages: blocks,
            bytes: bytes + 32 * blocks,
            records: blocks + 12,
            claim: Claim::Names,
            ..Cost::NONE
        },
    )
}

/// An extended attribute that goes: however many there are, one is marked, or what is left moves into one block.
pub(crate) fn remove_xattr() -> Cost {
    Cost { claim: Claim::Frees, ..plus(INODES, POWERS) }
}

/// Two names that change places.
pub(crate) fn exchange() -> Cost {
    Cost { claim: Claim::Names, ..plus(INODES, INODES) }
}

/// Orphans that go together. Each touches its inode, the orphan that takes its place in the list, two places there, an
/// owner, two freed heap blocks (of a target and of extended attributes) and an object; the header is changed once.
pub(crate) fn free(orphans: usize) -> Cost {
    let orphans = orphans as u64;
    Cost {
        pages: 7 * orphans + 1,
        bytes: (7 * orphans + 1) * 96,
        records: 8 * orphans + 1,
        claim: Claim::Frees,
        ..Cost::NONE
    }
}

/// A range of a file that shares the pages of another one: what the store needs for that, size and times.
pub(crate) fn copy_range(pages: u64, first: u64, at: u64) -> Cost {
    // Whose pages they are does not matter.
    let (from, to) = (VolumeId::MAIN.object(1, 0), VolumeId::MAIN.object(2, 0));
    let transfer =
        PageTransfer { from, first: PageNo(first), end: PageNo(first + pages), to, at: PageNo(at) };
    plus(Cost::of(&[Change::Clone { transfer }]), allocate(false))
}

/// A range of a file whose pages become holes, with its size and times. Unless it is whole pages, its two edges are
/// zeroed: that may take pages, so it must not use the last reserve.
pub(crate) fn allocate(whole_pages_go: bool) -> Cost {
    let claim = if whole_pages_go { Claim::Frees } else { Claim::Data };
    plus(
        Cost { pages: 3, bytes: 96, records: 6, ..Cost::NONE },
        Cost { pages: 2, bytes: 0, records: 3, claim, ..Cost::NONE },
    )
}

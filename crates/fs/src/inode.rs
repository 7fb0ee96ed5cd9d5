//! Inodes: their numbers, attributes, allocation and freeing, and the list of orphans.
//!
//! An inode's number is its slot under a keyed permutation, so that numbers are stable and no hint of where
//! inodes lie.

use crate::arena::{Arena, FsState, FsTransaction, corrupt};
use crate::charge_tracker::ChargeNote;
use crate::error::FsError;
use crate::file_rules::NameNote;
use crate::format::{ArenaRegion, INODES_MAX, Inode, InodeSlot, InodeTimes, LINK_BYTES_MAX, PAGE_BYTES};
use crate::heap_allocator::class_log2;
use crate::owner_table::OwnerAndMode;
use crate::types::{FileAttributes, FileKind, Ino};
use cache::ObjectChange;
use siphasher::sip::SipHasher24;
use std::hash::Hasher;
use zerocopy::IntoBytes;
use zerocopy::little_endian::{I64, U32};

/// Bits of a number. Programs that keep numbers as floating point (JSON, JavaScript) hold 52 bits exactly.
const NUMBER_BITS: u32 = 52;
const NUMBER_MASK: u64 = (1 << NUMBER_BITS) - 1;
const HALF_BITS: u32 = NUMBER_BITS / 2;

/// Odd, so that multiplying by them modulo 2^52 can be undone.
const FACTORS: [u64; 2] = [0xd_51af_d7ed_558c | 1, 0x4_ceb9_fe1a_85ec | 1];
const INVERSES: [u64; 2] = [inverse(FACTORS[0]), inverse(FACTORS[1])];

/// The inverse of an odd number modulo 2^52. Each of Newton's steps doubles the number of correct bits.
const fn inverse(odd: u64) -> u64 {
    let mut found = odd;
    let mut step = 0;
    while step < 6 {
        found = found.wrapping_mul(2u64.wrapping_sub(odd.wrapping_mul(found)));
        step += 1;
    }
    found & NUMBER_MASK
}

/// The permutation between slots and numbers of one file system.
#[derive(Debug, Clone)]
pub(crate) struct InodeNumbering {
    before: u64,
    after: u64,
}

impl InodeNumbering {
    pub(crate) fn new(secret: &[u8; 16]) -> InodeNumbering {
        let derive = |label: u8| {
            let mut hasher = SipHasher24::new_with_key(secret);
            hasher.write(&[label]);
            hasher.finish() & NUMBER_MASK
        };
        InodeNumbering { before: derive(1), after: derive(2) }
    }

    /// The number of a slot. 0 and 1 are their own numbers; a slot that would get one of these goes on along
    /// its cycle of the permutation.
    pub(crate) fn ino(&self, slot: InodeSlot) -> Ino {
        let mut number = u64::from(slot.0);
        if number > 1 {
            number = self.mix(number);
            while number <= 1 {
                number = self.mix(number);
            }
        }
        Ino(number)
    }

    /// The slot of a number, or `None`.
    pub(crate) fn slot(&self, ino: Ino) -> Option<InodeSlot> {
        let mut number = ino.0;
        if number > NUMBER_MASK {
            return None;
        }
        if number > 1 {
            number = self.unmix(number);
            while number <= 1 {
                number = self.unmix(number);
            }
        }
        let slot = u32::try_from(number).ok()?;
        (slot != 0 && slot <= INODES_MAX).then_some(InodeSlot(slot))
    }

    fn mix(&self, mut number: u64) -> u64 {
        number ^= self.before;
        for factor in FACTORS {
            number = number.wrapping_mul(factor) & NUMBER_MASK;
            number ^= number >> HALF_BITS;
        }
        number ^ self.after
    }

    fn unmix(&self, mut number: u64) -> u64 {
        number ^= self.after;
        for inverse in INVERSES.into_iter().rev() {
            number ^= number >> HALF_BITS;
            number = number.wrapping_mul(inverse) & NUMBER_MASK;
        }
        number ^ self.before
    }
}

impl Arena {
    /// The inode in a slot, in use or free.
    pub(crate) fn inode(&self, slot: InodeSlot) -> Result<Inode, FsError> {
        self.get(ArenaRegion::Inodes.at::<Inode>(slot.0))
    }

    pub(crate) fn inode_times(&self, slot: InodeSlot) -> Result<InodeTimes, FsError> {
        self.get(ArenaRegion::Times.at::<InodeTimes>(slot.0))
    }

    /// An inode to which another structure refers, so that it must be in use.
    pub(crate) fn used_inode(&self, slot: InodeSlot) -> Result<(Inode, FileKind), FsError> {
        let inode = self.inode(slot)?;
        match inode.kind() {
            Some(kind) => Ok((inode, kind)),
            None => Err(corrupt(ArenaRegion::Inodes.at::<Inode>(slot.0), "a reference to a free inode")),
        }
    }

    pub(crate) fn orphan(&self, at: u32) -> Result<InodeSlot, FsError> {
        Ok(InodeSlot(self.get::<U32>(ArenaRegion::Orphans.at::<u32>(at))?.get()))
    }
}

impl FsState {
    /// The inode with this number, which must be in use.
    pub(crate) fn find_inode(&self, ino: Ino) -> Result<(InodeSlot, Inode, FileKind), FsError> {
        let slot = self.numbering.slot(ino).ok_or(FsError::Stale)?;
        if slot.0 > self.header().slots_used.get() {
            return Err(FsError::Stale);
        }
        let inode = self.inode(slot)?;
        let kind = inode.kind().ok_or(FsError::Stale)?;
        Ok((slot, inode, kind))
    }

    /// A directory that still has a name.
    pub(crate) fn find_directory(&self, ino: Ino) -> Result<(InodeSlot, Inode), FsError> {
        match self.find_inode(ino)? {
            (_, inode, FileKind::Directory) if inode.links == 0 => Err(FsError::NotFound),
            (slot, inode, FileKind::Directory) => Ok((slot, inode)),
            _ => Err(FsError::NotDirectory),
        }
    }

    /// A regular file.
    pub(crate) fn find_file(&self, ino: Ino) -> Result<(InodeSlot, Inode), FsError> {
        match self.find_inode(ino)? {
            (slot, inode, FileKind::File) => Ok((slot, inode)),
            (_, _, FileKind::Directory) => Err(FsError::IsDirectory),
            _ => Err(FsError::Invalid),
        }
    }

    /// Adds an opener.
    pub(crate) fn hold(&self, slot: InodeSlot) {
        let mut open_files = self.open_files.lock().expect("no panic while holding the open files");
        open_files.entry(slot.0).or_default().count += 1;
    }

    /// Inodes that lost their last name while they were open, with their generations.
    pub(crate) fn orphans(&self) -> Result<Vec<(InodeSlot, u32)>, FsError> {
        (0..self.header().orphans.get())
            .map(|at| {
                let slot = self.orphan(at)?;
                Ok((slot, self.used_inode(slot)?.0.generation.get()))
            })
            .collect()
    }

    /// A symbolic link's target.
    pub(crate) fn link_target(&self, inode: &Inode) -> Result<&[u8], FsError> {
        let len = inode.size() as usize;
        if len == 0 || len > LINK_BYTES_MAX {
            return Err(corrupt(inode.root().offset(), format!("a link's target of {len} bytes")));
        }
        Ok(&self.block_bytes(inode.root(), class_log2(len))?[..len])
    }

    pub(crate) fn attributes(&self, slot: InodeSlot) -> Result<FileAttributes, FsError> {
        let (inode, kind) = self.used_inode(slot)?;
        let times = self.inode_times(slot)?;
        let OwnerAndMode { uid, gid, mode } = self.owner(&inode)?;
        Ok(FileAttributes {
            ino: self.numbering.ino(slot),
            generation: inode.generation.get(),
            kind,
            size: inode.size(),
            stored_bytes: match kind {
                FileKind::File => inode.charged_pages() * PAGE_BYTES,
                _ => inode.size().next_multiple_of(PAGE_BYTES),
            },
            mode,
            links: inode.links.get(),
            uid,
            gid,
            device: inode.device(),
            accessed: times.accessed.get(),
            modified: times.modified.get(),
            changed: times.changed.get(),
            created: times.created.get(),
        })
    }
}

impl FsTransaction<'_> {
    pub(crate) fn set_inode(&mut self, slot: InodeSlot, inode: &Inode) {
        self.write(ArenaRegion::Inodes.at::<Inode>(slot.0), inode.as_bytes());
    }

    pub(crate) fn set_inode_times(&mut self, slot: InodeSlot, times: &InodeTimes) {
        self.write(ArenaRegion::Times.at::<InodeTimes>(slot.0), times.as_bytes());
    }

    /// Sets the time of the last change of attributes to now.
    pub(crate) fn touch_changed(&mut self, slot: InodeSlot) -> Result<(), FsError> {
        let mut times = self.inode_times(slot)?;
        times.changed = I64::new(self.now);
        self.set_inode_times(slot, &times);
        Ok(())
    }

    /// Sets the times of the last change of content and of attributes to now.
    pub(crate) fn touch_modified(&mut self, slot: InodeSlot) -> Result<(), FsError> {
        let mut times = self.inode_times(slot)?;
        times.modified = I64::new(self.now);
        times.changed = I64::new(self.now);
        self.set_inode_times(slot, &times);
        Ok(())
    }

    /// Allocates an inode without links. All its times are now.
    pub(crate) fn allocate_inode(
        &mut self,
        kind: FileKind,
        rights: OwnerAndMode,
    ) -> Result<(InodeSlot, Inode), FsError> {
        let free = self.header().slot_free.get();
        let (slot, generation) = if free != 0 {
            let inode = self.inode(InodeSlot(free))?;
            if inode.kind().is_some() {
                return Err(corrupt(
                    ArenaRegion::Inodes.at::<Inode>(free),
                    "an inode in use is on the free list",
                ));
            }
            self.change_header(|header| header.slot_free = inode.next);
            (InodeSlot(free), inode.generation.get())
        } else {
            let slot = self.header().slots_used.get() + 1;
            if slot > INODES_MAX {
                return Err(FsError::NoSpace);
            }
            self.change_header(|header| header.slots_used = U32::new(slot));
            (InodeSlot(slot), 0)
        };
        self.change_header(|header| header.inodes += 1);
        let owner = self.reference_owner(rights)?;
        let inode = Inode::new(kind, generation + 1, owner);
        self.set_inode(slot, &inode);
        let now = I64::new(self.now);
        self.set_inode_times(slot, &InodeTimes { accessed: now, modified: now, changed: now, created: now });
        Ok((slot, inode))
    }

    /// Frees an inode that lost its last name. If it is open it becomes an orphan instead, until its last
    /// opener is gone.
    pub(crate) fn free_or_orphan(&mut self, slot: InodeSlot) -> Result<(), FsError> {
        if !self.is_open(slot) {
            return self.free_inode(slot);
        }
        let place = self.header().orphans.get();
        self.write(ArenaRegion::Orphans.at::<u32>(place), U32::new(slot.0).as_bytes());
        self.change_header(|header| header.orphans += 1);
        let mut inode = self.inode(slot)?;
        inode.next = U32::new(place);
        self.set_inode(slot, &inode);
        Ok(())
    }

    /// Frees an inode of the orphan list.
    pub(crate) fn free_orphan(&mut self, slot: InodeSlot) -> Result<(), FsError> {
        let place = self.inode(slot)?.next.get();
        let last = self.header().orphans.get().checked_sub(1);
        let last = last.filter(|&last| place <= last && self.orphan(place).is_ok_and(|found| found == slot));
        let last = last.ok_or_else(|| {
            corrupt(
                ArenaRegion::Inodes.at::<Inode>(slot.0),
                "an inode without links is not where it says in the orphan list",
            )
        })?;
        let moved = self.orphan(last)?;
        let mut inode = self.inode(moved)?;
        inode.next = U32::new(place);
        self.set_inode(moved, &inode);
        self.write(ArenaRegion::Orphans.at::<u32>(place), U32::new(moved.0).as_bytes());
        // The entry past the end becomes 0, because after the next opening memory has zeros there.
        self.write(ArenaRegion::Orphans.at::<u32>(last), U32::new(0).as_bytes());
        self.change_header(|header| header.orphans = U32::new(last));
        self.free_inode(slot)
    }

    fn free_inode(&mut self, slot: InodeSlot) -> Result<(), FsError> {
        let (inode, kind) = self.used_inode(slot)?;
        self.note_charge(ChargeNote::Freed(slot));
        self.note_name(|_| NameNote::Freed(slot));
        match kind {
            FileKind::File if inode.is_written() => {
                self.add_data_change(ObjectChange::Delete { object: self.data_object(slot, &inode) })
            }
            FileKind::File => {}
            FileKind::Symlink => self.free_block(inode.root(), class_log2(inode.size() as usize)),
            FileKind::Directory => assert!(inode.root().is_none(), "only an empty directory goes"),
            FileKind::Fifo | FileKind::Socket | FileKind::CharDevice | FileKind::BlockDevice => {}
        }
        self.free_xattrs(&inode)?;
        self.release_owner(inode.owner.get())?;
        let generation = inode.generation.get();
        // A slot whose generations are used up is never allocated again, so (slot, generation) never names
        // two files.
        let retired = generation == u32::MAX;
        let next = if retired { 0 } else { self.header().slot_free.get() };
        self.set_inode(slot, &Inode::free(generation, next));
        self.change_header(|header| {
            header.inodes -= 1;
            if !retired {
                header.slot_free = U32::new(slot.0);
            }
        });
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_root_is_1_whatever_the_secret() {
        for seed in 0..50 {
            let numbers = InodeNumbering::new(&[seed; 16]);
            assert_eq!(numbers.ino(InodeSlot(1)), Ino::ROOT);
            assert_eq!(numbers.slot(Ino::ROOT), Some(InodeSlot(1)));
            assert_eq!(numbers.slot(Ino(0)), None);
        }
    }

    #[test]
    fn neighbours_are_far_apart_and_secrets_matter() {
        let one = InodeNumbering::new(&[1; 16]);
        let other = InodeNumbering::new(&[2; 16]);
        let near = (2..1000)
            .filter(|&slot| one.ino(InodeSlot(slot)).0.abs_diff(one.ino(InodeSlot(slot + 1)).0) < 1000);
        assert!(near.count() < 3);
        assert!((2..1000).all(|slot| one.ino(InodeSlot(slot)) != other.ino(InodeSlot(slot))));
    }

    proptest! {
        #[test]
        fn a_number_leads_back_to_its_slot(secret: [u8; 16], slot in 1..=INODES_MAX) {
            let numbers = InodeNumbering::new(&secret);
            let ino = numbers.ino(InodeSlot(slot));
            prop_assert!(ino.0 <= NUMBER_MASK && ino.0 > 0);
            prop_assert_eq!(numbers.slot(ino), Some(InodeSlot(slot)));
        }

        #[test]
        fn mixing_can_be_undone(secret: [u8; 16], number in 0..=NUMBER_MASK) {
            let numbers = InodeNumbering::new(&secret);
            prop_assert_eq!(numbers.unmix(numbers.mix(number)), number);
        }
    }
}

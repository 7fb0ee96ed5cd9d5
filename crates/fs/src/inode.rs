//! Inodes: their numbers, which are slots under a keyed permutation, so that they are stable and tell nobody where inodes lie; taking
//! and freeing them, the orphan list, and what `stat` tells.

use crate::arena::{Arena, State, Transaction, corrupt};
use crate::error::FsError;
use crate::format::{Cold, Hot, INODES_MAX, LINK_BYTES_MAX, Region, Slot};
use crate::heap::class_log2;
use crate::owners::Rights;
use crate::types::{Attributes, Ino, Kind};
use cache::ObjectChange;
use device::BLOCK_BYTES;
use siphasher::sip::SipHasher24;
use std::hash::Hasher;
use zerocopy::IntoBytes;
use zerocopy::little_endian::{I64, U32};

/// Numbers have 52 bits, so that programs that keep numbers as floating point (JSON, JavaScript) hold them exactly.
const BITS: u32 = 52;
const MASK: u64 = (1 << BITS) - 1;
const HALF: u32 = BITS / 2;

/// Odd, so that multiplying by them modulo 2^52 can be undone.
const FACTORS: [u64; 2] = [0xd_51af_d7ed_558c | 1, 0x4_ceb9_fe1a_85ec | 1];
const INVERSES: [u64; 2] = [inverse(FACTORS[0]), inverse(FACTORS[1])];

/// The inverse of an odd number modulo 2^52: each of Newton's steps doubles the number of right bits.
const fn inverse(odd: u64) -> u64 {
    let mut found = odd;
    let mut step = 0;
    while step < 6 {
        found = found.wrapping_mul(2u64.wrapping_sub(odd.wrapping_mul(found)));
        step += 1;
    }
    found & MASK
}

/// The permutation of one file system.
#[derive(Debug, Clone)]
pub(crate) struct Numbers {
    before: u64,
    after: u64,
}

impl Numbers {
    pub(crate) fn new(secret: &[u8; 16]) -> Numbers {
        let derive = |label: u8| {
            let mut hasher = SipHasher24::new_with_key(secret);
            hasher.write(&[label]);
            hasher.finish() & MASK
        };
        Numbers { before: derive(1), after: derive(2) }
    }

    /// The number of a slot. 0 and 1 keep theirs; what would get them walks on along its cycle.
    pub(crate) fn ino(&self, slot: Slot) -> Ino {
        let mut number = u64::from(slot.0);
        if number > 1 {
            number = self.mix(number);
            while number <= 1 {
                number = self.mix(number);
            }
        }
        Ino(number)
    }

    /// The slot of a number; `None` if no slot has it.
    pub(crate) fn slot(&self, ino: Ino) -> Option<Slot> {
        let mut number = ino.0;
        if number > MASK {
            return None;
        }
        if number > 1 {
            number = self.unmix(number);
            while number <= 1 {
                number = self.unmix(number);
            }
        }
        let slot = u32::try_from(number).ok()?;
        (slot != 0 && slot <= INODES_MAX).then_some(Slot(slot))
    }

    fn mix(&self, mut number: u64) -> u64 {
        number ^= self.before;
        for factor in FACTORS {
            number = number.wrapping_mul(factor) & MASK;
            number ^= number >> HALF;
        }
        number ^ self.after
    }

    fn unmix(&self, mut number: u64) -> u64 {
        number ^= self.after;
        for inverse in INVERSES.into_iter().rev() {
            number ^= number >> HALF;
            number = number.wrapping_mul(inverse) & MASK;
        }
        number ^ self.before
    }
}

impl Arena {
    /// An inode's hot part, whether it is in use or not.
    pub(crate) fn hot(&self, slot: Slot) -> Result<Hot, FsError> {
        self.get(Region::Hot.at::<Hot>(slot.0))
    }

    pub(crate) fn cold(&self, slot: Slot) -> Result<Cold, FsError> {
        self.get(Region::Cold.at::<Cold>(slot.0))
    }

    /// The hot part of an inode that another structure says is in use.
    pub(crate) fn used(&self, slot: Slot) -> Result<(Hot, Kind), FsError> {
        let hot = self.hot(slot)?;
        match hot.kind() {
            Some(kind) => Ok((hot, kind)),
            None => Err(corrupt(Region::Hot.at::<Hot>(slot.0), "a reference to a free inode")),
        }
    }

    pub(crate) fn orphan(&self, at: u32) -> Result<Slot, FsError> {
        Ok(Slot(self.get::<U32>(Region::Orphans.at::<u32>(at))?.get()))
    }
}

impl State {
    /// The inode with this number, in use.
    pub(crate) fn find(&self, ino: Ino) -> Result<(Slot, Hot, Kind), FsError> {
        let slot = self.numbers.slot(ino).ok_or(FsError::Stale)?;
        if slot.0 > self.header().slots_used.get() {
            return Err(FsError::Stale);
        }
        let hot = self.hot(slot)?;
        let kind = hot.kind().ok_or(FsError::Stale)?;
        Ok((slot, hot, kind))
    }

    /// A directory that still has a name.
    pub(crate) fn find_directory(&self, ino: Ino) -> Result<(Slot, Hot), FsError> {
        match self.find(ino)? {
            (_, hot, Kind::Directory) if hot.links == 0 => Err(FsError::NotFound),
            (slot, hot, Kind::Directory) => Ok((slot, hot)),
            _ => Err(FsError::NotDirectory),
        }
    }

    /// A regular file.
    pub(crate) fn find_file(&self, ino: Ino) -> Result<(Slot, Hot), FsError> {
        match self.find(ino)? {
            (slot, hot, Kind::File) => Ok((slot, hot)),
            (_, _, Kind::Directory) => Err(FsError::IsDirectory),
            _ => Err(FsError::Invalid),
        }
    }

    /// Counts one more opener.
    pub(crate) fn hold(&self, slot: Slot) {
        let mut opens = self.opens.lock().expect("no panic while holding the open counts");
        opens.entry(slot.0).or_default().count += 1;
    }

    /// Files that lost their last name while they were open.
    pub(crate) fn orphans(&self) -> Result<Vec<(Slot, u32)>, FsError> {
        (0..self.header().orphans.get())
            .map(|at| {
                let slot = self.orphan(at)?;
                Ok((slot, self.used(slot)?.0.generation.get()))
            })
            .collect()
    }

    /// A symbolic link's target.
    pub(crate) fn link_target(&self, hot: &Hot) -> Result<&[u8], FsError> {
        let len = hot.size() as usize;
        if len == 0 || len > LINK_BYTES_MAX {
            return Err(corrupt(hot.root().offset(), format!("a link's target of {len} bytes")));
        }
        Ok(&self.block_bytes(hot.root(), class_log2(len))?[..len])
    }

    pub(crate) fn attributes(&self, slot: Slot) -> Result<Attributes, FsError> {
        let ((hot, kind), cold) = (self.used(slot)?, self.cold(slot)?);
        let Rights { uid, gid, mode } = self.owner(&hot)?;
        Ok(Attributes {
            ino: self.numbers.ino(slot),
            generation: hot.generation.get(),
            kind,
            size: hot.size(),
            stored_bytes: match kind {
                Kind::File => hot.charged_pages() * BLOCK_BYTES as u64,
                _ => hot.size().next_multiple_of(BLOCK_BYTES as u64),
            },
            mode,
            links: hot.links.get(),
            uid,
            gid,
            device: hot.device(),
            accessed: cold.accessed.get(),
            modified: cold.modified.get(),
            changed: cold.changed.get(),
            created: cold.created.get(),
        })
    }
}

impl Transaction<'_> {
    pub(crate) fn set_hot(&mut self, slot: Slot, hot: &Hot) {
        self.write(Region::Hot.at::<Hot>(slot.0), hot.as_bytes());
    }

    pub(crate) fn set_cold(&mut self, slot: Slot, cold: &Cold) {
        self.write(Region::Cold.at::<Cold>(slot.0), cold.as_bytes());
    }

    /// The attributes changed now.
    pub(crate) fn touch_changed(&mut self, slot: Slot) -> Result<(), FsError> {
        let mut cold = self.cold(slot)?;
        cold.changed = I64::new(self.now);
        self.set_cold(slot, &cold);
        Ok(())
    }

    /// The content changed now, and the attributes with it.
    pub(crate) fn touch_modified(&mut self, slot: Slot) -> Result<(), FsError> {
        let mut cold = self.cold(slot)?;
        cold.modified = I64::new(self.now);
        cold.changed = I64::new(self.now);
        self.set_cold(slot, &cold);
        Ok(())
    }

    /// A new inode without links, its times now.
    pub(crate) fn take_inode(&mut self, kind: Kind, rights: Rights) -> Result<(Slot, Hot), FsError> {
        let free = self.header().slot_free.get();
        let (slot, generation) = if free != 0 {
            let hot = self.hot(Slot(free))?;
            if hot.kind().is_some() {
                return Err(corrupt(Region::Hot.at::<Hot>(free), "an inode in use is on the free list"));
            }
            self.change_header(|header| header.slot_free = hot.next);
            (Slot(free), hot.generation.get())
        } else {
            let slot = self.header().slots_used.get() + 1;
            if slot > INODES_MAX {
                return Err(FsError::NoSpace);
            }
            self.change_header(|header| header.slots_used = U32::new(slot));
            (Slot(slot), 0)
        };
        self.change_header(|header| header.inodes += 1);
        let owner = self.take_owner(rights)?;
        let hot = Hot::new(kind, generation + 1, owner);
        self.set_hot(slot, &hot);
        let now = I64::new(self.now);
        self.set_cold(slot, &Cold { accessed: now, modified: now, changed: now, created: now });
        Ok((slot, hot))
    }

    /// The inode lost its last name: it goes now, or with its last opener.
    pub(crate) fn lose(&mut self, slot: Slot) -> Result<(), FsError> {
        if !self.is_open(slot) {
            return self.free_inode(slot);
        }
        let place = self.header().orphans.get();
        self.write(Region::Orphans.at::<u32>(place), U32::new(slot.0).as_bytes());
        self.change_header(|header| header.orphans += 1);
        let mut hot = self.hot(slot)?;
        hot.next = U32::new(place);
        self.set_hot(slot, &hot);
        Ok(())
    }

    /// Frees an inode of the orphan list.
    pub(crate) fn free_orphan(&mut self, slot: Slot) -> Result<(), FsError> {
        let place = self.hot(slot)?.next.get();
        let last = self.header().orphans.get().checked_sub(1);
        let last = last.filter(|&last| place <= last && self.orphan(place).is_ok_and(|found| found == slot));
        let last = last.ok_or_else(|| {
            corrupt(
                Region::Hot.at::<Hot>(slot.0),
                "an inode without links is not where it says in the orphan list",
            )
        })?;
        let moved = self.orphan(last)?;
        let mut hot = self.hot(moved)?;
        hot.next = U32::new(place);
        self.set_hot(moved, &hot);
        self.write(Region::Orphans.at::<u32>(place), U32::new(moved.0).as_bytes());
        // What lies past the end is zeros: only then do memory and media agree on it after the next opening.
        self.write(Region::Orphans.at::<u32>(last), U32::new(0).as_bytes());
        self.change_header(|header| header.orphans = U32::new(last));
        self.free_inode(slot)
    }

    fn free_inode(&mut self, slot: Slot) -> Result<(), FsError> {
        let (hot, kind) = self.used(slot)?;
        self.counts_mut().forget(slot);
        match kind {
            Kind::File if hot.is_written() => {
                self.also(ObjectChange::Delete { object: self.object(slot, &hot) })
            }
            Kind::File => {}
            Kind::Symlink => self.give_block(hot.root(), class_log2(hot.size() as usize)),
            Kind::Directory => assert!(hot.root().is_none(), "only an empty directory goes"),
            Kind::Fifo | Kind::Socket | Kind::CharDevice | Kind::BlockDevice => {}
        }
        self.give_xattrs(&hot)?;
        self.drop_owner(hot.owner.get())?;
        let generation = hot.generation.get();
        // A slot whose generations are used up is never taken again: (slot, generation) names one file for ever.
        let retired = generation == u32::MAX;
        let next = if retired { 0 } else { self.header().slot_free.get() };
        self.set_hot(slot, &Hot::free(generation, next));
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
            let numbers = Numbers::new(&[seed; 16]);
            assert_eq!(numbers.ino(Slot(1)), Ino::ROOT);
            assert_eq!(numbers.slot(Ino::ROOT), Some(Slot(1)));
            assert_eq!(numbers.slot(Ino(0)), None);
        }
    }

    #[test]
    fn neighbours_are_far_apart_and_secrets_matter() {
        let (one, other) = (Numbers::new(&[1; 16]), Numbers::new(&[2; 16]));
        let near = (2..1000).filter(|&slot| one.ino(Slot(slot)).0.abs_diff(one.ino(Slot(slot + 1)).0) < 1000);
        assert!(near.count() < 3);
        assert!((2..1000).all(|slot| one.ino(Slot(slot)) != other.ino(Slot(slot))));
    }

    proptest! {
        #[test]
        fn a_number_leads_back_to_its_slot(secret: [u8; 16], slot in 1..=INODES_MAX) {
            let numbers = Numbers::new(&secret);
            let ino = numbers.ino(Slot(slot));
            prop_assert!(ino.0 <= MASK && ino.0 > 0);
            prop_assert_eq!(numbers.slot(ino), Some(Slot(slot)));
        }

        #[test]
        fn mixing_can_be_undone(secret: [u8; 16], number in 0..=MASK) {
            let numbers = Numbers::new(&secret);
            prop_assert_eq!(numbers.unmix(numbers.mix(number)), number);
        }
    }
}

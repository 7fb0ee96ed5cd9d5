//! All metadata: the resident copy of object 0, and the one way to change it. A change is made at once in memory, recorded, and either
//! given to the cache as one transaction or undone. It lives under the exclusive lock, so nobody sees it half done.

use crate::counts::{Counted, Counts};
use crate::error::FsError;
use crate::format::{
    Cold, HEAP_LOG2_MIN, Header, Hot, INCOMPATIBLE_KNOWN, INODES_MAX, MAGIC, Owner, REGION_BYTES, Region,
    Slot, VERSION, arena_of,
};
use crate::inode::Numbers;
use crate::owners::OwnerIndex;
use crate::plant::never_undoes;
use cache::{ObjectChange, TransactionCost};
use device::{BLOCK_BYTES, ObjectId, VolumeId};
use smallvec::SmallVec;
use std::collections::HashMap;
use std::ops::{Deref, Range};
use std::sync::Mutex;
use std::time::Duration;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Regions grow in steps of this, so that small changes seldom move them.
const GROW_BYTES: usize = 64 << 10;

/// Reads ranges (offset, length) of object 0 from below.
pub(crate) type ReadArena<'a> = &'a mut dyn FnMut(&[(u64, usize)]) -> Result<Vec<Vec<u8>>, FsError>;

/// Lays what is newer over bytes of object 0 from an offset on; `false` where they have to be read anew.
pub(crate) type LayOver<'a> = &'a mut dyn FnMut(u64, &mut [u8]) -> bool;

/// All metadata, addressed by offsets in object 0.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Arena {
    regions: [Vec<u8>; Region::ALL.len()],
}

/// Metadata that contradicts itself.
pub(crate) fn corrupt(offset: u64, what: impl Into<String>) -> FsError {
    FsError::Corrupt { offset, what: what.into() }
}

impl Arena {
    /// An arena of zeros.
    pub(crate) fn empty() -> Arena {
        let mut regions: [Vec<u8>; Region::ALL.len()] = Default::default();
        regions[0] = vec![0; BLOCK_BYTES];
        Arena { regions }
    }

    /// Loads an arena up to its high-water marks: all of it at once, because its regions lie in the store as they were
    /// written, among each other.
    pub(crate) fn load(read: ReadArena<'_>) -> Result<Arena, FsError> {
        let mut arena = Arena::empty();
        let header = read(&[(0, BLOCK_BYTES)])?;
        arena.regions[0] = header.into_iter().next().expect("as many as were asked for");
        check_header(arena.header())?;
        let ranges: Vec<(u64, usize)> =
            Region::ALL[1..].iter().map(|&region| (region.base(), arena.used_bytes(region))).collect();
        for (region, bytes) in Region::ALL[1..].iter().zip(read(&ranges)?) {
            arena.regions[*region as usize] = bytes;
        }
        Ok(arena)
    }

    /// Makes of an arena as the store has it the one that is: `lay` puts what the buffer has over bytes from an offset on, or says
    /// that it cannot, and `read` reads what was added since. `None`: it has to be loaded anew.
    pub(crate) fn brought_up_to_date(
        mut self,
        lay: LayOver<'_>,
        read: ReadArena<'_>,
    ) -> Result<Option<Arena>, FsError> {
        if !lay(0, &mut self.regions[0]) {
            return Ok(None);
        }
        check_header(self.header())?;
        let mut added = Vec::new();
        for region in &Region::ALL[1..] {
            let used = self.used_bytes(*region);
            let bytes = &mut self.regions[*region as usize];
            bytes.truncate(used);
            if !lay(region.base(), bytes) {
                return Ok(None);
            }
            added.push((region.base() + bytes.len() as u64, used - bytes.len()));
        }
        for (region, bytes) in Region::ALL[1..].iter().zip(read(&added)?) {
            self.regions[*region as usize].extend(bytes);
        }
        Ok(Some(self))
    }

    pub(crate) fn header(&self) -> &Header {
        let (header, _) = Header::ref_from_prefix(&self.regions[0]).expect("the header page is always whole");
        header
    }

    /// Bytes of a region up to its high-water mark.
    pub(crate) fn used_bytes(&self, region: Region) -> usize {
        let header = self.header();
        let slots = header.slots_used.get() as usize + 1;
        match region {
            Region::Header => BLOCK_BYTES,
            Region::Owners => header.owners_used.get() as usize * size_of::<Owner>(),
            Region::Orphans => header.orphans.get() as usize * size_of::<u32>(),
            Region::Hot => slots * size_of::<Hot>(),
            Region::Cold => slots * size_of::<Cold>(),
            Region::Heap => (header.heap_used.get() as usize) << HEAP_LOG2_MIN,
        }
    }

    /// `len` bytes from `offset` on; an error where nothing was ever written, so that a wrong reference is found.
    pub(crate) fn bytes(&self, offset: u64, len: usize) -> Result<&[u8], FsError> {
        let (region, start) = (offset / REGION_BYTES, (offset % REGION_BYTES) as usize);
        let bytes = self.regions.get(region as usize).and_then(|region| region.get(start..start + len));
        bytes.ok_or_else(|| corrupt(offset, format!("a reference to {len} bytes outside of the arena")))
    }

    /// The record at `offset`.
    pub(crate) fn get<T>(&self, offset: u64) -> Result<T, FsError>
    where
        T: FromBytes + KnownLayout + Immutable + Unaligned + Copy,
    {
        let bytes = self.bytes(offset, size_of::<T>())?;
        Ok(*T::ref_from_bytes(bytes).expect("exactly its size, and no alignment"))
    }

    /// Bytes about to be changed; the region grows as needed.
    pub(crate) fn bytes_mut(&mut self, offset: u64, len: usize) -> &mut [u8] {
        let (region, start) = ((offset / REGION_BYTES) as usize, (offset % REGION_BYTES) as usize);
        let region = &mut self.regions[region];
        let end = start + len;
        if region.len() < end {
            region.resize(end.next_multiple_of(GROW_BYTES), 0);
        }
        &mut region[start..end]
    }
}

fn check_header(header: &Header) -> Result<(), FsError> {
    if header.magic != MAGIC {
        return Err(corrupt(0, "this volume holds no file system of weir's"));
    }
    let (version, unknown) = (header.version.get(), header.incompatible.get() & !INCOMPATIBLE_KNOWN);
    if version != VERSION || unknown != 0 {
        let what = format!(
            "format version {version} with features {unknown:#x} is newer than version {VERSION}; upgrade weir"
        );
        return Err(corrupt(8, what));
    }
    let slots = header.slots_used.get();
    if slots == 0 || slots > INODES_MAX || header.orphans > header.slots_used {
        return Err(corrupt(40, format!("{slots} slots and {} orphans", header.orphans)));
    }
    // Every slot may have an owner of its own, and a change takes the new one before it gives back the old.
    if header.owners_used.get() > slots + 1 {
        return Err(corrupt(52, format!("{} owners for {slots} slots", header.owners_used)));
    }
    Ok(())
}

/// Ranges nearer than this become one: a record's header costs more than the bytes between.
const GAP_BYTES: u64 = 16;

/// What is known of a file while somebody holds it. Lost at a crash.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Opens {
    /// How many hold it.
    pub(crate) count: u64,
    /// Somebody synced it since the first of them came.
    pub(crate) synced: bool,
    /// When a holder last read or wrote it so that it may keep pages of it.
    pub(crate) pages_kept_at: Option<Duration>,
}

/// Everything under the file system's one lock.
pub(crate) struct State {
    volume: VolumeId,
    arena: Arena,
    /// Derived from the arena.
    owners: OwnerIndex,
    pub(crate) numbers: Numbers,
    /// Openers by slot, in memory only: nobody has a file open after a crash. Under a lock of its own, taken with
    /// the state's lock held (shared is enough), so that opening a file does not exclude readers.
    pub(crate) opens: Mutex<HashMap<u32, Opens>>,
    /// In memory only, too: what a crash takes of it makes a charge no more exact than it was.
    pub(crate) counts: Counts,
}

impl State {
    pub(crate) fn new(volume: VolumeId, arena: Arena) -> Result<State, FsError> {
        let owners = OwnerIndex::of(&arena)?;
        let numbers = Numbers::new(&arena.header().secret);
        Ok(State { volume, arena, owners, numbers, opens: Mutex::default(), counts: Counts::default() })
    }

    pub(crate) fn arena(&self) -> &Arena {
        &self.arena
    }

    /// The object that holds a file's data.
    pub(crate) fn object(&self, slot: Slot, hot: &Hot) -> ObjectId {
        self.volume.object(u64::from(slot.0), hot.generation.get())
    }
}

impl Deref for State {
    type Target = Arena;
    fn deref(&self) -> &Arena {
        &self.arena
    }
}

/// Bytes as they were.
struct Old {
    offset: u64,
    /// Where they start in `Transaction::old_bytes`; they end where the next one's start.
    at: usize,
    len: usize,
}

/// A change under way. Dropping it without [`keep`](Transaction::keep) undoes it.
pub(crate) struct Transaction<'a> {
    state: &'a mut State,
    /// The time of the change, the same for everything in it.
    pub(crate) now: i64,
    old: SmallVec<[Old; 4]>,
    old_bytes: SmallVec<[u8; 128]>,
    owners_changed: bool,
    /// What the operation writes into a file, if it does.
    bytes: &'a [u8],
    /// What a range that the operation removes was counted to hold.
    counted: Option<Counted>,
    /// Changes of files' own bytes.
    data: SmallVec<[ObjectChange<'a>; 1]>,
    kept: bool,
}

impl Deref for Transaction<'_> {
    type Target = State;
    fn deref(&self) -> &State {
        self.state
    }
}

impl<'a> Transaction<'a> {
    /// Begins a change at the time `now`, of an operation that writes `bytes` into a file, if it does.
    pub(crate) fn begin(state: &'a mut State, now: i64, bytes: &'a [u8]) -> Transaction<'a> {
        let (old, old_bytes, data) = (SmallVec::new(), SmallVec::new(), SmallVec::new());
        Transaction {
            state,
            now,
            old,
            old_bytes,
            owners_changed: false,
            bytes,
            counted: None,
            data,
            kept: false,
        }
    }

    /// What the operation writes into a file.
    pub(crate) fn bytes_to_write(&self) -> &'a [u8] {
        self.bytes
    }

    /// Lets the operation know what it removes.
    pub(crate) fn know(&mut self, counted: Option<Counted>) {
        self.counted = counted;
    }

    pub(crate) fn take_counted(&mut self) -> Option<Counted> {
        self.counted.take()
    }

    pub(crate) fn counts_mut(&mut self) -> &mut Counts {
        &mut self.state.counts
    }

    /// Writes bytes of the arena. Only what differs is recorded.
    pub(crate) fn write(&mut self, offset: u64, bytes: &[u8]) {
        let present = self.state.arena.bytes_mut(offset, bytes.len());
        let Some(range) = differing(present, bytes) else { return };
        self.old.push(Old {
            offset: offset + range.start as u64,
            at: self.old_bytes.len(),
            len: range.len(),
        });
        self.old_bytes.extend_from_slice(&present[range.clone()]);
        present[range.clone()].copy_from_slice(&bytes[range]);
    }

    /// Makes the arena reach to `offset`, in memory.
    pub(crate) fn touch(&mut self, offset: u64) {
        self.state.arena.bytes_mut(offset, 1);
    }

    pub(crate) fn change_header(&mut self, change: impl FnOnce(&mut Header)) {
        let mut header = self.header().clone();
        change(&mut header);
        self.write(0, header.as_bytes());
    }

    /// Adds a change of a file's bytes.
    pub(crate) fn also(&mut self, change: ObjectChange<'a>) {
        self.data.push(change);
    }

    pub(crate) fn owners(&self) -> &OwnerIndex {
        &self.state.owners
    }

    pub(crate) fn owners_mut(&mut self) -> &mut OwnerIndex {
        self.owners_changed = true;
        &mut self.state.owners
    }

    /// Whether somebody has the file in this slot open.
    pub(crate) fn is_open(&mut self, slot: crate::format::Slot) -> bool {
        let opens = self.state.opens.get_mut().expect("no panic while holding the open counts");
        opens.contains_key(&slot.0)
    }

    /// What was written, as few disjoint ranges (from, to) in ascending order: a write has few.
    fn ranges(&self) -> SmallVec<[(u64, u64); 4]> {
        let mut ranges: SmallVec<[(u64, u64); 4]> = SmallVec::new();
        self.old.iter().for_each(|old| ranges.push((old.offset, old.offset + old.len as u64)));
        ranges.sort_unstable();
        ranges.dedup_by(|next, last| {
            let is_near = next.0 <= last.1 + GAP_BYTES;
            if is_near {
                last.1 = last.1.max(next.1);
            }
            is_near
        });
        ranges
    }

    /// Everything to be applied, the files' bytes first.
    pub(crate) fn changes(&self) -> SmallVec<[ObjectChange<'_>; 4]> {
        let mut changes = SmallVec::new();
        self.data.iter().for_each(|change| changes.push(*change));
        for &(from, to) in &self.ranges() {
            let bytes = self.state.arena.bytes(from, (to - from) as usize).expect("it was just written");
            changes.push(ObjectChange::Write { object: arena_of(self.state.volume), offset: from, bytes });
        }
        changes
    }

    /// The changes stay.
    pub(crate) fn keep(&mut self) {
        self.kept = true;
    }
}

impl Drop for Transaction<'_> {
    fn drop(&mut self) {
        if self.kept || never_undoes() {
            return;
        }
        for old in self.old.iter().rev() {
            let bytes = &self.old_bytes[old.at..old.at + old.len];
            self.state.arena.bytes_mut(old.offset, old.len).copy_from_slice(bytes);
        }
        if self.owners_changed {
            self.state.owners = OwnerIndex::of(&self.state.arena).expect("it could be read before");
        }
    }
}

/// How many bytes are compared at once: a change rewrites records of some tens of bytes, of which a few differ.
const WORD_BYTES: usize = 8;

/// From the first to the last of the bytes in which two strings of one length differ.
fn differing(old: &[u8], new: &[u8]) -> Option<Range<usize>> {
    let unlike = |(old, new): (&u8, &u8)| old != new;
    let words = old.as_chunks::<WORD_BYTES>().0.iter().zip(new.as_chunks().0);
    let before = words.take_while(|(old, new)| old == new).count() * WORD_BYTES;
    let start = before + old[before..].iter().zip(&new[before..]).position(unlike)?;

    let words = old.as_rchunks::<WORD_BYTES>().1.iter().rev().zip(new.as_rchunks().1.iter().rev());
    let end = old.len() - words.take_while(|(old, new)| old == new).count() * WORD_BYTES;
    let last = old[..end].iter().zip(&new[..end]).rposition(unlike)?;
    Some(start..last + 1)
}

/// Whether `changes` keep within what was stated.
pub(crate) fn within(changes: &[ObjectChange<'_>], stated: TransactionCost) -> bool {
    let cost = TransactionCost::of(changes);
    // `Cost::of` counts a record for each page and one more for each change: a bound for any change.
    let records = cost.records
        - changes.iter().filter(|change| matches!(change, ObjectChange::Write { .. })).count() as u64;
    cost.pages <= stated.pages && cost.bytes <= stated.bytes && records <= stated.records
}

#[cfg(test)]
mod tests {
    use super::differing;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn what_differs_is_found_to_the_byte(old in prop::collection::vec(0..2_u8, 0..40), flips in prop::collection::vec(0..40_usize, 0..4)) {
            let mut new = old.clone();
            flips.iter().filter(|&&at| at < old.len()).for_each(|&at| new[at] ^= 7);
            let unlike = || (0..old.len()).filter(|&at| old[at] != new[at]);
            let expected = unlike().min().zip(unlike().max()).map(|(first, last)| first..last + 1);
            prop_assert_eq!(differing(&old, &new), expected);
        }
    }
}

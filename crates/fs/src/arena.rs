//! The arena: the resident copy of object 0, which holds all metadata of a volume, and the one way to change
//! it.
//!
//! An [`FsTransaction`] changes the arena in memory at once and keeps the old bytes. It is then either given
//! to the cache as one transaction, or undone. It holds the exclusive lock meanwhile, so no other thread sees
//! a part of it.

use crate::charge_tracker::{ChargeNote, ChargeTracker, CountedRange};
use crate::error::FsError;
use crate::file_rules::{FileRuleKeeper, NameNote};
use crate::format::{
    ArenaHeader, ArenaRegion, HEAP_LOG2_MIN, INCOMPATIBLE_KNOWN, INODES_MAX, Inode, InodeSlot, InodeTimes,
    MAGIC, OwnerRecord, REGION_BYTES, VERSION, arena_object,
};
use crate::inode::InodeNumbering;
use crate::owner_table::{OwnerIndex, OwnerIndexChange};
use crate::planted_bug::{FsBug, is_planted};
use cache::{ObjectChange, TransactionCost};
use device::{BLOCK_BYTES, ObjectId, Page, PageNo, SharedPage, VolumeId};
use smallvec::SmallVec;
use std::collections::{BTreeSet, HashMap};
use std::mem::take;
use std::ops::{Deref, Range};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// A region's memory grows in steps of this, so that small changes seldom move the region.
const GROW_BYTES: usize = 64 << 10;

/// Reads ranges (offset, length) of object 0 from the cache or the store.
pub(crate) type ReadArena<'a> = &'a mut dyn FnMut(&[(u64, usize)]) -> Result<Vec<Vec<u8>>, FsError>;

/// All metadata of a volume, addressed by offsets in object 0.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Arena {
    regions: [Vec<u8>; ArenaRegion::ALL.len()],
}

/// The error for damaged metadata at `offset`.
pub(crate) fn corrupt(offset: u64, what: impl Into<String>) -> FsError {
    FsError::Corrupt { offset, what: what.into() }
}

impl Arena {
    /// An arena of zeros.
    pub(crate) fn empty() -> Arena {
        let mut regions: [Vec<u8>; ArenaRegion::ALL.len()] = Default::default();
        regions[0] = vec![0; BLOCK_BYTES];
        Arena { regions }
    }

    /// Loads an arena up to its high-water marks.
    ///
    /// One call of `read` asks for all regions, because the store has their pages interleaved, in the order
    /// in which they were written.
    pub(crate) fn load(read: ReadArena<'_>) -> Result<Arena, FsError> {
        let mut arena = Arena::empty();
        let header = read(&[(0, BLOCK_BYTES)])?;
        arena.regions[0] = header.into_iter().next().expect("as many as were asked for");
        check_header(arena.header())?;
        let ranges: Vec<(u64, usize)> =
            ArenaRegion::ALL[1..].iter().map(|&region| (region.base(), arena.used_bytes(region))).collect();
        for (region, bytes) in ArenaRegion::ALL[1..].iter().zip(read(&ranges)?) {
            arena.regions[*region as usize] = bytes;
        }
        Ok(arena)
    }

    pub(crate) fn header(&self) -> &ArenaHeader {
        let (header, _) =
            ArenaHeader::ref_from_prefix(&self.regions[0]).expect("the header page is always whole");
        header
    }

    /// Bytes of a region up to its high-water mark.
    pub(crate) fn used_bytes(&self, region: ArenaRegion) -> usize {
        let header = self.header();
        let slots = header.slots_used.get() as usize + 1;
        match region {
            ArenaRegion::Header => BLOCK_BYTES,
            ArenaRegion::Owners => header.owners_used.get() as usize * size_of::<OwnerRecord>(),
            ArenaRegion::Orphans => header.orphans.get() as usize * size_of::<u32>(),
            ArenaRegion::Inodes => slots * size_of::<Inode>(),
            ArenaRegion::Times => slots * size_of::<InodeTimes>(),
            ArenaRegion::Heap => (header.heap_used.get() as usize) << HEAP_LOG2_MIN,
        }
    }

    /// Returns `len` bytes from `offset` on. Bytes that were never written are an error, so that a wrong
    /// reference is noticed.
    pub(crate) fn bytes(&self, offset: u64, len: usize) -> Result<&[u8], FsError> {
        let region = offset / REGION_BYTES;
        let start = (offset % REGION_BYTES) as usize;
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

    /// Bytes to be changed. The region grows as needed.
    pub(crate) fn bytes_mut(&mut self, offset: u64, len: usize) -> &mut [u8] {
        let region = (offset / REGION_BYTES) as usize;
        let start = (offset % REGION_BYTES) as usize;
        let region = &mut self.regions[region];
        let end = start + len;
        if region.len() < end {
            region.resize(end.next_multiple_of(GROW_BYTES), 0);
        }
        &mut region[start..end]
    }
}

fn check_header(header: &ArenaHeader) -> Result<(), FsError> {
    if header.magic != MAGIC {
        return Err(corrupt(0, "this volume holds no file system of weir's"));
    }
    let version = header.version.get();
    let unknown = header.incompatible.get() & !INCOMPATIBLE_KNOWN;
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
    // Each slot may have an owner record of its own, and a change references the new record before it
    // releases the old one.
    if header.owners_used.get() > slots + 1 {
        return Err(corrupt(52, format!("{} owners for {slots} slots", header.owners_used)));
    }
    Ok(())
}

/// Written ranges with at most this many bytes between them become one: a log record's header costs more than
/// those bytes.
const MERGE_GAP_BYTES: u64 = 16;

/// What memory knows of an open file, from its first opener to its last. Lost at a crash.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct OpenFileState {
    /// Openers: handles, and look-ups that the kernel remembers.
    pub(crate) count: u64,
    /// The file was synced since it was first opened.
    pub(crate) synced: bool,
    /// When a client last read or wrote the file through its own page cache.
    pub(crate) cached_at: Option<Duration>,
}

/// Everything under the file system's one lock.
pub(crate) struct FsState {
    volume: VolumeId,
    arena: Arena,
    /// Derived from the arena.
    owner_index: OwnerIndex,
    pub(crate) numbering: InodeNumbering,
    /// Open files by slot. In memory only, because no file is open after a crash.
    ///
    /// This mutex is taken while the state's lock is held (shared is enough), so that opening a file does not
    /// exclude readers.
    pub(crate) open_files: Mutex<HashMap<u32, OpenFileState>>,
    /// In memory only, too. A crash loses counts of unsure pages, so an inexact charge may stay inexact for
    /// longer.
    pub(crate) charges: ChargeTracker,
    /// Keeps files' rule masks, if some rule is about files. In memory only.
    ///
    /// This mutex is taken while the state's lock is held (shared is enough), so that a walk does not exclude
    /// readers.
    pub(crate) rule_keeper: Option<Mutex<FileRuleKeeper>>,
}

impl FsState {
    pub(crate) fn new(volume: VolumeId, arena: Arena) -> Result<FsState, FsError> {
        let owners = OwnerIndex::of(&arena)?;
        let numbers = InodeNumbering::new(&arena.header().secret);
        Ok(FsState {
            volume,
            arena,
            owner_index: owners,
            numbering: numbers,
            open_files: Mutex::default(),
            charges: ChargeTracker::default(),
            rule_keeper: None,
        })
    }

    pub(crate) fn arena(&self) -> &Arena {
        &self.arena
    }

    pub(crate) fn owner_index(&self) -> &OwnerIndex {
        &self.owner_index
    }

    /// The object that holds a file's data.
    pub(crate) fn data_object(&self, slot: InodeSlot, inode: &Inode) -> ObjectId {
        self.volume.object(u64::from(slot.0), inode.generation.get())
    }
}

impl Deref for FsState {
    type Target = Arena;
    fn deref(&self) -> &Arena {
        &self.arena
    }
}

/// Old bytes of the arena, to undo a change.
struct UndoRecord {
    offset: u64,
    /// Where they start in the transaction's `undo_bytes`.
    at: usize,
    len: usize,
}

/// The changes of one operation, in memory but not yet in the log. Dropping it without
/// [`keep`](FsTransaction::keep) undoes them.
pub(crate) struct FsTransaction<'a> {
    state: &'a mut FsState,
    /// The time of all changes, in nanoseconds since 1970-01-01 UTC.
    pub(crate) now: i64,
    undo: SmallVec<[UndoRecord; 4]>,
    undo_bytes: SmallVec<[u8; 128]>,
    /// Changes of the index of owners, in order.
    owner_index_changes: SmallVec<[OwnerIndexChange; 2]>,
    /// Bytes that the operation writes into a file; empty for other operations.
    file_bytes: &'a [u8],
    /// How many pages the operation removes from a file, if they were counted.
    removed_pages: Option<CountedRange>,
    /// Changes of files' data objects.
    data_changes: SmallVec<[ObjectChange<'a>; 1]>,
    charge_notes: SmallVec<[ChargeNote; 1]>,
    name_notes: Vec<NameNote>,
    kept: bool,
}

impl Deref for FsTransaction<'_> {
    type Target = FsState;
    fn deref(&self) -> &FsState {
        self.state
    }
}

impl<'a> FsTransaction<'a> {
    /// Begins a transaction at the time `now`. `file_bytes` are the bytes that the operation writes into a
    /// file, or empty.
    pub(crate) fn begin(state: &'a mut FsState, now: i64, file_bytes: &'a [u8]) -> FsTransaction<'a> {
        FsTransaction {
            state,
            now,
            undo: SmallVec::new(),
            undo_bytes: SmallVec::new(),
            owner_index_changes: SmallVec::new(),
            file_bytes,
            removed_pages: None,
            data_changes: SmallVec::new(),
            charge_notes: SmallVec::new(),
            name_notes: Vec::new(),
            kept: false,
        }
    }

    /// Bytes that the operation writes into a file.
    pub(crate) fn file_bytes(&self) -> &'a [u8] {
        self.file_bytes
    }

    /// Sets how many pages the operation removes from a file, as counted before.
    pub(crate) fn set_removed_pages(&mut self, counted: Option<CountedRange>) {
        self.removed_pages = counted;
    }

    pub(crate) fn take_removed_pages(&mut self) -> Option<CountedRange> {
        self.removed_pages.take()
    }

    /// Keeps a note for the charge tracker, which gets it when the changes are final.
    pub(crate) fn note_charge(&mut self, note: ChargeNote) {
        self.charge_notes.push(note);
    }

    /// Keeps a note for the keeper of rule masks, if one exists. The keeper gets the note when the changes are
    /// final.
    pub(crate) fn note_name(&mut self, note: impl FnOnce(&FsState) -> NameNote) {
        if self.state.rule_keeper.is_some() {
            self.name_notes.push(note(self.state));
        }
    }

    /// The file's [counter of removals](ChargeTracker::removals), with those of this transaction.
    pub(crate) fn removals(&self, slot: InodeSlot) -> u64 {
        let own = |note: &&ChargeNote| matches!(note, ChargeNote::Removed(of) if *of == slot);
        self.state.charges.removals(slot) + self.charge_notes.iter().filter(own).count() as u64
    }

    /// Writes bytes of the arena. Only the range that differs is recorded.
    pub(crate) fn write(&mut self, offset: u64, bytes: &[u8]) {
        let present = self.state.arena.bytes_mut(offset, bytes.len());
        let Some(range) = differing_range(present, bytes) else { return };
        self.undo.push(UndoRecord {
            offset: offset + range.start as u64,
            at: self.undo_bytes.len(),
            len: range.len(),
        });
        self.undo_bytes.extend_from_slice(&present[range.clone()]);
        present[range.clone()].copy_from_slice(&bytes[range]);
    }

    /// Extends the arena in memory, so that it includes the byte at `offset`.
    pub(crate) fn extend_to(&mut self, offset: u64) {
        self.state.arena.bytes_mut(offset, 1);
    }

    pub(crate) fn change_header(&mut self, change: impl FnOnce(&mut ArenaHeader)) {
        let mut header = self.header().clone();
        change(&mut header);
        self.write(0, header.as_bytes());
    }

    /// Adds a change of a file's data object.
    pub(crate) fn add_data_change(&mut self, change: ObjectChange<'a>) {
        self.data_changes.push(change);
    }

    pub(crate) fn change_owner_index(&mut self, change: OwnerIndexChange) {
        self.state.owner_index.apply(change);
        self.owner_index_changes.push(change);
    }

    /// Whether the file in this slot is open.
    pub(crate) fn is_open(&mut self, slot: InodeSlot) -> bool {
        let open_files = self.state.open_files.get_mut().expect("no panic while holding the open files");
        open_files.contains_key(&slot.0)
    }

    /// Whether a file was synced while it was held.
    pub(crate) fn was_synced(&mut self, slot: InodeSlot) -> bool {
        let open_files = self.state.open_files.get_mut().expect("no panic while holding the open files");
        open_files.get(&slot.0).is_some_and(|open| open.synced)
    }

    /// The written ranges (from, to) of the arena: disjoint, in ascending order. A write has few.
    fn written_ranges(&self) -> SmallVec<[(u64, u64); 4]> {
        let mut ranges: SmallVec<[(u64, u64); 4]> = SmallVec::new();
        for old in &self.undo {
            ranges.push((old.offset, old.offset + old.len as u64));
        }
        ranges.sort_unstable();
        ranges.dedup_by(|next, last| {
            let is_near = next.0 <= last.1 + MERGE_GAP_BYTES;
            if is_near {
                last.1 = last.1.max(next.1);
            }
            is_near
        });
        ranges
    }

    /// All changes for the cache: files' data first, then the arena.
    pub(crate) fn changes(&self) -> SmallVec<[ObjectChange<'_>; 4]> {
        let mut changes: SmallVec<[ObjectChange<'_>; 4]> = self.data_changes.iter().copied().collect();
        for &(from, to) in &self.written_ranges() {
            let bytes = self.state.arena.bytes(from, (to - from) as usize).expect("it was just written");
            changes.push(ObjectChange::Write {
                object: arena_object(self.state.volume),
                offset: from,
                bytes,
            });
        }
        changes
    }

    /// The arena's pages with changes, as a whole.
    pub(crate) fn written_pages(&self) -> Vec<(PageNo, SharedPage)> {
        let ranges = self.written_ranges().into_iter();
        let pages: BTreeSet<PageNo> =
            ranges.flat_map(|(from, to)| PageNo::of(from).0..=PageNo::of(to - 1).0).map(PageNo).collect();
        let whole = |page: PageNo| {
            let bytes = self.state.arena.bytes(page.offset(), BLOCK_BYTES).expect("it was just written");
            let mut whole = Page::zeroed();
            whole.0.copy_from_slice(bytes);
            (page, Arc::new(whole))
        };
        pages.into_iter().map(whole).collect()
    }

    /// Makes the changes in memory final.
    pub(crate) fn keep(&mut self) {
        self.kept = true;
        self.charge_notes.drain(..).for_each(|note| self.state.charges.note(note));
        if !self.name_notes.is_empty() {
            self.state.follow_names(take(&mut self.name_notes));
        }
    }
}

impl Drop for FsTransaction<'_> {
    fn drop(&mut self) {
        if self.kept || is_planted(FsBug::NotUndone) {
            return;
        }
        for old in self.undo.iter().rev() {
            let bytes = &self.undo_bytes[old.at..old.at + old.len];
            self.state.arena.bytes_mut(old.offset, old.len).copy_from_slice(bytes);
        }
        for &change in self.owner_index_changes.iter().rev() {
            self.state.owner_index.undo(change);
        }
    }
}

/// Bytes compared at once. A change rewrites records of some tens of bytes, of which a few differ.
const WORD_BYTES: usize = 8;

/// The range from the first to the last byte in which two strings of equal length differ.
fn differing_range(old: &[u8], new: &[u8]) -> Option<Range<usize>> {
    // The most frequent case: an overwrite leaves its inode as it is.
    if old == new {
        return None;
    }
    let unlike = |(old, new): (&u8, &u8)| old != new;
    let words = old.as_chunks::<WORD_BYTES>().0.iter().zip(new.as_chunks().0);
    let before = words.take_while(|(old, new)| old == new).count() * WORD_BYTES;
    let start = before + old[before..].iter().zip(&new[before..]).position(unlike)?;

    let words = old.as_rchunks::<WORD_BYTES>().1.iter().rev().zip(new.as_rchunks().1.iter().rev());
    let end = old.len() - words.take_while(|(old, new)| old == new).count() * WORD_BYTES;
    let last = old[..end].iter().zip(&new[..end]).rposition(unlike)?;
    Some(start..last + 1)
}

/// Whether `changes` need no more than the stated cost.
pub(crate) fn is_within_cost(changes: &[ObjectChange<'_>], stated: TransactionCost) -> bool {
    let cost = TransactionCost::of(changes);
    // `TransactionCost::of` counts a record for each page and one more for each change, which bounds any
    // change. A write needs only those of its pages.
    let is_write = |change: &&ObjectChange<'_>| {
        matches!(change, ObjectChange::Write { .. } | ObjectChange::FileWrite { .. })
    };
    let writes = changes.iter().filter(is_write).count() as u64;
    let records = cost.records - writes;
    cost.pages <= stated.pages && cost.bytes <= stated.bytes && records <= stated.records
}

#[cfg(test)]
mod tests {
    use super::differing_range;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn what_differs_is_found_to_the_byte(old in prop::collection::vec(0..2_u8, 0..40), flips in prop::collection::vec(0..40_usize, 0..4)) {
            let mut new = old.clone();
            flips.iter().filter(|&&at| at < old.len()).for_each(|&at| new[at] ^= 7);
            let unlike = || (0..old.len()).filter(|&at| old[at] != new[at]);
            let expected = unlike().min().zip(unlike().max()).map(|(first, last)| first..last + 1);
            prop_assert_eq!(differing_range(&old, &new), expected);
        }
    }
}

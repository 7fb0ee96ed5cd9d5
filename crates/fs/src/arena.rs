//! The resident copy of object 0. Only a [`Transaction`](crate::transaction::Transaction) changes it.

use crate::error::FsError;
use crate::format::{
    Cold, HEAP_LOG2_MIN, Header, Hot, INCOMPATIBLE_KNOWN, INODES_MAX, MAGIC, Owner, REGION_BYTES, Region,
    VERSION,
};
use device::BLOCK_BYTES;
use zerocopy::{FromBytes, Immutable, KnownLayout, Unaligned};

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

//! The superblock, block 0: which store this is, and its sizes. Written when the store is formatted, grown or
//! repaired, and when its draft is raised, and at no other time.
//!
//! The last block of the store is a copy of the superblock. A mount never uses the copy: a store with a
//! damaged first block is refused until you repair it, so that you notice a failing disk. The roots tell
//! where the copy is, and which store's it must be.

use crate::bug::{StoreBug, is_planted};
use crate::checkpoint_root::CheckpointRoot;
use crate::error::StoreError;
use crate::format::*;
use crate::tables_stream::STREAM_BLOCK_BYTES;
use device::{BLOCK_BYTES, Block, Device, Page, StoreId};
use std::ops::Range;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// The layout of a new store.
#[derive(Debug, Clone)]
pub struct StoreLayout {
    /// Identity of the store.
    pub id: StoreId,
    /// Blocks of a segment, 16 to 32,768. `None`: capacity / 2048, between 512 KiB and 128 MiB. Values below
    /// 512 KiB are for tests: writes to a nearly full store then wait until several segments are cleaned.
    pub segment_blocks: Option<u32>,
}

/// 512 KiB. With smaller segments trimming and sequential writing gain little.
const SEGMENT_BLOCKS_MIN: u64 = 128;
/// Segments of a store by default. The reserve is some forty segments, a small part where there are many. A
/// disk that writes segments of 2 MiB in random order is three quarters as fast as one that writes
/// sequentially.
const SEGMENTS_TARGET: u64 = 2048;
/// 128 MiB. Larger segments take seconds to clean on a disk.
const SEGMENT_BLOCKS_MAX: u64 = 32_768;
/// The smallest segments of all, for the simulator: a chunk of a few pages must fit.
const SEGMENT_BLOCKS_MIN_IN_TESTS: u64 = 16;
/// The fewest segments of a store. Some 45 of them are the reserve.
const SEGMENTS_MIN: u64 = 48;
/// The fewest segments of the default size. Three tenths of them can be used.
const SEGMENTS_MIN_DEFAULT: u64 = 64;
/// A segment's number has 32 bits.
const SEGMENTS_MAX: u64 = u32::MAX as u64;

/// The identity and the sizes of a store, verified.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct StoreGeometry {
    pub(crate) id: StoreId,
    pub(crate) total_blocks: u64,
    pub(crate) segment_blocks: u64,
    pub(crate) segments: u32,
    pub(crate) draft: u32,
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct SuperblockBytes {
    head: StructureHead,
    total_blocks: U64,
    segments_at: U64,
    segment_blocks: U32,
    segments: U32,
    block_bytes: U32,
    leaf_pages: U32,
    leaf_objects: U32,
    inner_children: U32,
    table_nodes: U32,
    draft: U32,
}

const _: () = assert!(size_of::<SuperblockBytes>() == 80);

impl StoreGeometry {
    /// The sizes of a new store on `device`.
    pub(crate) fn plan(device: &dyn Device, layout: &StoreLayout) -> Result<StoreGeometry, StoreError> {
        let bad = |why| StoreError::BadSizes { device: device.name().to_owned(), why };
        let segment_blocks = match layout.segment_blocks {
            Some(blocks) => u64::from(blocks),
            None => (device.blocks() / SEGMENTS_TARGET).clamp(SEGMENT_BLOCKS_MIN, SEGMENT_BLOCKS_MAX),
        };
        if !(SEGMENT_BLOCKS_MIN_IN_TESTS..=SEGMENT_BLOCKS_MAX).contains(&segment_blocks) {
            let range = format!("{SEGMENT_BLOCKS_MIN_IN_TESTS} to {SEGMENT_BLOCKS_MAX}");
            return Err(bad(format!("a segment of {segment_blocks} blocks: it may have {range}")));
        }
        let segments = device.blocks().saturating_sub(total_blocks(0, 0)) / segment_blocks;
        let segments_min = if layout.segment_blocks.is_some() { SEGMENTS_MIN } else { SEGMENTS_MIN_DEFAULT };
        if segments < segments_min {
            let has = device.blocks() * BLOCK_BYTES as u64;
            let needs = total_blocks(segments_min, segment_blocks) * BLOCK_BYTES as u64;
            return Err(bad(format!("{has} bytes are too small for a store: give it at least {needs}")));
        }
        let segments = u32::try_from(segments.min(SEGMENTS_MAX)).expect("limited just now");
        let total_blocks = total_blocks(u64::from(segments), segment_blocks);
        Ok(StoreGeometry { id: layout.id, total_blocks, segment_blocks, segments, draft: DRAFT })
    }

    /// The geometry of this store with another number of segments.
    pub(crate) fn with_segments(self, segments: u32) -> StoreGeometry {
        StoreGeometry {
            segments,
            total_blocks: total_blocks(u64::from(segments), self.segment_blocks),
            ..self
        }
    }

    /// The sizes of this store, grown to at most `blocks` blocks.
    fn grown(self, device: &dyn Device, blocks: u64) -> Result<StoreGeometry, StoreError> {
        let bytes = |blocks: u64| blocks * BLOCK_BYTES as u64;
        let cannot = |why: String, help: String| {
            let device = device.name().to_owned();
            Err(StoreError::CannotGrow { device, why, help })
        };
        let segments = blocks.saturating_sub(total_blocks(0, 0)) / self.segment_blocks;
        let segments = u32::try_from(segments.min(SEGMENTS_MAX)).expect("limited just now");
        if segments < self.segments {
            let now = bytes(self.total_blocks);
            return cannot(
                format!("the store has {now} bytes, and does not get smaller"),
                "copy its files into a new one; a number without a unit is in bytes: write 512MiB or 1.5GiB"
                    .into(),
            );
        }
        // A checkpoint writes the segment table, which must fit into one segment.
        let segments_max =
            (self.segment_blocks as usize * STREAM_BLOCK_BYTES - STREAM_HEAD_BYTES) / SEGMENT_BYTES;
        if segments as usize > segments_max {
            let most = bytes(total_blocks(segments_max as u64, self.segment_blocks));
            return cannot(
                format!("with segments of {} bytes it can have {most} bytes", bytes(self.segment_blocks)),
                format!(
                    "give at most `--size {most}`, or copy its files into a new store with larger segments"
                ),
            );
        }
        Ok(self.with_segments(segments))
    }

    pub(crate) fn encode(&self) -> Box<Page> {
        let bytes = SuperblockBytes {
            head: StructureHead::new(MAGIC_SUPERBLOCK, self.id),
            total_blocks: self.total_blocks.into(),
            segments_at: SEGMENTS_AT.into(),
            segment_blocks: (self.segment_blocks as u32).into(),
            segments: self.segments.into(),
            block_bytes: (BLOCK_BYTES as u32).into(),
            leaf_pages: (LEAF_PAGES as u32).into(),
            leaf_objects: (LEAF_OBJECTS as u32).into(),
            inner_children: (INNER_CHILDREN as u32).into(),
            table_nodes: (TABLE_NODES as u32).into(),
            draft: self.draft.into(),
        };
        let mut page = Page::zeroed();
        bytes.write_to_prefix(&mut page.0).expect("smaller than a page");
        seal(&mut page.0);
        page
    }

    /// Reads and verifies the superblock of `device`. Returns the blocks before the first segment, too.
    pub(crate) fn read(device: &dyn Device) -> Result<(StoreGeometry, Vec<Page>), StoreError> {
        let name = || device.name().to_owned();
        if device.blocks() < SEGMENTS_AT {
            return Err(StoreError::NotAStore { device: name() });
        }
        let mut pages = device::pages(SEGMENTS_AT as usize);
        if device.read(SUPERBLOCK, &mut pages).is_err() {
            read_one_by_one(device, &mut pages)?;
        }
        let geometry = decode(device, &pages)?;
        if geometry.total_blocks > device.blocks() {
            return Err(StoreError::Truncated {
                device: name(),
                expected: geometry.total_blocks,
                found: device.blocks(),
            });
        }
        Ok((geometry, pages))
    }

    /// The block of the superblock's copy.
    pub(crate) fn copy_at(&self) -> Block {
        Block(self.total_blocks - 1)
    }

    /// The problem with the superblock's copy; `None` if it is intact.
    pub(crate) fn copy_damage(&self, device: &dyn Device) -> Option<String> {
        let at = self.copy_at();
        let mut page = Page::zeroed();
        match device.read(at, std::slice::from_mut(&mut *page)) {
            // A crash while the draft was raised leaves a copy with the new one.
            Ok(()) if page == self.encode() || page == self.with_new_draft().encode() => None,
            Ok(()) => Some(format!("block {at}: the superblock's copy is not what was written")),
            Err(error) => Some(format!("the superblock's copy: {error}")),
        }
    }

    /// Whether volume 0 exists though no leaf of volumes may say so.
    pub(crate) fn has_implied_main(&self) -> bool {
        self.draft == DRAFT_BEFORE
    }

    fn with_new_draft(self) -> StoreGeometry {
        StoreGeometry { draft: DRAFT, ..self }
    }

    /// Whether a valid root says that the first blocks are of another store, or of a larger one. (The store
    /// may have grown since the root.)
    pub(crate) fn is_contradicted_by_roots(&self, first_blocks: &[Page]) -> bool {
        intact_roots(first_blocks).any(|(id, root)| id != self.id || root.total_blocks > self.total_blocks)
    }

    /// The first block of a segment.
    pub(crate) fn segment_start(&self, segment: u32) -> Block {
        Block(SEGMENTS_AT + u64::from(segment) * self.segment_blocks)
    }

    /// The blocks of a segment.
    pub(crate) fn blocks_of(&self, segment: u32) -> Range<Block> {
        let start = self.segment_start(segment);
        start..start.plus(self.segment_blocks)
    }

    /// The segment of a block; `None` before the first segment and after the last.
    pub(crate) fn segment_of(&self, at: Block) -> Option<u32> {
        let segment = at.0.checked_sub(SEGMENTS_AT)? / self.segment_blocks;
        (segment < u64::from(self.segments)).then_some(segment as u32)
    }

    /// Whether two blocks lie at the same offset of different segments.
    pub(crate) fn are_opposite(&self, one: Block, other: Block) -> bool {
        let both = self.segment_of(one).zip(self.segment_of(other));
        both.is_some_and(|(first, second)| {
            first != second && one.0 - self.segment_start(first).0 == other.0 - self.segment_start(second).0
        })
    }
}

/// Blocks of a store: those before the segments, the segments, the superblock's copy.
fn total_blocks(segments: u64, segment_blocks: u64) -> u64 {
    SEGMENTS_AT + segments * segment_blocks + 1
}

/// Reads blocks one by one. If only one root is unreadable, it counts as torn, as the other one replaces it.
fn read_one_by_one(device: &dyn Device, pages: &mut [Page]) -> Result<(), StoreError> {
    let mut unreadable = Vec::new();
    for (page, at) in pages.iter_mut().zip(0..) {
        if let Err(error) = device.read(Block(at), std::slice::from_mut(page)) {
            page.0.fill(0);
            unreadable.push((Block(at), error));
        }
    }
    let roots = unreadable.iter().filter(|(at, _)| ROOTS.contains(at)).count();
    match unreadable.into_iter().next() {
        Some((SUPERBLOCK, error)) if intact_roots(pages).next().is_some() => {
            let why = format!(": {error}");
            Err(StoreError::SuperblockDamaged { device: device.name().to_owned(), why })
        }
        Some((at, error)) if at == SUPERBLOCK || roots == ROOTS.len() => Err(error.into()),
        _ => Ok(()),
    }
}

/// The roots that are intact, with the store that each belongs to. They prove that there was a superblock.
fn intact_roots(pages: &[Page]) -> impl Iterator<Item = (StoreId, CheckpointRoot)> + '_ {
    ROOTS.into_iter().filter_map(|at| {
        let page = &pages[at.0 as usize];
        let (head, _) = StructureHead::read_from_prefix(&page.0).expect("smaller than a page");
        let id = StoreId(head.store);
        Some((id, CheckpointRoot::decode(page, id)?))
    })
}

/// Verifies the first blocks of a device: its superblock, and the roots as proof that there was one.
fn decode(device: &dyn Device, pages: &[Page]) -> Result<StoreGeometry, StoreError> {
    let name = || device.name().to_owned();
    let damaged = || StoreError::SuperblockDamaged { device: name(), why: String::new() };
    let (block, _) = SuperblockBytes::read_from_prefix(&pages[0].0).expect("smaller than a page");
    if block.head.magic != MAGIC_SUPERBLOCK {
        let was_one = intact_roots(pages).next().is_some();
        return Err(if was_one { damaged() } else { StoreError::NotAStore { device: name() } });
    }
    if block.head.crc.get() != checksum(&pages[0].0) {
        return Err(damaged());
    }
    validate(device, &block)
}

/// Verifies the version and the sizes in a superblock whose checksum is right.
fn validate(device: &dyn Device, block: &SuperblockBytes) -> Result<StoreGeometry, StoreError> {
    let name = || device.name().to_owned();
    let draft = block.draft.get();
    match block.head.version.get() {
        VERSION if [DRAFT_BEFORE, DRAFT].contains(&draft) => {}
        VERSION => return Err(StoreError::OtherDraft { device: name(), found: draft }),
        found if found > VERSION => return Err(StoreError::NewerVersion { device: name(), found }),
        found => return Err(StoreError::OldVersion { device: name(), found }),
    }
    check_sizes(block).map_err(|why| StoreError::BadSizes { device: name(), why })?;
    Ok(StoreGeometry {
        id: StoreId(block.head.store),
        total_blocks: block.total_blocks.get(),
        segment_blocks: u64::from(block.segment_blocks.get()),
        segments: block.segments.get(),
        draft,
    })
}

/// Raises the draft of a store whose roots have nothing left that only the draft before allows. Durable on
/// return. As the two drafts differ in one sector, a crash leaves a superblock with either.
pub(crate) fn raise_draft(
    device: &dyn Device,
    geometry: StoreGeometry,
    flush: impl Fn() -> Result<(), StoreError>,
) -> Result<StoreGeometry, StoreError> {
    let raised = geometry.with_new_draft();
    write_both(device, raised, flush)?;
    Ok(raised)
}

/// Writes the copy of the superblock, then the superblock.
fn write_both(
    device: &dyn Device,
    geometry: StoreGeometry,
    flush: impl Fn() -> Result<(), StoreError>,
) -> Result<(), StoreError> {
    device.write(geometry.copy_at(), &[*geometry.encode()])?;
    flush()?;
    device.write(SUPERBLOCK, &[*geometry.encode()])?;
    flush()
}

/// Grows the store to `blocks` blocks of `device`, or to all that the device has. Durable on return.
///
/// A crash leaves the old superblock or the new one, as they differ in one sector only. Either describes a
/// valid store: the blocks of the old store stay where they are, and the blocks after them are free as long
/// as no root says otherwise. No root does before the new superblock is durable.
pub(crate) fn grow(
    device: &dyn Device,
    geometry: StoreGeometry,
    blocks: Option<u64>,
    flush: impl Fn() -> Result<(), StoreError>,
) -> Result<StoreGeometry, StoreError> {
    // Updates `device.blocks()`, as the device itself may have grown.
    device.grow(0)?;
    let grown = geometry.grown(device, blocks.unwrap_or(device.blocks()))?;
    if grown == geometry {
        return Ok(geometry);
    }
    device.grow(grown.total_blocks)?;
    if device.blocks() < grown.total_blocks {
        let [wanted, has] = [grown.total_blocks, device.blocks()].map(|blocks| blocks * BLOCK_BYTES as u64);
        let why = format!("it has {has} bytes, and {wanted} are wanted");
        let help = "make the device larger first, or leave out `--size`".into();
        return Err(StoreError::CannotGrow { device: device.name().to_owned(), why, help });
    }
    write_both(device, grown, flush)?;
    Ok(grown)
}

/// The outcome of [`Store::repair_superblocks`](crate::Store::repair_superblocks).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SuperblockRepair {
    /// Nothing: both superblocks were intact.
    Neither,
    /// The superblock was restored from its copy, which lies in this block.
    First(Block),
    /// The copy, which lies in this block, was written again.
    Copy(Block),
}

/// See [`Store::repair_superblocks`](crate::Store::repair_superblocks).
pub(crate) fn repair(device: &dyn Device) -> Result<SuperblockRepair, StoreError> {
    match StoreGeometry::read(device) {
        // A superblock that the roots contradict may point to a copy where another store, or this one, has
        // data.
        Ok((geometry, pages)) if !geometry.is_contradicted_by_roots(&pages) => {
            if geometry.copy_damage(device).is_none() {
                return Ok(SuperblockRepair::Neither);
            }
            device.write(geometry.copy_at(), &[*geometry.encode()])?;
            device.flush()?;
            Ok(SuperblockRepair::Copy(geometry.copy_at()))
        }
        Ok(_) | Err(StoreError::SuperblockDamaged { .. }) => {
            let geometry = read_copy(device)?;
            device.write(SUPERBLOCK, &[*geometry.encode()])?;
            device.flush()?;
            Ok(SuperblockRepair::First(geometry.copy_at()))
        }
        Err(error) => Err(error),
    }
}

/// The sizes in the superblock's copy, if the roots agree with it.
fn read_copy(device: &dyn Device) -> Result<StoreGeometry, StoreError> {
    let bad =
        |place, why: String| Err(StoreError::NoGoodCopy { device: device.name().to_owned(), place, why });
    let mut pages = device::pages(SEGMENTS_AT as usize);
    for at in ROOTS {
        // An unreadable root proves nothing.
        let _ = device.read(at, std::slice::from_mut(&mut pages[at.0 as usize]));
    }
    let said: Vec<(StoreId, u64)> = intact_roots(&pages).map(|(id, root)| (id, root.total_blocks)).collect();
    // If the store grew between the two roots, only the newer one says where the copy is.
    let (id, blocks) = match said[..] {
        [(one, blocks), (other, more)] if one == other => (one, blocks.max(more)),
        [one] => one,
        [] => {
            return bad(
                ROOTS[0],
                "both checkpoint roots are damaged, too: nothing says where the copy is".into(),
            );
        }
        _ => return bad(ROOTS[0], "the checkpoint roots are of two stores".into()),
    };
    if blocks > device.blocks() {
        return Err(StoreError::Truncated {
            device: device.name().to_owned(),
            expected: blocks,
            found: device.blocks(),
        });
    }
    let at = Block(blocks.saturating_sub(1));
    let mut page = Page::zeroed();
    device.read(at, std::slice::from_mut(&mut *page))?;
    let (block, _) = SuperblockBytes::read_from_prefix(&page.0).expect("smaller than a page");
    if block.head.magic != MAGIC_SUPERBLOCK {
        return bad(at, "there is no copy of the superblock".into());
    }
    if block.head.crc.get() != checksum(&page.0) {
        return bad(at, "the copy of the superblock is damaged, too".into());
    }
    let copy = validate(device, &block)?;
    if is_planted(StoreBug::AnyCopyRestored) {
        return Ok(copy);
    }
    if copy.id != id {
        let found = copy.id;
        return bad(at, format!("the copy of the superblock is of store {found}, the roots are of {id}"));
    }
    if copy.total_blocks != blocks {
        let found = copy.total_blocks;
        return bad(
            at,
            format!(
                "the copy of the superblock is of a store of {found} blocks, the roots of one of {blocks}"
            ),
        );
    }
    Ok(copy)
}

fn check_sizes(block: &SuperblockBytes) -> Result<(), String> {
    let fixed = [
        ("block_bytes", u64::from(block.block_bytes.get()), BLOCK_BYTES as u64),
        ("segments_at", block.segments_at.get(), SEGMENTS_AT),
        ("leaf_pages", u64::from(block.leaf_pages.get()), LEAF_PAGES),
        ("leaf_objects", u64::from(block.leaf_objects.get()), LEAF_OBJECTS),
        ("inner_children", u64::from(block.inner_children.get()), INNER_CHILDREN),
        ("table_nodes", u64::from(block.table_nodes.get()), TABLE_NODES),
    ];
    for (what, found, expected) in fixed {
        if found != expected {
            return Err(format!("the superblock's {what} is {found}, this weir knows {expected}"));
        }
    }
    let blocks = u64::from(block.segment_blocks.get());
    let segments = u64::from(block.segments.get());
    let total = total_blocks(segments, blocks);
    let sane =
        (SEGMENT_BLOCKS_MIN_IN_TESTS..=SEGMENT_BLOCKS_MAX).contains(&blocks) && segments >= SEGMENTS_MIN;
    if !sane || total != block.total_blocks.get() {
        let all = block.total_blocks.get();
        return Err(format!("{segments} segments of {blocks} blocks in {all} blocks make no sense"));
    }
    Ok(())
}

//! Block 0: which store this is, and its sizes. Written when the store is formatted, and never again.

use crate::error::StoreError;
use crate::format::*;
use device::{BLOCK_BYTES, Block, Device, Page, StoreId};
use std::ops::Range;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// How to lay out a new store.
#[derive(Debug, Clone)]
pub struct Layout {
    /// Identity of the store.
    pub id: StoreId,
    /// Blocks of a segment, 16 to 32,768; `None`: capacity / 256, between 1 and 128 MiB. Below 1 MiB, which is for tests, writes to a
    /// store that is nearly full wait for several segments to be cleaned.
    pub segment_blocks: Option<u32>,
}

/// 1 MiB: below it, trimming and sequential writing gain little.
const SEGMENT_BLOCKS_MIN: u64 = 256;
/// 128 MiB: above it, a segment takes seconds to clean on a disk.
const SEGMENT_BLOCKS_MAX: u64 = 32_768;
/// The simulator's segments: a chunk of a few pages must fit. Users are offered no less than `SEGMENT_BLOCKS_MIN`.
const SEGMENT_BLOCKS_SMALLEST: u64 = 16;
/// Half of them for the log, the reserves and two checkpoints, half to store something.
const SEGMENTS_MIN: u64 = 32;
/// An incompatible feature: volumes have names, and a buffer says whose records it holds.
const NAMED_VOLUMES: u64 = 1;
/// A segment's number has 32 bits.
const SEGMENTS_MAX: u64 = u32::MAX as u64;

/// The sizes of a store, once believed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Geometry {
    pub(crate) id: StoreId,
    pub(crate) total_blocks: u64,
    pub(crate) segment_blocks: u64,
    pub(crate) segments: u32,
    /// Volumes may have names.
    pub(crate) has_names: bool,
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Superblock {
    head: Head,
    /// Features that a program that does not know them may ignore.
    compatible: U64,
    /// Features of a store that a program that does not know them must not touch.
    incompatible: U64,
    total_blocks: U64,
    segments_at: U64,
    segment_blocks: U32,
    segments: U32,
    block_bytes: U32,
    leaf_pages: U32,
    leaf_objects: U32,
    inner_children: U32,
    table_nodes: U32,
    device: U16,
    devices: U16,
}

const _: () = assert!(size_of::<Superblock>() == 96);

impl Geometry {
    /// The sizes of a new store on `device`.
    pub(crate) fn plan(device: &dyn Device, layout: &Layout) -> Result<Geometry, StoreError> {
        let bad = |why| StoreError::BadSizes { device: device.name().to_owned(), why };
        let segment_blocks = match layout.segment_blocks {
            Some(blocks) => u64::from(blocks),
            None => (device.blocks() / 256).clamp(SEGMENT_BLOCKS_MIN, SEGMENT_BLOCKS_MAX),
        };
        if !(SEGMENT_BLOCKS_SMALLEST..=SEGMENT_BLOCKS_MAX).contains(&segment_blocks) {
            let range = format!("{SEGMENT_BLOCKS_SMALLEST} to {SEGMENT_BLOCKS_MAX}");
            return Err(bad(format!("a segment of {segment_blocks} blocks: it may have {range}")));
        }
        let segments = device.blocks().saturating_sub(SEGMENTS_AT) / segment_blocks;
        if segments < SEGMENTS_MIN {
            let least = SEGMENTS_AT + SEGMENTS_MIN * segment_blocks;
            let (has, needs) = (device.blocks() * BLOCK_BYTES as u64, least * BLOCK_BYTES as u64);
            return Err(bad(format!("{has} bytes are too small for a store: give it at least {needs}")));
        }
        let segments = u32::try_from(segments.min(SEGMENTS_MAX)).expect("limited just now");
        let total_blocks = SEGMENTS_AT + u64::from(segments) * segment_blocks;
        Ok(Geometry { id: layout.id, total_blocks, segment_blocks, segments, has_names: true })
    }

    pub(crate) fn encode(&self) -> Box<Page> {
        let bytes = Superblock {
            head: Head::new(MAGIC_SUPERBLOCK, self.id),
            compatible: 0.into(),
            incompatible: if self.has_names { NAMED_VOLUMES } else { 0 }.into(),
            total_blocks: self.total_blocks.into(),
            segments_at: SEGMENTS_AT.into(),
            segment_blocks: (self.segment_blocks as u32).into(),
            segments: self.segments.into(),
            block_bytes: (BLOCK_BYTES as u32).into(),
            leaf_pages: (LEAF_PAGES as u32).into(),
            leaf_objects: (LEAF_OBJECTS as u32).into(),
            inner_children: (INNER_CHILDREN as u32).into(),
            table_nodes: (TABLE_NODES as u32).into(),
            device: DEVICE.into(),
            devices: 1.into(),
        };
        let mut page = Page::zeroed();
        bytes.write_to_prefix(&mut page.0).expect("smaller than a page");
        seal(&mut page.0);
        page
    }

    /// Reads and believes the superblock of `device`, or says why not. Returns the first blocks, up to the first segment.
    pub(crate) fn read(device: &dyn Device) -> Result<(Geometry, Vec<Page>), StoreError> {
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
            let (expected, found) = (geometry.total_blocks, device.blocks());
            return Err(StoreError::Truncated { device: name(), expected, found });
        }
        Ok((geometry, pages))
    }

    /// The first block of a segment.
    pub(crate) fn start(&self, segment: u32) -> Block {
        Block(SEGMENTS_AT + u64::from(segment) * self.segment_blocks)
    }

    /// The blocks of a segment.
    pub(crate) fn blocks(&self, segment: u32) -> Range<Block> {
        let start = self.start(segment);
        start..start.plus(self.segment_blocks)
    }

    /// The segment in which a block lies; `None` before the first and after the last.
    pub(crate) fn segment(&self, at: Block) -> Option<u32> {
        let segment = at.0.checked_sub(SEGMENTS_AT)? / self.segment_blocks;
        (segment < u64::from(self.segments)).then_some(segment as u32)
    }
}

/// One root stands in for the other, and the epoch root is not read at all: where only one of them is unreadable it counts as one
/// that was torn while it was written.
fn read_one_by_one(device: &dyn Device, pages: &mut [Page]) -> Result<(), StoreError> {
    device.read(SUPERBLOCK, &mut pages[..1])?;
    let (mut roots, mut unreadable) = (ROOTS.len(), None);
    for (page, at) in pages.iter_mut().zip(0..).skip(1) {
        if let Err(error) = device.read(Block(at), std::slice::from_mut(page)) {
            page.0.fill(0);
            roots -= usize::from(ROOTS.contains(&Block(at)));
            unreadable = Some(error);
        }
    }
    match unreadable.filter(|_| roots == 0) {
        Some(error) => Err(error.into()),
        None => Ok(()),
    }
}

/// Believes the first blocks of a device: its superblock, and the roots as witnesses that there was one.
fn decode(device: &dyn Device, pages: &[Page]) -> Result<Geometry, StoreError> {
    let name = || device.name().to_owned();
    let damaged =
        || StoreError::Damaged { device: name(), place: SUPERBLOCK, what: "the superblock".to_owned() };
    let (block, _) = Superblock::read_from_prefix(&pages[0].0).expect("smaller than a page");
    if block.head.magic != MAGIC_SUPERBLOCK {
        let witness = |at: Block| {
            let (head, _) = Head::read_from_prefix(&pages[at.0 as usize].0).expect("smaller than a page");
            sealed(&pages[at.0 as usize].0, MAGIC_ROOT, StoreId(head.store)).is_some()
        };
        let was_one = ROOTS.into_iter().any(witness);
        return Err(if was_one { damaged() } else { StoreError::NotAStore { device: name() } });
    }
    if block.head.crc.get() != sum(&pages[0].0) {
        return Err(damaged());
    }
    if block.head.version.get() > VERSION {
        return Err(StoreError::NewerVersion { device: name(), found: block.head.version.get() });
    }
    if block.head.version.get() < VERSION {
        return Err(StoreError::OlderVersion { device: name(), found: block.head.version.get() });
    }
    let unknown = block.incompatible.get() & !NAMED_VOLUMES;
    if unknown != 0 {
        return Err(StoreError::UnknownFeature { device: name(), flags: unknown });
    }
    check_sizes(&block).map_err(|why| StoreError::BadSizes { device: name(), why })?;
    Ok(Geometry {
        id: StoreId(block.head.store),
        total_blocks: block.total_blocks.get(),
        segment_blocks: u64::from(block.segment_blocks.get()),
        segments: block.segments.get(),
        has_names: block.incompatible.get() & NAMED_VOLUMES != 0,
    })
}

fn check_sizes(block: &Superblock) -> Result<(), String> {
    let fixed = [
        ("block_bytes", u64::from(block.block_bytes.get()), BLOCK_BYTES as u64),
        ("segments_at", block.segments_at.get(), SEGMENTS_AT),
        ("leaf_pages", u64::from(block.leaf_pages.get()), LEAF_PAGES),
        ("leaf_objects", u64::from(block.leaf_objects.get()), LEAF_OBJECTS),
        ("inner_children", u64::from(block.inner_children.get()), INNER_CHILDREN),
        ("table_nodes", u64::from(block.table_nodes.get()), TABLE_NODES),
        ("device", u64::from(block.device.get()), u64::from(DEVICE)),
        ("devices", u64::from(block.devices.get()), 1),
    ];
    for (what, found, expected) in fixed {
        if found != expected {
            return Err(format!("the superblock's {what} is {found}, this weir knows {expected}"));
        }
    }
    let (blocks, segments) = (u64::from(block.segment_blocks.get()), u64::from(block.segments.get()));
    let total = SEGMENTS_AT + segments * blocks;
    let sane = (SEGMENT_BLOCKS_SMALLEST..=SEGMENT_BLOCKS_MAX).contains(&blocks) && segments >= SEGMENTS_MIN;
    if !sane || total != block.total_blocks.get() {
        let all = block.total_blocks.get();
        return Err(format!("{segments} segments of {blocks} blocks in {all} blocks make no sense"));
    }
    Ok(())
}

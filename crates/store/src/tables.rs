//! The tables' stream of a checkpoint: the node table's directory, the segment table, the root of the volumes' tree.

use crate::error::StoreError;
use crate::format::*;
use crate::map::{Map, NodeEntry, NodeId, NodeTable, Nodes, TablePage, Tree, Volumes, decode_table_page};
use crate::root::Root;
use crate::segments::{AGE_MAX, SegmentEntry, SegmentTable, SegmentUse};
use crate::settings::StoreSettings;
use crate::superblock::Geometry;
use crate::tables_stream::{self, stream_blocks};
use crate::volume::VolumeId;
use device::{Block, Device, Page, Read};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct StreamHead {
    table_pages: U64,
    segments: U32,
    /// Nodes on the dying list.
    dying: U32,
    /// The root of the volumes' tree.
    volumes: U64,
    /// The number of the next volume.
    next_volume: U32,
    /// Bytes of the settings.
    settings: U32,
    /// The height of the volumes' tree.
    volumes_height: u8,
    /// 1: live counts of segments may be too high, where clones shared blocks.
    doubted: u8,
    reserved: [u8; 30],
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct DirectoryBytes {
    place: U64,
    crc: U32,
    reserved: U32,
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct SegmentBytes {
    usage: u8,
    reserved: [u8; 3],
    live: U32,
    /// Of data its age, of pairs the other segment.
    age_or_twin: U32,
}

/// Of the volumes' tree: 16 * 256^4 volumes are more than there are numbers.
const VOLUMES_HEIGHT_MAX: u8 = 4;

const _: () = assert!(size_of::<StreamHead>() == STREAM_HEAD_BYTES);
const _: () =
    assert!(size_of::<DirectoryBytes>() == DIRECTORY_BYTES && size_of::<SegmentBytes>() == SEGMENT_BYTES);

/// Pages of the node table that are read at once: 8 MiB, more than any device needs for its full speed.
const TABLE_PAGES_AT_ONCE: usize = 2048;

const FREE: u8 = 0;
const LOG: u8 = 1;
const NODES: u8 = 2;
const COPIES: u8 = 3;
const ARENA: u8 = 4;

/// The tables' stream, and how many blocks it has. `place` gives a block to each; it is asked before the
/// bytes are made, because they say how much of which segment is live.
pub(crate) fn encode_tables(map: &mut Map, mut place: impl FnMut(&mut Map) -> Block) -> (Vec<u8>, u64) {
    let blocks = map.stream_blocks(map.nodes.table.pages().len());
    for _ in 0..blocks {
        let at = place(map);
        map.nodes.segments.inc_live(at);
    }
    let settings = map.settings.encode();
    let head = StreamHead {
        table_pages: (map.nodes.table.pages().len() as u64).into(),
        segments: map.nodes.segments.geometry().segments.into(),
        dying: (map.volumes.dying().len() as u32).into(),
        volumes: map.volumes.tree().root.0.into(),
        next_volume: map.volumes.next_id().0.into(),
        settings: (settings.len() as u32).into(),
        volumes_height: map.volumes.tree().height,
        doubted: u8::from(map.nodes.segments.counts_are_unsure()),
        reserved: [0; 30],
    };
    let mut bytes = head.as_bytes().to_vec();
    for page in map.nodes.table.pages() {
        let (place, crc) = (place_to_bits(page.place).into(), page.crc.into());
        bytes.extend(DirectoryBytes { place, crc, reserved: 0.into() }.as_bytes());
    }
    for (_, segment) in map.nodes.segments.iter() {
        let usage = match segment.usage {
            // Once the root is durable, no root needs it. Saying so now, before it is trimmed, keeps a store
            // that is mounted again and again from forgetting what each mount found to be free.
            _ if SegmentTable::is_dead(segment) && segment.dead_since.is_some() => FREE,
            SegmentUse::Free => FREE,
            SegmentUse::Log | SegmentUse::Moved => LOG,
            SegmentUse::Nodes => NODES,
            SegmentUse::Mirror => COPIES,
            SegmentUse::Arena => ARENA,
        };
        let age_or_twin = match usage {
            FREE => 0,
            LOG => map.nodes.segments.age(segment).min(u64::from(AGE_MAX)) as u32,
            // Without its twin it is dead, and free here.
            _ => segment.mirror.unwrap_or_default(),
        };
        let (live, age_or_twin) = (segment.live.into(), age_or_twin.into());
        bytes.extend(SegmentBytes { usage, reserved: [0; 3], live, age_or_twin }.as_bytes());
    }
    map.volumes.dying().for_each(|id| bytes.extend(id.0.to_le_bytes()));
    bytes.extend(settings);
    assert_eq!(stream_blocks(bytes.len()), blocks, "as long as it was thought to be");
    (bytes, blocks)
}

/// Reads the map that a root names, without its nodes, so that its volumes are not known yet. Says how many blocks were
/// damaged, of which there was a copy.
pub(crate) fn read_map(
    device: &dyn Device,
    geometry: Geometry,
    root: &Root,
) -> Result<(Map, u64), StoreError> {
    let (bytes, damaged_blocks) = tables_stream::read_stream(device, geometry, &root.tables)?;
    let first = root.tables.extents.first().map_or(Block(0), |extent| extent.at);
    let damaged = || damaged(device, first, "the checkpoint's tables");
    let mut decoded = decode_stream(&bytes, geometry).ok_or_else(damaged)?;
    let mut segments = SegmentTable::new(geometry, decoded.segments);
    let entries = read_table(device, geometry, &mut decoded.pages, &segments)?;
    // The next checkpoint writes them elsewhere.
    let damaged_pages = decoded.pages.iter().filter(|page| page.dirty).count() as u64;
    let table = NodeTable::from_pages(decoded.pages, entries);
    segments.set_dead_at_root(root.generation, [root.log.segment, root.log.next]);
    if decoded.doubted {
        segments.mark_counts_unsure();
    }
    let volumes = Volumes::unread(decoded.volumes, decoded.next, decoded.dying);
    let mut map = Map::new(Nodes::new(table, segments), volumes, root.newest);
    (map.settings, _) = decoded.settings;
    Ok((map, damaged_blocks + damaged_pages))
}

/// Reads the settings that a root names, and what is wrong with them.
pub(crate) fn read_settings(
    device: &dyn Device,
    geometry: Geometry,
    root: &Root,
) -> Result<(StoreSettings, Vec<String>), StoreError> {
    let (bytes, _) = tables_stream::read_stream(device, geometry, &root.tables)?;
    let first = root.tables.extents.first().map_or(Block(0), |extent| extent.at);
    let decoded = decode_stream(&bytes, geometry);
    Ok(decoded.ok_or_else(|| damaged(device, first, "the checkpoint's tables"))?.settings)
}

fn damaged(device: &dyn Device, place: Block, what: &str) -> StoreError {
    StoreError::Damaged { device: device.name().to_owned(), place, what: what.to_owned() }
}

struct Decoded {
    pages: Vec<TablePage>,
    segments: Vec<SegmentEntry>,
    volumes: Tree,
    dying: Vec<NodeId>,
    /// And what is wrong with them.
    settings: (StoreSettings, Vec<String>),
    next: VolumeId,
    doubted: bool,
}

/// `None` if the stream, whose checksum is right, says what no weir writes.
fn decode_stream(bytes: &[u8], geometry: Geometry) -> Option<Decoded> {
    let (head, mut rest) = StreamHead::read_from_prefix(bytes).ok()?;
    if head.segments.get() > geometry.segments {
        return None;
    }
    let mut pages = Vec::new();
    for _ in 0..head.table_pages.get() {
        let page;
        (page, rest) = DirectoryBytes::read_from_prefix(rest).ok()?;
        let place = place_from_bits(page.place.get())?;
        pages.push(TablePage { place, crc: page.crc.get(), ..TablePage::default() });
    }
    let mut segments = Vec::new();
    for _ in 0..head.segments.get() {
        let segment;
        (segment, rest) = SegmentBytes::read_from_prefix(rest).ok()?;
        let usage = match segment.usage {
            FREE => SegmentUse::Free,
            LOG => SegmentUse::Log,
            NODES => SegmentUse::Nodes,
            COPIES => SegmentUse::Mirror,
            ARENA => SegmentUse::Arena,
            _ => return None,
        };
        let (live, other) = (segment.live.get(), segment.age_or_twin.get());
        segments.push(match usage {
            SegmentUse::Nodes | SegmentUse::Mirror | SegmentUse::Arena => {
                SegmentEntry { usage, live, mirror: Some(other), age: 0 }
            }
            _ => SegmentEntry { usage, live, mirror: None, age: other },
        });
    }
    if !are_pairs(&segments) {
        return None;
    }
    // Those that the store has got since are free.
    segments.resize(geometry.segments as usize, SegmentEntry::default());
    let mut dying = Vec::new();
    for _ in 0..head.dying.get() {
        let id;
        (id, rest) = U64::read_from_prefix(rest).ok()?;
        dying.push(NodeId(id.get()));
    }
    let settings = StoreSettings::decode(rest.get(..head.settings.get() as usize)?);
    let volumes = Tree { root: NodeId(head.volumes.get()), height: head.volumes_height };
    let next = VolumeId(head.next_volume.get());
    let is_sensible = volumes.height <= VOLUMES_HEIGHT_MAX && next > VolumeId::MAIN && head.doubted <= 1;
    let doubted = head.doubted != 0;
    is_sensible.then_some(Decoded { pages, segments, volumes, dying, settings, next, doubted })
}

/// Whether each segment of nodes or of arenas has a twin of its own that holds copies, and each of those one of nodes or of arenas.
fn are_pairs(segments: &[SegmentEntry]) -> bool {
    let twin = |number: u32| segments.get(number as usize);
    let are_partners = |one, other| (one == SegmentUse::Mirror) != (other == SegmentUse::Mirror);
    segments.iter().zip(0..).all(|(one, number)| {
        one.mirror.is_none_or(|other| {
            twin(other).is_some_and(|twin| {
                twin.mirror == Some(number) && are_partners(one.usage, twin.usage) && twin.live == one.live
            })
        })
    })
}

/// Reads the pages of the node table, many at a time, and the copies of those that are damaged, which are dirty then.
fn read_table(
    device: &dyn Device,
    geometry: Geometry,
    pages: &mut [TablePage],
    segments: &SegmentTable,
) -> Result<Vec<NodeEntry>, StoreError> {
    let mut entries = Vec::new();
    // Checkpoints keep most of the table's pages next to each other.
    for (group, pages) in pages.chunks_mut(TABLE_PAGES_AT_ONCE).enumerate() {
        let runs = pages.chunk_by(|page, next| page.place.0 + 1 == next.place.0);
        let mut reads: Vec<Read> = runs.map(|run| Read::new(run[0].place, run.len())).collect();
        device.read_batch(&mut reads);
        let found = reads.iter().flat_map(|read| read.pages.iter().map(|page| (&read.result, page)));
        for (index, ((result, bytes), page)) in found.zip(pages).enumerate() {
            let number = group * TABLE_PAGES_AT_ONCE + index;
            let decode = |place, bytes: &Page| {
                table_page(device, geometry, number, TablePage { place, ..*page }, bytes)
            };
            let one = |place| {
                let mut alone = Page::zeroed();
                device.read(place, std::slice::from_mut(&mut *alone))?;
                decode(place, &alone)
            };
            // Where a run cannot be read, some of it may.
            let found = if result.is_ok() { decode(page.place, bytes) } else { one(page.place) };
            entries.extend(match (found, segments.mirror_of(page.place)) {
                (Err(error), Some(copy)) => {
                    let copied = one(copy).map_err(|_| error)?;
                    page.dirty = true;
                    copied
                }
                (found, _) => found?,
            });
        }
    }
    Ok(entries)
}

/// The entries of page `number` of the node table, if `bytes` are what was written.
pub(crate) fn table_page(
    device: &dyn Device,
    geometry: Geometry,
    number: usize,
    page: TablePage,
    bytes: &Page,
) -> Result<Vec<NodeEntry>, StoreError> {
    let what = format!("page {number} of the node table");
    let found = sum(&bytes.0);
    if found != page.crc {
        let (device, expected) = (device.name().to_owned(), page.crc);
        return Err(StoreError::Corrupt { device, place: page.place, what, expected, found });
    }
    decode_table_page(bytes, number, geometry.id).ok_or_else(|| damaged(device, page.place, &what))
}

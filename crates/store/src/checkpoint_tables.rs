//! The tables' stream of a checkpoint: the directory of the node table, the segment table, the root of the
//! volumes' tree, the dying list and the settings.

use crate::checkpoint_root::CheckpointRoot;
use crate::error::StoreError;
use crate::format::*;
use crate::map::{
    MapNodes, MapVolumes, NodeEntry, NodeId, NodeTable, NodeTree, PageMap, TablePage, decode_table_page,
};
use crate::segments::{AGE_MAX, SegmentEntry, SegmentTable, SegmentUse};
use crate::settings::StoreSettings;
use crate::superblock::StoreGeometry;
use crate::tables_stream::{self, stream_blocks};
use crate::volume::VolumeId;
use device::{Block, BlockRead, Device, Page};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct TablesHeadBytes {
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
    /// 1: live counts of segments may be too high, because shared blocks lost references.
    doubted: u8,
    reserved: [u8; 30],
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct DirectoryEntryBytes {
    place: U64,
    crc: U32,
    reserved: U32,
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct SegmentEntryBytes {
    usage: u8,
    reserved: [u8; 3],
    live: U32,
    /// For data its age; for mirrored segments the number of the other one.
    age_or_twin: U32,
}

/// Height of the volumes' tree at most: 16 * 256^4 volumes are more than there are numbers.
const VOLUMES_HEIGHT_MAX: u8 = 4;

const _: () = assert!(size_of::<TablesHeadBytes>() == STREAM_HEAD_BYTES);
const _: () = assert!(
    size_of::<DirectoryEntryBytes>() == DIRECTORY_BYTES && size_of::<SegmentEntryBytes>() == SEGMENT_BYTES
);

/// Pages of the node table read at once: 8 MiB, more than any device needs for its full speed.
const TABLE_PAGES_AT_ONCE: usize = 2048;

const USE_FREE: u8 = 0;
const USE_LOG: u8 = 1;
const USE_NODES: u8 = 2;
const USE_COPIES: u8 = 3;
const USE_ARENA: u8 = 4;

/// The tables' stream, and its number of blocks. `place` allocates each block. It is called before the stream
/// is encoded, because the stream says how many blocks of each segment are live.
pub(crate) fn encode_tables(
    map: &mut PageMap,
    mut place: impl FnMut(&mut PageMap) -> Block,
) -> (Vec<u8>, u64) {
    let blocks = map.stream_blocks(map.nodes.table.pages().len());
    for _ in 0..blocks {
        let at = place(map);
        map.nodes.segments.inc_live(at);
    }
    let settings = map.settings.encode();
    let head = TablesHeadBytes {
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
        let entry = DirectoryEntryBytes {
            place: place_to_bits(page.place).into(),
            crc: page.crc.into(),
            reserved: 0.into(),
        };
        bytes.extend(entry.as_bytes());
    }
    for (_, segment) in map.nodes.segments.iter() {
        let usage = match segment.usage {
            // Once this root is durable, no root needs the segment. Storing it as free now, before it is
            // trimmed, keeps a store that is mounted again and again from forgetting what each mount found to
            // be free.
            _ if SegmentTable::is_dead(segment) && segment.dead_since.is_some() => USE_FREE,
            SegmentUse::Free => USE_FREE,
            SegmentUse::Log | SegmentUse::Moved => USE_LOG,
            SegmentUse::Nodes => USE_NODES,
            SegmentUse::Mirror => USE_COPIES,
            SegmentUse::Arena => USE_ARENA,
        };
        let age_or_twin = match usage {
            USE_FREE => 0,
            USE_LOG => map.nodes.segments.age(segment).min(u64::from(AGE_MAX)) as u32,
            // Without its mirror it is dead, and stored as free.
            _ => segment.mirror.unwrap_or_default(),
        };
        let entry = SegmentEntryBytes {
            usage,
            reserved: [0; 3],
            live: segment.live.into(),
            age_or_twin: age_or_twin.into(),
        };
        bytes.extend(entry.as_bytes());
    }
    map.volumes.dying().for_each(|id| bytes.extend(id.0.to_le_bytes()));
    bytes.extend(settings);
    assert_eq!(stream_blocks(bytes.len()), blocks, "as long as it was thought to be");
    (bytes, blocks)
}

/// Reads the map that a root names, without its nodes, so that its volumes are not known yet. Also returns
/// how many damaged blocks were replaced by their copies.
pub(crate) fn read_map(
    device: &dyn Device,
    geometry: StoreGeometry,
    root: &CheckpointRoot,
) -> Result<(PageMap, u64), StoreError> {
    let (bytes, damaged_blocks) = tables_stream::read_stream(device, geometry, &root.tables)?;
    let first = root.tables.extents.first().map_or(Block(0), |extent| extent.at);
    let damaged = || damaged(device, first, "the checkpoint's tables");
    let mut decoded = decode_tables(&bytes, geometry).ok_or_else(damaged)?;
    let mut segments = SegmentTable::new(geometry, decoded.segments);
    let entries = read_node_table(device, geometry, &mut decoded.pages, &segments)?;
    // The next checkpoint writes the pages elsewhere.
    let damaged_pages = decoded.pages.iter().filter(|page| page.dirty).count() as u64;
    let table = NodeTable::from_pages(decoded.pages, entries);
    segments.set_dead_at_root(root.generation, [root.log.segment, root.log.next_segment]);
    if decoded.doubted {
        segments.mark_counts_unsure();
    }
    let volumes = MapVolumes::unread(decoded.volumes, decoded.next, decoded.dying);
    let mut map = PageMap::new(MapNodes::new(table, segments), volumes, root.newest);
    (map.settings, _) = decoded.settings;
    Ok((map, damaged_blocks + damaged_pages))
}

/// Reads the settings that a root names, and what is wrong with them.
pub(crate) fn read_settings(
    device: &dyn Device,
    geometry: StoreGeometry,
    root: &CheckpointRoot,
) -> Result<(StoreSettings, Vec<String>), StoreError> {
    let (bytes, _) = tables_stream::read_stream(device, geometry, &root.tables)?;
    let first = root.tables.extents.first().map_or(Block(0), |extent| extent.at);
    let decoded = decode_tables(&bytes, geometry);
    Ok(decoded.ok_or_else(|| damaged(device, first, "the checkpoint's tables"))?.settings)
}

fn damaged(device: &dyn Device, place: Block, what: &str) -> StoreError {
    StoreError::Damaged { device: device.name().to_owned(), place, what: what.to_owned() }
}

struct DecodedTables {
    pages: Vec<TablePage>,
    segments: Vec<SegmentEntry>,
    volumes: NodeTree,
    dying: Vec<NodeId>,
    /// The settings, and what is wrong with them.
    settings: (StoreSettings, Vec<String>),
    next: VolumeId,
    doubted: bool,
}

/// Decodes a stream whose checksum is right; `None` if it makes no sense.
fn decode_tables(bytes: &[u8], geometry: StoreGeometry) -> Option<DecodedTables> {
    let (head, mut rest) = TablesHeadBytes::read_from_prefix(bytes).ok()?;
    if head.segments.get() > geometry.segments {
        return None;
    }
    let mut pages = Vec::new();
    for _ in 0..head.table_pages.get() {
        let page;
        (page, rest) = DirectoryEntryBytes::read_from_prefix(rest).ok()?;
        let place = place_from_bits(page.place.get())?;
        pages.push(TablePage { place, crc: page.crc.get(), ..TablePage::default() });
    }
    let mut segments = Vec::new();
    for _ in 0..head.segments.get() {
        let segment;
        (segment, rest) = SegmentEntryBytes::read_from_prefix(rest).ok()?;
        let usage = match segment.usage {
            USE_FREE => SegmentUse::Free,
            USE_LOG => SegmentUse::Log,
            USE_NODES => SegmentUse::Nodes,
            USE_COPIES => SegmentUse::Mirror,
            USE_ARENA => SegmentUse::Arena,
            _ => return None,
        };
        let live = segment.live.get();
        let other = segment.age_or_twin.get();
        segments.push(match usage {
            SegmentUse::Nodes | SegmentUse::Mirror | SegmentUse::Arena => {
                SegmentEntry { usage, live, mirror: Some(other), age: 0 }
            }
            _ => SegmentEntry { usage, live, mirror: None, age: other },
        });
    }
    if !do_mirrors_match(&segments) {
        return None;
    }
    // Segments that the store got since then are free.
    segments.resize(geometry.segments as usize, SegmentEntry::default());
    let mut dying = Vec::new();
    for _ in 0..head.dying.get() {
        let id;
        (id, rest) = U64::read_from_prefix(rest).ok()?;
        dying.push(NodeId(id.get()));
    }
    let settings = StoreSettings::decode(rest.get(..head.settings.get() as usize)?);
    let volumes = NodeTree { root: NodeId(head.volumes.get()), height: head.volumes_height };
    let next = VolumeId(head.next_volume.get());
    let is_sensible = volumes.height <= VOLUMES_HEIGHT_MAX && head.doubted <= 1;
    let doubted = head.doubted != 0;
    is_sensible.then_some(DecodedTables { pages, segments, volumes, dying, settings, next, doubted })
}

/// Whether mirrored segments match: each one of nodes or arenas has a mirror of its own that holds copies,
/// and the other way round.
fn do_mirrors_match(segments: &[SegmentEntry]) -> bool {
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

/// Reads the pages of the node table, many at a time. A damaged page is read from its copy and marked as
/// dirty.
fn read_node_table(
    device: &dyn Device,
    geometry: StoreGeometry,
    pages: &mut [TablePage],
    segments: &SegmentTable,
) -> Result<Vec<NodeEntry>, StoreError> {
    let mut entries = Vec::new();
    // Checkpoints keep most of the table's pages next to each other.
    for (group, pages) in pages.chunks_mut(TABLE_PAGES_AT_ONCE).enumerate() {
        let runs = pages.chunk_by(|page, next| page.place.0 + 1 == next.place.0);
        let mut reads: Vec<BlockRead> = runs.map(|run| BlockRead::new(run[0].place, run.len())).collect();
        device.read_batch(&mut reads);
        let found = reads.iter().flat_map(|read| read.pages.iter().map(|page| (&read.result, page)));
        for (index, ((result, bytes), page)) in found.zip(pages).enumerate() {
            let number = group * TABLE_PAGES_AT_ONCE + index;
            let decode = |place, bytes: &Page| {
                verify_table_page(device, geometry, number, TablePage { place, ..*page }, bytes)
            };
            let one = |place| {
                let mut alone = Page::zeroed();
                device.read(place, std::slice::from_mut(&mut *alone))?;
                decode(place, &alone)
            };
            // If a run cannot be read, parts of it may be readable.
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

/// The entries of page `number` of the node table, if `bytes` have the right checksum.
pub(crate) fn verify_table_page(
    device: &dyn Device,
    geometry: StoreGeometry,
    number: usize,
    page: TablePage,
    bytes: &Page,
) -> Result<Vec<NodeEntry>, StoreError> {
    let what = format!("page {number} of the node table");
    let found = checksum(&bytes.0);
    if found != page.crc {
        let device = device.name().to_owned();
        let expected = page.crc;
        return Err(StoreError::Corrupt { device, place: page.place, what, expected, found });
    }
    decode_table_page(bytes, number, geometry.id).ok_or_else(|| damaged(device, page.place, &what))
}

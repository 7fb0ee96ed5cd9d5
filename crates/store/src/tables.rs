//! The tables' stream of a checkpoint: the node table's directory, the segment table, the volume table.

use crate::error::StoreError;
use crate::format::*;
use crate::map::{
    Label, Map, NodeId, NodeTable, Nodes, TablePage, Tree, Volume, Volumes, decode_label, decode_table_page,
};
use crate::root::{Root, Stream};
use crate::segments::{AGE_MAX, SegmentEntry, Segments, Use};
use crate::superblock::Geometry;
use crate::volume::{VolumeId, VolumeMode};
use device::{Block, Device, Page, Read};
use std::collections::BTreeMap;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct StreamHead {
    table_pages: U64,
    segments: U32,
    volumes: U32,
    /// Nodes on the dying list.
    dying: U32,
    /// Volumes that have a label.
    labels: U32,
    /// The number of the next volume.
    next_volume: U32,
    reserved: [u8; 36],
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
    age: [u8; 3],
    live: U32,
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct VolumeBytes {
    number: U64,
    root: U64,
    height: u8,
    read_only: u8,
    reserved: [u8; 14],
}

const _: () =
    assert!(size_of::<StreamHead>() == STREAM_HEAD_BYTES && size_of::<VolumeBytes>() == VOLUME_BYTES);
const _: () =
    assert!(size_of::<DirectoryBytes>() == DIRECTORY_BYTES && size_of::<SegmentBytes>() == SEGMENT_BYTES);

/// Pages of the node table that are read at once: 8 MiB, more than any device needs for its full speed.
const TABLE_PAGES_AT_ONCE: usize = 2048;

const FREE: u8 = 0;
const LOG: u8 = 1;
const NODES: u8 = 2;

/// The tables' stream, and how many blocks it has. `place` gives a block to each; it is asked before the
/// bytes are made, because they say how much of which segment is live.
pub(crate) fn encode_tables(map: &mut Map, mut place: impl FnMut(&mut Map) -> Block) -> (Vec<u8>, u64) {
    let blocks = map.stream_blocks(map.nodes.table.pages().len());
    for _ in 0..blocks {
        let at = place(map);
        map.nodes.segments.inc_live(at);
    }
    let head = StreamHead {
        table_pages: (map.nodes.table.pages().len() as u64).into(),
        segments: map.nodes.segments.geometry().segments.into(),
        volumes: (map.volumes.len() as u32).into(),
        dying: (map.volumes.dying().len() as u32).into(),
        labels: (map.volumes.labels() as u32).into(),
        next_volume: map.volumes.next_id().0.into(),
        reserved: [0; 36],
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
            _ if Segments::is_dead(segment) && segment.dead_since.is_some() => FREE,
            Use::Free => FREE,
            Use::Log | Use::Moved => LOG,
            Use::Nodes => NODES,
        };
        let age = map.nodes.segments.age(segment).min(u64::from(AGE_MAX)) as u32;
        let [one, two, three, _] = if usage == LOG { age.to_le_bytes() } else { [0; 4] };
        let live = segment.live.into();
        bytes.extend(SegmentBytes { usage, age: [one, two, three], live }.as_bytes());
    }
    for (number, volume) in map.volumes.iter() {
        let Tree { root, height } = volume.objects;
        let (number, root) = (u64::from(number.0).into(), root.0.into());
        let read_only = u8::from(volume.mode == VolumeMode::ReadOnly);
        bytes.extend(VolumeBytes { number, root, height, read_only, reserved: [0; 14] }.as_bytes());
    }
    map.volumes.dying().for_each(|id| bytes.extend(id.0.to_le_bytes()));
    map.volumes.encode_labels(&mut bytes);
    assert_eq!(blocks_for(bytes.len()) as u64, blocks, "as long as it was thought to be");
    (bytes, blocks)
}

/// Reads the map that a root names, without its nodes.
pub(crate) fn read_map(device: &dyn Device, geometry: &Geometry, root: &Root) -> Result<Map, StoreError> {
    let bytes = read_stream(device, geometry, &root.tables)?;
    let first = root.tables.extents.first().map_or(Block(0), |extent| extent.at);
    let damaged = || damaged(device, first, "the checkpoint's tables");
    let decoded = decode_stream(&bytes, geometry).ok_or_else(damaged)?;
    let entries = read_table(device, geometry, &decoded.pages)?;
    let table = NodeTable::from_pages(decoded.pages, entries);
    let mut segments = Segments::new(*geometry, decoded.segments);
    segments.dead_at_root(root.generation, [root.log.segment, root.log.next]);
    let volumes = Volumes::new(decoded.volumes, decoded.labels, decoded.next, decoded.dying);
    Ok(Map::new(Nodes::new(table, segments), volumes, root.newest))
}

fn damaged(device: &dyn Device, place: Block, what: &str) -> StoreError {
    StoreError::Damaged { device: device.name().to_owned(), place, what: what.to_owned() }
}

/// Reads the blocks of a stream and compares its checksum.
fn read_stream(device: &dyn Device, geometry: &Geometry, stream: &Stream) -> Result<Vec<u8>, StoreError> {
    let mut bytes = Vec::new();
    for extent in &stream.extents {
        // It may reach from one segment into the next.
        let last = extent.at.0.saturating_add(extent.count.saturating_sub(1));
        let inside = geometry.segment(extent.at).is_some() && geometry.segment(Block(last)).is_some();
        let fits = (1..=blocks_for(stream.bytes as usize) as u64).contains(&extent.count);
        if !inside || !fits {
            return Err(damaged(device, extent.at, "a checkpoint root's extent"));
        }
        let mut pages = device::pages(extent.count as usize);
        device.read(extent.at, &mut pages)?;
        bytes.extend_from_slice(Page::bytes(&pages));
    }
    let first = stream.extents.first().map_or(Block(0), |extent| extent.at);
    if stream.bytes > bytes.len() as u64 {
        return Err(damaged(device, first, "the checkpoint's tables"));
    }
    bytes.truncate(stream.bytes as usize);
    let found = crc32c::crc32c(&bytes);
    if found != stream.crc {
        let (device, what) = (device.name().to_owned(), "the checkpoint's tables".to_owned());
        return Err(StoreError::Corrupt { device, place: first, what, expected: stream.crc, found });
    }
    Ok(bytes)
}

struct Decoded {
    pages: Vec<TablePage>,
    segments: Vec<SegmentEntry>,
    volumes: BTreeMap<VolumeId, Volume>,
    dying: Vec<NodeId>,
    labels: BTreeMap<VolumeId, Label>,
    next: VolumeId,
}

/// `None` if the stream, whose checksum is right, says what version 1 never does.
fn decode_stream(bytes: &[u8], geometry: &Geometry) -> Option<Decoded> {
    let (head, mut rest) = StreamHead::read_from_prefix(bytes).ok()?;
    if head.segments.get() != geometry.segments {
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
            FREE => Use::Free,
            LOG => Use::Log,
            NODES => Use::Nodes,
            _ => return None,
        };
        let [one, two, three] = segment.age;
        let age = u32::from_le_bytes([one, two, three, 0]);
        segments.push(SegmentEntry { usage, live: segment.live.get(), age });
    }
    let mut volumes = BTreeMap::new();
    for _ in 0..head.volumes.get() {
        let volume;
        (volume, rest) = VolumeBytes::read_from_prefix(rest).ok()?;
        let objects = Tree { root: NodeId(volume.root.get()), height: volume.height };
        let mode = match volume.read_only {
            0 => VolumeMode::Writable,
            1 => VolumeMode::ReadOnly,
            _ => return None,
        };
        volumes.insert(VolumeId(u32::try_from(volume.number.get()).ok()?), Volume { objects, mode });
    }
    let mut dying = Vec::new();
    for _ in 0..head.dying.get() {
        let id;
        (id, rest) = U64::read_from_prefix(rest).ok()?;
        dying.push(NodeId(id.get()));
    }
    let mut labels = BTreeMap::new();
    for _ in 0..head.labels.get() {
        let (volume, label);
        (volume, label, rest) = decode_label(rest)?;
        labels.insert(volume, label);
    }
    let next = VolumeId(head.next_volume.get());
    let is_sensible = volumes.contains_key(&VolumeId::MAIN) && volumes.keys().all(|&volume| volume < next);
    is_sensible.then_some(Decoded { pages, segments, volumes, dying, labels, next })
}

/// Reads the pages of the node table, many at a time.
fn read_table(
    device: &dyn Device,
    geometry: &Geometry,
    pages: &[TablePage],
) -> Result<Vec<crate::map::NodeEntry>, StoreError> {
    let mut entries = Vec::new();
    // Checkpoints keep most of the table's pages next to each other.
    for (group, pages) in pages.chunks(TABLE_PAGES_AT_ONCE).enumerate() {
        let runs = pages.chunk_by(|page, next| page.place.0 + 1 == next.place.0);
        let mut reads: Vec<Read> = runs.map(|run| Read::new(run[0].place, run.len())).collect();
        device.read_batch(&mut reads);
        let found = reads.iter().flat_map(|read| read.pages.iter().map(|page| (&read.result, page)));
        for (index, ((result, bytes), page)) in found.zip(pages).enumerate() {
            result.clone()?;
            let number = group * TABLE_PAGES_AT_ONCE + index;
            let what = format!("page {number} of the node table");
            let found = sum(&bytes.0);
            if found != page.crc {
                let (device, expected) = (device.name().to_owned(), page.crc);
                return Err(StoreError::Corrupt { device, place: page.place, what, expected, found });
            }
            let decoded = decode_table_page(bytes, number, geometry.id);
            entries.extend(decoded.ok_or_else(|| damaged(device, page.place, &what))?);
        }
    }
    Ok(entries)
}

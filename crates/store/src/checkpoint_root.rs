//! The two checkpoint roots. A root says where a complete map lies on the medium, and where the log continues
//! after it.
//!
//! A new root overwrites the older of the two, once everything that it names is durable. So at any moment at
//! least one root is valid. A crash can tear only the root that is being written.

use crate::format::*;
use device::{Block, Incarnation, Lsn, Page, StoreId};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Where the next chunk of the log goes, and the numbers that it must have to belong to the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct LogCursor {
    /// The open segment.
    pub(crate) segment: u32,
    /// The next block in it, from the start of the segment.
    pub(crate) offset: u64,
    /// The segment in which the log continues once the open one is full.
    pub(crate) next_segment: u32,
    /// The number of the next chunk. Never decreases in the life of a store.
    pub(crate) chunk: u64,
    /// The number of the next batch. Never decreases in the life of a store.
    pub(crate) batch: u64,
    /// The checksum of the chunk before; 0 at the start of a chain.
    pub(crate) chain_crc: u32,
}

/// Consecutive blocks of the tables' stream, and their copies, consecutive, too.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct StreamExtent {
    pub(crate) at: Block,
    pub(crate) copy: Block,
    pub(crate) count: u64,
}

/// The stream with the directory of the node table, the segment table, the root of the volumes' tree and the
/// settings.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct TablesStream {
    pub(crate) bytes: u64,
    pub(crate) crc: u32,
    pub(crate) extents: Vec<StreamExtent>,
}

/// The highest LSNs in the map.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct NewestLsns {
    /// The highest LSN of any change.
    pub(crate) any: Lsn,
    /// The highest LSN of a change that the buffer has, or had, a record of.
    pub(crate) logged: Lsn,
}

/// A checkpoint root.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct CheckpointRoot {
    /// Blocks of the store. They tell where the superblock's copy is, should the superblock be damaged.
    pub(crate) total_blocks: u64,
    /// Higher with each attempt to write a root. The valid root with the higher generation counts.
    pub(crate) generation: u64,
    pub(crate) incarnation: Incarnation,
    pub(crate) newest: NewestLsns,
    pub(crate) log: LogCursor,
    pub(crate) tables: TablesStream,
}

/// Extents that fit into a root block after its fixed fields. A stream has one for each segment that it
/// touches. At the smallest segments 160 extents hold 2.4 MB of tables, enough for 19 million nodes.
pub(crate) const STREAM_EXTENTS_MAX: usize = 160;

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RootBytes {
    head: StructureHead,
    generation: U64,
    incarnation: U64,
    newest: U64,
    chunk: U64,
    batch: U64,
    offset: U64,
    segment: U32,
    next: U32,
    chain: U32,
    tables_crc: U32,
    tables_bytes: U64,
    extents: U32,
    reserved: U32,
    total_blocks: U64,
    newest_logged: U64,
    reserved_too: [u8; 96],
    table: [StreamExtentBytes; STREAM_EXTENTS_MAX],
}

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct StreamExtentBytes {
    place: U64,
    copy: U64,
    count: U64,
}

const _: () =
    assert!(size_of::<RootBytes>() == 224 + 24 * STREAM_EXTENTS_MAX && size_of::<RootBytes>() <= 4096);

impl CheckpointRoot {
    pub(crate) fn encode(&self, store: StoreId) -> Box<Page> {
        assert!(self.tables.extents.len() <= STREAM_EXTENTS_MAX, "the checkpoint counted them");
        let mut table =
            [StreamExtentBytes { place: 0.into(), copy: 0.into(), count: 0.into() }; STREAM_EXTENTS_MAX];
        for (bytes, extent) in table.iter_mut().zip(&self.tables.extents) {
            let place = place_to_bits(extent.at).into();
            let copy = place_to_bits(extent.copy).into();
            *bytes = StreamExtentBytes { place, copy, count: extent.count.into() };
        }
        let bytes = RootBytes {
            head: StructureHead::new(MAGIC_ROOT, store),
            generation: self.generation.into(),
            incarnation: self.incarnation.0.into(),
            newest: self.newest.any.0.into(),
            chunk: self.log.chunk.into(),
            batch: self.log.batch.into(),
            offset: self.log.offset.into(),
            segment: self.log.segment.into(),
            next: self.log.next_segment.into(),
            chain: self.log.chain_crc.into(),
            tables_crc: self.tables.crc.into(),
            tables_bytes: self.tables.bytes.into(),
            extents: (self.tables.extents.len() as u32).into(),
            reserved: 0.into(),
            total_blocks: self.total_blocks.into(),
            newest_logged: self.newest.logged.0.into(),
            reserved_too: [0; 96],
            table,
        };
        let mut page = Page::zeroed();
        bytes.write_to_prefix(&mut page.0).expect("smaller than a page");
        seal(&mut page.0);
        page
    }

    /// The root in `page`; `None` if it is torn, damaged, or of another store.
    pub(crate) fn decode(page: &Page, store: StoreId) -> Option<CheckpointRoot> {
        verify_head(&page.0, MAGIC_ROOT, store)?;
        let (bytes, _) = RootBytes::read_from_prefix(&page.0).expect("smaller than a page");
        let extents = bytes.table.get(..bytes.extents.get() as usize)?;
        let extents = extents
            .iter()
            .map(|extent| {
                let at = place_from_bits(extent.place.get())?;
                let copy = place_from_bits(extent.copy.get())?;
                Some(StreamExtent { at, copy, count: extent.count.get() })
            })
            .collect::<Option<Vec<_>>>()?;
        Some(CheckpointRoot {
            total_blocks: bytes.total_blocks.get(),
            generation: bytes.generation.get(),
            incarnation: Incarnation(bytes.incarnation.get()),
            newest: NewestLsns { any: Lsn(bytes.newest.get()), logged: Lsn(bytes.newest_logged.get()) },
            log: LogCursor {
                segment: bytes.segment.get(),
                offset: bytes.offset.get(),
                next_segment: bytes.next.get(),
                chunk: bytes.chunk.get(),
                batch: bytes.batch.get(),
                chain_crc: bytes.chain.get(),
            },
            tables: TablesStream { bytes: bytes.tables_bytes.get(), crc: bytes.tables_crc.get(), extents },
        })
    }
}

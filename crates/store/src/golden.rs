//! Golden tests: the code writes the examples in FORMAT.md and `golden.hex`, and reads them back.

use crate::checkpoint_root::{CheckpointRoot, LogCursor, NewestLsns, StreamExtent, TablesStream};
use crate::checkpoint_tables::encode_tables;
use crate::delta_block::{DeltaBlock, DeltaPacker, DeltaPiece, overlay_delta};
use crate::format::DRAFT;
use crate::log_entry::{BatchOrigin, ChunkHead, LogEntry, decode_chunk, encode_chunk};
use crate::map::{
    BlockEntry, DeltaEntry, MapNodes, MapVolumes, NodeBody, NodeId, NodeTable, NodeTree, PageMap,
    PageMapEntry, VolumeEntry, decode_node, decode_table_page, encode_node,
};
use crate::segment_summary::{SummaryBlock, SummaryEntry};
use crate::segments::{SegmentEntry, SegmentTable, SegmentUse};
use crate::superblock::StoreGeometry;
use crate::volume::{VolumeId, VolumeMode};
use device::{Block, BufferId, Device, Incarnation, Lsn, Page, PageNo, PageTransfer, StoreId, TransferKind};

const ID: StoreId = StoreId(*b"0123456789abcdef");

fn geometry() -> StoreGeometry {
    StoreGeometry { id: ID, total_blocks: 4 + 48 * 16, segment_blocks: 16, segments: 48, draft: DRAFT }
}

fn root() -> CheckpointRoot {
    CheckpointRoot {
        total_blocks: geometry().total_blocks,
        generation: 7,
        incarnation: Incarnation(3),
        newest: NewestLsns { any: Lsn(500), logged: Lsn(499) },
        log: LogCursor {
            segment: 5,
            offset: 9,
            next_segment: 6,
            chunk: 12,
            batch: 11,
            chain_crc: 0xc0ff_ee00,
        },
        tables: TablesStream {
            bytes: 240,
            crc: 0x1234_5678,
            extents: vec![StreamExtent { at: Block(52), copy: Block(116), count: 1 }],
        },
    }
}

fn chunk() -> (ChunkHead, Vec<LogEntry>) {
    let object = VolumeId(2).object(5, 6);
    let to = VolumeId::MAIN.object(8, 1);
    let entries = vec![
        LogEntry::Write {
            object,
            page: PageNo(9),
            page_lsn: Lsn(501),
            place: Block(94),
            copy: None,
            crc: 0xfeed_beef,
        },
        LogEntry::Punch { object, pages: PageNo(10)..PageNo(20), lsn: Lsn(502) },
        LogEntry::Delete { object, lsn: Lsn(503) },
        LogEntry::Transfer { transfer: PageTransfer::clone_of(object, to), lsn: Lsn(504) },
        LogEntry::Transfer {
            transfer: PageTransfer {
                kind: TransferKind::Move,
                from: object,
                first: PageNo(3),
                end: PageNo(5),
                to,
                at: PageNo(7),
            },
            lsn: Lsn(507),
        },
        LogEntry::CloneVolume {
            from: VolumeId(2),
            to: VolumeId(9),
            mode: VolumeMode::ReadOnly,
            lsn: Lsn(505),
            created: 1_234_567_890,
        },
        LogEntry::NameVolume { volume: VolumeId(9), part: b"nightly".to_vec(), begins: true },
        LogEntry::DeleteVolume { volume: VolumeId(2), lsn: Lsn(506) },
        LogEntry::Write {
            object: VolumeId(2).object(0, 1),
            page: PageNo(3),
            page_lsn: Lsn(508),
            place: Block(132),
            copy: Some(Block(148)),
            crc: 0xdada_cafe,
        },
        LogEntry::Deltas {
            object,
            first: PageNo(128),
            pages: 1 | 1 << 9 | 1 << 127,
            page_lsn: Lsn(509),
            place: Block(95),
            crc: 0xdede_1ade,
        },
        LogEntry::CreateVolume {
            volume: VolumeId(10),
            mode: VolumeMode::ReadOnly,
            lsn: Lsn(510),
            created: 1_234_567_891,
            size: 1 << 40,
        },
    ];
    let head = ChunkHead {
        incarnation: Incarnation(3),
        chunk: 12,
        batch: 11,
        durable_batch: 10,
        chain_crc: 0xc0ff_ee00,
        next_segment: 6,
        is_last: true,
        origin: BatchOrigin::Logged,
        entry_blocks: 1,
        data_blocks: 4,
        index_blocks: 2,
        entries: entries.len(),
    };
    (head, entries)
}

fn owner_list() -> SummaryBlock {
    let object = VolumeId(2).object(5, 6);
    let page = PageNo(9);
    let page_lsn = Lsn(501);
    let owner = SummaryEntry { object, page, page_lsn, crc: 0xfeed_beef };
    SummaryBlock {
        incarnation: Incarnation(3),
        number: 4,
        place: Block(115),
        entries: vec![Some(owner), None, Some(SummaryEntry { page: PageNo(10), ..owner })],
    }
}

fn deltas() -> DeltaBlock {
    let mut packer = DeltaPacker::new(ID);
    assert!(
        packer.add(PageNo(128), [DeltaPiece::Bytes(100, b"weir"), DeltaPiece::Zeros(600, 50)].into_iter())
    );
    assert!(packer.add(PageNo(137), [DeltaPiece::Bytes(0, b"delta")].into_iter()));
    packer.finish().remove(0)
}

fn page_leaf() -> NodeBody {
    let mut leaf = NodeBody::pages();
    let NodeBody::Pages(pages) = &mut leaf else { unreachable!() };
    pages.set(0, PageMapEntry { place: Block(94), page_lsn: Lsn(501), crc: 0xfeed_beef, shared: true });
    let block = BlockEntry { place: Block(95), crc: 0xdede_1ade, shared: true };
    pages.add_delta(DeltaEntry { block, pages: 1 | 1 << 9 }, Lsn(509));
    leaf
}

fn inner() -> NodeBody {
    let mut inner = NodeBody::inner();
    let NodeBody::Inner(children) = &mut inner else { unreachable!() };
    children[1] = NodeId(0x77);
    inner
}

fn object_leaf() -> NodeBody {
    let mut leaf = NodeBody::objects();
    let NodeBody::Objects(entries) = &mut leaf else { unreachable!() };
    entries[0] = Some(crate::map::ObjectEntry {
        generation: 6,
        transfer_lsn: Lsn(502),
        pages: crate::map::ObjectPageEntries::Inline(vec![(
            PageNo(9),
            PageMapEntry { place: Block(94), page_lsn: Lsn(501), crc: 0xfeed_beef, shared: false },
        )]),
    });
    leaf
}

fn volume_leaf() -> NodeBody {
    let mut leaf = NodeBody::volumes();
    let NodeBody::Volumes(entries) = &mut leaf else { unreachable!() };
    entries[3] = Some(VolumeEntry {
        objects: NodeTree { root: NodeId(0x77), height: 2 },
        mode: VolumeMode::ReadOnly,
        name: "nightly".to_owned(),
        created: 1_234_567_890,
        from: VolumeId(2),
        size: 1 << 40,
    });
    leaf
}

fn table() -> NodeTable {
    let mut table = NodeTable::new();
    let id = table.add();
    table.set_place(id, Block(41), 0x5151_5151);
    table
}

fn tables() -> Vec<u8> {
    let mut used = vec![SegmentEntry::default(); 48];
    used[1] = SegmentEntry { usage: SegmentUse::Log, live: 2, age: 9, mirror: None };
    used[3] = SegmentEntry { usage: SegmentUse::Nodes, live: 1, age: 0, mirror: Some(7) };
    used[7] = SegmentEntry { usage: SegmentUse::Mirror, live: 1, age: 0, mirror: Some(3) };
    used[8] = SegmentEntry { usage: SegmentUse::Arena, live: 4, age: 0, mirror: Some(9) };
    used[9] = SegmentEntry { usage: SegmentUse::Mirror, live: 4, age: 0, mirror: Some(8) };
    let volumes = MapVolumes::unread(NodeTree { root: NodeId(1), height: 0 }, VolumeId(5), vec![NodeId(1)]);
    let nodes = MapNodes::new(table(), SegmentTable::new(geometry(), used));
    let mut map = PageMap::new(nodes, volumes, NewestLsns::default());
    map.settings.buffer = Some(BufferId(*b"fedcba9876543210"));
    map.settings.commit_interval_ms = Some(250);
    encode_tables(&mut map, |_| Block(52)).0
}

/// Every structure by the name of its example.
fn examples() -> Vec<(&'static str, Vec<u8>)> {
    let (head, entries) = chunk();
    let mut pages = device::pages(1);
    encode_chunk(&head, &entries, ID, &mut pages);
    let node = |body: NodeBody| encode_node(&body, NodeId(1), ID).0.0.to_vec();
    vec![
        ("superblock", geometry().encode().0.to_vec()),
        ("root", root().encode(ID).0.to_vec()),
        ("chunk", pages[0].0.to_vec()),
        ("segment summary", owner_list().encode(ID).0.to_vec()),
        ("delta block", deltas().bytes().0.to_vec()),
        ("inner node", node(inner())),
        ("page leaf", node(page_leaf())),
        ("object leaf", node(object_leaf())),
        ("volume leaf", node(volume_leaf())),
        ("node table page", table().encode(0, ID).0.0.to_vec()),
        ("tables", tables()),
    ]
}

/// The bytes as an example shows them: 16 a line with their offset, without lines of zeros and trailing zeros.
fn dump(bytes: &[u8]) -> String {
    let lines = bytes.chunks(16).enumerate().filter(|(_, line)| line.iter().any(|&byte| byte != 0));
    let hex = |line: &[u8]| line.iter().map(|byte| format!(" {byte:02x}")).collect::<String>();
    lines.map(|(index, line)| format!("{:04x}:{}\n", index * 16, hex(line).trim_end_matches(" 00"))).collect()
}

/// The bytes of an example.
fn shown(name: &str, len: usize) -> Vec<u8> {
    let texts = [include_str!("../FORMAT.md"), include_str!("golden.hex")];
    let (_, rest) = texts
        .iter()
        .find_map(|text| text.split_once(&format!("hex {name}\n")))
        .unwrap_or_else(|| panic!("no example {name}"));
    let mut bytes = vec![0; len];
    for (offset, hex) in rest.lines().map_while(|line| line.split_once(':')) {
        let offset = usize::from_str_radix(offset, 16).expect("hex");
        for (index, byte) in hex.split_whitespace().enumerate() {
            bytes[offset + index] = u8::from_str_radix(byte, 16).expect("hex");
        }
    }
    bytes
}

#[test]
fn the_examples_are_what_is_written() {
    let wrong = examples().into_iter().filter(|(name, bytes)| shown(name, bytes.len()) != *bytes);
    let wrong: Vec<String> =
        wrong.map(|(name, bytes)| format!("{name} should be:\n{}", dump(&bytes))).collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn the_examples_are_read_back() {
    let page = |name| {
        let mut page = Page::zeroed();
        page.0.copy_from_slice(&shown(name, 4096));
        page
    };
    let disk = sim_disk::SimDisk::new("store", geometry().total_blocks, &sim_disk::PowerSupply::new(), 1);
    disk.write(Block(0), std::slice::from_ref(&*page("superblock"))).expect("power is on");
    assert_eq!(StoreGeometry::read(&*disk).expect("a superblock").0, geometry());
    assert_eq!(CheckpointRoot::decode(&page("root"), ID), Some(root()));
    let (head, entries) = chunk();
    let (found, found_entries, _) = decode_chunk(&[*page("chunk")], ID).expect("a whole chunk");
    assert_eq!((found, found_entries), (head, entries));
    assert_eq!(SummaryBlock::decode(&page("segment summary"), ID), Some(owner_list()));
    let mut laid = Page::zeroed();
    assert!(overlay_delta(&page("delta block"), 9, ID, &mut laid).is_some() && laid.0.starts_with(b"delta"));
    let leaves = [("page leaf", page_leaf()), ("object leaf", object_leaf()), ("volume leaf", volume_leaf())];
    for (name, body) in leaves.into_iter().chain([("inner node", inner())]) {
        assert_eq!(decode_node(&page(name), NodeId(1), ID), Some(body), "{name}");
    }
    let entries = decode_table_page(&page("node table page"), 0, ID).expect("a page of the node table");
    assert_eq!(entries[1], *table().get(NodeId(1)).expect("added"));
}

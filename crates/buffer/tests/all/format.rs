//! FORMAT.md is the text; this parses its hex.

use buffer::{Buffer, BufferError, LogRecord};
use device::{Block, Device, Incarnation, Lsn, ObjectId, Page, PageNo, StoreId, VolumeId, pages};
use sim_disk::{PowerSupply, SimDisk};
use std::fmt::Write as _;
use std::sync::Arc;

const TEXT: &str = include_str!("../../FORMAT.md");
const OBJECT: ObjectId = VolumeId::MAIN.object(5, 1);
const RECORDS: [LogRecord<'_>; 2] = [
    LogRecord::Write { object: OBJECT, page: PageNo(3), start: 16, bytes: b"weir" },
    LogRecord::Punch { object: OBJECT, from: PageNo(7), to: PageNo(10) },
];

fn id() -> StoreId {
    StoreId(std::array::from_fn(|at| at as u8))
}

/// The example's block.
fn example(block: u64) -> Box<Page> {
    let (_, rest) = TEXT.split_once(&format!("```hex {block}\n")).expect("an example of this block");
    let mut page = Page::zeroed();
    for (offset, hex) in rest.lines().map_while(|line| line.split_once(':')) {
        let offset = usize::from_str_radix(offset, 16).expect("an offset");
        for (index, byte) in hex.split_whitespace().enumerate() {
            page.0[offset + index] = u8::from_str_radix(byte, 16).expect("two hex digits");
        }
    }
    page
}

fn dump(page: &Page) -> String {
    let mut text = String::new();
    for (index, line) in page.0.chunks(16).enumerate().filter(|(_, line)| line.iter().any(|&byte| byte != 0))
    {
        let line: String = line.iter().map(|byte| format!(" {byte:02x}")).collect();
        writeln!(text, "{:04x}:{}", index * 16, line.trim_end_matches(" 00")).expect("memory for text");
    }
    text
}

#[test]
fn the_example_is_what_is_written() {
    let disk = SimDisk::new("buffer", 256, &PowerSupply::new(), 1);
    Buffer::format(&*disk, id()).expect("a device without faults");
    let buffer = Buffer::open(disk.clone(), id(), &mut |_| {}).expect("an empty buffer");
    buffer.begin_incarnation(Incarnation(1), Lsn(100)).expect("a device without faults");
    buffer.append(&RECORDS).expect("space");
    buffer.commit().expect("a device without faults");
    for block in [0, 2, 3] {
        let mut page = pages(1);
        disk.read(Block(block), &mut page).expect("power is on");
        assert!(page[0] == *example(block), "block {block} is now:\n{}", dump(&page[0]));
    }
}

/// Writes the example, its group changed and sealed again.
fn put_example(disk: &SimDisk, change: impl Fn(&mut [u8])) {
    for block in [0, 2, 3] {
        let mut page = example(block);
        if block == 3 {
            change(&mut page.0);
            let sum = crc32c::crc32c_append(crc32c::crc32c(&page.0[..8]), &page.0[12..]);
            page.0[8..12].copy_from_slice(&sum.to_le_bytes());
        }
        disk.write(Block(block), std::slice::from_ref(&*page)).expect("power is on");
    }
}

#[test]
fn a_group_that_breaks_any_one_rule_does_not_follow() {
    // Store id, incarnation lower and higher than the slot's, number, first LSN, predecessor.
    let replayed = |at: usize, value: u8| {
        let disk = SimDisk::new("buffer", 256, &PowerSupply::new(), 1);
        put_example(&disk, |bytes| bytes[at] = value);
        let mut found = 0;
        Buffer::open(disk, id(), &mut |replayed| found += replayed.len())
            .map(|_| found)
            .expect("an empty log is no error")
    };
    assert_eq!(replayed(32, 1), 1, "the example itself");
    for (at, value) in [(16, 9), (32, 0), (40, 2), (40, 0), (56, 0x64), (56, 0x66), (64, 1)] {
        assert_eq!(replayed(at, value), 0, "byte {at} may be {value}");
    }
}

#[test]
fn a_group_of_a_later_incarnation_with_an_earlier_lsn_does_not_follow() {
    let disk = SimDisk::new("buffer", 256, &PowerSupply::new(), 1);
    put_example(&disk, |bytes| (bytes[32], bytes[56]) = (2, 0x64));
    Buffer::open(disk, id(), &mut |replayed| panic!("{replayed:?}")).expect("an empty log");
}

#[test]
fn a_group_of_a_newer_version_is_refused_by_name_and_an_older_one_is_read() {
    let with_version = |version: u8| {
        let disk = SimDisk::new("buffer", 256, &PowerSupply::new(), 1);
        put_example(&disk, |bytes| bytes[12] = version);
        let mut found = 0;
        Buffer::open(disk, id(), &mut |replayed| found += replayed.len()).map(|_| found)
    };
    assert!(matches!(with_version(1), Ok(1)));
    let error = with_version(3).expect_err("nobody knows what it says");
    assert!(matches!(error, BufferError::Version { block: Block(3), found: 3, supported: 2, .. }), "{error}");
}

#[test]
fn a_group_of_a_later_incarnation_with_a_later_lsn_follows() {
    // As where the newer header slot is damaged: the transaction's LSN must be later too.
    let disk = SimDisk::new("buffer", 256, &PowerSupply::new(), 1);
    put_example(&disk, |bytes| {
        (bytes[32], bytes[56], bytes[80 + 12]) = (2, 0x70, 0x70);
        seal_transaction(bytes);
    });
    let mut found = Vec::new();
    let buffer =
        Buffer::open(disk, id(), &mut |replayed| found.extend(replayed.iter().map(|one| one.first_lsn)))
            .expect("a buffer");
    assert_eq!((found, buffer.incarnation()), (vec![Lsn(0x70)], Incarnation(2)));
}

#[test]
fn the_example_is_read_as_its_text_says() {
    let disk = SimDisk::new("buffer", 256, &PowerSupply::new(), 1);
    put_example(&disk, |_| {});
    let mut found = 0;
    let device: Arc<dyn Device> = disk;
    let buffer = Buffer::open(device, id(), &mut |all| {
        let [replayed] = all else { panic!("{all:?}") };
        assert_eq!((replayed.first_lsn, replayed.relogged, replayed.group.0), (Lsn(101), false, 1));
        assert_eq!(replayed.records, RECORDS);
        found += 1;
    })
    .expect("the example is a buffer");
    assert_eq!((found, buffer.incarnation(), buffer.newest_lsn()), (1, Incarnation(1), Lsn(102)));
}

type Change = fn(&mut [u8]);

/// Puts the right checksum on the example's transaction.
fn seal_transaction(bytes: &mut [u8]) {
    let sum = crc32c::crc32c_append(crc32c::crc32c(&bytes[80..84]), &bytes[88..168]);
    bytes[84..88].copy_from_slice(&sum.to_le_bytes());
}

#[test]
fn a_group_that_is_whole_and_contradicts_itself_is_refused_by_name() {
    let opened = |change: Change| {
        let disk = SimDisk::new("buffer", 256, &PowerSupply::new(), 1);
        put_example(&disk, |bytes| {
            change(bytes);
            seal_transaction(bytes);
        });
        let mut found = 0;
        Buffer::open(disk, id(), &mut |replayed| found += replayed.len()).map(|_| found)
    };
    assert!(matches!(opened(|_| {}), Ok(1)), "the example itself");
    let older = |bytes: &mut [u8]| (bytes[91], bytes[92], bytes[76]) = (0x80, 100, 0);
    assert!(matches!(opened(older), Ok(1)), "a merged delta that is older than the log");
    let lies: [(&str, Change); 6] = [
        ("an LSN that is not the next", |bytes| bytes[92] += 1),
        ("a merged delta as new as the log", |bytes| (bytes[91], bytes[76]) = (0x80, 0)),
        ("a record more than there are", |bytes| bytes[76] += 1),
        ("no transaction", |bytes| bytes[72] = 0),
        ("neither transactions nor records, but bytes", |bytes| (bytes[72], bytes[76]) = (0, 0)),
        ("bytes behind the last transaction", |bytes| bytes[68] += 8),
    ];
    for (what, lie) in lies {
        match opened(lie) {
            Err(BufferError::Malformed { block: Block(3), group, .. }) => assert_eq!(group.0, 1, "{what}"),
            other => panic!("{what}: {other:?}"),
        }
    }
}

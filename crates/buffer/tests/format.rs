//! FORMAT.md is the text; this parses its hex.

mod model;

use buffer::{Buffer, Record};
use device::{BLOCK_BYTES, Block, Device, Incarnation, ObjectId, Page, PageNo, Sequence, StoreId, pages};
use sim::{Power, SimDisk};
use std::fmt::Write as _;
use std::sync::Arc;

const TEXT: &str = include_str!("../FORMAT.md");
const OBJECT: ObjectId = ObjectId { slot: 5, generation: 1 };
const RECORDS: [Record<'_>; 2] = [
    Record::Write { object: OBJECT, page: PageNo(3), start: 16, bytes: b"weir" },
    Record::Cut { object: OBJECT, from: PageNo(7), to: PageNo(10) },
];

fn id() -> StoreId {
    StoreId(std::array::from_fn(|at| at as u8))
}

/// The bytes of the example's block, which end where only zeros follow.
fn example(block: u64) -> Vec<u8> {
    let (_, rest) = TEXT.split_once(&format!("```hex {block}\n")).expect("an example of this block");
    let (hex, _) = rest.split_once("```").expect("the example ends");
    hex.split_whitespace().map(|byte| u8::from_str_radix(byte, 16).expect("two hex digits")).collect()
}

fn dump(page: &Page) -> String {
    let end = page.0.iter().rposition(|&byte| byte != 0).map_or(0, |last| (last + 1).next_multiple_of(16));
    page.0[..end].chunks(16).fold(String::new(), |mut text, line| {
        let line: Vec<String> = line.iter().map(|byte| format!("{byte:02x}")).collect();
        writeln!(text, "{}", line.join(" ")).expect("memory for text");
        text
    })
}

#[test]
fn the_example_is_what_is_written() {
    let disk = SimDisk::new("buffer", 256, &Power::new(), 1);
    Buffer::format(&*disk, id()).expect("a device without faults");
    let buffer = Buffer::open(disk.clone(), id(), &mut |_| {}).expect("an empty buffer");
    buffer.begin(Incarnation(1), Sequence(100)).expect("a device without faults");
    buffer.append(&RECORDS).expect("room");
    buffer.commit().expect("a device without faults");
    for block in [0, 2, 3] {
        let mut page = pages(1);
        disk.read(Block(block), &mut page).expect("power is on");
        let mut expected = example(block);
        expected.resize(BLOCK_BYTES, 0);
        assert!(page[0].0[..] == expected[..], "block {block} is now:\n{}", dump(&page[0]));
    }
}

#[test]
fn the_example_is_read_as_its_text_says() {
    let disk = SimDisk::new("buffer", 256, &Power::new(), 1);
    for block in [0, 2, 3] {
        let mut page = pages(1);
        let bytes = example(block);
        page[0].0[..bytes.len()].copy_from_slice(&bytes);
        disk.write(Block(block), &page).expect("power is on");
    }
    let mut found = 0;
    let device: Arc<dyn Device> = disk;
    let buffer = Buffer::open(device, id(), &mut |replayed| {
        assert_eq!((replayed.first, replayed.merged, replayed.group.0), (Sequence(101), false, 1));
        assert_eq!(replayed.records, RECORDS);
        found += 1;
    })
    .expect("the example is a buffer");
    assert_eq!((found, buffer.incarnation(), buffer.newest_sequence()), (1, Incarnation(1), Sequence(102)));
}

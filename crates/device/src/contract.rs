//! The rules of every [`Device`], as one suite that each implementer's tests call.

use crate::address::Block;
use crate::device::{BlockRead, Device};
use crate::page::{Page, pages};

/// Checks `device` against the contract. Overwrites its content. The device must have at least 64 blocks.
pub fn check_contract(device: &dyn Device) {
    assert!(device.blocks() >= 64, "{}: too small to check", device.name());
    check_reads_after_writes(device);
    check_batch_reads(device);
    check_batch_with_work(device);
    check_neighbours_of_a_write(device);
    check_end(device);
    check_neighbours_of_a_trim(device);
    check_allocation(device);
    check_never_shrinks(device);
}

/// Checks that `device`, whose capacity can grow, does grow.
pub fn check_growth(device: &dyn Device) {
    let before = device.blocks();
    let bytes = filled(8, 3);
    device.write(Block(before - 8), &bytes).expect("a write in range");
    device.grow(before + 100).expect("space");
    assert_eq!(device.blocks(), before + 100, "{}", device.name());
    assert_eq!(read(device, Block(before - 8), 8), bytes, "{}: what was there", device.name());
    device.write(Block(before + 92), &bytes).expect("a write behind the old end");
    device.flush().expect("a flush");
    assert_eq!(read(device, Block(before + 92), 8), bytes, "{}: at the new end", device.name());
    check_end(device);
    check_never_shrinks(device);
}

fn check_never_shrinks(device: &dyn Device) {
    let blocks = device.blocks();
    device.write(Block(3), &filled(4, 5)).expect("a write in range");
    for asked in [0, blocks - 1, blocks] {
        device.grow(asked).expect("nothing to do");
        assert_eq!(device.blocks(), blocks);
    }
    assert_eq!(read(device, Block(3), 4), filled(4, 5));
}

fn filled(count: usize, seed: u8) -> Vec<Page> {
    let mut filled = pages(count);
    for (index, page) in filled.iter_mut().enumerate() {
        for (at, byte) in page.0.iter_mut().enumerate() {
            *byte = (at as u8).wrapping_mul(31).wrapping_add(seed).wrapping_add(index as u8);
        }
    }
    filled
}

fn read(device: &dyn Device, at: Block, count: usize) -> Vec<Page> {
    let mut into = pages(count);
    device.read(at, &mut into).expect("a read in range");
    into
}

fn check_reads_after_writes(device: &dyn Device) {
    for count in [1, 2, 7, 33] {
        let bytes = filled(count, count as u8);
        device.write(Block(5), &bytes).expect("a write in range");
        assert_eq!(read(device, Block(5), count), bytes, "{} blocks before a flush", count);
        device.flush().expect("a flush");
        assert_eq!(read(device, Block(5), count), bytes, "{} blocks after a flush", count);
    }
}

fn check_batch_reads(device: &dyn Device) {
    device.write(Block(0), &filled(64, 9)).expect("a write in range");
    let mut reads = some_reads(device, 50);
    device.read_batch(&mut reads);
    assert_batch(device, reads);
    device.read_batch(&mut []);
}

fn check_batch_with_work(device: &dyn Device) {
    device.write(Block(0), &filled(64, 11)).expect("a write in range");
    for count in [0, 1, 2, 50] {
        let mut reads = some_reads(device, count);
        let mut done = 0;
        let mut other = some_reads(device, count);
        device.read_batch_while(&mut reads, &mut || {
            done += 1;
            // The work may use the device for another batch.
            device.read_batch(&mut other);
        });
        assert_eq!(done, 1, "what is to be done meanwhile is done once");
        assert_batch(device, reads);
        assert_batch(device, other);
    }
}

/// `count` reads, and one past the end.
fn some_reads(device: &dyn Device, count: u64) -> Vec<BlockRead> {
    let reads = (0..count).map(|i| BlockRead::new(Block(i * 13 % 60), 1 + (i as usize) % 4));
    reads.chain([BlockRead::new(Block(device.blocks()), 1)]).collect()
}

fn assert_batch(device: &dyn Device, mut reads: Vec<BlockRead>) {
    let beyond = reads.pop().expect("the last one");
    assert!(beyond.result.is_err(), "a read past the end succeeded in a batch");
    for one in &reads {
        assert!(one.result.is_ok(), "{:?}", one.result);
        assert_eq!(one.pages, read(device, one.at, one.pages.len()));
    }
}

fn check_neighbours_of_a_write(device: &dyn Device) {
    device.write(Block(0), &filled(64, 1)).expect("a write in range");
    device.write(Block(10), &filled(2, 77)).expect("a write in range");
    let all = read(device, Block(0), 64);
    let before = filled(64, 1);
    assert_eq!(all[..10], before[..10]);
    assert_eq!(all[10..12], filled(2, 77)[..]);
    assert_eq!(all[12..], before[12..]);
}

fn check_end(device: &dyn Device) {
    let last = Block(device.blocks() - 1);
    device.write(last, &filled(1, 3)).expect("the last block can be written");
    assert_eq!(read(device, last, 1), filled(1, 3));
    assert!(device.write(last, &filled(2, 3)).is_err(), "a write past the end succeeded");
    assert!(device.read(last, &mut pages(2)).is_err(), "a read past the end succeeded");
    assert_eq!(device.blocks(), last.0 + 1, "a refused write made the device longer");
}

fn check_neighbours_of_a_trim(device: &dyn Device) {
    device.write(Block(0), &filled(64, 5)).expect("a write in range");
    device.trim(Block(16), 16).expect("a trim in range");
    device.flush().expect("a flush");
    let all = read(device, Block(0), 64);
    let before = filled(64, 5);
    assert_eq!(all[..16], before[..16]);
    assert_eq!(all[32..], before[32..]);
    assert!((16..32).all(|at| all[at] == before[at] || all[at] == Page::ZERO));
    device.write(Block(16), &before[16..32]).expect("a trimmed block can be written");
    assert_eq!(read(device, Block(16), 16), before[16..32]);
}

fn check_allocation(device: &dyn Device) {
    device.write(Block(0), &filled(64, 6)).expect("a write in range");
    device.trim(Block(16), 16).expect("a trim in range");
    device.allocate(Block(8), 24).expect("as much was there before");
    assert_eq!(read(device, Block(8), 8), filled(64, 6)[8..16], "allocating changed what is there");
    assert!(
        read(device, Block(16), 16)
            .iter()
            .zip(&filled(64, 6)[16..])
            .all(|(now, before)| { *now == Page::ZERO || now == before })
    );
    device.write(Block(16), &filled(16, 7)).expect("it was allocated");
    device.flush().expect("a flush");
    assert_eq!(read(device, Block(16), 16), filled(16, 7));
    assert!(device.allocate(Block(device.blocks()), 1).is_err() || device.allocated().is_none());
    let Some(known) = device.allocated() else { return };
    assert!(known.iter().all(|range| range.start < range.end && range.end.0 <= device.blocks()), "{known:?}");
    assert!(known.windows(2).all(|two| two[0].end <= two[1].start), "{known:?}");
}

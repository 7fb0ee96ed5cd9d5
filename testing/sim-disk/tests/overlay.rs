//! `device::OverlayDevice`, on a disk with bad places.

use device::{BLOCK_BYTES, Block, BlockRead, Device, OverlayDevice, Page, pages};
use sim_disk::{PowerSupply, ScratchedBlocks, SimDisk};
use std::sync::Arc;

#[test]
fn what_was_written_to_an_overlay_is_read_though_the_block_below_is_unreadable() {
    let disk = SimDisk::new("disk", 64, &PowerSupply::new(), 1);
    let below = ScratchedBlocks::new(&disk, &[5, 9]);
    let overlay = OverlayDevice::new(Arc::into_inner(below).expect("nobody else has it"));
    let new = Page([7; BLOCK_BYTES]);
    overlay.write(Block(5), std::slice::from_ref(&new)).expect("an overlay keeps it");
    let mut found = pages(3);
    overlay.read(Block(4), &mut found).expect("only what is below is unreadable");
    assert_eq!((&found[0], &found[1], &found[2]), (&Page::ZERO, &new, &Page::ZERO));
    let mut reads = [BlockRead::new(Block(5), 1), BlockRead::new(Block(8), 3)];
    overlay.read_batch(&mut reads);
    assert!(reads[0].result.is_ok() && reads[0].pages[0] == new);
    assert!(reads[1].result.is_err(), "nothing newer is in block 9");
}

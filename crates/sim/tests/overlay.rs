//! `device::Overlay`, on a disk with bad places.

use device::{BLOCK_BYTES, Block, Device, Overlay, Page, Read, pages};
use sim::{Power, Scratched, SimDisk};

#[test]
fn what_was_written_to_an_overlay_is_read_though_the_block_below_is_unreadable() {
    let disk = SimDisk::new("disk", 64, &Power::new(), 1);
    let below = Scratched::new(&disk, &[5, 9]);
    let overlay = Overlay::new(Shared(below));
    let new = Page([7; BLOCK_BYTES]);
    overlay.write(Block(5), std::slice::from_ref(&new)).expect("an overlay keeps it");
    let mut found = pages(3);
    overlay.read(Block(4), &mut found).expect("only what is below is unreadable");
    assert_eq!((&found[0], &found[1], &found[2]), (&Page::ZERO, &new, &Page::ZERO));
    let mut reads = [Read::new(Block(5), 1), Read::new(Block(8), 3)];
    overlay.read_batch(&mut reads);
    assert!(reads[0].result.is_ok() && reads[0].pages[0] == new);
    assert!(reads[1].result.is_err(), "nothing newer is in block 9");
}

/// A device that others have, too.
struct Shared(std::sync::Arc<Scratched>);

impl Device for Shared {
    fn blocks(&self) -> u64 {
        self.0.blocks()
    }

    fn name(&self) -> &str {
        self.0.name()
    }

    fn read(&self, at: Block, into: &mut [Page]) -> Result<(), device::DeviceError> {
        self.0.read(at, into)
    }

    fn write(&self, at: Block, from: &[Page]) -> Result<(), device::DeviceError> {
        self.0.write(at, from)
    }

    fn flush(&self) -> Result<(), device::DeviceError> {
        self.0.flush()
    }

    fn trim(&self, at: Block, count: u64) -> Result<(), device::DeviceError> {
        self.0.trim(at, count)
    }
}

//! Laying out a buffer, and reading its superblock and header slots.

use crate::error::BufferError;
use crate::format::{
    BYTES_MIN, BufferIdentity, BufferSuperblock, HeaderSlot, MEDIUM_BLOCK, RING_START, SUPERBLOCK_MAGIC,
    VERSION, carried_checksum, checksum, front,
};
use crate::ring::{GroupBoundary, GroupNo, LogRing, RingPosition};
use device::{BLOCK_BYTES, Block, Device, Incarnation, Lsn, Page, StoreId, pages};
use std::ops::Range;

/// Blocks of one write while formatting: long enough for the speed of the device.
const FORMAT_BLOCKS: u64 = 256;

/// Writes an empty buffer. The superblock comes last, so that a crash leaves no half-made buffer.
pub(crate) fn format(device: &dyn Device, identity: BufferIdentity, newest: Lsn) -> Result<(), BufferError> {
    let bytes = device.blocks().saturating_mul(BLOCK_BYTES as u64);
    if bytes < BYTES_MIN {
        return Err(BufferError::TooSmall { device: device.name().to_owned(), bytes, minimum: BYTES_MIN });
    }
    write_zeros(device, 0..device.blocks())?;
    device.flush()?;
    let ring = LogRing::on_device(device.blocks());
    let mut page = pages(1);
    for generation in [1, 2] {
        let slot = HeaderSlot { newest, ..empty_slot(generation, ring) };
        slot.write_to(identity.store, &mut page[0]);
        device.write(slot.block(), &page)?;
    }
    device.flush()?;
    BufferSuperblock::new(identity).write_to(&mut page[0]);
    device.write(Block(0), &page)?;
    device.flush()?;
    Ok(())
}

/// Writes each of these blocks once.
pub(crate) fn write_zeros(device: &dyn Device, blocks: Range<u64>) -> Result<(), BufferError> {
    let zeros = pages(FORMAT_BLOCKS as usize);
    for at in blocks.clone().step_by(FORMAT_BLOCKS as usize) {
        let count = FORMAT_BLOCKS.min(blocks.end - at);
        device.write(Block(at), &zeros[..count as usize])?;
    }
    Ok(())
}

/// Makes a buffer none any more.
pub(crate) fn retire(device: &dyn Device) -> Result<(), BufferError> {
    device.write(Block(0), &pages(1))?;
    Ok(device.flush()?)
}

fn empty_slot(generation: u64, ring: LogRing) -> HeaderSlot {
    let tail = GroupBoundary {
        position: RingPosition(0),
        number: GroupNo(1),
        lsn: Lsn(1),
        incarnation: Incarnation(0),
        predecessor: 0,
    };
    HeaderSlot {
        generation,
        incarnation: Incarnation(0),
        first_group: GroupNo(1),
        durable_group: GroupNo(0),
        newest: Lsn(0),
        tail,
        store_batch: 0,
        ring,
    }
}

/// Reads the superblock and believes nothing in it. Which buffer it is.
pub(crate) fn read_superblock(device: &dyn Device) -> Result<BufferIdentity, BufferError> {
    if device.blocks() == 0 {
        return Err(BufferError::NotABuffer { device: device.name().to_owned() });
    }
    let mut page = pages(1);
    device.read(Block(0), &mut page)?;
    Ok(check_superblock(&page[0], device.name())?.identity())
}

/// Which buffer of store `wanted` it is.
pub(crate) fn read_identity(device: &dyn Device, wanted: StoreId) -> Result<BufferIdentity, BufferError> {
    let identity = read_superblock(device)?;
    match identity.store == wanted {
        true => Ok(identity),
        false => {
            let device = device.name().to_owned();
            Err(BufferError::WrongStore { device, found: identity.store, wanted })
        }
    }
}

/// The superblock in the first block of the device `name`.
fn check_superblock(page: &Page, name: &str) -> Result<BufferSuperblock, BufferError> {
    let name = || name.to_owned();
    let superblock: BufferSuperblock = front(page);
    if superblock.magic != SUPERBLOCK_MAGIC {
        return Err(BufferError::NotABuffer { device: name() });
    }
    let (found, expected) = (checksum(&page.0), carried_checksum(&page.0));
    if found != expected {
        return Err(BufferError::SuperblockDamaged { device: name(), found, expected });
    }
    match superblock.version.get() {
        VERSION => {}
        found if found > VERSION => {
            return Err(BufferError::Version { device: name(), block: Block(0), found, supported: VERSION });
        }
        found => return Err(BufferError::OldVersion { device: name(), found }),
    }
    match invalid_field(&superblock) {
        Some((field, found)) => Err(BufferError::InvalidField { device: name(), field, found }),
        None => Ok(superblock),
    }
}

/// The first field that cannot be.
fn invalid_field(superblock: &BufferSuperblock) -> Option<(&'static str, u64)> {
    let ring_start = superblock.ring_start.get();
    [
        ("medium", superblock.medium.get().into(), superblock.medium.get() == MEDIUM_BLOCK),
        (
            "block size",
            superblock.block_bytes.get().into(),
            superblock.block_bytes.get() == BLOCK_BYTES as u32,
        ),
        ("ring start", ring_start, ring_start == RING_START.0),
    ]
    .into_iter()
    .find(|&(_, _, sensible)| !sensible)
    .map(|(field, found, _)| (field, found))
}

/// The newer of the header slots that can be read, and whether the other one, if it is one, surely names the same ring. The other one may
/// be torn, or unreadable for that: it was being written.
pub(crate) fn read_newest_slot(device: &dyn Device, id: StoreId) -> Result<(HeaderSlot, bool), BufferError> {
    let mut best: Option<HeaderSlot> = None;
    let (mut unreadable, mut rings) = (None, Vec::new());
    let mut page: Vec<Page> = pages(1);
    for at in [Block(1), Block(2)] {
        // An error that passes must not make the older slot count.
        let read = device.read(at, &mut page).or_else(|_| device.read(at, &mut page));
        if let Err(error) = read.or_else(|_| device.read(at, &mut page)) {
            unreadable = Some(error);
            continue;
        }
        if let Some(slot) = HeaderSlot::read_from(&page[0], at, id) {
            rings.push(slot.ring);
            best = best.filter(|best| best.generation > slot.generation).or(Some(slot));
        }
    }
    let agree = unreadable.is_none() && rings.iter().all(|ring| *ring == rings[0]);
    let damaged = || BufferError::HeadersDamaged { device: device.name().to_owned() };
    let slot = best.ok_or_else(|| unreadable.map_or_else(damaged, BufferError::from))?;
    let (blocks, expected) = (device.blocks(), slot.ring.device_blocks());
    if blocks < expected {
        return Err(BufferError::Truncated { device: device.name().to_owned(), blocks, expected });
    }
    Ok((slot, agree))
}

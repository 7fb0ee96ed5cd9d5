//! A plain model of the store, and random work for both.
#![allow(dead_code, missing_docs, unreachable_pub)]

pub mod phases;

use device::{
    BLOCK_BYTES, Device, Incarnation, Lsn, ObjectId, Page, PageNo, PageTransfer, SeededRng, SharedPage,
    StoreId, TransferKind, VolumeId,
};
use sim_disk::{PowerSupply, SimClock, SimDisk};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use store::{
    DeltaBlock, DeltaPacker, DeltaPiece, MAIN_VOLUME_NAME, MaintenanceProgress, NewVolume, PageRead,
    SpacePressure, Store, StoreChange, StoreError, StoreFinding, StoreLayout, StoredPage, VolumeMode,
};

pub const ID: StoreId = StoreId([0x5a; 16]);
/// 64 KiB, so that segments fill, die and are cleaned within a few vectors.
pub const SEGMENT: u32 = 16;

/// The content of a page: a stamp repeated, so that a torn page is noticed.
pub fn page(stamp: u64) -> SharedPage {
    let mut page = Page([0; BLOCK_BYTES]);
    page.0.chunks_exact_mut(8).for_each(|bytes| bytes.copy_from_slice(&stamp.to_le_bytes()));
    Arc::new(Box::new(page))
}

/// The stamp of a page. For a page with deltas, a number computed from its four quarters.
pub fn stamp(page: &Page) -> u64 {
    stamp_of(quarters(page))
}

const QUARTER: usize = BLOCK_BYTES / 4;

/// The stamps of the quarters of a page.
fn quarters(page: &Page) -> [u64; 4] {
    let mut quarters = page.0.chunks_exact(QUARTER).map(|quarter| {
        let first: [u8; 8] = quarter[..8].try_into().expect("8 bytes");
        assert!(quarter.chunks_exact(8).all(|bytes| bytes == first), "a torn page was returned");
        u64::from_le_bytes(first)
    });
    std::array::from_fn(|_| quarters.next().expect("four"))
}

fn stamp_of(quarters: [u64; 4]) -> u64 {
    if quarters.iter().all(|&one| one == quarters[0]) {
        return quarters[0];
    }
    quarters
        .iter()
        .fold(1, |mixed: u64, &one| (mixed.rotate_left(17) ^ one).wrapping_mul(0x9e37_79b9_7f4a_7c15))
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Model {
    /// For each slot its generation and pages; a page is its stamp and its page LSN.
    pub objects: BTreeMap<u64, (u32, Held)>,
    /// The last clone or move of each object, by slot and generation.
    pub transfers: BTreeMap<(u64, u32), u64>,
    /// The quarters of pages that have deltas, by their stamps.
    pub quarters: BTreeMap<u64, [u64; 4]>,
}

/// Pages with their stamps and page LSNs.
type Held = BTreeMap<u64, (u64, u64)>;

impl Model {
    pub fn apply(&mut self, vector: &[StoreChange]) {
        vector.iter().for_each(|change| self.change(change));
    }

    fn held(&mut self, object: ObjectId) -> Option<&mut Held> {
        let found = self.objects.get_mut(&object.slot).filter(|found| found.0 == object.generation);
        found.map(|(_, held)| held)
    }

    fn change(&mut self, change: &StoreChange) {
        match change {
            StoreChange::Write { object, page, bytes, page_lsn } => {
                let entry = self.objects.entry(object.slot).or_insert((object.generation, BTreeMap::new()));
                if entry.0 < object.generation {
                    *entry = (object.generation, BTreeMap::new());
                }
                if entry.0 == object.generation {
                    entry.1.insert(page.0, (stamp(bytes), page_lsn.0));
                }
            }
            StoreChange::Deltas { object, block, page_lsn } => {
                let entry = self.objects.entry(object.slot).or_insert((object.generation, BTreeMap::new()));
                if entry.0 < object.generation {
                    *entry = (object.generation, BTreeMap::new());
                }
                if entry.0 != object.generation {
                    return;
                }
                for number in block.pages() {
                    let old = entry.1.get(&number.0).map_or(0, |page| page.0);
                    let mut bytes = Page([0; BLOCK_BYTES]);
                    let parts = self.quarters.get(&old).copied().unwrap_or([old; 4]);
                    for (quarter, part) in bytes.0.chunks_exact_mut(QUARTER).zip(parts) {
                        quarter
                            .chunks_exact_mut(8)
                            .for_each(|word| word.copy_from_slice(&part.to_le_bytes()));
                    }
                    assert!(block.overlay(number, &mut bytes), "it has one");
                    self.quarters.insert(stamp(&bytes), quarters(&bytes));
                    entry.1.insert(number.0, (stamp(&bytes), page_lsn.0));
                }
            }
            StoreChange::Punch { object, .. } | StoreChange::Delete { object, .. }
                if self.is_old(*object, change) => {}
            StoreChange::Punch { object, pages, lsn } => {
                if let Some(held) = self.held(*object) {
                    held.retain(|page, (_, page_lsn)| !pages.contains(&PageNo(*page)) || *page_lsn >= lsn.0);
                }
            }
            StoreChange::Delete { object, .. } => {
                if self.has(*object) {
                    self.objects.remove(&object.slot);
                    self.transfers.remove(&(object.slot, object.generation));
                }
            }
            StoreChange::Transfer { transfer, lsn } => self.transfer(transfer, lsn.0),
        }
    }

    /// Whether the object has had a later clone or move than this punch or deletion.
    fn is_old(&self, object: ObjectId, change: &StoreChange) -> bool {
        let (StoreChange::Punch { lsn, .. } | StoreChange::Delete { lsn, .. }) = change else { return false };
        lsn.0 < self.transfer_lsn(object)
    }

    /// The last clone or move of an object.
    fn transfer_lsn(&self, object: ObjectId) -> u64 {
        let found = self.transfers.get(&(object.slot, object.generation));
        found.copied().filter(|_| self.has(object)).unwrap_or(0)
    }

    fn has(&self, object: ObjectId) -> bool {
        self.objects.get(&object.slot).is_some_and(|found| found.0 == object.generation)
    }

    fn transfer(&mut self, transfer: &PageTransfer, lsn: u64) {
        let PageTransfer { from, to, .. } = *transfer;
        let there = self.objects.get(&to.slot).map_or(0, |found| found.0);
        let newer = there > to.generation;
        if self.transfer_lsn(from) >= lsn || self.transfer_lsn(to) >= lsn {
            return;
        }
        let mut taken = Vec::new();
        let source = self.objects.entry(from.slot).or_insert((from.generation, BTreeMap::new()));
        if source.0 < from.generation {
            *source = (from.generation, BTreeMap::new());
        }
        if source.0 == from.generation {
            let within = |page: &u64| transfer.source().contains(&PageNo(*page));
            let pages = source.1.iter().filter(|(page, _)| within(page));
            taken.extend(pages.map(|(page, found)| (transfer.target_of(PageNo(*page)).0, *found)));
            source.1.retain(|page, _| transfer.kind == TransferKind::Clone || !within(page));
            self.transfers.insert((from.slot, from.generation), lsn);
        }
        if newer {
            return;
        }
        let entry = self.objects.entry(to.slot).or_insert((to.generation, BTreeMap::new()));
        if entry.0 < to.generation {
            *entry = (to.generation, BTreeMap::new());
        }
        entry.1.retain(|page, _| !transfer.target().contains(&PageNo(*page)));
        entry.1.extend(taken);
        self.transfers.insert((to.slot, to.generation), lsn);
    }

    /// How the store differs from the model; `None` if it does not.
    pub fn difference(&self, store: &Store) -> Option<String> {
        let mut wants = Vec::new();
        for slot in 0..SLOTS {
            let now = self.objects.get(&slot).map_or(1, |(generation, _)| *generation);
            let pages = domain().into_iter().map(PageNo);
            let held =
                self.objects.get(&slot).into_iter().flat_map(|(_, held)| held.keys().copied().map(PageNo));
            wants.extend(pages.chain(held).map(|page| PageRead::new(VolumeId::MAIN.object(slot, now), page)));
            for generation in [now.saturating_sub(1), now + 1] {
                wants.push(PageRead::new(VolumeId::MAIN.object(slot, generation), PageNo(slot)));
            }
        }
        store.data().read(&mut wants);
        for want in &wants {
            let held = self.objects.get(&want.object.slot).filter(|held| held.0 == want.object.generation);
            let expected = held.and_then(|(_, pages)| pages.get(&want.page.0)).copied();
            let found = match &want.result {
                Ok(StoredPage::Hole) => None,
                Ok(StoredPage::Page { bytes, page_lsn }) => Some((stamp(bytes), page_lsn.0)),
                Err(error) => return Some(error.to_string()),
            };
            if found != expected {
                let object = want.object;
                let page = want.page;
                return Some(format!("object {object} page {page}: {found:?}, expected {expected:?}"));
            }
        }
        None
    }
}

pub const SLOTS: u64 = 40;

/// The pages that the random work touches: small files, leaf edges, and far out.
pub fn domain() -> BTreeSet<u64> {
    (0..24).chain(120..140).chain([32_767, 32_768, 32_769, 8_388_608, 1 << 40]).collect()
}

/// Random vectors with growing LSNs.
pub struct Work {
    pub random: SeededRng,
    pub lsn: u64,
    /// The slots of its objects are below this. Pages of the object in slot 0 are metadata.
    slots: u64,
    stamps: u64,
}

impl Work {
    pub fn new(seed: u64) -> Work {
        Work { random: SeededRng::new(seed), lsn: 1, slots: SLOTS, stamps: 0 }
    }

    /// Work on one object only, whose pages are metadata.
    pub fn of_metadata(seed: u64) -> Work {
        Work::below(1, seed)
    }

    /// Work on objects in this many slots.
    pub fn below(slots: u64, seed: u64) -> Work {
        Work { slots, ..Work::new(seed) }
    }

    fn object(&mut self, model: &Model) -> ObjectId {
        let below = if self.random.once_in(2) { self.slots.min(4) } else { self.slots };
        let slot = self.random.below(below);
        let now = model.objects.get(&slot).map_or(1, |(generation, _)| *generation);
        let generation = match self.random.below(30) {
            0 => now + 1,
            1 => now - u32::from(now > 1),
            _ => now,
        };
        VolumeId::MAIN.object(slot, generation)
    }

    fn page(&mut self) -> u64 {
        let domain: Vec<u64> = domain().into_iter().collect();
        domain[self.random.below(domain.len() as u64) as usize]
    }

    /// All of an object, or a part: to the same place, to an aligned one, or to any.
    fn transfer(&mut self, kind: TransferKind, from: ObjectId, model: &Model) -> PageTransfer {
        // Never from an object to the next generation of its slot, as only one of them exists.
        let to = Some(self.object(model)).filter(|to| to.slot != from.slot).unwrap_or(from);
        if from != to && self.random.once_in(3) {
            return PageTransfer { kind, ..PageTransfer::clone_of(from, to) };
        }
        let first = self.page();
        let len = match self.random.below(4) {
            0 => 1 + self.random.below(20),
            1 => 128 * (1 + self.random.below(4)) + self.random.below(3),
            2 => 32_768 + self.random.below(300),
            _ => 1 << 41,
        };
        let at = match self.random.below(4) {
            0 if from != to => first,
            0 | 1 => first % 128 + 128 * self.random.below(300),
            2 => self.page() / 128 * 128 + first % 128,
            _ => self.page(),
        };
        let transfer = |len| PageTransfer {
            kind,
            from,
            first: PageNo(first),
            end: PageNo(first + len),
            to,
            at: PageNo(at),
        };
        match transfer(len).is_valid() {
            true => transfer(len),
            // Onto itself.
            false if first.abs_diff(at) > 0 => transfer(1),
            false => PageTransfer { at: PageNo(first + 7), ..transfer(1) },
        }
    }

    pub fn change(&mut self, model: &Model) -> StoreChange {
        self.lsn += 1;
        let object = self.object(model);
        let lsn = Lsn(self.lsn);
        // A replayed old punch must not touch newer pages.
        let old = Lsn(self.lsn - self.random.below(self.lsn.min(50)));
        match self.random.below(20) {
            0 => StoreChange::Delete { object, lsn },
            1 => StoreChange::Transfer { transfer: self.transfer(TransferKind::Clone, object, model), lsn },
            4 => StoreChange::Transfer { transfer: self.transfer(TransferKind::Move, object, model), lsn },
            2 | 3 => {
                let from = self.page();
                let end = if self.random.once_in(2) { u64::MAX } else { from + self.random.below(20) };
                StoreChange::Punch { object, pages: PageNo(from)..PageNo(end), lsn: old }
            }
            _ => {
                self.stamps += 1;
                let stamp = self.stamps << 8 | 1;
                StoreChange::Write { object, page: PageNo(self.page()), bytes: page(stamp), page_lsn: lsn }
            }
        }
    }

    /// Deltas of a few pages that lie near each other, each of a quarter of its page, or of two.
    fn deltas(&mut self, object: ObjectId) -> Vec<StoreChange> {
        self.lsn += 1;
        let first = self.page();
        let mut packer = DeltaPacker::new(ID);
        for number in first..first + 1 + self.random.below(9) {
            self.stamps += 1;
            let bytes = page(self.stamps << 8 | 1);
            let start = self.random.below(4) as usize;
            let piece = match self.random.below(4) {
                0 => DeltaPiece::Zeros((start * QUARTER) as u16, QUARTER as u16),
                more => {
                    let end = BLOCK_BYTES.min((start + 1 + more as usize / 3) * QUARTER);
                    DeltaPiece::Bytes((start * QUARTER) as u16, &bytes.0[start * QUARTER..end])
                }
            };
            if self.random.below(4) > 0 {
                assert!(packer.add(PageNo(number), [piece].into_iter()), "it fits into a block");
            }
        }
        let deltas = |block| StoreChange::Deltas { object, block, page_lsn: Lsn(self.lsn) };
        packer.finish().into_iter().map(deltas).collect()
    }

    /// A vector with deltas for a store that matches its model. Merges deltas to make space for it.
    pub fn vector_for(&mut self, model: &Model, store: &Store) -> Result<Vec<StoreChange>, StoreError> {
        let mut vector = self.vector(model);
        let has_range = |change: &StoreChange| matches!(change, StoreChange::Transfer { .. });
        if vector.iter().any(has_range) || self.slots == 1 {
            return Ok(vector);
        }
        for _ in 0..self.random.below(4) {
            let object = self.object(model);
            let deltas = if object.is_metadata() { Vec::new() } else { self.deltas(object) };
            for blocks in deltas.chunk_by(|one, other| leaf_of_deltas(one) == leaf_of_deltas(other)) {
                let wanted: Vec<DeltaBlock> = vector.iter().chain(blocks).filter_map(delta_block).collect();
                let leaf = leaf_of_deltas(&blocks[0]);
                let in_leaf = |block: &DeltaBlock| Some((object, block.first())) == leaf;
                let wanted: Vec<DeltaBlock> = wanted.into_iter().filter(in_leaf).collect();
                if !store.data().takes_deltas(object, &wanted)? {
                    match store.data().merge_deltas(&[(object, wanted[0].first())]) {
                        Err(StoreError::Full) => continue,
                        other => drop(other?),
                    }
                }
                if store.data().takes_deltas(object, &wanted)? {
                    let at = self.random.below(vector.len() as u64 + 1) as usize;
                    vector.splice(at..at, blocks.iter().cloned());
                }
            }
        }
        Ok(vector)
    }

    pub fn vector(&mut self, model: &Model) -> Vec<StoreChange> {
        let count = 1 + self.random.below(12);
        let mut model = model.clone();
        let mut vector = Vec::new();
        for _ in 0..count {
            let change = self.change(&model);
            model.apply(std::slice::from_ref(&change));
            // Pages of one LSN, as a rescue writes them, at times.
            let more = if self.random.once_in(3) { self.random.below(4) } else { 0 };
            let next = match &change {
                StoreChange::Write { object, page, page_lsn, .. } => Some((*object, page.0 + 1, *page_lsn)),
                _ => None,
            };
            vector.push(change);
            if let Some((object, first, page_lsn)) = next {
                for number in first..first + more {
                    self.stamps += 1;
                    let bytes = page(self.stamps << 8 | 1);
                    let change = StoreChange::Write { object, page: PageNo(number), bytes, page_lsn };
                    model.apply(std::slice::from_ref(&change));
                    vector.push(change);
                }
            }
        }
        vector
    }
}

fn delta_block(change: &StoreChange) -> Option<DeltaBlock> {
    match change {
        StoreChange::Deltas { block, .. } => Some(block.clone()),
        _ => None,
    }
}

fn leaf_of_deltas(change: &StoreChange) -> Option<(ObjectId, PageNo)> {
    match change {
        StoreChange::Deltas { object, block, .. } => Some((*object, block.first())),
        _ => None,
    }
}

pub fn disk(blocks: u64, power: &Arc<PowerSupply>, seed: u64) -> Arc<SimDisk> {
    SimDisk::new("disk", blocks, power, seed)
}

/// A new store with volume 0, on this disk.
pub fn format(disk: &Arc<SimDisk>) -> Store {
    format_with(disk, SEGMENT)
}

fn format_with(disk: &Arc<SimDisk>, segment_blocks: u32) -> Store {
    let layout = StoreLayout { id: ID, segment_blocks: Some(segment_blocks) };
    Store::format(&**disk, &layout).expect("the device is large enough");
    make_main(&mount(disk).expect("a new store opens"));
    // As after `weir format`: nothing is left in the log.
    mount(disk).expect("a new store opens")
}

pub fn open(disk: &Arc<SimDisk>) -> Result<Store, StoreError> {
    Store::open(disk.clone() as Arc<dyn Device>)
}

/// Opens, and begins the next incarnation.
pub fn mount(disk: &Arc<SimDisk>) -> Result<Store, StoreError> {
    let store = open(disk)?;
    store.begin(Incarnation(store.incarnation().0 + 1))?;
    Ok(store)
}

/// Makes volume 0, as `weir format` does.
pub fn make_main(store: &Store) {
    let main = NewVolume { name: MAIN_VOLUME_NAME, ..NewVolume::default() };
    store.volumes().create(&main, &[], Lsn(0)).expect("space");
}

/// A new store with volume 0, on a new disk with this many segments.
pub fn fresh(segments: u64, seed: u64) -> (Arc<PowerSupply>, Arc<SimDisk>, Store) {
    fresh_of(SEGMENT, segments, seed)
}

/// A fresh store with segments of `blocks` blocks.
pub fn fresh_of(blocks: u32, segments: u64, seed: u64) -> (Arc<PowerSupply>, Arc<SimDisk>, Store) {
    let power = PowerSupply::new();
    let disk = disk(4 + segments * u64::from(blocks), &power, seed);
    let store = format_with(&disk, blocks);
    (power, disk, store)
}

/// Applies a vector without a reservation. If there is no space for the nodes that it may change, cleans
/// until there is.
pub fn apply_with_cleaning(store: &Store, vector: &[StoreChange]) -> Result<(), StoreError> {
    for _ in 0..20 {
        match store.data().apply(vector) {
            Err(StoreError::Full) => {}
            other => return other,
        }
        while store.maintenance().free_deleted_step()? {}
        store.maintenance().clean_round()?;
        store.maintenance().checkpoint_twice()?;
    }
    store.data().apply(vector)
}

/// Makes the steps of maintenance that are due.
pub fn tend(store: &Store) {
    let clock = SimClock::new();
    let step = || store.maintenance().step(&clock, SpacePressure::None).expect("a sound disk");
    while step() != MaintenanceProgress::Idle {}
}

/// Clones a volume, under a name that its LSN makes unique.
pub fn clone_volume(
    store: &Store,
    from: VolumeId,
    mode: VolumeMode,
    lsn: Lsn,
) -> Result<VolumeId, StoreError> {
    let name = format!("at-{}", lsn.0);
    store.volumes().clone_named(from, &NewVolume { name: &name, mode, created: 0 }, lsn)
}

pub fn findings(store: &Store) -> Vec<StoreFinding> {
    let mut findings = Vec::new();
    store.maintenance().check(&mut |finding| findings.push(finding));
    findings
}

pub fn assert_sound(store: &Store, model: &Model, when: &str) {
    assert_eq!(model.difference(store), None, "{when}");
    assert_eq!(findings(store), [], "{when}");
}

/// Applies a vector with a reservation. If segments are short, cleaning must free some, or the reservation is
/// broken.
pub fn apply_reserved(store: &Store, vector: &[StoreChange]) -> Result<(), StoreError> {
    loop {
        match store.data().apply(vector) {
            Err(StoreError::Full) => {
                let cleaned = store.maintenance().clean_round()?;
                store.maintenance().checkpoint_twice()?;
                assert!(cleaned, "a reservation is not kept: {:?}", store.space().now());
            }
            outcome => return outcome,
        }
    }
}

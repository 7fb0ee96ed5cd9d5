//! Full stores with clones: cuts of shared pages copy nodes, until the store refuses further cuts. From there
//! each clone can be deleted, in spite of crashes, and after all deletions there is space again: decision
//! 0018.

use crate::common::*;
use device::{Incarnation, Lsn, PageNo, SeededRng};
use sim_disk::{BlockDamage, PowerSupply, SimClock, SimDisk};
use std::sync::Arc;
use store::{
    ReservationEstimate, SpacePressure, SpaceSearch, Store, StoreChange, StoreError, VolumeId, VolumeMode,
};

/// Pages of each small file, in two leaves of the map.
const AT: [u64; 2] = [0, 200];
/// The file that takes the rest of the store.
const LARGE: u64 = 9_000_001;
/// Recoveries cut off in a row, after a crash.
const DEPTH_MAX: u64 = 5;
/// Recoveries cut off in a row, without other work between them: more than there are free segments.
const RECOVERIES: u64 = 60;

/// A store in which no page can be reserved and no page can be cut, and the state for its next changes.
struct FullStore {
    power: Arc<PowerSupply>,
    disk: Arc<SimDisk>,
    /// The host file system has space for half of the store.
    is_sparse: bool,
    store: Store,
    random: SeededRng,
    lsn: u64,
    files: u64,
    clones: u32,
    large_pages: u64,
    crashes: u64,
    /// Deletions of volumes for which there was no space.
    refused: u64,
}

impl FullStore {
    /// A full store with `clones` clones. One store in three is a sparse file, and the host file system has
    /// space for half of it.
    fn new(seed: u64, clones: u32) -> FullStore {
        let mut full = FullStore::filled(seed, clones);
        full.cut_until_refused();
        if full.is_sparse {
            // Other programs fill the host file system to its last block.
            full.disk.set_space(full.disk.space_taken());
        }
        full
    }

    /// A store that is filled, before any page is cut.
    fn filled(seed: u64, clones: u32) -> FullStore {
        let (power, mut random) = (PowerSupply::new(), SeededRng::new(seed));
        let blocks = |segments: u64| 4 + segments * u64::from(SEGMENT);
        let segments = 240 + random.below(200);
        let is_sparse = random.once_in(3);
        let disk = disk(blocks(segments * if is_sparse { 2 } else { 1 }), &power, seed);
        if is_sparse {
            disk.set_space(blocks(segments));
        }
        let store = format(&disk);
        let files = 60 + random.below(150);
        let (lsn, crashes, refused) = (0, 0, 0);
        let mut full = FullStore {
            power,
            disk,
            is_sparse,
            store,
            random,
            lsn,
            files,
            clones,
            large_pages: 0,
            crashes,
            refused,
        };
        full.fill();
        full
    }

    fn next(&mut self) -> Lsn {
        self.lsn += 1;
        Lsn(self.lsn)
    }

    /// Writes one page with a reservation. If there is no space, allocates more in the host file system
    /// first, as the cache does.
    fn write(&mut self, slot: u64, number: u64) -> Result<(), StoreError> {
        while let Err(error) = self.store.space().reserve(1, ReservationEstimate::default()) {
            if !self.store.maintenance().allocate_more()? {
                return Err(error);
            }
        }
        let (object, page_lsn) = (VolumeId::MAIN.object(slot, 1), self.next());
        let change = StoreChange::Write { object, page: PageNo(number), bytes: page(page_lsn.0), page_lsn };
        let written = apply_reserved(&self.store, &[change]);
        self.store.space().release(1);
        written
    }

    fn fill(&mut self) {
        for file in 0..self.files {
            AT.into_iter().for_each(|at| self.write(16 * file + 1, at).expect("the store is not full yet"));
        }
        for _ in 0..self.clones {
            let lsn = self.next();
            let cloned = clone_volume(&self.store, VolumeId::MAIN, VolumeMode::Writable, lsn);
            cloned.expect("the store is not full yet");
        }
        let mut number = 0;
        while self.write(LARGE, number) == Ok(()) {
            number += 1;
        }
        self.large_pages = number;
    }

    /// Cuts one page of one file of some volume at a time, with checkpoints now and then, until a cut is
    /// refused.
    fn cut_until_refused(&mut self) {
        let checkpoint_one_in = 1 + self.random.below(40);
        let mut refused = 0;
        while refused < 3 {
            match self.cut_some_page() {
                Ok(()) => {}
                Err(StoreError::Full) => {
                    refused += 1;
                    if self.random.once_in(2) {
                        self.tidy().expect("no faults");
                    }
                }
                Err(error) => panic!("{error}"),
            }
            if self.random.once_in(checkpoint_one_in) {
                self.store.maintenance().checkpoint().expect("segments");
            }
            // All pages of the files are cut.
            if self.lsn > 40_000 {
                break;
            }
        }
    }

    fn cut_some_page(&mut self) -> Result<(), StoreError> {
        let (volume, file) = (self.random.below(u64::from(self.clones) + 1), self.random.below(self.files));
        let object = VolumeId(volume as u32).object(16 * file + 1, 1);
        let (at, lsn) = (PageNo(AT[self.random.below(2) as usize]), self.next());
        self.store.data().apply(&[StoreChange::Punch { object, pages: at..PageNo(at.0 + 1), lsn }])
    }

    /// Keeps one in `one_in` pages of the large file, and then cuts single pages beside the clones, until a
    /// cut is refused. Nothing is cleaned meanwhile.
    fn thin_out(&mut self, one_in: u64) {
        self.thin_out_large(one_in);
        while self.cut_some_page() != Err(StoreError::Full) {
            assert!(self.lsn < 40_000, "cuts beside clones copy nodes");
        }
    }

    /// Keeps one in `one_in` pages of the large file.
    fn thin_out_large(&mut self, one_in: u64) {
        let object = VolumeId::MAIN.object(LARGE, 1);
        for from in (1..self.large_pages).step_by(one_in as usize) {
            let (pages, lsn) = (PageNo(from)..PageNo(from + one_in - 1), self.next());
            self.store.data().apply(&[StoreChange::Punch { object, pages, lsn }]).expect("no clone has them");
        }
    }

    /// Frees and cleans until nothing more comes back.
    fn tidy(&self) -> Result<(), StoreError> {
        while self.store.maintenance().free_deleted_step()? {}
        while self.store.maintenance().clean_round()? {
            self.store.maintenance().checkpoint_twice()?;
        }
        self.store.maintenance().checkpoint_twice()
    }

    /// Deletes all clones in some order, with background work now and then, or never.
    fn delete_clones(&mut self, crashes: bool) {
        let mut clones: Vec<u32> = (1..=self.clones).collect();
        (1..clones.len()).for_each(|at| clones.swap(at, self.random.below(at as u64 + 1) as usize));
        let tidy_one_in = self.random.below(4);
        for clone in clones {
            if crashes && self.random.once_in(3) {
                self.power.cut_after(self.random.below(40));
            }
            while self.store.volumes().all().iter().any(|&(volume, _)| volume == VolumeId(clone)) {
                let lsn = self.next();
                match self.store.volumes().delete(VolumeId(clone), lsn) {
                    Ok(()) => {}
                    Err(StoreError::Full) => {
                        self.refused += 1;
                        break;
                    }
                    Err(error) => self.crash(&error),
                }
            }
            if tidy_one_in > 0 && self.random.once_in(tidy_one_in) {
                while let Err(error) = self.tidy() {
                    self.crash(&error);
                }
            }
        }
    }

    /// Restores power. Some recoveries are cut off before one completes.
    fn crash(&mut self, error: &StoreError) {
        assert!(self.power.is_lost(), "{error}");
        self.crashes += 1;
        for depth in 0.. {
            self.power.cut();
            self.disk.crash();
            self.power.restore();
            self.store = open(&self.disk).expect("it opens");
            if depth < DEPTH_MAX && self.random.once_in(2) {
                self.power.cut_after(self.random.below(12));
            }
            match self.store.begin(Incarnation(self.store.incarnation().0 + 1)) {
                Ok(()) if !self.power.is_lost() => return self.power.restore(),
                Ok(()) => {}
                Err(error) => assert!(self.power.is_lost(), "at depth {depth}: {error}"),
            }
        }
    }

    /// Asserts, after all clones are deleted, that files can be deleted and that their space can be used
    /// again.
    fn assert_space_comes_back(&mut self, when: &str) {
        self.power.restore();
        self.tidy().unwrap_or_else(|error| panic!("{when}: {error}"));
        let (object, lsn) = (VolumeId::MAIN.object(LARGE, 1), self.next());
        let deleted = self.store.data().apply(&[StoreChange::Delete { object, lsn }]);
        assert_eq!(deleted, Ok(()), "{when}: {:?}", self.store.space().now());
        self.tidy().unwrap_or_else(|error| panic!("{when}: {error}"));
        for number in 0..200 {
            let written = self.write(LARGE + 1, number);
            assert_eq!(written, Ok(()), "{when}: {:?}", self.store.space().now());
        }
        assert_eq!(findings(&self.store), [], "{when}");
    }
}

/// Asserts that cleaning wins half of the large file's space, but for a little that copied nodes may have taken.
fn assert_cleaning_wins_space(seed: u64, full: &mut FullStore) {
    full.tidy().expect("no faults");
    // New nodes take some of it, too.
    let pages = (full.large_pages / 2).min(full.store.space().now().available() * 19 / 20);
    assert!(pages > full.large_pages * 2 / 5, "seed {seed}: {:?}", full.store.space().now());
    for number in 0..pages {
        let written = full.write(LARGE + 1, number);
        assert_eq!(written, Ok(()), "seed {seed}: {:?}", full.store.space().now());
        full.tidy().expect("no faults");
    }
    assert_eq!(findings(&full.store), []);
}

#[test]
fn dead_space_is_won_where_cuts_beside_clones_have_used_up_the_cleaner_s_segments() {
    for seed in wanted() {
        let mut full = FullStore::filled(seed, 12);
        full.thin_out(12);
        assert_cleaning_wins_space(seed, &mut full);
    }
}

#[test]
fn dead_space_is_won_after_lives_in_which_the_cleaner_made_a_few_steps() {
    // In the last two, cuts left the cleaner no segment after their last checkpoint.
    for seed in wanted().chain([12, 114]) {
        let mut full = FullStore::filled(seed, 12);
        full.thin_out(12);
        for _ in 0..40 {
            for _ in 0..full.random.below(12) {
                full.store.maintenance().clean_step().expect("no faults");
                if full.random.once_in(3) {
                    full.store.maintenance().checkpoint().expect("no faults");
                }
            }
            full.power.cut();
            full.crash(&StoreError::NotBegun);
        }
        assert_cleaning_wins_space(seed, &mut full);
    }
}

/// Moving the remaining pages would take space and free none.
#[test]
fn a_segment_of_which_a_page_cannot_be_read_is_left_as_it_is() {
    let mut full = FullStore::filled(1, 1);
    full.thin_out_large(3);
    // Five pages are left of each segment; of the pages in a segment one can be read.
    for at in full.disk.written_blocks() {
        if at.0 % u64::from(SEGMENT) != 5 && !full.disk.begins_with(at, b"weir.") {
            full.disk.damage(at, BlockDamage::Unreadable);
        }
    }
    let before = full.store.counters().pages_cleaned;
    for _ in 0..600 {
        full.store.maintenance().clean_step().expect("it leaves alone what it cannot read");
    }
    assert_eq!(full.store.counters().pages_cleaned, before);
    full.disk.heal();
    let mut search = SpaceSearch::default();
    full.store.maintenance().step(&SimClock::new(), SpacePressure::Waiting(&mut search)).expect("a step");
    assert_cleaning_wins_space(1, &mut full);
}

/// Seeds: `WEIR_FULL_STORES=FROM,COUNT` for more.
fn wanted() -> std::ops::Range<u64> {
    let words = std::env::var("WEIR_FULL_STORES").unwrap_or_default();
    let numbers: Vec<u64> = words.split(',').filter_map(|word| word.parse().ok()).collect();
    if let [from, count] = numbers[..] { from..from + count } else { 0..8 }
}

/// Deletes all clones in the stores of each seed. Returns the number of crashes.
fn delete_all(seeds: impl Iterator<Item = u64>, crashes: bool) -> u64 {
    let mut crashed = 0;
    for seed in seeds {
        for clones in if seed % 4 == 0 { [1, 12, 100] } else { [1, 4, 12] } {
            let when = format!("seed {seed} with {clones} clones");
            let mut full = FullStore::new(seed, clones);
            full.delete_clones(crashes);
            assert_eq!(full.refused, 0, "{when}: {:?}", full.store.space().now());
            full.assert_space_comes_back(&when);
            crashed += full.crashes;
        }
    }
    crashed
}

#[test]
fn each_is_deleted_and_then_there_is_space() {
    delete_all(wanted(), false);
}

#[test]
fn each_is_deleted_through_crashes_and_then_there_is_space() {
    // In the last one three crashes leave fewer free segments than deletions of volumes leave.
    let crashes = delete_all(wanted().chain([2004]), true);
    assert!(crashes > 10, "{crashes} crashes");
}

#[test]
fn each_is_deleted_after_recoveries_that_were_cut_off_again_and_again() {
    for seed in wanted() {
        let mut full = FullStore::new(seed, 12);
        for _ in 0..RECOVERIES {
            full.power.cut();
            full.disk.crash();
            full.power.restore();
            full.store = open(&full.disk).expect("it opens");
            full.power.cut_after(full.random.below(12));
            let begun = full.store.begin(Incarnation(full.store.incarnation().0 + 1));
            assert!(begun.is_ok() || full.power.is_lost(), "seed {seed}: {begun:?}");
        }
        full.power.cut();
        full.crash(&StoreError::NotBegun);
        full.delete_clones(false);
        assert_eq!(full.refused, 0, "seed {seed}: {:?}", full.store.space().now());
        full.assert_space_comes_back(&format!("seed {seed}"));
    }
}

#[cfg(feature = "planted-bugs")]
#[test]
fn deletions_that_have_no_segments_for_themselves_are_noticed() {
    store::plant(Some(store::StoreBug::DeletionsWithoutClass));
    let refused: u64 = (0..4)
        .map(|seed| {
            let mut full = FullStore::new(seed, 12);
            full.delete_clones(false);
            full.refused
        })
        .sum();
    store::plant(None);
    assert!(refused > 0, "none was refused");
}

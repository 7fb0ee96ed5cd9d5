//! Volumes and their clones: instant, independent, deleted in any order, and their space comes back.

use crate::common::*;
use device::{Lsn, ObjectId, PageNo, SeededRng};
use sim_disk::{PowerSupply, SimDisk};
use std::collections::BTreeMap;
use std::sync::Arc;
use store::{NewVolume, PageRead, Store, StoreChange, StoreError, StoredPage, VolumeId, VolumeMode};

const FILE: ObjectId = VolumeId::MAIN.object(7, 1);
const MAIN: VolumeId = VolumeId::MAIN;

fn write(object: ObjectId, number: u64, page_lsn: u64) -> StoreChange {
    StoreChange::Write { object, page: PageNo(number), bytes: page(page_lsn), page_lsn: Lsn(page_lsn) }
}

fn stamp_of(store: &Store, volume: VolumeId, number: u64) -> Option<u64> {
    stamp_in(store, FILE.in_volume(volume), number)
}

fn stamp_in(store: &Store, object: ObjectId, number: u64) -> Option<u64> {
    let mut wants = [PageRead::new(object, PageNo(number))];
    store.data().read(&mut wants);
    match &wants[0].result {
        Ok(StoredPage::Hole) => None,
        Ok(StoredPage::Page { bytes, .. }) => Some(stamp(bytes)),
        Err(error) => panic!("{error}"),
    }
}

/// Frees and cleans until nothing more comes back.
fn settle(store: &Store) {
    while store.maintenance().free_deleted_step().expect("freeing") {}
    while store.maintenance().clean_round().expect("cleaning") {
        store.maintenance().checkpoint().expect("a checkpoint");
    }
    store.maintenance().checkpoint().expect("a checkpoint");
    store.maintenance().checkpoint().expect("a checkpoint");
}

#[test]
fn a_clone_and_its_source_do_not_see_each_other_s_changes() {
    let (_power, disk, store) = fresh(100, 1);
    let all: Vec<StoreChange> = (0..200).map(|number| write(FILE, number, number + 1)).collect();
    store.data().apply(&all).expect("space");
    clone_volume(&store, MAIN, VolumeMode::Writable, Lsn(300)).expect("space");
    clone_volume(&store, VolumeId(1), VolumeMode::ReadOnly, Lsn(301)).expect("space");
    store.data().apply(&[write(FILE, 5, 1000)]).expect("space");
    store.data().apply(&[write(FILE.in_volume(VolumeId(1)), 5, 2000)]).expect("space");
    store.data().apply(&[StoreChange::Delete { object: FILE, lsn: Lsn(3000) }]).expect("space");
    let seen = |store: &Store| [0, 1, 2].map(|volume| stamp_of(store, VolumeId(volume), 5));
    assert_eq!(seen(&store), [None, Some(2000), Some(6)]);
    assert_eq!(stamp_of(&store, VolumeId(1), 150), Some(151));
    drop(store);
    let store = open(&disk).expect("it opens");
    assert_eq!(seen(&store), [None, Some(2000), Some(6)]);
    assert_eq!(findings(&store), []);
    let modes = [VolumeMode::Writable, VolumeMode::Writable, VolumeMode::ReadOnly];
    assert_eq!(store.volumes().all().into_iter().map(|(_, mode)| mode).collect::<Vec<_>>(), modes);
}

#[test]
fn what_cannot_be_cloned_changed_or_deleted_is_refused_with_nothing_changed() {
    let (_power, _disk, store) = fresh(64, 1);
    let [one, two] = [VolumeId(1), VolumeId(2)];
    let clone = |from, lsn| clone_volume(&store, from, VolumeMode::ReadOnly, Lsn(lsn));
    assert_eq!(clone(MAIN, 1), Ok(one));
    assert_eq!(clone(two, 2), Err(StoreError::NoSuchVolume { volume: two }));
    assert_eq!(
        store.data().apply(&[write(FILE.in_volume(one), 1, 1)]),
        Err(StoreError::ReadOnlyVolume { volume: one })
    );
    assert_eq!(
        store.data().apply(&[write(FILE.in_volume(two), 1, 1)]),
        Err(StoreError::NoSuchVolume { volume: two })
    );
    assert_eq!(store.volumes().delete(two, Lsn(2)), Err(StoreError::NoSuchVolume { volume: two }));
    assert_eq!(store.volumes().all().len(), 2);
    assert_eq!(findings(&store), []);
}

/// Each volume: its number, its name, what it was cloned from, and its first page of metadata.
fn described(store: &Store) -> Vec<(u32, String, Option<VolumeId>, Option<u64>)> {
    let all = store.volumes().describe().into_iter();
    all.map(|one| (one.id.0, one.name, one.from, stamp_in(store, one.id.object(0, 0), 0))).collect()
}

fn create(store: &Store, name: &str, lsn: u64) -> Result<VolumeId, StoreError> {
    let pages: Vec<_> = (0..3).map(|number| (PageNo(number), page(lsn + number))).collect();
    store.volumes().create(&NewVolume { name, ..NewVolume::default() }, &pages, Lsn(lsn))
}

#[test]
fn new_volume_has_its_name_and_first_pages() {
    let (_power, disk, store) = fresh(64, 1);
    assert_eq!(create(&store, "data", 10), Ok(VolumeId(1)));
    assert_eq!(create(&store, "data", 11), Err(StoreError::NameTaken { name: "data".into() }));
    assert!(matches!(create(&store, "a/b", 11), Err(StoreError::BadName { .. })));
    store.data().apply(&[write(FILE.in_volume(VolumeId(1)), 5, 20)]).expect("space");
    let expected = vec![(0, "main".into(), None, None), (1, "data".into(), None, Some(10))];
    assert_eq!(described(&store), expected);
    drop(store);
    let store = open(&disk).expect("it opens");
    assert_eq!(described(&store), expected);
    assert_eq!(stamp_of(&store, VolumeId(1), 5), Some(20));
    assert_eq!(findings(&store), []);
}

#[test]
fn renamed_volume_keeps_all_but_its_name() {
    let (_power, disk, store) = fresh(64, 1);
    let long = "n".repeat(127);
    store.data().apply(&[write(FILE, 5, 20)]).expect("space");
    store.volumes().rename(MAIN, &long).expect("space");
    assert_eq!(store.volumes().named("main"), None);
    assert_eq!(store.volumes().rename(MAIN, &long), Err(StoreError::NameTaken { name: long.clone() }));
    assert!(matches!(store.volumes().rename(MAIN, "-x"), Err(StoreError::BadName { .. })));
    let absent = VolumeId(7);
    assert_eq!(store.volumes().rename(absent, "x"), Err(StoreError::NoSuchVolume { volume: absent }));
    drop(store);
    let store = mount(&disk).expect("it opens");
    assert_eq!(described(&store), [(0, long, None, None)]);
    store.volumes().rename(MAIN, "short").expect("space");
    store.maintenance().checkpoint_twice().expect("space");
    drop(store);
    let store = open(&disk).expect("it opens");
    assert_eq!(described(&store), [(0, "short".into(), None, None)]);
    assert_eq!(stamp_of(&store, MAIN, 5), Some(20));
    assert_eq!(findings(&store), []);
}

#[test]
fn numbers_are_not_used_again_though_all_volumes_go() {
    let (_power, disk, mut store) = fresh(64, 1);
    for round in 0..20 {
        store.volumes().delete(VolumeId(round), Lsn(100 * u64::from(round) + 1)).expect("it is there");
        if round % 3 == 1 {
            settle(&store);
        }
        if round % 2 == 1 {
            drop(store);
            store = mount(&disk).expect("it opens");
        }
        assert_eq!(described(&store), [], "round {round}");
        assert_eq!(findings(&store), [], "round {round}");
        let lsn = 100 * u64::from(round) + 2;
        assert_eq!(create(&store, "main", lsn), Ok(VolumeId(round + 1)));
        assert_eq!(stamp_of(&store, VolumeId(round + 1), 5), None);
        store.data().apply(&[write(FILE.in_volume(VolumeId(round + 1)), 5, lsn + 1)]).expect("space");
    }
}

/// Cuts the power at each device operation of `change`, and checks that a crash leaves the volumes as they
/// were, or as they are to be.
fn crash_in(change: impl Fn(&Store) -> Result<(), StoreError>) {
    let (_power, disk, store) = fresh(64, 1);
    create(&store, "data", 10).expect("space");
    store.maintenance().checkpoint().expect("space");
    let before = described(&store);
    drop(store);
    let after = {
        let store = mount(&disk.fork(&PowerSupply::new(), 1)).expect("a sound disk");
        change(&store).expect("space");
        described(&store)
    };
    let (mut old, mut new) = (0, 0);
    for operations in 0.. {
        let power = PowerSupply::new();
        let disk = disk.fork(&power, operations);
        let store = mount(&disk).expect("a sound disk");
        power.cut_after(operations);
        let outcome = change(&store);
        let ended = !power.is_lost();
        drop(store);
        power.cut();
        disk.crash();
        power.restore();
        let store = mount(&disk).expect("it opens");
        assert_eq!(findings(&store), [], "{operations}");
        let found = described(&store);
        if found == after {
            new += 1;
        } else {
            assert!(outcome.is_err() && found == before, "{operations}: {found:?}");
            change(&store).expect("it can be made still");
            assert_eq!(described(&store), after, "{operations}");
            old += 1;
        }
        if ended {
            println!("{operations} operations: {old} crashes left the old state, {new} the new one");
            return;
        }
    }
}

#[test]
fn crash_in_a_creation_leaves_all_of_it_or_nothing() {
    crash_in(|store| create(store, "new", 20).map(drop));
}

#[test]
fn crash_in_a_rename_leaves_either_name() {
    crash_in(|store| store.volumes().rename(VolumeId(1), &"n".repeat(127)));
}

/// Volumes that a random life creates, changes, clones, renames and deletes, with a model of each.
struct Life {
    power: Arc<PowerSupply>,
    disk: Arc<SimDisk>,
    store: Store,
    volumes: BTreeMap<u32, BTreeMap<u64, u64>>,
    /// The name of each volume, and the page that it was created with.
    names: BTreeMap<u32, (String, Option<u64>)>,
    /// Clones that were made.
    clones: u32,
    /// The most volumes.
    most: usize,
    /// Steps from crash to crash, on average.
    steps_per_crash: u64,
    lsn: u64,
    random: SeededRng,
    #[cfg(feature = "planted-bugs")]
    bug: Option<store::StoreBug>,
}

/// The pages of the one file: in two leaves.
const PAGES: u64 = 200;

impl Life {
    fn new(seed: u64) -> Life {
        Life::on(250, seed)
    }

    fn on(segments: u64, seed: u64) -> Life {
        let (power, disk, store) = fresh(segments, seed);
        let all: Vec<StoreChange> = (0..PAGES).map(|number| write(FILE, number, number + 1)).collect();
        store.data().apply(&all).expect("space");
        Life {
            power,
            disk,
            store,
            volumes: BTreeMap::from([(0, (0..PAGES).map(|number| (number, number + 1)).collect())]),
            names: BTreeMap::from([(0, ("main".to_owned(), None))]),
            clones: 0,
            most: 12,
            steps_per_crash: 15,
            lsn: PAGES + 1,
            random: SeededRng::new(seed),
            #[cfg(feature = "planted-bugs")]
            bug: None,
        }
    }

    fn some_volume(&mut self) -> Option<u32> {
        let all: Vec<u32> = self.volumes.keys().copied().collect();
        if all.is_empty() { None } else { Some(all[self.random.below(all.len() as u64) as usize]) }
    }

    /// Creates a volume with one page.
    fn create(&mut self) -> Result<(), StoreError> {
        let name = format!("new-{}", self.lsn);
        let new = NewVolume { name: &name, created: self.lsn, ..NewVolume::default() };
        let made = self.store.volumes().create(&new, &[(PageNo(0), page(self.lsn))], Lsn(self.lsn))?;
        assert_eq!(self.volumes.insert(made.0, BTreeMap::new()), None, "volume {made} was there");
        self.names.insert(made.0, (name, Some(self.lsn)));
        Ok(())
    }

    /// Does one change. It is acknowledged, so it must survive from now on.
    fn change(&mut self) -> Result<(), StoreError> {
        self.lsn += 1;
        let lsn = Lsn(self.lsn);
        let Some(volume) = self.some_volume() else { return self.create() };
        match self.random.below(12) {
            0..3 if self.volumes.len() < self.most => {
                let made = clone_volume(&self.store, VolumeId(volume), VolumeMode::Writable, lsn)?;
                let held = self.volumes[&volume].clone();
                self.volumes.insert(made.0, held);
                self.names.insert(made.0, (format!("at-{lsn}"), self.names[&volume].1));
                self.clones += 1;
            }
            3 | 4 => {
                self.store.volumes().delete(VolumeId(volume), lsn)?;
                self.volumes.remove(&volume);
                self.names.remove(&volume);
            }
            10 if self.volumes.len() < self.most => self.create()?,
            11 => {
                let name = format!("{lsn}-{}", "n".repeat(self.random.below(100) as usize));
                self.store.volumes().rename(VolumeId(volume), &name)?;
                self.names.get_mut(&volume).expect("chosen from them").0 = name;
            }
            5 => {
                let from = self.random.below(PAGES);
                let pages = PageNo(from)..PageNo(from + self.random.below(40));
                let cut = StoreChange::Punch {
                    object: FILE.in_volume(VolumeId(volume)),
                    pages: pages.clone(),
                    lsn,
                };
                self.store.data().apply(&[cut])?;
                let held = self.volumes.get_mut(&volume).expect("chosen from them");
                held.retain(|number, _| !pages.contains(&PageNo(*number)));
            }
            _ => {
                let numbers: Vec<u64> =
                    (0..1 + self.random.below(8)).map(|_| self.random.below(PAGES)).collect();
                let mut vector = Vec::new();
                for number in numbers {
                    self.lsn += 1;
                    vector.push(write(FILE.in_volume(VolumeId(volume)), number, self.lsn));
                    self.volumes.get_mut(&volume).expect("chosen").insert(number, self.lsn);
                }
                self.store.data().apply(&vector)?;
            }
        }
        Ok(())
    }

    fn tend(&mut self) -> Result<(), StoreError> {
        match self.random.below(10) {
            0 => self.store.maintenance().checkpoint()?,
            1..4 => drop(self.store.maintenance().free_deleted_step()?),
            4..8 => drop(self.store.maintenance().clean_step()?),
            _ => {}
        }
        while self.store.maintenance().is_short_of_space() {
            let freed = self.store.maintenance().free_deleted_step()?;
            let cleaned = self.store.maintenance().clean_round()?;
            self.store.maintenance().checkpoint()?;
            if !freed && !cleaned {
                break;
            }
        }
        Ok(())
    }

    fn crash(&mut self) -> Result<(), StoreError> {
        self.power.cut();
        self.disk.crash();
        self.power.restore();
        self.store = mount(&self.disk)?;
        Ok(())
    }

    fn difference(&self) -> Option<String> {
        let known: Vec<u32> = self.store.volumes().all().into_iter().map(|(id, _)| id.0).collect();
        if !known.iter().eq(self.volumes.keys()) {
            return Some(format!("volumes {known:?}, expected {:?}", self.volumes.keys()));
        }
        let names = self.store.volumes().describe().into_iter().map(|volume| {
            let created = stamp_in(&self.store, volume.id.object(0, 0), 0);
            (volume.id.0, (volume.name, created))
        });
        let names: BTreeMap<u32, (String, Option<u64>)> = names.collect();
        if names != self.names {
            return Some(format!("names and first pages {names:?}, expected {:?}", self.names));
        }
        for (&volume, held) in &self.volumes {
            let object = FILE.in_volume(VolumeId(volume));
            let mut wants: Vec<PageRead> =
                (0..PAGES).map(|number| PageRead::new(object, PageNo(number))).collect();
            self.store.data().read(&mut wants);
            for want in wants {
                let found = match want.result {
                    Ok(StoredPage::Hole) => None,
                    Ok(StoredPage::Page { bytes, .. }) => Some(stamp(&bytes)),
                    Err(error) => return Some(format!("volume {volume}: {error}")),
                };
                let expected = held.get(&want.page.0).copied();
                if found != expected {
                    return Some(format!(
                        "volume {volume} page {}: {found:?}, expected {expected:?}",
                        want.page
                    ));
                }
            }
        }
        findings(&self.store).first().map(|finding| finding.to_string())
    }

    /// Lives for some steps. Returns the first problem, if there is one.
    fn live(&mut self, steps: u64) -> Option<String> {
        for step in 0..steps {
            #[cfg(feature = "planted-bugs")]
            self.bug.into_iter().for_each(|bug| self.store.plant(bug));
            let outcome = self.change().and_then(|()| self.tend());
            if let Err(error) = outcome {
                return Some(format!("step {step}: {error}: {:?}", self.store.space().now()));
            }
            if self.random.once_in(self.steps_per_crash) {
                if let Err(error) = self.crash() {
                    return Some(format!("step {step}: {error}"));
                }
                if let Some(wrong) = self.difference() {
                    return Some(format!("step {step} after a crash: {wrong}"));
                }
            }
        }
        self.difference().map(|wrong| format!("at the end: {wrong}"))
    }
}

#[test]
fn clones_changed_and_deleted_at_random_with_crashes_and_cleaning_hold_what_they_should() {
    for seed in 0..40 {
        assert_eq!(Life::new(seed).live(150), None, "seed {seed}");
    }
}

#[test]
fn thousands_of_clones_made_and_deleted_at_random_with_crashes_are_those_that_should_be_there() {
    let mut life = Life { most: 5000, steps_per_crash: 400, ..Life::on(4500, 77) };
    assert_eq!(life.live(7000), None);
    assert!(life.clones > 1500 && life.volumes.len() > 400, "{} of {}", life.volumes.len(), life.clones);
}

#[cfg(feature = "planted-bugs")]
#[test]
fn a_volume_whose_leaf_does_not_say_what_memory_does_is_noticed() {
    let noticed = (0..10).find_map(|seed| {
        let mut life = Life::new(seed);
        life.bug = Some(store::StoreBug::VolumeLeafForgotten);
        life.live(150)
    });
    store::plant(None);
    println!("{}", noticed.expect("the bug is noticed"));
}

/// The blocks that a checkpoint writes after one page of one volume has changed: of a volume that shared
/// everything until then, and of a volume that was changed before.
fn blocks_of_a_checkpoint(clones: u32) -> [u64; 2] {
    let (_power, _disk, store) = fresh_of(1024, 64, 1);
    let all: Vec<StoreChange> = (0..1000).map(|number| write(FILE, number, number + 1)).collect();
    store.data().apply(&all).expect("space");
    for number in 1..=clones {
        let lsn = Lsn(2000 + u64::from(number));
        clone_volume(&store, MAIN, VolumeMode::Writable, lsn).expect("space");
        if number % 1000 == 0 {
            store.maintenance().checkpoint().expect("a checkpoint");
        }
    }
    let object = FILE.in_volume(VolumeId(clones.div_ceil(2)));
    let cost = |page, lsn| {
        store.maintenance().checkpoint().expect("a checkpoint");
        store.data().apply(&[write(object, page, lsn)]).expect("space");
        let before = store.counters().blocks_written;
        store.maintenance().checkpoint().expect("a checkpoint");
        store.counters().blocks_written - before
    };
    let first = cost(5, 20_000);
    let again = cost(6, 20_001);
    assert_eq!(findings(&store), []);
    [first, again]
}

#[test]
fn a_checkpoint_writes_with_ten_thousand_volumes_what_it_does_with_one_and_the_way_to_the_one_that_changed() {
    let ([_, alone], [first_alone, _]) = (blocks_of_a_checkpoint(0), blocks_of_a_checkpoint(1));
    let [first, again] = blocks_of_a_checkpoint(10_000);
    println!("alone {alone}, with 10,000 {again}; a clone's first: alone {first_alone}, of 10,000 {first}");
    assert!(again as f64 <= alone as f64 * 1.1, "{again} instead of {alone}");
    // Two nodes more above the leaf. Each node on the way may have its entry in another page of the node
    // table.
    let way = 2 + 3;
    assert!(
        first as f64 <= first_alone as f64 * 1.1 + way as f64,
        "{first} instead of {first_alone} and {way}"
    );
}

#[cfg(feature = "planted-bugs")]
#[test]
fn a_clone_s_node_freed_once_too_often_is_noticed() {
    let noticed = (0..10).find_map(|seed| {
        let mut life = Life::new(seed);
        life.bug = Some(store::StoreBug::FreedOnceTooOften);
        life.live(150)
    });
    println!("{}", noticed.expect("the bug is noticed"));
}

#[cfg(feature = "planted-bugs")]
#[test]
fn a_leaked_node_is_noticed_and_repaired() {
    let life = (0..10).find_map(|seed| {
        let mut life = Life::new(seed);
        life.bug = Some(store::StoreBug::LeakedNode);
        life.live(150).map(|wrong| (life, wrong))
    });
    let (life, wrong) = life.expect("the bug is noticed");
    println!("{wrong}");
    // Opened again, the store has no bug, but still the damage that the bug caused.
    let Life { disk, store, volumes, .. } = life;
    store.maintenance().checkpoint().expect("a checkpoint");
    drop(store);
    let store = mount(&disk).expect("it opens");
    assert!(!findings(&store).is_empty());
    let mut found = 0;
    let repaired = store.maintenance().repair(&mut |_| found += 1).expect("a repair");
    assert!(repaired.references > 0 && found > 0, "{repaired:?}");
    assert_eq!(findings(&store), []);
    drop(store);
    let store = open(&disk).expect("it opens");
    assert_eq!(findings(&store), []);
    for (volume, held) in volumes {
        for number in 0..PAGES {
            assert_eq!(stamp_of(&store, VolumeId(volume), number), held.get(&number).copied());
        }
    }
}

#[test]
fn a_repair_of_what_is_right_changes_nothing_and_one_that_cannot_count_says_so() {
    let (_power, disk, store) = fresh(64, 1);
    let all: Vec<StoreChange> = (0..PAGES).map(|number| write(FILE, number, number + 1)).collect();
    store.data().apply(&all).expect("space");
    store.maintenance().checkpoint().expect("a checkpoint");
    let repaired = store.maintenance().repair(&mut |finding| panic!("{finding}")).expect("a repair");
    assert_eq!((repaired.references, repaired.segments), (0, 0));
    assert_eq!(findings(&store), []);
    drop(store);
    let mut page = device::pages(1);
    let nodes = disk.written_blocks().into_iter().filter(|&at| {
        device::Device::read(&*disk, at, &mut page).expect("readable");
        // A store whose leaves of volumes cannot be read does not open.
        page[0].0.starts_with(b"weir.nod") && page[0].0[40] != 4
    });
    nodes.collect::<Vec<_>>().into_iter().for_each(|at| disk.rot(at, 777));
    let store = open(&disk).expect("it opens");
    assert!(matches!(store.maintenance().repair(&mut |_| {}), Err(StoreError::NotBegun)));
    store.begin(device::Incarnation(9)).expect("a higher one");
    assert!(matches!(store.maintenance().repair(&mut |_| {}), Err(StoreError::CannotCount { .. })));
}

/// A thousand clones, each changed a little, deleted in random order with cleaning and crashes.
#[test]
fn a_thousand_clones_deleted_in_random_order_give_all_their_space_back() {
    let (power, disk, mut store) = fresh(2000, 1);
    let pages = 2000;
    for from in (0..pages).step_by(100) {
        let some: Vec<StoreChange> =
            (from..from + 100).map(|number| write(FILE, number, number + 1)).collect();
        store.data().apply(&some).expect("space");
    }
    settle(&store);
    let before = store.space().now();
    let mut random = SeededRng::new(3);
    let mut lsn = pages + 1;
    let mut clones: Vec<(VolumeId, u64)> = Vec::new();
    for number in 1..=1000 {
        lsn += 2;
        let from = if clones.is_empty() || random.once_in(2) {
            MAIN
        } else {
            clones[random.below(clones.len() as u64) as usize].0
        };
        let volume = clone_volume(&store, from, VolumeMode::Writable, Lsn(lsn)).expect("space");
        store.data().apply(&[write(FILE.in_volume(volume), 10, lsn + 1)]).expect("space");
        clones.push((volume, lsn + 1));
        if number % 50 == 0 {
            store.maintenance().checkpoint().expect("a checkpoint");
        }
    }
    while !clones.is_empty() {
        let (volume, _) = clones.swap_remove(random.below(clones.len() as u64) as usize);
        lsn += 1;
        store.volumes().delete(volume, Lsn(lsn)).expect("deleting always works");
        store.maintenance().free_deleted_step().expect("freeing");
        store.maintenance().clean_step().expect("cleaning");
        if random.once_in(100) {
            store.maintenance().checkpoint().expect("a checkpoint");
        }
        if random.once_in(50) {
            drop(store);
            power.cut();
            disk.crash();
            power.restore();
            store = mount(&disk).expect("it opens");
            for &(volume, stamp) in &clones {
                assert_eq!(stamp_of(&store, volume, 10), Some(stamp), "volume {volume}");
            }
        }
    }
    settle(&store);
    let after = store.space().now();
    assert_eq!((after.live, after.nodes), (before.live, before.nodes), "{before:?} {after:?}");
    assert!((0..pages).all(|number| stamp_of(&store, MAIN, number) == Some(number + 1)));
    assert_eq!(findings(&store), []);
}

/// The cost of cleaning a store in which a part of one file is dead, after `clones` clones of the file:
/// blocks moved, entries repointed, nodes visited and device reads.
fn cost_of_cleaning(clones: u32) -> [u64; 4] {
    let (_power, _disk, store) = fresh(400, 1);
    let pages = 1500;
    let all: Vec<StoreChange> = (0..pages).map(|number| write(FILE, number, number + 1)).collect();
    all.chunks(100).for_each(|some| store.data().apply(some).expect("space"));
    for round in 1..4 {
        let some = (0..pages).step_by(7).map(|number| write(FILE, number, pages * round + number));
        store.data().apply(&some.collect::<Vec<_>>()).expect("space");
        store.maintenance().checkpoint().expect("a checkpoint");
    }
    let lsn = |number: u32| Lsn(100_000 + u64::from(number));
    for number in 1..=clones {
        clone_volume(&store, MAIN, VolumeMode::Writable, lsn(number)).expect("space");
    }
    store.maintenance().checkpoint().expect("a checkpoint");
    let before = store.counters();
    while store.maintenance().clean_round().expect("cleaning") {}
    let after = store.counters();
    assert!(after.segments_cleaned - before.segments_cleaned > 20);
    store.maintenance().checkpoint().expect("a checkpoint");
    for volume in [MAIN, VolumeId(clones)] {
        assert_eq!(stamp_of(&store, volume, 1), Some(2));
        assert_eq!(stamp_of(&store, volume, 7), Some(3 * pages + 7));
    }
    assert_eq!(findings(&store), []);
    [
        after.pages_cleaned - before.pages_cleaned,
        after.entries_repointed - before.entries_repointed,
        after.nodes_visited - before.nodes_visited,
        after.device_reads - before.device_reads,
    ]
}

#[test]
fn cleaning_what_a_thousand_clones_share_costs_what_cleaning_what_none_shares_does() {
    let (alone, shared) = (cost_of_cleaning(0), cost_of_cleaning(1000));
    println!("alone {alone:?}, shared by 1,000 {shared:?}");
    for (alone, shared) in alone.into_iter().zip(shared) {
        assert!(shared as f64 <= alone as f64 * 1.1, "{shared} instead of {alone}");
    }
}

#[test]
fn a_clone_writes_as_much_however_large_its_source_is() {
    let cost = |pages: u64| {
        let (_power, _disk, store) = fresh(600, 1);
        let all: Vec<StoreChange> = (0..pages).map(|number| write(FILE, number, number + 1)).collect();
        all.chunks(100).for_each(|some| store.data().apply(some).expect("space"));
        store.maintenance().checkpoint().expect("a checkpoint");
        let before = store.counters();
        clone_volume(&store, MAIN, VolumeMode::Writable, Lsn(pages + 1)).expect("space");
        let after = store.counters();
        (after.blocks_written - before.blocks_written, after.node_reads - before.node_reads)
    };
    assert_eq!(cost(10), (1, 0));
    assert_eq!(cost(6000), (1, 0));
}

#[test]
fn names_are_durable_with_their_volumes_and_go_with_them() {
    let (power, disk, store) = fresh(64, 9);
    store.data().apply(&[write(FILE, 0, 1)]).expect("space");
    let long = "n".repeat(127);
    fn clone(store: &Store, name: &str, at: u64) -> Result<VolumeId, StoreError> {
        let new = NewVolume { name, mode: VolumeMode::ReadOnly, created: at };
        store.volumes().clone_named(MAIN, &new, Lsn(at))
    }
    assert_eq!(clone(&store, "first", 2), Ok(VolumeId(1)));
    store.maintenance().checkpoint().expect("a checkpoint");
    assert_eq!(clone(&store, &long, 3), Ok(VolumeId(2)));
    assert_eq!(clone(&store, "first", 4), Err(StoreError::NameTaken { name: "first".into() }));
    assert_eq!(clone(&store, "main", 4), Err(StoreError::NameTaken { name: "main".into() }));
    for bad in ["", "-x", "a b", "a/b", "\u{e4}", &"n".repeat(128)] {
        assert!(matches!(clone(&store, bad, 4), Err(StoreError::BadName { .. })), "{bad}");
    }
    let check = |store: &Store, names: &[&str]| {
        let volumes = store.volumes().describe();
        assert_eq!(volumes.iter().map(|volume| volume.name.as_str()).collect::<Vec<_>>(), names);
        assert!(volumes.iter().skip(1).all(|volume| volume.from == Some(MAIN) && volume.created > 0));
    };
    check(&store, &["main", "first", &long]);
    drop(store);
    power.cut();
    disk.crash();
    power.restore();
    let store = mount(&disk).expect("it opens");
    check(&store, &["main", "first", &long]);
    store.volumes().delete(VolumeId(1), Lsn(5)).expect("it goes");
    assert_eq!(store.volumes().named("first"), None);
    assert_eq!(clone(&store, "first", 6), Ok(VolumeId(3)));
    store.maintenance().checkpoint().expect("a checkpoint");
    drop(store);
    check(&mount(&disk).expect("it opens"), &["main", &long, "first"]);
}

#[test]
fn usage_tells_what_each_volume_takes_alone_and_shares() {
    let (_power, _disk, store) = fresh(128, 10);
    let of = |store: &Store| {
        let usage = store.volumes().usage().expect("every node can be read");
        let each = usage.volumes.iter().map(|volume| (volume.exclusive, volume.shared));
        (usage.data, usage.dying, each.collect::<Vec<_>>())
    };
    for number in 0..300 {
        store.data().apply(&[write(FILE, number, number + 1)]).expect("space");
    }
    assert_eq!(of(&store), (300, 0, vec![(300, 0)]));
    clone_volume(&store, MAIN, VolumeMode::Writable, Lsn(400)).expect("space");
    clone_volume(&store, VolumeId(1), VolumeMode::Writable, Lsn(401)).expect("space");
    assert_eq!(of(&store), (300, 0, vec![(0, 300); 3]));
    // Seven pages of the first leaf, and a new page.
    for number in (0..7).chain([500]) {
        store.data().apply(&[write(FILE.in_volume(VolumeId(1)), number, 500 + number)]).expect("space");
    }
    assert_eq!(of(&store), (308, 0, vec![(0, 300), (8, 293), (0, 300)]));
    store.volumes().delete(VolumeId(2), Lsn(1001)).expect("it goes");
    assert_eq!(
        of(&store),
        (308, 0, vec![(7, 293), (8, 293)]),
        "what is dying shares nothing with the living"
    );
    store.volumes().delete(VolumeId(1), Lsn(1002)).expect("it goes");
    assert_eq!(of(&store), (300, 8, vec![(300, 0)]));
    while store.maintenance().free_deleted_step().expect("freeing") {}
    assert_eq!(of(&store), (300, 0, vec![(300, 0)]));
}

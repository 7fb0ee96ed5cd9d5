//! A buffer that fails for good: changes that were in memory alone become a volume, and the cached volume is
//! what the buffer makes of it.

use crate::common::volume_model::VolumeModel;
use crate::common::{Disks, Machine, Run, apply_at_once, plain, read_whole};
use cache::{BackgroundTask, Cache, ObjectChange};
use device::{BLOCK_BYTES, Block, ObjectId, PageNo, VolumeId};
use sim_disk::DiskFaults;
use std::sync::Arc;
use std::time::Duration;
use store::{NewVolume, PageRead, Store, StoredPage, VolumeMode};

const ALWAYS: DiskFaults =
    DiskFaults { write_one_in: 1, flush_one_in: 1, read_one_in: 0, trim_one_in: 0, once_after: None };

/// Runs until the buffer fails, with last changes of which none is durable.
fn live_until_failure(run: &mut Run, machine: &Machine, cache: &Cache) {
    for _ in 0..20 + run.random.below(200) {
        match run.random.below(6) {
            0 => assert!(run.sync(machine, cache)),
            1 => drop(cache.step(BackgroundTask::ALL[run.random.below(4) as usize])),
            2 => machine.clock.advance(Duration::from_millis(run.random.below(3000))),
            _ => assert!(run.apply(machine, cache)),
        }
    }
    machine.buffer.set_faults(ALWAYS);
    for _ in 0..run.random.below(8) {
        // Not through `Run::apply`, whose steps would commit.
        let steps = run.transaction();
        let changes: Vec<ObjectChange<'_>> = steps.iter().map(|step| step.change(run.volume)).collect();
        if matches!(apply_at_once(cache, &changes), Some(Ok(_))) {
            run.record(steps);
        } else {
            run.number_anew();
            break;
        }
    }
    machine.clock.advance(Duration::from_secs(5));
    cache.step(BackgroundTask::Commit);
}

fn assert_is(cache: &Cache, name: &str, model: &VolumeModel, seed: u64) {
    let volume = cache.store().volumes().named(name).expect("the volume").id;
    for slot in 0..crate::common::OBJECTS {
        for generation in 0..40 {
            let object = VolumeId::MAIN.object(slot, generation);
            let found = read_whole(cache, object.in_volume(volume));
            assert!(found == model.bytes(object), "seed {seed}: object {object} of {name}");
        }
    }
}

#[test]
fn everything_that_anybody_was_told_of_is_in_a_volume_and_the_cached_one_is_what_its_buffer_says() {
    let mut rescues = 0;
    for seed in 0..40 {
        let machine = Machine::new(seed);
        let cache = machine.open().expect("an empty machine");
        let mut run = Run::new(seed);
        live_until_failure(&mut run, &machine, &cache);
        if cache.status().failed.is_none() {
            // Everything was durable.
            continue;
        }
        for _ in 0..3 {
            // A store that fails meanwhile only costs time.
            let after = run.random.below(30);
            machine.store.set_faults(DiskFaults { once_after: Some(after), ..DiskFaults::default() });
            cache.step(BackgroundTask::WriteBack);
            machine.clock.advance(Duration::from_secs(1));
        }
        machine.store.set_faults(DiskFaults::default());
        cache.step(BackgroundTask::WriteBack);
        let status = cache.status();
        let Some(name) = status.rescued else {
            assert_eq!(
                status.dirty_pages + status.pending_punches,
                0,
                "seed {seed}: {:?}",
                status.not_rescued
            );
            continue;
        };
        rescues += 1;
        let all = run.history.now().clone();
        assert_is(&cache, &name, &all, seed);
        assert_eq!(cache.store().volumes().all().len(), 2, "seed {seed}: what was begun is gone");
        drop(cache);

        // The device comes back: the cached volume is some prefix, and the rescued one is still complete.
        machine.crash();
        machine.buffer.set_faults(DiskFaults::default());
        let cache = machine.open().expect("both media work");
        run.adopt(&cache);
        assert_is(&cache, &name, &all, seed);
        for _ in 0..30 {
            assert!(run.apply(&machine, &cache));
        }
        assert_is(&cache, &name, &all, seed);

        // The rescued volume is mounted.
        let volume = cache.store().volumes().named(&name).expect("the volume").id;
        run.volume = volume;
        run.begin_anew(all);
        for _ in 0..30 {
            assert!(run.apply(&machine, &cache) && run.read(&machine, &cache));
        }
        assert!(run.sync(&machine, &cache));
        drop(cache);
        machine.crash();
        run.adopt(&machine.open().expect("both media work"));
    }
    assert!(rescues > 20, "{rescues} rescues: the test tests little");
}

#[test]
fn a_crash_in_a_rescue_leaves_what_the_buffer_says() {
    let mut unfinished = 0;
    for seed in 100..160 {
        let machine = Machine::new(seed);
        let cache = machine.open().expect("an empty machine");
        let mut run = Run::new(seed);
        live_until_failure(&mut run, &machine, &cache);
        let after = run.random.below(40);
        machine.power.cut_after(after);
        cache.step(BackgroundTask::WriteBack);
        unfinished += u64::from(machine.power.is_lost());
        drop(cache);
        machine.crash();
        machine.buffer.set_faults(DiskFaults::default());
        let cache = machine.open().expect("both media work");
        let unfinished =
            cache.store().volumes().describe().iter().any(|one| one.name.starts_with("rescuing-"));
        assert!(!unfinished, "seed {seed}: what is no file system was left for somebody to mount");
        run.adopt(&cache);
        assert!(run.apply(&machine, &cache) && run.sync(&machine, &cache));
        cache.drain().expect("all is written back");
        drop(cache);
        let store = Store::open(Arc::clone(&machine.store) as Arc<dyn device::Device>).expect("a store");
        store.maintenance().check(&mut |finding| panic!("seed {seed}: {finding}"));
    }
    assert!(unfinished > 10, "{unfinished} crashes: the test tests little");
}

#[test]
fn nothing_is_written_back_between_two_attempts_to_rescue_it() {
    const OBJECT: ObjectId = VolumeId::MAIN.object(3, 1);
    /// More than are written back at once.
    const PAGES: u64 = 600;
    let mut begun = 0;
    for after in 0..60 {
        let machine = Machine { disks: Disks::new(1, 8192, 4096, 16), ..Machine::new(1) };
        let cache = machine.open().expect("an empty machine");
        let write = |page: u64| {
            let bytes = [1 + page as u8 % 200; BLOCK_BYTES];
            let changes =
                [ObjectChange::Write { object: OBJECT, offset: page * BLOCK_BYTES as u64, bytes: &bytes }];
            apply_at_once(&cache, &changes).expect("space").expect("power");
        };
        (0..PAGES).for_each(write);
        cache.sync(Box::new(|outcome| outcome.expect("both media work")));
        cache.step(BackgroundTask::Commit);
        machine.buffer.set_faults(ALWAYS);
        write(PAGES);
        machine.clock.advance(Duration::from_secs(5));
        cache.step(BackgroundTask::Commit);
        machine.store.set_faults(DiskFaults { once_after: Some(after), ..DiskFaults::default() });
        cache.step(BackgroundTask::WriteBack);
        machine.store.set_faults(DiskFaults::default());
        let volumes = cache.store().volumes().describe();
        begun += u64::from(volumes.iter().any(|volume| volume.name.starts_with("rescuing-")));

        let copy = NewVolume { name: "copy", mode: VolumeMode::Writable, created: 1 };
        cache.clone_volume(VolumeId::MAIN, &copy).expect_err("the buffer failed");
        cache.step(BackgroundTask::Checkpoint);
        machine.clock.advance(Duration::from_secs(1));
        cache.step(BackgroundTask::WriteBack);
        let name = cache.status().rescued.expect("the store works");
        let volume = cache.store().volumes().named(&name).expect("it is there").id;
        let mut wants: Vec<PageRead> =
            (0..=PAGES).map(|page| PageRead::new(OBJECT.in_volume(volume), PageNo(page))).collect();
        cache.store().data().read(&mut wants);
        for (want, page) in wants.iter().zip(0..) {
            let byte = match &want.result {
                Ok(StoredPage::Page { bytes, .. }) => bytes.0[0],
                other => panic!("after {after} calls: page {page}: {other:?}"),
            };
            assert_eq!(byte, 1 + page as u8 % 200, "after {after} calls: page {page}");
        }
    }
    assert!(begun > 2, "{begun} were begun: the test tests little");
}

/// Two leaves of the map apart, and far from both.
const FIRST: u64 = 0;
const SECOND: u64 = 1000;
const OTHER: u64 = 5000;
const FILE: ObjectId = VolumeId::MAIN.object(1, 1);

/// Damages both copies of the map's node above `FIRST` alone. Damaging them again heals it.
fn damage_leaf(machine: &plain::Machine) -> [Block; 2] {
    let page_lsns = || {
        let store = Store::open(machine.store.clone()).ok()?;
        Some([FIRST, SECOND].map(|page| store.data().page_lsn(FILE, PageNo(page)).is_ok()))
    };
    let found = machine.pairs().into_iter().find(|&pair| {
        machine.rot_both(pair);
        let is_it = page_lsns() == Some([false, true]);
        machine.rot_both(pair);
        is_it
    });
    let leaf = found.expect("each page has a leaf");
    machine.rot_both(leaf);
    leaf
}

#[test]
fn a_page_that_was_written_after_a_cut_that_is_stuck_and_is_stored_is_in_the_rescued_volume() {
    let machine = plain::Machine::new(3);
    let cache = machine.open();
    for page in (0..64).flat_map(|page| [FIRST + page, SECOND + page]) {
        machine.write(&cache, FILE, page, &[1; BLOCK_BYTES]).expect("space");
    }
    cache.drain().expect("disks that work");
    drop(cache);
    let leaf = damage_leaf(&machine);
    let cache = machine.open();
    let cut = [ObjectChange::Zero { object: FILE, offset: 0, len: 2000 * BLOCK_BYTES as u64 }];
    machine.apply(&cache, &cut).expect("space");
    machine.write(&cache, FILE, SECOND, &[2; BLOCK_BYTES]).expect("space");
    machine.sync(&cache).expect("disks that work");
    cache.drain().expect_err("the cut is stuck");
    let status = cache.status();
    assert_eq!((status.dirty_pages, status.pending_punches), (0, 1), "the page is stored: {status:?}");
    machine.rot_both(leaf);
    machine.buffer.set_faults(ALWAYS);
    let _ = machine.write(&cache, FILE, OTHER, &[3; 100]);
    machine.sync(&cache).expect_err("the buffer fails");
    cache.step(BackgroundTask::WriteBack);
    let status = cache.status();
    let name = status.rescued.unwrap_or_else(|| panic!("{:?}", status.not_rescued));
    let volume = cache.store().volumes().named(&name).expect("it was made").id;
    let mut wants = [FIRST, SECOND, OTHER].map(|page| PageRead::new(FILE.in_volume(volume), PageNo(page)));
    cache.store().data().read(&mut wants);
    let found = wants.map(|want| match want.result.expect("it can be read") {
        StoredPage::Hole => None,
        StoredPage::Page { bytes, .. } => Some(bytes.0[0]),
    });
    assert_eq!(found, [None, Some(2), Some(3)], "the cut took what was older than it, and no more");
}

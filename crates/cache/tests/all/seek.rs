//! Seeks of holes and data, compared with a plain set of written pages: stored pages, dirty pages, pages in
//! write-back, and punches that the store has not heard of.

use crate::common::Disks;
use cache::{
    BackgroundTask, Cache, CacheSettings, CountEffort, ObjectChange, SeekTarget, SpaceReservation,
    TransactionCost,
};
use device::{BLOCK_BYTES, ObjectId, PageNo, PageTransfer, SeededRng, TransferKind, VolumeId};
use sim_disk::SimClock;
use std::collections::BTreeSet;
use std::ops::{Deref, Range};
use std::sync::{Arc, Mutex};
use std::time::Duration;

const OBJECT: ObjectId = VolumeId::MAIN.object(3, 1);
/// More than two leaves of the store's map, so that a seek goes from one to the next.
const PAGES: u64 = 300;
const PAGE: u64 = BLOCK_BYTES as u64;

struct Machine {
    disks: Disks,
    clock: Arc<SimClock>,
}

impl Deref for Machine {
    type Target = Disks;
    fn deref(&self) -> &Disks {
        &self.disks
    }
}

impl Machine {
    fn new(seed: u64) -> Machine {
        Machine { disks: Disks::new(seed, 8192, 512, 32), clock: Arc::new(SimClock::new()) }
    }

    fn open(&self) -> Cache {
        let settings = CacheSettings {
            memory_bytes_max: 120 * PAGE,
            dirty_bytes_max: 60 * PAGE,
            commit_inline_below: Duration::ZERO,
            ..CacheSettings::default()
        };
        self.disks.open(self.clock.clone(), settings).expect("sound media")
    }

    /// Waits for a completion, doing the workers' work in an order drawn from `random`.
    fn wait<T: Send + 'static>(
        &self,
        cache: &Cache,
        random: &mut SeededRng,
        start: impl FnOnce(cache::CacheCompletion<T>),
    ) -> T {
        let slot = Arc::new(Mutex::new(None));
        let into = slot.clone();
        start(Box::new(move |outcome| *into.lock().expect("one thread") = Some(outcome)));
        for _ in 0..100_000 {
            if let Some(outcome) = slot.lock().expect("one thread").take() {
                return outcome.expect("devices that work");
            }
            cache.step(BackgroundTask::ALL[random.below(4) as usize]);
            self.clock.advance(Duration::from_millis(1));
        }
        panic!("nobody answered: {:?}", cache.status());
    }

    fn apply(&self, cache: &Cache, random: &mut SeededRng, change: ObjectChange<'_>) {
        let changes = [change];
        let mut reservation: SpaceReservation =
            self.wait(cache, random, |then| cache.admit(TransactionCost::of(&changes), then));
        cache.apply(&mut reservation, &changes).expect("space");
    }

    fn seek(
        &self,
        cache: &Cache,
        random: &mut SeededRng,
        pages: Range<u64>,
        wanted: SeekTarget,
    ) -> Option<u64> {
        let pages = PageNo(pages.start)..PageNo(pages.end);
        self.wait(cache, random, |then| cache.seek(OBJECT, pages, wanted, then)).map(|page| page.0)
    }

    fn count(
        &self,
        cache: &Cache,
        random: &mut SeededRng,
        pages: Range<u64>,
        effort: CountEffort,
    ) -> Option<u64> {
        let pages = PageNo(pages.start)..PageNo(pages.end);
        self.wait(cache, random, |then| cache.count(OBJECT, pages, effort, then))
    }
}

/// Applies a change to the set of data pages: a page that is zeroed as a whole becomes a hole, a page that is
/// zeroed in part is data.
fn note(written: &mut BTreeSet<u64>, change: &ObjectChange<'_>) {
    match *change {
        ObjectChange::LogBypassed { .. } => {}
        ObjectChange::Write { offset, bytes, .. } | ObjectChange::FileWrite { offset, bytes, .. } => {
            written.extend(offset / PAGE..(offset + bytes.len() as u64).div_ceil(PAGE));
        }
        ObjectChange::Zero { offset, len, .. } => {
            let end = offset + len;
            let first = offset.div_ceil(PAGE);
            let last = (offset + len) / PAGE;
            if !offset.is_multiple_of(PAGE) {
                written.insert(offset / PAGE);
            }
            if !end.is_multiple_of(PAGE) {
                written.insert(last);
            }
            written.retain(|page| !(first..last).contains(page));
        }
        ObjectChange::Delete { .. } => written.clear(),
        ObjectChange::Transfer(transfer) => {
            let numbers = |pages: Range<PageNo>| pages.start.0..pages.end.0;
            let source = numbers(transfer.source());
            let target = numbers(transfer.target());
            let there: Vec<u64> = written.range(source.clone()).copied().collect();
            written.retain(|page| !target.contains(page));
            if transfer.kind == TransferKind::Move {
                written.retain(|page| !source.contains(page));
            }
            written.extend(there.into_iter().map(|page| transfer.target_of(PageNo(page)).0));
        }
    }
}

/// A transfer of pages from one half of the object to the other.
fn transfer(kind: TransferKind, random: &mut SeededRng) -> PageTransfer {
    let half = PAGES / 2;
    let len = 1 + random.below(50);
    let places = [random.below(half - len), half + random.below(half - len)];
    let forth = random.once_in(2);
    let (first, at) = if forth { (places[0], places[1]) } else { (places[1], places[0]) };
    let (first, end, at) = (PageNo(first), PageNo(first + len), PageNo(at));
    PageTransfer { kind, from: OBJECT, first, end, to: OBJECT, at }
}

fn change<'a>(random: &mut SeededRng, bytes: &'a [u8]) -> ObjectChange<'a> {
    let at = random.below(PAGES * PAGE - 1);
    let left = PAGES * PAGE - at;
    match random.below(11) {
        10 if random.once_in(2) => ObjectChange::Transfer(transfer(TransferKind::Clone, random)),
        10 => ObjectChange::Transfer(transfer(TransferKind::Move, random)),
        0..7 => {
            let limit = if random.once_in(4) { 9 * PAGE } else { 700 };
            let len = (1 + random.below(limit)).min(left);
            ObjectChange::Write { object: OBJECT, offset: at, bytes: &bytes[..len as usize] }
        }
        7 | 8 => {
            let first = at / PAGE;
            let count = 1 + random.below(40);
            let len = (count * PAGE).min((PAGES - first) * PAGE);
            ObjectChange::Zero { object: OBJECT, offset: first * PAGE, len }
        }
        _ => ObjectChange::Zero { object: OBJECT, offset: at, len: (1 + random.below(20 * PAGE)).min(left) },
    }
}

#[test]
fn a_seek_finds_exactly_what_was_written_and_not_cut() {
    let bytes = vec![7; 9 * PAGE as usize];
    let mut given_up = 0;
    for seed in 0..6 {
        let machine = Machine::new(seed);
        let mut random = SeededRng::new(seed);
        let mut cache = machine.open();
        let mut written = BTreeSet::new();
        let mut page_lsns = 0;
        for step in 0..800 {
            match random.below(12) {
                0 => {
                    machine.wait(&cache, &mut random, |then| cache.sync(then));
                    if random.once_in(4) {
                        page_lsns += cache.status().counters.pages_stored;
                        drop(cache);
                        machine.crash();
                        cache = machine.open();
                    }
                }
                1 | 2 => drop(cache.step(BackgroundTask::ALL[random.below(4) as usize])),
                3..7 => {
                    let change = change(&mut random, &bytes);
                    note(&mut written, &change);
                    machine.apply(&cache, &mut random, change);
                }
                _ => {
                    let from = random.below(PAGES);
                    let range = from..from + random.below(PAGES + 1 - from);
                    let expected = written.range(range.clone()).count() as u64;
                    let dirty = cache.dirty_pages(OBJECT, PageNo(range.start)..PageNo(range.end));
                    assert!(dirty <= expected, "seed {seed}, step {step}: {dirty} dirty pages in {range:?}");
                    let count = machine.count(&cache, &mut random, range.clone(), CountEffort::OneStep);
                    assert_eq!(count.unwrap_or(expected), expected, "seed {seed}, step {step}: in {range:?}");
                    given_up += u64::from(count.is_none());
                    let data = machine.seek(&cache, &mut random, range.clone(), SeekTarget::Data);
                    let expected = range.clone().find(|page| written.contains(page));
                    assert_eq!(data, expected, "seed {seed}, step {step}: data in {range:?}");
                    let hole = machine.seek(&cache, &mut random, range.clone(), SeekTarget::Hole);
                    let expected = range.clone().find(|page| !written.contains(page));
                    assert_eq!(hole, expected, "seed {seed}, step {step}: a hole in {range:?}");
                    let expected = written.range(range.clone()).count() as u64;
                    let count = machine.count(&cache, &mut random, range.clone(), CountEffort::Whole);
                    assert_eq!(count, Some(expected), "seed {seed}, step {step}: in {range:?}");
                }
            }
        }
        assert!(
            page_lsns > 100,
            "seed {seed}: only {page_lsns} pages were written back, so memory alone answered"
        );
    }
    assert!(given_up > 0, "no clone or move was waiting at a count");
}

#[test]
fn a_seek_passes_over_an_empty_space_of_any_width_at_once() {
    let machine = Machine::new(1);
    let mut random = SeededRng::new(1);
    let cache = machine.open();
    let far = (1 << 35) - 1;
    for page in [0, 1, 200, far] {
        let change = ObjectChange::Write { object: OBJECT, offset: page * PAGE, bytes: b"data" };
        machine.apply(&cache, &mut random, change);
    }
    let all = 2..far + 1;
    for round in ["dirty", "stored"] {
        assert_eq!(machine.seek(&cache, &mut random, all.clone(), SeekTarget::Data), Some(200), "{round}");
        assert_eq!(machine.seek(&cache, &mut random, 201..far + 1, SeekTarget::Data), Some(far), "{round}");
        assert_eq!(machine.seek(&cache, &mut random, 201..far, SeekTarget::Data), None, "{round}");
        assert_eq!(machine.seek(&cache, &mut random, 0..far, SeekTarget::Hole), Some(2), "{round}");
        assert_eq!(machine.seek(&cache, &mut random, far..far + 1, SeekTarget::Hole), None, "{round}");
        cache.drain().expect("everything is written back");
    }
}

#[test]
fn a_seek_that_nobody_can_answer_any_more_is_refused() {
    let machine = Machine::new(1);
    let cache = machine.open();
    let outcome = Arc::new(Mutex::new(None));
    let into = outcome.clone();
    let then = move |found| *into.lock().expect("one thread") = Some(found);
    cache.seek(OBJECT, PageNo(0)..PageNo(9), SeekTarget::Data, Box::new(then));
    cache.stop();
    let outcome = outcome.lock().expect("one thread").take();
    assert!(outcome.expect("it is answered").is_err());
}

#[test]
fn a_count_of_one_step_says_nothing_of_a_long_map() {
    let machine = Machine::new(1);
    let mut random = SeededRng::new(1);
    let cache = machine.open();
    let bytes = vec![7; PAGE as usize];
    // Each in a leaf of its own.
    for number in 0..70 {
        machine.apply(
            &cache,
            &mut random,
            ObjectChange::Write { object: OBJECT, offset: number * 128 * PAGE, bytes: &bytes },
        );
    }
    cache.drain().expect("space");
    let range = |leaves: u64| 0..leaves * 128;
    assert_eq!(machine.count(&cache, &mut random, range(70), CountEffort::OneStep), None);
    assert_eq!(machine.count(&cache, &mut random, range(70), CountEffort::Whole), Some(70));
    assert_eq!(machine.count(&cache, &mut random, range(60), CountEffort::OneStep), Some(60));
}

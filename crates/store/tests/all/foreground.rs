//! No writer or reader waits for the reads and writes of the cleaner, the scrubber or the freeing of deleted
//! volumes: at each of these calls another thread writes and reads, and finishes before the call continues. A
//! flush is shared, so during a flush another thread only reads.

use crate::common::*;
use device::{Block, Device, DeviceError, Lsn, ObjectId, Page, PageNo};
use sim_disk::{DiskHooks, HookedDisk, SimDisk};
use std::cell::Cell;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use store::{CleaningOutcome, PageRead, Store, StoreChange, StoredPage, VolumeId, VolumeMode};

const FILE: ObjectId = VolumeId::MAIN.object(7, 1);
/// Far longer than any call takes, on any machine.
const PATIENCE: Duration = Duration::from_secs(60);

thread_local! {
    /// Whether this thread's calls to the device let others go first.
    static POLITE: Cell<bool> = const { Cell::new(false) };
}

/// A disk that lets another thread work first at each call.
struct Polite {
    others: Mutex<Option<(Sender<Turn>, Receiver<()>)>>,
}

/// The other thread's action at a call.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Turn {
    Read,
    WriteAndRead,
}

impl Polite {
    fn after_you(&self, turn: Turn) {
        if !POLITE.get() {
            return;
        }
        let others = self.others.lock().expect("no panic while waiting");
        let (go, gone) = others.as_ref().expect("somebody is there");
        go.send(turn).expect("the other thread lives");
        gone.recv_timeout(PATIENCE).expect("somebody waits for background I/O");
    }
}

impl DiskHooks for Polite {
    fn read(&self, disk: &SimDisk, at: Block, into: &mut [Page]) -> Result<(), DeviceError> {
        self.after_you(Turn::WriteAndRead);
        disk.read(at, into)
    }

    fn write(&self, disk: &SimDisk, at: Block, from: &[Page]) -> Result<(), DeviceError> {
        self.after_you(Turn::WriteAndRead);
        disk.write(at, from)
    }

    fn flush(&self, disk: &SimDisk) -> Result<(), DeviceError> {
        self.after_you(Turn::Read);
        disk.flush()
    }
}

fn write(object: ObjectId, number: u64, page_lsn: u64) -> StoreChange {
    StoreChange::Write { object, page: PageNo(number), bytes: page(page_lsn), page_lsn: Lsn(page_lsn) }
}

/// Does background work while another thread writes and reads at each of its calls. Returns the number of
/// calls.
fn beside(store: &Store, disk: &HookedDisk<Polite>, work: impl FnOnce()) -> u64 {
    let (go, asked) = channel();
    let (answered, gone) = channel();
    *disk.others.lock().expect("nobody else") = Some((go, gone));
    std::thread::scope(|scope| {
        let other = scope.spawn(move || {
            let mut page_lsn = 1_000_000;
            while let Ok(turn) = asked.recv() {
                let other = VolumeId::MAIN.object(900, 1);
                if turn == Turn::WriteAndRead || page_lsn == 1_000_000 {
                    page_lsn += 1;
                    store.data().apply(&[write(other, page_lsn % 40, page_lsn)]).expect("space");
                }
                let mut wants = [PageRead::new(FILE, PageNo(3)), PageRead::new(other, PageNo(page_lsn % 40))];
                store.data().read(&mut wants);
                assert!(matches!(wants[1].result, Ok(StoredPage::Page { .. })));
                answered.send(()).expect("somebody waits");
            }
            page_lsn - 1_000_000
        });
        POLITE.set(true);
        work();
        POLITE.set(false);
        *disk.others.lock().expect("nobody else") = None;
        other.join().expect("no panic beside the work")
    })
}

/// A store with segments to clean, and a volume to free.
fn used() -> (Arc<HookedDisk<Polite>>, Store) {
    // More nodes than memory holds.
    let (_power, disk, store) = fresh(1600, 1);
    drop(store);
    let disk = HookedDisk::new(&disk, Polite { others: Mutex::new(None) });
    let store = Store::open(disk.clone() as Arc<dyn Device>).expect("a sound store");
    store.begin(device::Incarnation(7)).expect("a higher one");
    store.set_cached_nodes_max(1);
    let all: Vec<StoreChange> = (0..12_000).map(|number| write(FILE, number, number + 1)).collect();
    all.chunks(100).for_each(|some| store.data().apply(some).expect("space"));
    clone_volume(&store, VolumeId::MAIN, VolumeMode::Writable, Lsn(15_000)).expect("space");
    let some = (0..12_000).step_by(3).map(|number| write(FILE, number, 20_000 + number));
    let some: Vec<StoreChange> = some.collect();
    some.chunks(100).for_each(|some| store.data().apply(some).expect("space"));
    store.volumes().delete(VolumeId(1), Lsn(40_000)).expect("space");
    store.maintenance().checkpoint().expect("a checkpoint");
    (disk, store)
}

#[test]
fn writers_and_readers_go_on_at_every_call_of_the_cleaner() {
    let (disk, store) = used();
    while store.maintenance().free_deleted_step().expect("freeing") {}
    // Each write causes more cleaning, so cleaning would never end.
    let emptied = || store.counters().segments_cleaned;
    let calls = beside(&store, &disk, || {
        while emptied() < 20 {
            match store.maintenance().clean_step().expect("a step") {
                CleaningOutcome::RoundEnded(_) | CleaningOutcome::Working => {}
                CleaningOutcome::Idle => break,
            }
        }
    });
    let emptied = emptied();
    assert!(calls > 50 && emptied > 10, "{calls} calls, {emptied} segments");
    assert_eq!(findings(&store), []);
}

#[test]
fn writers_and_readers_go_on_at_every_call_of_freeing() {
    let (disk, store) = used();
    let calls = beside(&store, &disk, || while store.maintenance().free_deleted_step().expect("freeing") {});
    assert!(calls > 0, "nothing was read");
    assert_eq!(findings(&store), []);
}

#[test]
fn writers_and_readers_go_on_while_nodes_and_data_are_scrubbed() {
    let (disk, store) = used();
    // The first step reads what lies at fixed places, and keeps roots from being written meanwhile.
    store.maintenance().scrub_step(&mut |finding| panic!("{finding}"));
    let calls = beside(&store, &disk, || {
        while !store.maintenance().scrub_step(&mut |finding| panic!("{finding}")).done {}
    });
    assert!(calls > 20, "{calls} calls");
}

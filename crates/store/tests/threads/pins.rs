//! Readers look a page up under the map's lock, and read it without the lock, while a writer frees and
//! refills its segment.

use crate::change::StoreChange;
use crate::shared::{PageRead, StoredPage};
use crate::store::Store;
use crate::superblock::StoreLayout;
use crate::volume::{NewVolume, VolumeId};
use crate::{check, failure};
use device::{BLOCK_BYTES, Block, Device, DeviceError, Incarnation, Lsn, ObjectId, Page, PageNo, StoreId};
use shuttle::rand::{Rng, thread_rng};
use shuttle::thread;
use sim_disk::{PowerSupply, SimDisk};
use std::sync::Arc;

pub(crate) const TESTS: [(&str, fn()); 2] = [
    (
        "what_a_reader_has_pinned_is_not_used_again_before_it_is_read",
        what_a_reader_has_pinned_is_not_used_again_before_it_is_read,
    ),
    (
        "without_a_pin_a_reader_finds_other_bytes_in_some_order",
        without_a_pin_a_reader_finds_other_bytes_in_some_order,
    ),
];

const OBJECT: ObjectId = VolumeId::MAIN.object(1, 1);
const READERS: usize = 2;
/// Segments of the smallest size. The store has a few more than the smallest number of them.
const SEGMENT_BLOCKS: u32 = 16;
const BLOCKS: u64 = 56 * SEGMENT_BLOCKS as u64;
/// The slowest read takes as long as all the writer's work.
const SLOWEST: u32 = 600;

/// A disk with slow reads, during which other threads continue.
struct Slow(Arc<SimDisk>);

impl Device for Slow {
    fn blocks(&self) -> u64 {
        self.0.blocks()
    }

    fn name(&self) -> &str {
        self.0.name()
    }

    fn read(&self, at: Block, into: &mut [Page]) -> Result<(), DeviceError> {
        (0..thread_rng().gen_range(0..SLOWEST)).for_each(|_| thread::yield_now());
        self.0.read(at, into)
    }

    fn write(&self, at: Block, from: &[Page]) -> Result<(), DeviceError> {
        thread::yield_now();
        self.0.write(at, from)
    }

    fn flush(&self) -> Result<(), DeviceError> {
        thread::yield_now();
        self.0.flush()
    }

    fn trim(&self, at: Block, count: u64) -> Result<(), DeviceError> {
        thread::yield_now();
        self.0.trim(at, count)
    }
}

fn write(store: &Store, pages: std::ops::Range<u64>, lsn: u64) {
    let page = |page| {
        let bytes = Arc::new(Box::new(Page([lsn as u8; BLOCK_BYTES])));
        StoreChange::Write { object: OBJECT, page: PageNo(page), bytes, page_lsn: Lsn(lsn) }
    };
    let changes: Vec<StoreChange> = pages.map(page).collect();
    store.data().apply(&changes).expect("a sound device with space");
}

/// The store's own read.
fn pinned(store: &Store, want: &mut PageRead) {
    store.data().read(std::slice::from_mut(want));
}

/// The wrong way: the segment is not pinned while its block is read.
fn unpinned(store: &Store, want: &mut PageRead) {
    let placed = store.shared.locate_and_pin(std::slice::from_mut(want));
    let page_lsn = placed[0].located.page.page_lsn;
    let entry = placed[0].located.page.base().expect("it was written");
    store.shared.map().nodes.segments.unpin(entry.place);
    let mut bytes = Page::zeroed();
    let read = store.shared.medium.device().read(entry.place, std::slice::from_mut(&mut bytes));
    let intact = read
        .map_err(Into::into)
        .and_then(|()| store.shared.verify_page((want.object, want.page), "", &entry, &bytes));
    want.result = intact.map(|()| StoredPage::Page { bytes, page_lsn });
}

/// Makes volume 0, as `weir format` does.
fn make_main(store: &Store) {
    let main = NewVolume { name: "main", ..NewVolume::default() };
    store.volumes().create(&main, &[], Lsn(0)).expect("space");
}

fn readers_and_a_writer(read: fn(&Store, &mut PageRead)) {
    let disk = SimDisk::new("disk", BLOCKS, &PowerSupply::new(), 7);
    let layout = StoreLayout { id: StoreId([7; 16]), segment_blocks: Some(SEGMENT_BLOCKS) };
    Store::format(&*disk, &layout).expect("a disk that is large enough");
    let store = Arc::new(Store::open(Arc::new(Slow(disk))).expect("a store that was just made"));
    store.begin(Incarnation(1)).expect("a higher incarnation");
    make_main(&store);
    write(&store, 0..10, 1);
    let freed = store.counters().segments_freed;
    let readers: Vec<_> = (0..READERS)
        .map(|_| {
            let store = store.clone();
            thread::spawn(move || {
                let mut want = PageRead::new(OBJECT, PageNo(3));
                read(&store, &mut want);
                match want.result {
                    Ok(StoredPage::Page { bytes, page_lsn }) => assert_eq!(u64::from(bytes.0[0]), page_lsn.0),
                    other => panic!("a page that was always there: {other:?}"),
                }
            })
        })
        .collect();
    for lsn in 2..5 {
        write(&store, 0..10, lsn);
        store.maintenance().checkpoint().expect("a sound device");
    }
    readers.into_iter().for_each(|reader| reader.join().unwrap());
    write(&store, 0..10, 5);
    store.maintenance().checkpoint().expect("a sound device");
    assert!(store.counters().segments_freed > freed, "nothing became free: this run shows nothing");
}

fn what_a_reader_has_pinned_is_not_used_again_before_it_is_read() {
    check(|| readers_and_a_writer(pinned));
}

fn without_a_pin_a_reader_finds_other_bytes_in_some_order() {
    let found = failure(|| readers_and_a_writer(unpinned));
    assert!(found.contains("a page that was always there: Err(Corrupt"), "{found}");
}

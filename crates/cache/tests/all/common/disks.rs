use cache::{Cache, CacheError, CacheSettings};
use device::{BLOCK_BYTES, Block, Clock, Device, Incarnation, Lsn, Page, StoreId};
use sim_disk::{PowerSupply, SimDisk};
use std::collections::BTreeMap;
use std::sync::Arc;
use store::{NewVolume, Store, StoreLayout};

/// Makes volume 0 in a new store, as `weir format` does.
fn make_main(disk: &Arc<SimDisk>) {
    let begun = |incarnation| {
        let store = Store::open(disk.clone()).expect("a new store");
        store.begin(Incarnation(incarnation)).expect("a higher one");
        store
    };
    let main = NewVolume { name: "main", ..NewVolume::default() };
    begun(1).volumes().create(&main, &[], Lsn(0)).expect("space");
    // Nothing is left in the log.
    begun(2);
}

/// A store's media on a machine whose power may fail.
pub struct Disks {
    pub power: Arc<PowerSupply>,
    pub store: Arc<SimDisk>,
    pub buffer: Arc<SimDisk>,
}

impl Disks {
    /// Formatted, with the given numbers of blocks.
    pub fn new(seed: u64, store_blocks: u64, buffer_blocks: u64, segment_blocks: u32) -> Disks {
        let power = PowerSupply::new();
        let store = SimDisk::new("store", store_blocks, &power, seed);
        let buffer = SimDisk::new("buffer", buffer_blocks, &power, seed + 1);
        let id = StoreId([7; 16]);
        let layout = StoreLayout { id, segment_blocks: Some(segment_blocks) };
        Store::format(&*store, &layout).expect("a format with power");
        make_main(&store);
        buffer::Buffer::format(&*buffer, id).expect("a format with power");
        Disks { power, store, buffer }
    }

    pub fn open(&self, clock: Arc<dyn Clock>, settings: CacheSettings) -> Result<Cache, CacheError> {
        let store = Arc::new(Store::open(self.store.clone())?);
        Cache::open(store, self.buffer.clone(), clock, settings)
    }

    /// The two copies of each block of metadata: any two blocks with equal bytes count as such.
    pub fn pairs(&self) -> Vec<[Block; 2]> {
        let mut same: BTreeMap<[u8; BLOCK_BYTES], Vec<Block>> = BTreeMap::new();
        for at in self.store.written_blocks() {
            let mut page = [Page([0; BLOCK_BYTES])];
            self.store.read(at, &mut page).expect("a sound disk");
            same.entry(page[0].0).or_default().push(at);
        }
        same.into_values().filter_map(|blocks| blocks.try_into().ok()).collect()
    }

    /// Damages both copies, or heals both if they are damaged.
    pub fn rot_both(&self, pair: [Block; 2]) {
        pair.into_iter().for_each(|at| self.store.rot(at, 77));
    }

    pub fn crash(&self) {
        self.power.cut();
        self.store.crash();
        self.buffer.crash();
        self.power.restore();
    }
}

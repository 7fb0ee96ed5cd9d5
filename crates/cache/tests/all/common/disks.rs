use cache::{Cache, CacheError, CacheSettings};
use device::{BLOCK_BYTES, Block, Clock, Device, Page, StoreId};
use sim_disk::{PowerSupply, SimDisk};
use std::collections::BTreeMap;
use std::sync::Arc;
use store::{Store, StoreLayout};

/// A store's media on a machine whose power may fail.
pub struct Disks {
    pub power: Arc<PowerSupply>,
    pub store: Arc<SimDisk>,
    pub buffer: Arc<SimDisk>,
}

impl Disks {
    /// Formatted, with so many blocks each.
    pub fn new(seed: u64, store_blocks: u64, buffer_blocks: u64, segment_blocks: u32) -> Disks {
        let power = PowerSupply::new();
        let store = SimDisk::new("store", store_blocks, &power, seed);
        let buffer = SimDisk::new("buffer", buffer_blocks, &power, seed + 1);
        let id = StoreId([7; 16]);
        let layout = StoreLayout { id, segment_blocks: Some(segment_blocks) };
        Store::format(&*store, &layout).expect("a format with power");
        buffer::Buffer::format(&*buffer, id).expect("a format with power");
        Disks { power, store, buffer }
    }

    pub fn open(&self, clock: Arc<dyn Clock>, settings: CacheSettings) -> Result<Cache, CacheError> {
        let store = Arc::new(Store::open(self.store.clone())?);
        Cache::open(store, self.buffer.clone(), clock, settings)
    }

    /// The two copies of each block of metadata, as far as any two blocks with equal bytes are that.
    pub fn pairs(&self) -> Vec<[Block; 2]> {
        let mut same: BTreeMap<[u8; BLOCK_BYTES], Vec<Block>> = BTreeMap::new();
        for at in self.store.written_blocks() {
            let mut page = [Page([0; BLOCK_BYTES])];
            self.store.read(at, &mut page).expect("a sound disk");
            same.entry(page[0].0).or_default().push(at);
        }
        same.into_values().filter_map(|blocks| blocks.try_into().ok()).collect()
    }

    /// Damages both, or heals both that were damaged.
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

//! The stack under test, from the file system down, on simulated media.

use crate::block_request::fs_error;
use crate::event_log::{EventLog, MediumRole};
use crate::instrumented_disk::InstrumentedDisk;
use crate::interleaving::Interleaving;
use crate::model::{CALLER, DISK_INO, DISK_NAME};
use crate::options::SimulatorOptions;
use crate::planted_rules::PlantedRule;
use crate::request_generator::WorkloadProfile;
use block::{BlockVolume, SECTOR_BYTES, block_volume_size, new_block_volume};
use cache::{BackgroundTask, Cache, CacheError, CacheSettings, FetchMode, RecoveredBuffer, StepProgress};
use crash_oracle::BypassScope;
use device::{Clock, Device, SeededRng, StoreId};
use fs::{FileAttributes, FileKind, Fs, Ino};
use request::{LendingLevel, Origin, RequestClass};
use sim_disk::{DiskFaults, DroppedWrites, PowerSupply, SimClock, SimDisk};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use store::{MAIN_VOLUME_NAME, NewVolume, Store, StoreLayout, VolumeId, VolumeInfo};

/// Small stores of 6 to 32 MiB in segments of 64 KiB. The log wraps often, and some stores are smaller than
/// the data that clients would like to keep.
const STORE_BLOCKS: [u64; 4] = [1536, 2048, 4096, 8192];
const SEGMENT_BLOCKS: u32 = 16;
/// Segments of 1 MiB, in one run in four of those that do not keep the store full. Each stretch of log in
/// such a store has a copy.
const LARGE_SEGMENT_BLOCKS: u32 = 256;
const LARGE_SEGMENTS: [u64; 2] = [72, 96];
/// Nodes of the map that stay in memory in one run in four: the fewest that a store keeps.
const FEW_NODES: usize = 64;
/// Small buffers of 1 or 2 MiB. The log wraps after a few hundred operations.
const BUFFER_BLOCKS: [u64; 2] = [256, 512];
/// The header blocks, which describe all others: roots of the store, header slots of the buffer.
const STORE_HEADER: Range<u64> = 1..3;
const BUFFER_HEADER: Range<u64> = 1..3;
/// Mixed into the seed. In one run in eight the store is a sparse file, with space for three quarters of its
/// blocks.
const SPARSE: u64 = 0x5ba2_5e00;
/// Mixed into the seed. In half of the runs whole pages may bypass the buffer.
const DIRECT: u64 = 0xd12e_c700;
/// Mixed into the seed. In half of the runs with bypassing the journal mode changes during a life, at one
/// turn in [`ORDER_SWITCHED_ONE_IN`].
const SWITCHES: u64 = 0x54a1_7c00;
const ORDER_SWITCHED_ONE_IN: u64 = 50;
/// Mixed into the seed. In half of the runs with bypassing the cache follows classes in some lives, clients are
/// critical or not, and some are lent to.
const CLASSES: u64 = 0xc1a5_5e50;
/// With classes, something is lent at one turn in this many.
const LENT_ONE_IN: u64 = 10;
/// Mixed into the seed. In one run in four the store and the buffer grow, up to [`GROWTHS`] times together.
const GROWS: u64 = 0x6209;
const GROWTHS: u32 = 4;
/// Mixed into the seed. Half of the runs make block volumes, too.
const BLOCKS: u64 = 0xb10c;
/// The largest sizes of block volumes, in bytes. The last one needs two reads of the cache.
const BLOCK_VOLUME_BYTES: [u64; 4] = [64 << 10, 128 << 10, 320 << 10, 1100 << 10];
/// The identity that store and buffer share.
pub(crate) const ID: StoreId = StoreId(*b"simulated store!");
/// The limit of steps that a read may need to complete.
const STEPS_PER_READ_MAX: usize = 10_000;
/// The longest read of a snapshot, in bytes.
const READ_BYTES_MAX: u64 = 64 << 10;

pub(crate) const TASKS: [BackgroundTask; 4] = BackgroundTask::ALL;

/// The media, which survive a crash: two disks on one power supply. Also the clock and the log of the run.
pub(crate) struct SimulatedMedia {
    pub(crate) power: Arc<PowerSupply>,
    pub(crate) store: Arc<SimDisk>,
    pub(crate) buffer: Arc<SimDisk>,
    pub(crate) clock: Arc<SimClock>,
    pub(crate) log: Arc<EventLog>,
    pub(crate) meanwhile: Arc<Interleaving>,
    /// The settings of the next open.
    pub(crate) settings: CacheSettings,
    /// Draws whether whole pages bypass the buffer in a life. `None` if they never do in this run.
    bypass: Option<SeededRng>,
    /// Draws the classes of requests. `None` if all are critical in this run.
    classes: Option<SeededRng>,
    /// Whether the journal mode changes during a life.
    switches_order: bool,
    /// Draws block volumes. `None` if all volumes of this run have file systems.
    blocks: Option<SeededRng>,
    segment_blocks: u32,
    /// The limit of map nodes in memory. `None` keeps the store's own limit.
    nodes_max: Option<usize>,
    plant: Option<PlantedRule>,
    /// Whether writes that a failed flush drops stay readable until the power fails, as in a kernel's page
    /// cache.
    is_cached: bool,
    /// Whether a power cut may make a torn root or header slot unreadable.
    is_fragile: bool,
    /// How many more times the store or the buffer may grow.
    pub(crate) growths_left: u32,
}

impl SimulatedMedia {
    /// Two blank disks.
    pub(crate) fn new(seed: u64, options: &SimulatorOptions) -> SimulatedMedia {
        let (power, mut random) = (PowerSupply::new(), SeededRng::new(seed));
        let is_kept_full = WorkloadProfile::of(options) == WorkloadProfile::Full;
        let (store_blocks, segment_blocks) = match is_kept_full {
            true => (random.pick(&STORE_BLOCKS[..2]), SEGMENT_BLOCKS),
            false if random.once_in(4) => {
                let segments = random.pick(&LARGE_SEGMENTS) + 1;
                (segments * u64::from(LARGE_SEGMENT_BLOCKS), LARGE_SEGMENT_BLOCKS)
            }
            false => (random.pick(&STORE_BLOCKS), SEGMENT_BLOCKS),
        };
        let nodes_max = random.once_in(4).then_some(FEW_NODES);
        let buffer_blocks = random.pick(&BUFFER_BLOCKS);
        let store = SimDisk::new("store", store_blocks, &power, random.next_u64());
        let buffer = SimDisk::new("buffer", buffer_blocks, &power, random.next_u64());
        store.set_header(STORE_HEADER);
        let (is_cached, is_fragile) = (random.once_in(2), random.once_in(2));
        if is_cached {
            store.set_dropped(DroppedWrites::AtPowerLoss);
        }
        if is_fragile {
            store.set_torn_unreadable(STORE_HEADER);
        }
        if SeededRng::new(options.seed ^ SPARSE).once_in(8) {
            store.set_space(store_blocks * 3 / 4);
        }
        let media = SimulatedMedia {
            store,
            buffer,
            is_cached,
            is_fragile,
            growths_left: if SeededRng::new(options.seed ^ GROWS).once_in(4) { GROWTHS } else { 0 },
            clock: Arc::new(SimClock::new()),
            log: EventLog::new(options.verbose),
            meanwhile: Arc::default(),
            settings: CacheSettings::default(),
            bypass: SeededRng::new(options.seed ^ DIRECT).once_in(2).then(|| SeededRng::new(seed ^ DIRECT)),
            classes: (SeededRng::new(options.seed ^ DIRECT).once_in(2)
                && SeededRng::new(options.seed ^ CLASSES).once_in(2))
            .then(|| SeededRng::new(seed ^ CLASSES)),
            switches_order: SeededRng::new(options.seed ^ SWITCHES).once_in(2),
            blocks: SeededRng::new(options.seed ^ BLOCKS).once_in(2).then(|| SeededRng::new(seed ^ BLOCKS)),
            segment_blocks,
            nodes_max,
            plant: options.plant,
            power,
        };
        let mut media = media;
        media.draw_settings(&mut random);
        media.equip_buffer(&media.buffer);
        media
    }

    /// Gives a disk the properties that all buffers of this run have.
    pub(crate) fn equip_buffer(&self, disk: &SimDisk) {
        disk.set_header(BUFFER_HEADER);
        if self.is_cached {
            disk.set_dropped(DroppedWrites::AtPowerLoss);
        }
        if self.is_fragile {
            disk.set_torn_unreadable(BUFFER_HEADER);
        }
    }

    /// Draws the limits of the next life.
    pub(crate) fn draw_settings(&mut self, random: &mut SeededRng) {
        self.settings = draw_settings(random);
        if let Some(bypass) = &mut self.bypass {
            self.settings.bypass_after = bypass.pick(&[u64::MAX, 0, 0, 0, 8192]);
            self.settings.sync_log_bytes_max = bypass.pick(&[u64::MAX, 0, 8192]);
        }
        self.settings.follows_classes = self.classes.as_mut().is_some_and(|classes| !classes.once_in(3));
    }

    /// What may bypass the buffer at the start of the next life.
    pub(crate) fn bypass_scope(&self) -> BypassScope {
        bypass_scope(self.settings.bypass_after, self.settings.follows_classes)
    }

    /// Draws who makes a client's request. A client is one task.
    pub(crate) fn draw_origin(&mut self, client: usize) -> Origin {
        let is_background = self.classes.as_mut().is_some_and(|classes| classes.once_in(2));
        let class = if is_background { RequestClass::Background } else { RequestClass::Critical };
        Origin { task: client as u32 + 1, class, ..Origin::UNMATCHED }
    }

    /// Draws whether something is lent now: to which of `clients`, and what.
    pub(crate) fn draw_loan(&mut self, clients: usize) -> Option<(u32, LendingLevel)> {
        let classes = self.classes.as_mut()?;
        let level = |classes: &mut SeededRng| {
            classes.pick(&[LendingLevel::Admission, LendingLevel::AdmissionAndSync])
        };
        classes.once_in(LENT_ONE_IN).then(|| (classes.below(clients as u64) as u32 + 1, level(classes)))
    }

    /// Draws whether the journal mode changes now. Returns the new `bypass_after`, the length of a stream after
    /// which its writes bypass the buffer, and whether the cache follows classes from now on.
    pub(crate) fn draw_order(&mut self) -> Option<(u64, bool)> {
        let bypass = self.bypass.as_mut().filter(|_| self.switches_order)?;
        if !bypass.once_in(ORDER_SWITCHED_ONE_IN) {
            return None;
        }
        let after = bypass.pick(&[u64::MAX, 0, 8192]);
        Some((after, self.classes.as_mut().is_some_and(|classes| !classes.once_in(3))))
    }

    /// Draws whether the next new volume is a block volume, and its size.
    pub(crate) fn draw_block_volume(&mut self) -> Option<u64> {
        let blocks = self.blocks.as_mut()?;
        if blocks.once_in(3) { None } else { self.draw_block_volume_bytes() }
    }

    /// Draws the size of a block volume, if this run has some.
    pub(crate) fn draw_block_volume_bytes(&mut self) -> Option<u64> {
        let blocks = self.blocks.as_mut()?;
        let bytes_max = blocks.pick(&BLOCK_VOLUME_BYTES);
        // Most have a last page that is not whole.
        Some(bytes_max - SECTOR_BYTES * blocks.below(bytes_max / SECTOR_BYTES / 2))
    }

    /// Copies the disks as they are, onto a power supply of their own.
    pub(crate) fn fork(&self, seed: u64, options: &SimulatorOptions) -> SimulatedMedia {
        let power = PowerSupply::new();
        SimulatedMedia {
            store: self.store.fork(&power, seed ^ 0x5707e),
            buffer: self.buffer.fork(&power, seed ^ 0xb0ff),
            power,
            ..SimulatedMedia::new(seed, options)
        }
    }

    fn device(&self, role: MediumRole) -> Arc<dyn Device> {
        Arc::new(self.watched(role))
    }

    pub(crate) fn watched(&self, role: MediumRole) -> InstrumentedDisk {
        let disk = match role {
            MediumRole::Store => &self.store,
            MediumRole::Buffer => &self.buffer,
        };
        InstrumentedDisk::new(disk, role, &self.log, &self.meanwhile)
    }

    /// Formats both disks with an empty, durable file system.
    pub(crate) fn format(&self) -> Result<(), String> {
        let layout = StoreLayout { id: ID, segment_blocks: Some(self.segment_blocks) };
        Store::format(&*self.device(MediumRole::Store), &layout)
            .map_err(|error| format!("format: {error}"))?;
        buffer::Buffer::format(&*self.device(MediumRole::Buffer), ID)
            .map_err(|error| format!("format: {error}"))?;
        let cache = self.open_cache()?;
        self.create_volume(&cache, MAIN_VOLUME_NAME, None).map_err(|error| format!("create: {error}"))?;
        cache.drain().map_err(|error| format!("drain: {error}"))
    }

    /// Makes a block volume of a size, or a volume with an empty file system.
    pub(crate) fn create_volume(
        &self,
        cache: &Cache,
        name: &str,
        block_volume: Option<u64>,
    ) -> Result<VolumeId, CacheError> {
        let pages = match block_volume {
            Some(size) => new_block_volume(size).expect("sizes are whole sectors"),
            None => {
                Fs::create(&*self.clock, CALLER, *b"not a secret at ").expect("it fits into an empty volume")
            }
        };
        cache.create_volume(&NewVolume { name, ..NewVolume::default() }, &pages)
    }

    /// Opens the store, the buffer and the cache, and recovers.
    pub(crate) fn open_cache(&self) -> Result<Arc<Cache>, String> {
        self.open_cache_on(self.device(MediumRole::Store), self.device(MediumRole::Buffer))
    }

    /// Opens the cache on the given devices, which may wrap the disks.
    pub(crate) fn open_cache_on(
        &self,
        store: Arc<dyn Device>,
        buffer: Arc<dyn Device>,
    ) -> Result<Arc<Cache>, String> {
        let store = match self.plant.and_then(PlantedRule::in_store) {
            Some(bug) => Store::open_with_bug(store, bug),
            None => Store::open(store),
        };
        let store = Arc::new(store.map_err(|error| format!("Store::open: {error}"))?);
        self.nodes_max.into_iter().for_each(|nodes| store.set_cached_nodes_max(nodes));
        let recovered = match self.plant.and_then(PlantedRule::in_buffer) {
            Some(bug) => RecoveredBuffer::read_with_bug(buffer, ID, &*self.clock, bug),
            None => RecoveredBuffer::read(buffer, ID, &*self.clock),
        };
        let recovered = recovered.map_err(|error| format!("Recovered::read: {error}"))?;
        let cache = Cache::begin(store, recovered, self.clock.clone(), self.settings.clone());
        let cache = cache.map_err(|error| format!("Cache::begin: {error}"))?;
        Ok(Arc::new(cache))
    }

    /// Opens the cache on the media and mounts volumes, except for those that the store does not have.
    pub(crate) fn open(&self, volumes: &BTreeSet<VolumeId>) -> Result<SimulatedStack, String> {
        self.mount_all(self.open_cache()?, volumes)
    }

    /// Mounts volumes above a cache, except for those that its store does not have.
    pub(crate) fn mount_all(
        &self,
        cache: Arc<Cache>,
        volumes: &BTreeSet<VolumeId>,
    ) -> Result<SimulatedStack, String> {
        let mut mounts = BTreeMap::new();
        for (volume, _) in cache.store().volumes().all() {
            if volumes.contains(&volume) {
                mounts.insert(volume, self.mount(&cache, volume)?);
            }
        }
        end_lost(&cache, &self.clock())?;
        Ok(SimulatedStack { cache, mounts })
    }

    /// Whether the store on the disks has a volume.
    pub(crate) fn has_volume(&self, volume: VolumeId) -> Result<bool, String> {
        let store = Store::open(sound(&self.store, &PowerSupply::new()));
        let store = store.map_err(|error| format!("Store::open: {error}"))?;
        Ok(store.volumes().all().iter().any(|&(id, _)| id == volume))
    }

    /// Opens a volume on copies of the disks. Writes nothing to the media.
    pub(crate) fn open_to_look(&self, volume: VolumeId) -> Result<MountedVolume, String> {
        let power = PowerSupply::new();
        let store = Store::open(sound(&self.store, &power));
        let store = store.map_err(|error| format!("Store::open: {error}"))?;
        let buffer = sound(&self.buffer, &power);
        let cache = Cache::open(Arc::new(store), buffer, self.clock.clone(), self.settings.clone());
        self.mount_alone(Arc::new(cache.map_err(|error| format!("Cache::open: {error}"))?), volume)
    }

    /// Mounts the only volume above a cache that has just begun.
    pub(crate) fn mount_alone(&self, cache: Arc<Cache>, volume: VolumeId) -> Result<MountedVolume, String> {
        let mounted = self.mount(&cache, volume)?;
        end_lost(&cache, &self.clock())?;
        Ok(mounted)
    }

    /// Opens a volume above a cache, as what it is.
    pub(crate) fn mount(&self, cache: &Arc<Cache>, volume: VolumeId) -> Result<MountedVolume, String> {
        let size = block_volume_size(cache, volume);
        let size = size.map_err(|error| format!("block_volume_size: volume {volume}: {error}"))?;
        let open = match size {
            Some(_) => {
                let opened = BlockVolume::open(cache, volume);
                let opened =
                    opened.map_err(|error| format!("BlockVolume::open: volume {volume}: {error}"))?;
                OpenVolume::Block(Arc::new(opened))
            }
            None => {
                let fs = Fs::open(cache.clone(), volume, self.clock.clone());
                OpenVolume::Fs(fs.map_err(|error| format!("Fs::open: volume {volume}: {error}"))?)
            }
        };
        Ok(MountedVolume { clock: self.clock.clone(), open, cache: cache.clone() })
    }

    pub(crate) fn clock(&self) -> Arc<dyn Clock> {
        self.clock.clone()
    }
}

/// Truncates files of all volumes where their bytes end. Reports the first volume where this fails.
pub(crate) fn end_lost(cache: &Arc<Cache>, clock: &Arc<dyn Clock>) -> Result<(), String> {
    match Fs::truncate_lost(cache, clock).first() {
        None => Ok(()),
        Some((volume, error)) => Err(format!("Fs::end_lost: volume {volume}: {error}")),
    }
}

/// Copies a disk without its damage.
pub(crate) fn sound(disk: &SimDisk, power: &Arc<PowerSupply>) -> Arc<SimDisk> {
    let disk = disk.fork(power, 0);
    disk.set_faults(DiskFaults::default());
    disk.heal();
    disk
}

/// Deletes rescued volumes, as a user who needs the space would. A deletion that fails because a device fails
/// now is tried again at the next open.
pub(crate) fn delete_rescued(cache: &Cache) {
    for volume in cache.store().volumes().describe().iter().filter(|volume| is_rescued(volume)) {
        let _ = cache.delete_volume(volume.id);
    }
}

/// Whether a volume was rescued from a failed buffer.
pub(crate) fn is_rescued(volume: &VolumeInfo) -> bool {
    volume.name.starts_with("rescu")
}

/// Draws the limits of one life. They are often so small that something is always short.
fn draw_settings(random: &mut SeededRng) -> CacheSettings {
    let memory_bytes_max = random.pick(&[256 << 10, 1 << 20, 4 << 20]);
    CacheSettings {
        fetch: random.pick(&[
            FetchMode::Blocking,
            FetchMode::Lazy,
            FetchMode::Background,
            FetchMode::Adaptive,
            FetchMode::Adaptive,
        ]),
        memory_bytes_max,
        dirty_bytes_max: memory_bytes_max / random.pick(&[2, 2, 8]),
        delta_bytes_max: memory_bytes_max / random.pick(&[2, 2, 16]),
        commit_interval: Duration::from_secs(1),
        dirty_age_max: Duration::from_millis(random.pick(&[300, 5000, 60_000])),
        store_patience: Duration::from_millis(random.pick(&[50, 2000, 30_000])),
        // The clock stands still in a commit, so callers do either none or all of the commits.
        commit_inline_below: Duration::from_micros(random.pick(&[0, 50])),
        // From one segment to all segments of the smallest store.
        checkpoint_blocks: random.pick(&[20, 100, 1000]),
        bypass_after: u64::MAX,
        sync_log_bytes_max: u64::MAX,
        follows_classes: false,
        buffer_is_given_up: false,
    }
}

/// What a cache with these settings lets bypass the buffer.
fn bypass_scope(bypass_after: u64, follows_classes: bool) -> BypassScope {
    match bypass_after {
        u64::MAX => BypassScope::Nothing,
        _ if follows_classes => BypassScope::WholePages,
        _ => BypassScope::WritesOfWholePages,
    }
}

/// Draws one of several values.
pub(crate) trait RandomPick {
    fn pick<T: Copy>(&mut self, from: &[T]) -> T;
}

impl RandomPick for SeededRng {
    fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len() as u64) as usize]
    }
}

/// A cache, and the volumes that are mounted above it.
pub(crate) struct SimulatedStack {
    pub(crate) cache: Arc<Cache>,
    pub(crate) mounts: BTreeMap<VolumeId, MountedVolume>,
}

/// A volume that is open.
pub(crate) struct MountedVolume {
    clock: Arc<SimClock>,
    pub(crate) open: OpenVolume,
    cache: Arc<Cache>,
}

/// A volume that is open, as what it is.
#[derive(Clone)]
pub(crate) enum OpenVolume {
    Fs(Fs),
    Block(Arc<BlockVolume>),
}

/// Everything that programs can see of a file system.
pub(crate) struct SeenTree(pub(crate) BTreeMap<Ino, SeenInode>);

pub(crate) struct SeenInode {
    pub(crate) attributes: FileAttributes,
    pub(crate) body: SeenBody,
    pub(crate) xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
}

pub(crate) enum SeenBody {
    File(Vec<u8>),
    Directory(BTreeMap<Vec<u8>, Ino>),
    Symlink(Vec<u8>),
    Node(u32),
}

impl SeenTree {
    /// The tree that stands for a block volume: a file below the root, as
    /// [`FsModel::block_volume`](crate::model::FsModel::block_volume) makes it.
    fn of_block_volume(content: Vec<u8>) -> SeenTree {
        let attributes = |ino, kind, size, mode, links| FileAttributes {
            ino,
            generation: 0,
            kind,
            size,
            stored_bytes: 0,
            mode,
            links,
            uid: CALLER.uid,
            gid: CALLER.gid,
            device: 0,
            accessed: 0,
            modified: 0,
            changed: 0,
            created: 0,
        };
        let root = SeenInode {
            attributes: attributes(Ino::ROOT, FileKind::Directory, 0, 0o755, 2),
            body: SeenBody::Directory(BTreeMap::from([(DISK_NAME.to_vec(), DISK_INO)])),
            xattrs: BTreeMap::new(),
        };
        let disk = SeenInode {
            attributes: attributes(DISK_INO, FileKind::File, content.len() as u64, 0o600, 1),
            body: SeenBody::File(content),
            xattrs: BTreeMap::new(),
        };
        SeenTree(BTreeMap::from([(Ino::ROOT, root), (DISK_INO, disk)]))
    }
}

/// Runs the self-checks of the store and of file systems above it. Returns their findings as an error.
fn check<'a>(cache: &Cache, mounts: impl Iterator<Item = &'a MountedVolume>) -> Result<(), String> {
    let mut findings = Vec::new();
    for one in mounts {
        if let OpenVolume::Fs(fs) = &one.open {
            fs.check(&mut |finding| findings.push(format!("fs: {finding:?}")));
        }
    }
    cache.store().maintenance().check(&mut |finding| findings.push(format!("store: {finding}")));
    if findings.is_empty() { Ok(()) } else { Err(format!("the check finds:\n  {}", findings.join("\n  "))) }
}

impl SimulatedStack {
    /// The mount of a volume.
    pub(crate) fn mount(&self, volume: VolumeId) -> &MountedVolume {
        &self.mounts[&volume]
    }

    /// Runs the self-checks of the crates. Returns their findings as an error.
    pub(crate) fn check(&self) -> Result<(), String> {
        check(&self.cache, self.mounts.values())
    }

    /// What bypasses the buffer now.
    pub(crate) fn bypass_scope(&self) -> BypassScope {
        bypass_scope(self.cache.bypass_after(), self.cache.follows_classes())
    }

    /// [Looks](MountedVolume::look) at every mounted volume.
    pub(crate) fn look(&self) -> Result<BTreeMap<VolumeId, SeenTree>, String> {
        let look = |(&volume, mounted): (_, &MountedVolume)| match mounted.look() {
            Ok(seen) => Ok((volume, seen)),
            Err(what) => Err(format!("volume {volume}: {what}")),
        };
        self.mounts.iter().map(look).collect()
    }
}

impl MountedVolume {
    /// Runs the self-checks of the crates. Returns their findings as an error.
    pub(crate) fn check(&self) -> Result<(), String> {
        check(&self.cache, std::iter::once(self))
    }

    /// The file system of a volume that is known to have one.
    pub(crate) fn fs(&self) -> &Fs {
        match &self.open {
            OpenVolume::Fs(fs) => fs,
            OpenVolume::Block(_) => unreachable!("a block volume is asked for no names"),
        }
    }

    /// Walks the whole tree and reads every byte. The tree of a block volume has one file.
    pub(crate) fn look(&self) -> Result<SeenTree, String> {
        match &self.open {
            OpenVolume::Fs(_) => self.look_at_tree(),
            OpenVolume::Block(volume) => {
                let content = self.content(DISK_INO, volume.size())?;
                Ok(SeenTree::of_block_volume(content))
            }
        }
    }

    fn look_at_tree(&self) -> Result<SeenTree, String> {
        let mut seen = BTreeMap::new();
        let mut wanted = vec![Ino::ROOT];
        while let Some(ino) = wanted.pop() {
            let attributes =
                self.fs().attributes(ino).map_err(|error| format!("stat of {ino:?}: {error}"))?;
            let body = match attributes.kind {
                FileKind::File => SeenBody::File(self.content(ino, attributes.size)?),
                FileKind::Symlink => {
                    let target = self.fs().read_link(ino);
                    SeenBody::Symlink(target.map_err(|error| format!("readlink of {ino:?}: {error}"))?)
                }
                FileKind::Directory => {
                    let names = self.names(ino)?;
                    wanted.extend(names.values().copied().filter(|child| !seen.contains_key(child)));
                    SeenBody::Directory(names)
                }
                _ => SeenBody::Node(attributes.device),
            };
            let xattrs = self.xattrs(ino)?;
            seen.insert(ino, SeenInode { attributes, body, xattrs });
        }
        Ok(SeenTree(seen))
    }

    /// Reads all extended attributes.
    pub(crate) fn xattrs(&self, ino: Ino) -> Result<BTreeMap<Vec<u8>, Vec<u8>>, String> {
        let names = self.fs().xattr_names(ino).map_err(|error| format!("listxattr of {ino:?}: {error}"))?;
        let value = |name: Vec<u8>| match self.fs().xattr(ino, &name) {
            Ok(value) => Ok((name, value)),
            Err(error) => Err(format!("{} of {ino:?} is listed: {error}", name.escape_ascii())),
        };
        names.into_iter().map(value).collect()
    }

    /// Lists a directory, and looks each entry up, too.
    pub(crate) fn names(&self, directory: Ino) -> Result<BTreeMap<Vec<u8>, Ino>, String> {
        let mut names = BTreeMap::new();
        let mut twice = None;
        let mut entry = |entry: fs::DirectoryEntry<'_>| {
            if names.insert(entry.name.to_vec(), (entry.ino, entry.kind)).is_some() {
                twice = Some(entry.name.to_vec());
            }
            true
        };
        self.fs()
            .read_directory(directory, 0, &mut entry)
            .map_err(|error| format!("readdir of {directory:?}: {error}"))?;
        if let Some(name) = twice {
            return Err(format!("{directory:?} lists {} twice", name.escape_ascii()));
        }
        for (name, &(ino, kind)) in &names {
            let found = self.fs().lookup(directory, name);
            let found = found.map_err(|error| format!("{} is listed: {error}", name.escape_ascii()))?;
            if (found.ino, found.kind) != (ino, kind) {
                return Err(format!(
                    "{} is listed as {ino:?}, {kind:?} and is {found:?}",
                    name.escape_ascii()
                ));
            }
            if kind == FileKind::Directory
                && !matches!(self.fs().parent(ino), Ok(parent) if parent == directory)
            {
                let parent = self.fs().parent(ino);
                return Err(format!("{} in {directory:?}: its parent is {parent:?}", name.escape_ascii()));
            }
        }
        Ok(names.into_iter().map(|(name, (ino, _))| (name, ino)).collect())
    }

    fn content(&self, ino: Ino, size: u64) -> Result<Vec<u8>, String> {
        let mut content = Vec::new();
        while (content.len() as u64) < size {
            let offset = content.len() as u64;
            let len = (size - offset).min(READ_BYTES_MAX) as usize;
            let bytes = self.read(ino, offset, len)?;
            if bytes.len() != len {
                return Err(format!("{ino:?}: read {} of {len} bytes at {offset}", bytes.len()));
            }
            content.extend(bytes);
        }
        Ok(content)
    }

    /// Reads, and does the background work that the read waits for.
    fn read(&self, ino: Ino, offset: u64, len: usize) -> Result<Vec<u8>, String> {
        let reply = Arc::new(Mutex::new(None));
        let slot = reply.clone();
        let done = move |result| *slot.lock().expect("nobody panics with it") = Some(result);
        match &self.open {
            OpenVolume::Fs(fs) => fs.read(ino, offset, len, Box::new(done)),
            OpenVolume::Block(volume) => {
                volume.read(offset, len, Box::new(move |result| done(result.map_err(fs_error))));
            }
        }
        for _ in 0..STEPS_PER_READ_MAX {
            if let Some(result) = reply.lock().expect("nobody panics with it").take() {
                return result.map_err(|error| format!("read of {ino:?} at {offset}: {error}"));
            }
            if self.cache.step(BackgroundTask::Fetch) == StepProgress::Idle {
                // The cache may have to free memory first.
                self.cache.step(BackgroundTask::Commit);
                self.cache.step(BackgroundTask::WriteBack);
                self.cache.step(BackgroundTask::Checkpoint);
                // The cache retries after a while if it found no space.
                self.clock.advance(Duration::from_millis(5));
            }
        }
        Err(format!("a read of {ino:?} at {offset}, {len} bytes, never completes"))
    }
}

//! Draws the requests of simulated clients. The requests are random, mostly legal, and often hit hard cases.

use crate::change::ModelChange;
use crate::model::{FsModel, ModelBody, ModelId, ModelName};
use crate::model_rights::{ACCESS_ACL, CAPABILITY, DEFAULT_ACL, ModelAcl};
use crate::options::SimulatorOptions;
use crash_oracle::BypassScope;
use device::{BLOCK_BYTES, SeededRng, TransferKind};
use fs::{FallocateMode, FileKind, IfExists, SeekWhence, SetXattrMode, SizePolicy};
use std::sync::Arc;

const PAGE: u64 = BLOCK_BYTES as u64;
/// Directories below the root: few, so that names collide, or more, so that the tree is deep.
const DIRECTORIES_MAX: [u64; 3] = [5, 5, 20];
/// The total file size above which clients mostly remove data: a few times the memory of the cache.
const BYTES_MAX: u64 = 3 << 20;
/// The total file size above which clients that fill the store mostly remove data. The smaller stores hold
/// less.
const FILLING_BYTES_MAX: u64 = 8 << 20;
/// The longest single write, below the size that a file system may split into several transactions.
const WRITE_BYTES_MAX: u64 = 48 << 10;
/// The largest size of most files, and of the few big ones.
const FILE_BYTES_MAX: u64 = 48 << 10;
const BIG_FILE_BYTES_MAX: u64 = 400 << 10;
const LONG_FILE_BYTES_MAX: u64 = 1200 << 10;

/// A request of a client.
#[derive(Debug, Clone)]
pub(crate) enum ClientRequest {
    Change(ModelChange),
    Read {
        file: ModelId,
        offset: u64,
        len: usize,
    },
    Seek {
        file: ModelId,
        offset: u64,
        what: SeekWhence,
    },
    /// Asks a block volume for the extents of a range.
    Extents {
        file: ModelId,
        offset: u64,
        len: u64,
        count_max: usize,
    },
    /// Reads the names and values of all extended attributes.
    ListXattrs(ModelId),
    Sync,
    /// Syncs one file, or one block volume. From then on the removal of the file is durable, as long as a client holds the file.
    SyncFile(ModelId),
    Lookup {
        parent: ModelId,
        name: ModelName,
    },
    Stat(ModelId),
    List(ModelId),
    ReadLink(ModelId),
    /// Takes a handle on a file, so that the file outlives its name.
    Open(ModelId),
    /// Releases the client's handle with this index.
    Close(usize),
}

/// The profile of a whole run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum WorkloadProfile {
    /// All kinds of requests, in changing shares.
    Mixed,
    /// The store is full, or nearly so, most of the time.
    Full,
    /// Directories are big, and names are long or have equal hashes.
    Names,
    /// Some files are long, with holes. Their pages are in several leaves of the store's map.
    Long,
}

impl WorkloadProfile {
    /// The profile of a run.
    pub(crate) fn of(options: &SimulatorOptions) -> WorkloadProfile {
        // One seed in five for each special profile.
        match options.seed % 5 {
            _ if options.full => WorkloadProfile::Full,
            0 => WorkloadProfile::Full,
            1 => WorkloadProfile::Names,
            2 => WorkloadProfile::Long,
            _ => WorkloadProfile::Mixed,
        }
    }
}

/// Draws requests.
pub(crate) struct RequestGenerator {
    random: SeededRng,
    temper: WorkloadProfile,
    /// The number of requests for which clients still free space.
    freeing: u32,
    mood: RequestWeights,
    /// The end of the last read. The next read may continue there, which triggers read-ahead.
    read_until: Option<(ModelId, u64)>,
    /// Draws writes of whole pages, if these bypass the buffer. They are then more frequent.
    whole_pages: Option<SeededRng>,
    /// What bypasses the buffer.
    bypasses: BypassScope,
    /// The end of the last write to a block volume. The next one may continue there.
    written_until: u64,
    /// Draws batches, for half of the seeds.
    batches: Option<SeededRng>,
    /// Whether batches have ranges that are cloned, moved, punched and compared, in half of the seeds with batches.
    batches_have_ranges: bool,
}

/// A clone of a range between files of two volumes.
pub(crate) struct CloneBetween {
    pub(crate) from: ModelId,
    pub(crate) offset: u64,
    pub(crate) len: u64,
    pub(crate) to: ModelId,
    pub(crate) at: u64,
}

/// Weights of kinds of requests, for a while. Extreme weights produce rare combinations.
struct RequestWeights {
    writes: u64,
    sizes: u64,
    names: u64,
    reads: u64,
    syncs: u64,
    /// The share of writes, in percent, that hit the first pages of a file.
    hot: u64,
    /// Whether clients fill the store.
    filling: bool,
    directories_max: u64,
    space: NameSpace,
}

/// The set from which names are drawn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum NameSpace {
    /// A few short names, and some of several hundred bytes, so that names collide.
    Few,
    /// Hundreds of names, so that directories have many nodes.
    Many,
    /// Names of the maximum length, so that few fit a node.
    Longest,
    /// Pairs of names with the same hash.
    Alike,
}

/// Pairs of names with the same hash under the secret of simulated file systems (`stack.rs`). A test checks
/// this.
pub(crate) const ALIKE: [[&[u8]; 2]; 6] = [
    [b"gpeldfaeogdifco", b"fdljdhebjehjgbm"],
    [b"anjianpihanbkhf", b"hengiaflcfdoocm"],
    [b"bbnocodhabbchon", b"ffjgbldonlkpcki"],
    [b"clggddlbaedbpbh", b"domaahjnpdcaeca"],
    [b"epajjdcgbikmfog", b"bpecjaeeoadkaho"],
    [b"ccflgekmicpikbk", b"eokpgcjikifeeif"],
];

/// Makes a seed for batches of a generator's seed.
const BATCHES_SEED: u64 = 0x6261_7463_6865_7300;

/// The most bytes of the write with which a batch begins.
const BATCHED_WRITE_BYTES_MAX: usize = 16 << 10;

/// The most bytes that a batch compares.
const COMPARED_BYTES_MAX: u64 = 128 << 10;

impl RequestGenerator {
    pub(crate) fn new(seed: u64, temper: WorkloadProfile) -> RequestGenerator {
        let mut random = SeededRng::new(seed);
        let mood = RequestWeights::draw(&mut random, temper);
        RequestGenerator {
            random,
            temper,
            freeing: 0,
            mood,
            read_until: None,
            whole_pages: None,
            bypasses: BypassScope::Nothing,
            written_until: 0,
            batches: seed.is_multiple_of(2).then(|| SeededRng::new(seed ^ BATCHES_SEED)),
            batches_have_ranges: seed.is_multiple_of(4),
        }
    }

    /// Sets what bypasses the buffer from now on.
    pub(crate) fn set_bypassing(&mut self, bypasses: BypassScope) {
        self.bypasses = bypasses;
        self.whole_pages = (bypasses != BypassScope::Nothing).then(|| self.random.clone());
    }

    fn bytes_max(&self) -> u64 {
        if self.mood.filling || self.temper == WorkloadProfile::Long { FILLING_BYTES_MAX } else { BYTES_MAX }
    }

    /// Draws new weights for the clients, or at times keeps the old ones: some effects take long.
    pub(crate) fn change_mood(&mut self) {
        if self.random.once_in(6) {
            self.mood = RequestWeights::draw(&mut self.random, self.temper);
        }
    }

    /// Makes clients free space, because one was told ENOSPC.
    pub(crate) fn no_space(&mut self) {
        self.freeing = match self.temper {
            // Just enough that the next write may fit.
            WorkloadProfile::Full => self.random.below(6) as u32,
            _ => 40,
        };
    }

    /// Whether clients now free space.
    pub(crate) fn wants_space(&self) -> bool {
        self.freeing > 0
    }

    /// Draws the next request of a client that holds `handles`, in a volume whose state is `model`. All mounted
    /// volumes have `bytes` bytes.
    pub(crate) fn next(&mut self, model: &FsModel, bytes: u64, handles: &[ModelId]) -> ClientRequest {
        self.freeing = self.freeing.saturating_sub(1);
        if let Some(disk) = model.disk() {
            return self.next_to_block_volume(disk, model.get(disk).content().len() as u64);
        }
        if self.freeing > 0 || bytes > self.bytes_max() {
            return self.give_back(model);
        }
        let RequestWeights { writes, sizes, names, reads, syncs, .. } = self.mood;
        let total = writes + sizes + names + reads + syncs + 3;
        let mut dice = self.random.below(total);
        for (weight, draw) in [
            (
                writes,
                RequestGenerator::write as fn(&mut RequestGenerator, &FsModel, &[ModelId]) -> ClientRequest,
            ),
            (sizes, RequestGenerator::attributes),
            (names, RequestGenerator::names),
            (reads, RequestGenerator::look),
            (syncs, RequestGenerator::sync),
        ] {
            if dice < weight {
                return draw(self, model, handles);
            }
            dice -= weight;
        }
        self.handle(model, handles)
    }

    pub(crate) fn give_back(&mut self, model: &FsModel) -> ClientRequest {
        if let Some(disk) = model.disk() {
            return self.zero_of_block_volume(disk, model.get(disk).content().len() as u64);
        }
        match (self.some_name(model), self.some_file(model, &[])) {
            (_, Some(file)) if self.random.once_in(2) => {
                let size = self.random.below(model.get(file).content().len() as u64 + 1);
                ClientRequest::Change(ModelChange::SetSize { file, size })
            }
            (Some((parent, name, id)), _) if !model.get(id).is_directory() => {
                ClientRequest::Change(ModelChange::Unlink { parent, name })
            }
            _ => ClientRequest::Sync,
        }
    }

    /// Draws the next request to a block volume of `size` bytes.
    fn next_to_block_volume(&mut self, disk: ModelId, size: u64) -> ClientRequest {
        if self.freeing > 0 {
            return self.zero_of_block_volume(disk, size);
        }
        let RequestWeights { writes, sizes, reads, syncs, .. } = self.mood;
        let mut dice = self.random.below(writes + sizes + reads + syncs + 1);
        for (weight, draw) in [
            (writes, RequestGenerator::write_to_block_volume as fn(&mut RequestGenerator, _, _) -> _),
            (sizes, RequestGenerator::zero_of_block_volume),
            (reads, RequestGenerator::look_at_block_volume),
        ] {
            if dice < weight {
                return draw(self, disk, size);
            }
            dice -= weight;
        }
        if self.random.once_in(4) { ClientRequest::Sync } else { ClientRequest::SyncFile(disk) }
    }

    /// A write of at most [`WRITE_BYTES_MAX`], so that it is one transaction.
    fn write_to_block_volume(&mut self, disk: ModelId, size: u64) -> ClientRequest {
        let len = self.write_len();
        let len = if self.mood.filling && self.random.once_in(2) { WRITE_BYTES_MAX } else { len };
        let hot = self.random.below(100) < self.mood.hot;
        let offset = match self.random.below(10) {
            _ if hot => self.random.below(2 * PAGE),
            0..=3 => self.written_until,
            4 => size.saturating_sub(len),
            5..=6 => self.random.below(size),
            7 => self.random.below(size) / PAGE * PAGE,
            _ => self.random.below(size) / 512 * 512,
        };
        let offset = if offset < size { offset } else { 0 };
        let (offset, len) = if self.whole_pages.as_mut().is_some_and(|random| random.once_in(2)) {
            (offset / PAGE * PAGE, len.next_multiple_of(PAGE))
        } else {
            (offset, len)
        };
        let bytes = Arc::new(self.bytes(len.min(size - offset)));
        self.written_until = offset + bytes.len() as u64;
        ClientRequest::Change(ModelChange::Write { file: disk, offset, bytes, bypasses: self.bypasses })
    }

    fn zero_of_block_volume(&mut self, disk: ModelId, size: u64) -> ClientRequest {
        let unit = [1, 512, PAGE][self.random.below(3) as usize];
        let offset = self.random.below(size) / unit * unit;
        let len_max = if self.random.once_in(4) { size } else { FILE_BYTES_MAX };
        let len = (unit * (1 + self.random.below(len_max / unit))).min(size - offset);
        let (what, size) = (FallocateMode::ZeroRange, SizePolicy::Keep);
        ClientRequest::Change(ModelChange::Allocate { file: disk, what, offset, len, size })
    }

    /// Reads a range of a block volume, or asks for its extents.
    fn look_at_block_volume(&mut self, disk: ModelId, size: u64) -> ClientRequest {
        let offset = if self.random.once_in(8) { 0 } else { self.random.below(size) };
        let len = match self.random.below(8) {
            0 => size,
            1..=2 => self.random.below(100),
            3..=4 => PAGE,
            5 => self.random.below(3 * PAGE),
            _ => self.random.below(64 << 10),
        };
        let len = len.min(size - offset);
        if self.random.once_in(4) {
            let count_max = 1 + self.random.below(20) as usize;
            return ClientRequest::Extents { file: disk, offset, len, count_max };
        }
        ClientRequest::Read { file: disk, offset, len: len as usize }
    }

    fn write_len(&mut self) -> u64 {
        match self.random.below(10) {
            0..=3 => 1 + self.random.below(200),
            4..=5 => 512 * (1 + self.random.below(8)),
            6 => PAGE * (1 + self.random.below(4)),
            7 => 1 + self.random.below(2 * PAGE),
            8 => 1 + self.random.below(WRITE_BYTES_MAX / 4),
            _ => 1 + self.random.below(WRITE_BYTES_MAX),
        }
    }

    fn sync(&mut self, model: &FsModel, handles: &[ModelId]) -> ClientRequest {
        match self.some_file(model, handles) {
            Some(file) if self.random.once_in(2) => ClientRequest::SyncFile(file),
            _ => ClientRequest::Sync,
        }
    }

    fn write(&mut self, model: &FsModel, handles: &[ModelId]) -> ClientRequest {
        let Some(file) = self.some_file(model, handles) else {
            return self.make(model, FileKind::File);
        };
        let size = model.get(file).content().len() as u64;
        // The limit depends on the file's number, so that a file stays big or small.
        let limit = match file.0 % 8 {
            0 if self.temper == WorkloadProfile::Long => LONG_FILE_BYTES_MAX,
            0 => BIG_FILE_BYTES_MAX,
            _ if self.mood.filling => BIG_FILE_BYTES_MAX,
            _ => FILE_BYTES_MAX,
        };
        let len = self.write_len();
        let len = if self.mood.filling && self.random.once_in(2) { WRITE_BYTES_MAX } else { len };
        let hot = self.random.below(100) < self.mood.hot;
        let offset = match self.random.below(10) {
            _ if hot => self.random.below(2 * PAGE),
            0..=2 => size,
            3..=6 => self.random.below(size + 1),
            7 => self.random.below(size + 1) / PAGE * PAGE,
            8 => self.random.below(size + 1) / 512 * 512,
            _ => self.random.below(limit),
        };
        let (offset, len) = (offset.min(limit), len.min(limit + PAGE - offset.min(limit)));
        let (offset, len) = if self.whole_pages.as_mut().is_some_and(|random| random.once_in(2)) {
            (offset / PAGE * PAGE, len.next_multiple_of(PAGE))
        } else {
            (offset, len)
        };
        let bytes = Arc::new(self.bytes(len));
        let rarity = if self.batches_have_ranges { 2 } else { 6 };
        let is_batch = bytes.len() <= BATCHED_WRITE_BYTES_MAX
            && self.batches.as_mut().is_some_and(|random| random.once_in(rarity));
        if is_batch {
            let write = ModelChange::Write { file, offset, bytes, bypasses: BypassScope::Nothing };
            return ClientRequest::Change(self.batch(model, handles, write));
        }
        ClientRequest::Change(ModelChange::Write { file, offset, bytes, bypasses: self.bypasses })
    }

    /// A batch with `first` and up to three more writes, renames or removals, or up to eight with ranges.
    fn batch(&mut self, model: &FsModel, handles: &[ModelId], first: ModelChange) -> ModelChange {
        let random = self.batches.clone().expect("this seed draws batches");
        let others = std::mem::replace(&mut self.random, random);
        let mut parts = vec![first];
        let more_max = if self.batches_have_ranges { 8 } else { 3 };
        for _ in 0..1 + self.random.below(more_max) {
            parts.extend(self.batch_part(model, handles));
        }
        if self.random.once_in(2) {
            parts.reverse();
        }
        self.batches = Some(std::mem::replace(&mut self.random, others));
        ModelChange::Batch(parts)
    }

    fn batch_part(&mut self, model: &FsModel, handles: &[ModelId]) -> Option<ModelChange> {
        if self.batches_have_ranges && self.random.once_in(2) {
            return self.range_part(model, handles);
        }
        if self.random.once_in(4) {
            let (from, old, _) = self.some_name(model)?;
            let (to, new, _) = self.some_name(model)?;
            return Some(ModelChange::Rename {
                from: (from, old),
                to: (to, new),
                if_exists: IfExists::Replace,
            });
        }
        if self.random.once_in(6) {
            let (parent, name, _) = self.some_name(model)?;
            return Some(ModelChange::Unlink { parent, name });
        }
        let file = self.some_file(model, handles)?;
        let offset = self.random.below(model.get(file).content().len() as u64 + 200);
        let len = 1 + self.random.below(PAGE + 200);
        let bytes = Arc::new(self.bytes(len));
        Some(ModelChange::Write { file, offset, bytes, bypasses: BypassScope::Nothing })
    }

    /// A clone, a move, a hole, or ranges that are expected to be equal. Seldom one that must be refused.
    fn range_part(&mut self, model: &FsModel, handles: &[ModelId]) -> Option<ModelChange> {
        let file = self.some_file(model, handles)?;
        let other = self.some_file(model, handles)?;
        let size = model.get(file).content().len() as u64;
        let offset = PAGE * self.random.below(size / PAGE + 1);
        let rest = size.saturating_sub(offset);
        let some = PAGE * (1 + self.random.below(4));
        // Half of the time up to the end of the file.
        let to_end = rest <= PAGE || self.random.once_in(2);
        let len = if to_end { rest } else { some.min(rest / PAGE * PAGE) };
        let may_be_refused = self.random.once_in(16);
        match self.random.below(6) {
            0 => {
                let len = len.max(1);
                let what = FallocateMode::PunchHole;
                Some(ModelChange::Allocate { file, what, offset, len, size: SizePolicy::Keep })
            }
            1 => {
                let len = len.min(COMPARED_BYTES_MAX);
                let bytes =
                    |id: ModelId| model.get(id).content().get(offset as usize..(offset + len) as usize);
                let is_equal = |id: &&ModelId| **id != file && bytes(**id) == bytes(file);
                let is_file = |id: &&ModelId| model.get(**id).is_file() && model.get(**id).links > 0;
                let equal = model.inodes.keys().filter(is_file).find(is_equal).copied();
                let equal = equal.or(may_be_refused.then_some(other))?;
                Some(ModelChange::ExpectEqual { one: (file, offset), other: (equal, offset), len })
            }
            kind => {
                let there = model.get(other).content().len() as u64;
                let is_same = self.random.once_in(2);
                let at = if is_same { offset } else { PAGE * self.random.below(there / PAGE + 2) };
                let overlaps = file == other && offset.abs_diff(at) < len;
                let ends = len.is_multiple_of(PAGE) || at + len >= there;
                if !may_be_refused && (len == 0 || overlaps || !ends) {
                    return None;
                }
                // An empty range would be refused before all other parts.
                let len = len.max(1);
                let kind = if kind < 4 { TransferKind::Clone } else { TransferKind::Move };
                Some(ModelChange::Transfer { kind, from: file, offset, len, to: other, at })
            }
        }
    }

    /// Whether the next request is a clone between volumes.
    pub(crate) fn wants_clone_between(&mut self) -> bool {
        self.batches_have_ranges && self.batches.as_mut().is_some_and(|random| random.once_in(40))
    }

    /// A range to clone from a file of one volume into a file of another.
    pub(crate) fn clone_between(&mut self, source: &FsModel, target: &FsModel) -> Option<CloneBetween> {
        let from = self.some_file(source, &[])?;
        let to = self.some_file(target, &[])?;
        let size = source.get(from).content().len() as u64;
        let offset = PAGE * self.random.below(size / PAGE + 1);
        let there = target.get(to).content().len() as u64;
        let at = if self.random.once_in(2) { offset } else { PAGE * self.random.below(there / PAGE + 2) };
        let rest = size - offset;
        let to_end = self.random.once_in(2) && at + rest >= there;
        let len = if to_end { rest } else { rest.min(PAGE * (1 + self.random.below(4))) / PAGE * PAGE };
        (len > 0).then_some(CloneBetween { from, offset, len, to, at })
    }

    fn bytes(&mut self, len: u64) -> Vec<u8> {
        if self.random.once_in(16) {
            return vec![0; len as usize];
        }
        let mut bytes = Vec::with_capacity(len as usize + 8);
        while (bytes.len() as u64) < len {
            bytes.extend_from_slice(&self.random.next_u64().to_le_bytes());
        }
        bytes.truncate(len as usize);
        bytes
    }

    fn attributes(&mut self, model: &FsModel, handles: &[ModelId]) -> ClientRequest {
        if self.random.once_in(8) {
            let inode = self.some_name(model).map_or(ModelId::ROOT, |(_, _, id)| id);
            return self.rights_or_times(model, inode);
        }
        let Some(file) = self.some_file(model, handles) else {
            return self.make(model, FileKind::File);
        };
        if self.random.once_in(3) {
            return self.allocate(model, file);
        }
        if self.random.once_in(4)
            && let Some(to) = self.some_file(model, handles)
        {
            return self.copy(model, file, to);
        }
        let old = model.get(file).content().len() as u64;
        let size = match self.random.below(8) {
            0 => 0,
            1 => old / PAGE * PAGE,
            2..=4 => self.random.below(old + 1),
            5 => old + self.random.below(200),
            _ => self.random.below(FILE_BYTES_MAX),
        };
        ClientRequest::Change(ModelChange::SetSize { file, size })
    }

    fn allocate(&mut self, model: &FsModel, file: ModelId) -> ClientRequest {
        let old = model.get(file).content().len() as u64;
        let unit = [1, 512, PAGE][self.random.below(3) as usize];
        let offset = self.random.below(old.min(FILE_BYTES_MAX) + PAGE) / unit * unit;
        let len = unit * (1 + self.random.below(FILE_BYTES_MAX / unit));
        let what = [FallocateMode::Allocate, FallocateMode::ZeroRange, FallocateMode::PunchHole]
            [self.random.below(3) as usize];
        let size = if self.random.once_in(2) { SizePolicy::Grow } else { SizePolicy::Keep };
        ClientRequest::Change(ModelChange::Allocate { file, what, offset, len, size })
    }

    /// Copies a range, mostly to the same offset of another file, and half of the time up to the end of the
    /// source.
    fn copy(&mut self, model: &FsModel, from: ModelId, to: ModelId) -> ClientRequest {
        let pages = |id: ModelId| model.get(id).content().len() as u64 / PAGE + 1;
        let (source, target) = (pages(from), pages(to));
        let offset = if self.random.once_in(2) { 0 } else { PAGE * self.random.below(source) };
        let at = if self.random.once_in(3) { PAGE * self.random.below(target) } else { offset };
        let some = self.random.once_in(2).then(|| PAGE * (1 + self.random.below(8)));
        let len = some.unwrap_or(BIG_FILE_BYTES_MAX);
        let at = if self.random.once_in(20) { at + 100 } else { at };
        ClientRequest::Change(ModelChange::Copy { from, offset, len, to, at })
    }

    fn xattr(&mut self, model: &FsModel, inode: ModelId) -> ModelChange {
        let name = match self.random.below(10) {
            0 => CAPABILITY.to_vec(),
            1 => b"trusted.overlay.opaque".to_vec(),
            2 => [b"user.", &[b'n'; 250][..]].concat(),
            3..=4 if model.get(inode).is_directory() => DEFAULT_ACL.to_vec(),
            3..=4 => ACCESS_ACL.to_vec(),
            _ => format!("user.{}", self.random.below(4)).into_bytes(),
        };
        if self.random.once_in(4) {
            return ModelChange::RemoveXattr { inode, name };
        }
        let how = match self.random.below(8) {
            0 => SetXattrMode::Create,
            1 => SetXattrMode::Replace,
            _ => SetXattrMode::Any,
        };
        let value = if name == ACCESS_ACL || name == DEFAULT_ACL {
            let named = self.random.once_in(2).then(|| self.random.below(5) as u32);
            ModelAcl::new(self.random.below(0o1000) as u16, self.random.below(8) as u16, named).value()
        } else {
            let len = match self.random.below(8) {
                0 => 0,
                1 => self.random.below(16 << 10),
                _ => self.random.below(200),
            };
            self.bytes(len)
        };
        ModelChange::SetXattr { inode, name, value: Arc::new(value), how }
    }

    fn rights_or_times(&mut self, model: &FsModel, inode: ModelId) -> ClientRequest {
        ClientRequest::Change(match self.random.below(6) {
            0 => match model.get(inode).body {
                ModelBody::Symlink(_) => return ClientRequest::Stat(inode),
                _ => ModelChange::SetMode { inode, mode: self.random.below(0o10000) as u16 },
            },
            1 => {
                let (uid, gid) = (1000 + self.random.below(4) as u32, 100 + self.random.below(4) as u32);
                let (uid, gid) = (self.random.once_in(2).then_some(uid), Some(gid));
                ModelChange::SetOwner { inode, uid, gid }
            }
            2 => ModelChange::DropPowers { inode },
            3..=4 => self.xattr(model, inode),
            _ => {
                // Times before 1970 are included.
                let time = self.random.next_u64() as i64 / 4;
                let accessed = self.random.once_in(2).then_some(time);
                let modified = (accessed.is_none() || self.random.once_in(2)).then_some(-time);
                ModelChange::SetTimes { inode, accessed, modified }
            }
        })
    }

    fn names(&mut self, model: &FsModel, handles: &[ModelId]) -> ClientRequest {
        let (parent, name) = (self.some_directory(model), self.name());
        let change = match (self.random.below(20), self.some_name(model)) {
            (0..=6, _) | (_, None) => return self.make(model, FileKind::File),
            (7, _) if self.random.once_in(2) => return self.make_special(model),
            (7, _) => return self.make(model, FileKind::Directory),
            (8, _) => {
                let len =
                    1 + if self.random.once_in(8) { self.random.below(1000) } else { self.random.below(30) };
                ModelChange::Symlink { parent, name, target: vec![b'a' + len as u8 % 26; len as usize] }
            }
            (9..=10, _) => match self.some_file(model, handles) {
                Some(file) => ModelChange::Link { file, parent, name },
                None => return self.make(model, FileKind::File),
            },
            (11..=14, Some((parent, name, id)))
                if !model.get(id).is_directory() || self.random.once_in(8) =>
            {
                ModelChange::Unlink { parent, name }
            }
            (11..=14, Some((parent, name, _))) => ModelChange::RemoveDirectory { parent, name },
            (_, Some((from, old, _))) => {
                // The new name often exists already.
                let to = match self.some_name(model) {
                    Some((parent, name, _)) if self.random.once_in(2) => (parent, name),
                    _ => (parent, name),
                };
                if self.random.once_in(6) {
                    return ClientRequest::Change(ModelChange::Exchange { one: (from, old), other: to });
                }
                let if_exists = if self.random.once_in(8) { IfExists::Refuse } else { IfExists::Replace };
                if self.random.once_in(8) {
                    ModelChange::WhiteOut { from: (from, old), to, if_exists }
                } else {
                    ModelChange::Rename { from: (from, old), to, if_exists }
                }
            }
        };
        ClientRequest::Change(change)
    }

    fn make(&mut self, model: &FsModel, kind: FileKind) -> ClientRequest {
        let directories = model.inodes.values().filter(|inode| inode.is_directory()).count();
        let kind = if directories as u64 > self.mood.directories_max { FileKind::File } else { kind };
        let mode = if self.random.once_in(2) { 0o644 } else { 0o755 };
        ClientRequest::Change(ModelChange::Make {
            parent: self.some_directory(model),
            name: self.name(),
            kind,
            mode,
        })
    }

    /// Makes a FIFO, a socket, or a device.
    fn make_special(&mut self, model: &FsModel) -> ClientRequest {
        let (parent, name, mode) = (self.some_directory(model), self.name(), 0o644);
        let number = self.random.next_u64() as u32;
        ClientRequest::Change(match self.random.below(4) {
            0 => ModelChange::Make { parent, name, kind: FileKind::Fifo, mode },
            1 => ModelChange::Make { parent, name, kind: FileKind::Socket, mode },
            2 => ModelChange::MakeDevice { parent, name, kind: FileKind::CharDevice, number, mode },
            _ => ModelChange::MakeDevice { parent, name, kind: FileKind::BlockDevice, number, mode },
        })
    }

    fn look(&mut self, model: &FsModel, handles: &[ModelId]) -> ClientRequest {
        match (self.random.below(10), self.some_name(model), self.some_file(model, handles)) {
            (0, Some((parent, name, _)), _) => ClientRequest::Lookup { parent, name },
            (1, _, _) => ClientRequest::Lookup { parent: self.some_directory(model), name: self.name() },
            (2, Some((_, _, id)), _) => match model.get(id).body {
                ModelBody::Symlink(_) => ClientRequest::ReadLink(id),
                _ => ClientRequest::Stat(id),
            },
            (3, Some((_, _, id)), _) if self.random.once_in(2) => ClientRequest::ListXattrs(id),
            (3, _, _) => ClientRequest::List(self.some_directory(model)),
            (4, _, Some(file)) => {
                let offset = self.random.below(model.get(file).content().len() as u64 + PAGE);
                let what = if self.random.once_in(2) { SeekWhence::Data } else { SeekWhence::Hole };
                ClientRequest::Seek { file, offset, what }
            }
            (_, _, Some(file)) => {
                let size = model.get(file).content().len() as u64;
                let len = match self.random.below(4) {
                    0 => self.random.below(100),
                    1 => self.random.below(3 * PAGE),
                    2 => PAGE,
                    _ => self.random.below(64 << 10),
                };
                let last = self.read_until.filter(|_| self.random.once_in(2));
                let is_file = |(last, _): &_| model.inodes.get(last).is_some_and(|last| last.is_file());
                let last = last.filter(is_file);
                let (file, offset) = last.unwrap_or_else(|| (file, self.random.below(size + PAGE)));
                self.read_until = Some((file, offset + len));
                ClientRequest::Read { file, offset, len: len as usize }
            }
            _ => ClientRequest::List(ModelId::ROOT),
        }
    }

    fn handle(&mut self, model: &FsModel, handles: &[ModelId]) -> ClientRequest {
        let close = !handles.is_empty() && (handles.len() > 3 || self.random.once_in(2));
        match self.some_file(model, &[]) {
            _ if close => ClientRequest::Close(self.random.below(handles.len() as u64) as usize),
            Some(file) => ClientRequest::Open(file),
            None => ClientRequest::List(ModelId::ROOT),
        }
    }

    fn name(&mut self) -> ModelName {
        let letter = b'A' + self.random.below(26) as u8;
        match self.mood.space {
            NameSpace::Few if self.random.once_in(10) => vec![letter; 100 + usize::from(letter)],
            NameSpace::Few => vec![b'a' + self.random.below(8) as u8],
            NameSpace::Many => format!("name {}", self.random.below(600)).into_bytes(),
            NameSpace::Longest => vec![letter; 255],
            NameSpace::Alike => {
                let pair = ALIKE[self.random.below(ALIKE.len() as u64) as usize];
                pair[self.random.below(2) as usize].to_vec()
            }
        }
    }

    fn pick<T: Clone>(&mut self, from: &[T]) -> Option<T> {
        let len = from.len() as u64;
        if len == 0 { None } else { from.get(self.random.below(len) as usize).cloned() }
    }

    /// Draws a directory that has a name.
    fn some_directory(&mut self, model: &FsModel) -> ModelId {
        let living =
            |&(_, inode): &(&ModelId, &crate::model::ModelInode)| inode.is_directory() && inode.links > 0;
        let directories: Vec<ModelId> = model.inodes.iter().filter(living).map(|(&id, _)| id).collect();
        self.pick(&directories).unwrap_or(ModelId::ROOT)
    }

    /// Draws a name, its directory and its inode.
    fn some_name(&mut self, model: &FsModel) -> Option<(ModelId, ModelName, ModelId)> {
        let parent = self.some_directory(model);
        let names = model.names(parent).expect("a directory");
        let (name, &id) = names.iter().nth(self.random.below(names.len().max(1) as u64) as usize)?;
        Some((parent, name.clone(), id))
    }

    /// Draws a regular file. At times one of `handles`, which may have lost its name.
    fn some_file(&mut self, model: &FsModel, handles: &[ModelId]) -> Option<ModelId> {
        if self.random.once_in(4) && !handles.is_empty() {
            return self.pick(handles);
        }
        let is_file =
            |&(_, inode): &(&ModelId, &crate::model::ModelInode)| inode.is_file() && inode.links > 0;
        let files: Vec<ModelId> = model.inodes.iter().filter(is_file).map(|(&id, _)| id).collect();
        self.pick(&files)
    }
}

impl RequestWeights {
    fn draw(random: &mut SeededRng, temper: WorkloadProfile) -> RequestWeights {
        let mut weight = |usual: u64| match random.below(4) {
            0 => usual / 4,
            1 => usual * 4,
            _ => usual,
        };
        let (writes, sizes, names, reads, syncs) = (weight(30), weight(8), weight(12), weight(20), weight(4));
        let (hot, filling) = (random.below(3) * 40, random.once_in(6) || temper == WorkloadProfile::Full);
        let writes = if filling { 8 * writes } else { writes } + 1;
        let names = if temper == WorkloadProfile::Names { 4 * names } else { names } + 1;
        let directories_max = DIRECTORIES_MAX[random.below(3) as usize];
        let space = match random.below(if temper == WorkloadProfile::Names { 4 } else { 8 }) {
            0 => NameSpace::Many,
            1 => NameSpace::Longest,
            2 => NameSpace::Alike,
            _ => NameSpace::Few,
        };
        RequestWeights { writes, sizes, names, reads, syncs, hot, filling, directories_max, space }
    }
}

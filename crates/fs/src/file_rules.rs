//! The rules that hold for each file, by its path.
//!
//! A request has a file's number, and rules have patterns of paths. So the file system keeps the [`RuleMask`]s
//! of all files of which a path matches a pattern. [`FileRuleTable`] has the masks, and requests look there
//! under no lock but the table's. [`FileRuleKeeper`] changes them, in the order of the changes of names. Nothing is
//! kept while no rule is about files.
//!
//! A directory is *pending* when the paths of its names may have changed: the root after new rules, a directory
//! after its renaming. A walk enters its names, and each directory among them becomes pending in turn. The walk
//! holds the file system's lock for some names at a time. Other operations go on between, and enter the names
//! that they make. When no directory is pending, all masks are exact. Until then some files have old masks or
//! none, which changes the speed of their requests only.
//!
//! The path of a name is its directory's path and the name. The keeper remembers the names of directories only;
//! the arena has their parents.

use crate::arena::FsState;
use crate::directory::{NameTree, hash_in};
use crate::format::{InodeSlot, ROOT};
use crate::fs::{Fs, FsCore};
use crate::types::{FileKind, FsCompletion, Ino};
use request::{ClassRule, RuleMask, RuleSet};
use smallvec::SmallVec;
use std::collections::{BTreeMap, HashMap};
use std::mem::{replace, take};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};

/// The longest path of a directory whose names can match a pattern: `PATH_MAX` of Linux. A tree can be
/// deeper.
pub(crate) const PATH_BYTES_MAX: usize = 4096;

/// Bytes of paths that a walk matches while it holds the file system's lock: some hundred paths, or one of the
/// longest.
const LOCKED_BYTES: usize = 4 << 10;

/// Bytes of paths that a step matches: some 3000 paths, which take about 3 ms.
pub(crate) const STEP_BYTES: usize = 128 << 10;

/// Names of one file with rules about files. The next ones are ignored, so that a file with thousands of names
/// costs no more than others.
pub(crate) const NAMES_MAX: usize = 16;

/// Locks of the table, so that a look-up seldom meets another one, and never waits while a large map grows.
const SHARDS: usize = 64;

/// Identifies one name of a file among all its names: the name's keyed hash, and its directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct FileNameId(u64);

impl FileNameId {
    /// The root has no name.
    const ROOT: FileNameId = FileNameId(0);

    fn new(directory: InodeSlot, hash: u64) -> FileNameId {
        FileNameId(hash ^ u64::from(directory.0))
    }
}

/// The rules that hold for one name of a file.
pub(crate) struct NameMask {
    name: FileNameId,
    mask: RuleMask,
}

/// The names of one file for which some rule about files holds. Few files have two.
pub(crate) type NameMasks = SmallVec<[NameMask; 1]>;

/// The rules that hold for each file, by its number.
pub(crate) struct FileRuleTable {
    /// Whether some rule is about files.
    is_kept: AtomicBool,
    /// The mask of all files that are not in the table.
    unnamed: AtomicU64,
    shards: [RwLock<HashMap<Ino, NameMasks>>; SHARDS],
}

impl Default for FileRuleTable {
    fn default() -> FileRuleTable {
        FileRuleTable {
            is_kept: AtomicBool::new(false),
            unnamed: AtomicU64::new(0),
            shards: std::array::from_fn(|_| RwLock::default()),
        }
    }
}

impl FileRuleTable {
    fn shard(&self, ino: Ino) -> &RwLock<HashMap<Ino, NameMasks>> {
        &self.shards[ino.0 as usize % SHARDS]
    }

    #[inline]
    fn is_kept(&self) -> bool {
        self.is_kept.load(Ordering::Relaxed)
    }

    #[inline]
    pub(crate) fn rules_of(&self, ino: Ino) -> RuleMask {
        let unnamed = self.unnamed.load(Ordering::Relaxed);
        if !self.is_kept() {
            return RuleMask(unnamed);
        }
        // A mask decides about speed only, so a panic of a thread that changed one does no harm.
        let shard = self.shard(ino).read().unwrap_or_else(PoisonError::into_inner);
        let names = shard.get(&ino).into_iter().flatten();
        RuleMask(names.fold(unnamed, |mask, name| mask | name.mask.0))
    }

    /// Takes all masks out, for the caller to drop. From now on all files have the mask `unnamed`.
    pub(crate) fn reset(&self, is_kept: bool, unnamed: RuleMask) -> [HashMap<Ino, NameMasks>; SHARDS] {
        self.unnamed.store(unnamed.0, Ordering::Relaxed);
        self.is_kept.store(is_kept, Ordering::Relaxed);
        self.shards.each_ref().map(|shard| take(&mut *shard.write().unwrap_or_else(PoisonError::into_inner)))
    }

    /// Sets the mask of one name of a file; `None` if no rule about files holds for the name.
    fn set(&self, ino: Ino, name: FileNameId, mask: Option<RuleMask>) {
        let mut shard = self.shard(ino).write().unwrap_or_else(PoisonError::into_inner);
        match mask {
            Some(mask) => {
                let names = shard.entry(ino).or_default();
                names.retain(|known| known.name != name);
                if names.len() < NAMES_MAX {
                    names.push(NameMask { name, mask });
                }
            }
            None => {
                let Some(names) = shard.get_mut(&ino) else { return };
                names.retain(|known| known.name != name);
                if names.is_empty() {
                    shard.remove(&ino);
                }
            }
        }
    }

    /// Forgets a file.
    fn remove(&self, ino: Ino) {
        self.shard(ino).write().unwrap_or_else(PoisonError::into_inner).remove(&ino);
    }

    /// Files in the table.
    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.shards.iter().map(|shard| shard.read().expect("no panic").len()).sum()
    }
}

/// A change of names that the keeper gets when its transaction is final.
#[derive(Debug)]
pub(crate) enum NameNote {
    /// A directory got a name.
    Added { directory: InodeSlot, hash: u64, name: Box<[u8]>, slot: InodeSlot, kind: FileKind },
    /// A directory lost a name, which led to the inode in `slot`.
    Removed { directory: InodeSlot, hash: u64, slot: InodeSlot },
    /// An inode was freed.
    Freed(InodeSlot),
}

/// A name that is entered.
struct EnteredName<'a> {
    id: FileNameId,
    name: &'a [u8],
    slot: InodeSlot,
    kind: FileKind,
}

/// Keeps the masks of a [`FileRuleTable`].
pub(crate) struct FileRuleKeeper {
    table: Arc<FileRuleTable>,
    rules: Arc<RuleSet>,
    unnamed: RuleMask,
    /// The name of each directory that was entered.
    names: HashMap<InodeSlot, Box<[u8]>>,
    /// The pending directories, with the cookie after which each walk continues.
    pending: BTreeMap<InodeSlot, u64>,
}

impl FileRuleKeeper {
    /// A keeper that has entered no name. The root is pending.
    pub(crate) fn new(table: Arc<FileRuleTable>, rules: Arc<RuleSet>) -> FileRuleKeeper {
        let unnamed = rules.unnamed_file_mask();
        let pending = BTreeMap::from([(ROOT, 0)]);
        let keeper = FileRuleKeeper { table, rules, unnamed, names: HashMap::new(), pending };
        keeper.set(Ino::ROOT, FileNameId::ROOT, keeper.rules.file_mask(b"/"));
        keeper
    }

    fn set(&self, ino: Ino, name: FileNameId, mask: RuleMask) {
        self.table.set(ino, name, (mask != self.unnamed).then_some(mask));
    }

    /// Follows the changes of a transaction, which `state` has.
    fn follow(&mut self, state: &FsState, notes: Vec<NameNote>) {
        for note in notes {
            match note {
                NameNote::Added { directory, hash, name, slot, kind } => {
                    let mut path = self.path_of(state, directory);
                    let id = FileNameId::new(directory, hash);
                    self.enter(state, &EnteredName { id, name: &name, slot, kind }, path.as_mut());
                }
                NameNote::Removed { directory, hash, slot } => {
                    // An open file without a name keeps the rules of its last one, until it is freed.
                    if state.inode(slot).is_ok_and(|inode| inode.links != 0) {
                        self.set(state.numbering.ino(slot), FileNameId::new(directory, hash), self.unnamed);
                    }
                }
                NameNote::Freed(slot) => {
                    self.table.remove(state.numbering.ino(slot));
                    self.names.remove(&slot);
                }
            }
        }
    }

    /// The path of a directory, with `/` at its end. `None` if the path is too long, or if a directory above was
    /// not entered yet, whose walk will come here again.
    fn path_of(&self, state: &FsState, directory: InodeSlot) -> Option<Vec<u8>> {
        let mut names: SmallVec<[&[u8]; 16]> = SmallVec::new();
        let mut bytes = 1;
        let mut at = directory;
        while at != ROOT {
            let name = self.names.get(&at)?;
            bytes += name.len() + 1;
            if bytes > PATH_BYTES_MAX {
                return None;
            }
            names.push(name);
            at = InodeSlot(state.inode(at).ok()?.next.get());
        }
        let mut path = Vec::with_capacity(bytes + 1);
        path.push(b'/');
        for name in names.into_iter().rev() {
            path.extend_from_slice(name);
            path.push(b'/');
        }
        Some(path)
    }

    /// Enters a name in the directory with this path. Returns the bytes of the name's path.
    fn enter(
        &mut self,
        state: &FsState,
        entered: &EnteredName<'_>,
        directory_path: Option<&mut Vec<u8>>,
    ) -> usize {
        let mut bytes = entered.name.len() + 1;
        let mut mask = self.unnamed;
        if let Some(path) = directory_path {
            let directory_bytes = path.len();
            path.extend_from_slice(entered.name);
            bytes = path.len();
            mask = self.rules.file_mask(path);
            path.truncate(directory_bytes);
        }
        self.set(state.numbering.ino(entered.slot), entered.id, mask);
        if entered.kind == FileKind::Directory {
            self.names.insert(entered.slot, entered.name.into());
            if state.inode(entered.slot).is_ok_and(|inode| !inode.root().is_none()) {
                self.pending.insert(entered.slot, 0);
            }
        }
        bytes
    }

    /// Enters names of a pending directory, at least one, until their paths have `bytes_max` bytes. Returns the
    /// bytes, or `None` if no directory is pending.
    pub(crate) fn walk(&mut self, state: &FsState, bytes_max: usize) -> Option<usize> {
        let (directory, cookie) = self.pending.pop_first()?;
        let mut path = self.path_of(state, directory);
        let mut bytes = path.as_ref().map_or(PATH_BYTES_MAX, Vec::len);
        // Files in a directory that cannot be read have no masks. The next client that reads it is told why.
        let Ok((inode, FileKind::Directory)) = state.used_inode(directory) else { return Some(bytes) };
        let mut stopped_at = None;
        let listed = NameTree::of(&inode).list(state, cookie, &mut |found| {
            let id = FileNameId::new(directory, hash_in(found.key));
            let entered = EnteredName { id, name: found.name, slot: found.slot, kind: found.kind };
            bytes += self.enter(state, &entered, path.as_mut());
            stopped_at = (bytes >= bytes_max).then_some(found.key);
            stopped_at.is_none()
        });
        if let Some(cookie) = stopped_at.or(listed.ok().flatten()) {
            self.pending.insert(directory, cookie);
        }
        Some(bytes)
    }

    /// Directories whose names are remembered.
    #[cfg(test)]
    pub(crate) fn directories(&self) -> usize {
        self.names.len()
    }
}

impl FsState {
    /// Tells the keeper the changes of a transaction. Not inlined, because most transactions change no names.
    #[inline(never)]
    pub(crate) fn follow_names(&self, notes: Vec<NameNote>) {
        if let Some(keeper) = &self.rule_keeper {
            keeper.lock().unwrap_or_else(PoisonError::into_inner).follow(self, notes);
        }
    }
}

impl FsCore {
    /// Enters names of pending directories, up to [`STEP_BYTES`] of paths. Returns whether directories are
    /// still pending.
    fn step_rules(&self) -> bool {
        let mut bytes = 0;
        while bytes < STEP_BYTES {
            let state = self.read_state();
            let Some(keeper) = &state.rule_keeper else { return false };
            let mut keeper = keeper.lock().unwrap_or_else(PoisonError::into_inner);
            match keeper.walk(&state, LOCKED_BYTES) {
                Some(walked) => bytes += walked,
                None => return false,
            }
        }
        true
    }
}

impl Fs {
    /// Sets the rules for [`rules_of`](Fs::rules_of). Before the first call, no rule holds for any file.
    ///
    /// If a rule is about files, walks the whole tree before it returns. Other operations go on meanwhile. Until
    /// the walk has reached a file, only the rules without a condition about files hold for it.
    pub fn set_rules(&self, rules: Arc<RuleSet>) {
        let core = self.core();
        let table = &core.rule_table;
        let is_kept = rules.rules().iter().any(ClassRule::is_about_files);
        let unnamed = rules.unnamed_file_mask();
        let mut state = core.write_state();
        let old_masks = table.reset(is_kept, unnamed);
        let keeper = is_kept.then(|| Mutex::new(FileRuleKeeper::new(table.clone(), rules)));
        let old_keeper = replace(&mut state.rule_keeper, keeper);
        drop(state);
        drop(old_masks);
        drop(old_keeper);
        while self.step_rules() {}
    }

    /// The rules that hold for a file: those whose patterns match a path of the file, and those without a
    /// condition about files. Quick enough to be called for each request, and never waits for an operation.
    ///
    /// A file with several names has the rules of all of them; if patterns match more than 16 names, of the first
    /// 16. A file that lost its last name while open keeps the rules of that name, until new rules are set. No
    /// pattern matches names in a directory whose path is longer than 4 KiB.
    ///
    /// An operation that gives a file a name completes after the mask is set. After a directory with thousands of
    /// files below was renamed, some have their old masks until [`step_rules`](Fs::step_rules) was called often
    /// enough.
    #[inline]
    pub fn rules_of(&self, ino: Ino) -> RuleMask {
        self.core().rule_table.rules_of(ino)
    }

    /// Sets the masks of some thousand files below renamed directories. Returns whether more are left. A worker
    /// calls this now and then, and without a pause while more are left.
    pub fn step_rules(&self) -> bool {
        self.core().step_rules()
    }

    /// Does a step before `done` is called, if one of the renamed files is a directory.
    pub(crate) fn then_step_rules<T: 'static>(
        &self,
        renamed: &[(Ino, &[u8])],
        done: FsCompletion<T>,
    ) -> FsCompletion<T> {
        let core = self.core().clone();
        let is_directory = |&(parent, name): &(Ino, &[u8])| {
            let found = core.read_state().find_name(parent, name);
            found.is_ok_and(|found| found.kind == FileKind::Directory)
        };
        if !core.rule_table.is_kept() || !renamed.iter().any(is_directory) {
            return done;
        }
        Box::new(move |outcome| {
            core.step_rules();
            done(outcome);
        })
    }
}

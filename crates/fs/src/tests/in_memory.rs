//! The file system without a cache: changes go to a plain map of pages.

use super::model::{ModelListing, ModelOperation, ModelSubject};
use crate::arena::{Arena, FsState, FsTransaction, is_within_cost};
use crate::check::{FsFinding, check};
use crate::cost;
use crate::directory::NameTree;
use crate::error::FsError;
use crate::format::{ArenaRegion, arena_object};
use crate::ops::allocate::FallocateMode;
use crate::ops::create::NewInode;
use crate::ops::file_data::write_cost;
use crate::types::{CallerCredentials, FileAttributes, FileKind, Ino};
use crate::xattr::{XattrChange, XattrKey, XattrOutcome};
use cache::{ObjectChange, TransactionCost};
use device::{BLOCK_BYTES, ObjectId, PageNo, PageTransfer, TransferKind, VolumeId};
use std::collections::BTreeMap;
use std::ops::Range;

/// The metadata of the volume.
pub(super) const ARENA: ObjectId = arena_object(VolumeId::MAIN);

pub(crate) const SECRET: [u8; 16] = *b"a secret of 16 b";
pub(crate) const OWNER: CallerCredentials = CallerCredentials { uid: 1000, gid: 100, umask: 0 };

/// The pages of all objects, in place of a cache.
#[derive(Default, Clone)]
pub(crate) struct ObjectPages(BTreeMap<(ObjectId, u64), [u8; BLOCK_BYTES]>);

impl ObjectPages {
    pub(crate) fn write(&mut self, object: ObjectId, offset: u64, bytes: &[u8]) {
        for (page, start, range) in pages_of(offset, bytes.len()) {
            let page = self.0.entry((object, page)).or_insert([0; BLOCK_BYTES]);
            page[start..start + range.len()].copy_from_slice(&bytes[range]);
        }
    }

    pub(crate) fn read(&self, object: ObjectId, offset: u64, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        for (page, start, range) in pages_of(offset, len) {
            if let Some(page) = self.0.get(&(object, page)) {
                bytes[range.clone()].copy_from_slice(&page[start..start + range.len()]);
            }
        }
        bytes
    }

    fn apply(&mut self, change: &ObjectChange<'_>) {
        match *change {
            ObjectChange::Write { object, offset, bytes }
            | ObjectChange::FileWrite { object, offset, bytes, .. } => {
                self.write(object, offset, bytes);
            }
            ObjectChange::LogBypassed { .. } => {}
            ObjectChange::Zero { object, offset, len } => {
                for (&(_, page), bytes) in self.0.range_mut((object, 0)..=(object, u64::MAX)) {
                    let start = page * BLOCK_BYTES as u64;
                    let from = offset.saturating_sub(start).min(BLOCK_BYTES as u64) as usize;
                    let to = (offset + len).saturating_sub(start).min(BLOCK_BYTES as u64) as usize;
                    bytes[from.min(to)..to].fill(0);
                }
            }
            ObjectChange::Delete { object } => self.0.retain(|&(of, _), _| of != object),
            ObjectChange::Transfer(transfer) => self.copy(&transfer),
        }
    }

    fn copy(&mut self, transfer: &PageTransfer) {
        assert_eq!(transfer.kind, TransferKind::Clone, "no operation moves pages");
        let source = transfer.source();
        let target = transfer.target();
        let pages = self.0.range((transfer.from, source.start.0)..(transfer.from, source.end.0));
        let copies: Vec<_> = pages
            .map(|(&(_, page), bytes)| ((transfer.to, transfer.target_of(PageNo(page)).0), *bytes))
            .collect();
        self.0.retain(|&(of, page), _| of != transfer.to || !target.contains(&PageNo(page)));
        self.0.extend(copies);
    }

    /// Objects other than the arena that have pages.
    pub(crate) fn files(&self) -> usize {
        let mut files: Vec<ObjectId> = self.0.keys().map(|&(object, _)| object).collect();
        files.dedup();
        files.iter().filter(|&&object| object != ARENA).count()
    }
}

/// Page by page: its number, the position in it, the range of the bytes.
fn pages_of(offset: u64, len: usize) -> impl Iterator<Item = (u64, usize, Range<usize>)> {
    let page = BLOCK_BYTES as u64;
    let end = offset + len as u64;
    (offset / page..end.div_ceil(page)).map(move |number| {
        let from = offset.max(number * page);
        let to = end.min((number + 1) * page);
        (number, (from % page) as usize, (from - offset) as usize..(to - offset) as usize)
    })
}

/// A file system in memory, with its objects' pages.
pub(crate) struct InMemoryFs {
    pub(crate) state: FsState,
    pub(crate) objects: ObjectPages,
    pub(crate) now: i64,
    /// Bytes of the last transaction's changes to the arena.
    pub(crate) arena_bytes: u64,
    /// Transactions are undone after their work, as if the cache refused them.
    gives_up: bool,
}

impl InMemoryFs {
    pub(crate) fn new() -> InMemoryFs {
        let state = FsState::blank(VolumeId::MAIN, SECRET).expect("a blank state");
        let mut fs =
            InMemoryFs { state, objects: ObjectPages::default(), now: 0, arena_bytes: 0, gives_up: false };
        let cost = TransactionCost { pages: 10, bytes: 4096, records: 100, ..TransactionCost::NONE };
        fs.run(cost, |tx| tx.format_volume(OWNER, SECRET)).expect("a new file system");
        fs
    }

    /// Does what `FsCore::apply_transaction` does, on plain memory.
    pub(crate) fn run<T>(
        &mut self,
        cost: TransactionCost,
        work: impl FnOnce(&mut FsTransaction<'_>) -> Result<T, FsError>,
    ) -> Result<T, FsError> {
        self.run_with(&[], cost, work)
    }

    /// The same, with the bytes that `work` writes into a file.
    fn run_with<T>(
        &mut self,
        bytes: &[u8],
        cost: TransactionCost,
        work: impl FnOnce(&mut FsTransaction<'_>) -> Result<T, FsError>,
    ) -> Result<T, FsError> {
        let mut tx = FsTransaction::begin(&mut self.state, self.now, bytes);
        let value = work(&mut tx)?;
        let changes = tx.changes();
        assert!(
            is_within_cost(&changes, cost),
            "{:?} of {changes:?} is more than {cost:?}",
            TransactionCost::of(&changes)
        );
        if self.gives_up {
            return Err(FsError::NoSpace);
        }
        let arena = changes.iter().filter_map(|change| match change {
            ObjectChange::Write { object: ARENA, bytes, .. } => Some(bytes.len() as u64),
            _ => None,
        });
        self.arena_bytes = arena.sum();
        changes.iter().for_each(|change| self.objects.apply(change));
        drop(changes);
        tx.keep();
        Ok(value)
    }

    fn change_xattr(
        &mut self,
        cost: TransactionCost,
        ino: Ino,
        name: &[u8],
        change: XattrChange,
        stated: usize,
    ) -> Result<Option<FileAttributes>, FsError> {
        let key = XattrKey::parse(name)?;
        let outcome = self.run(cost, |tx| tx.change_xattr(ino, key, &change, stated))?;
        assert_eq!(outcome, XattrOutcome::Done, "nobody else changed it");
        Ok(None)
    }

    fn hold(&mut self, ino: Ino) -> Result<Option<FileAttributes>, FsError> {
        let (slot, ..) = self.state.find_inode(ino)?;
        self.state.open_files.get_mut().expect("no panic").entry(slot.0).or_default().count += 1;
        Ok(None)
    }

    fn unhold(&mut self, ino: Ino) -> Result<Option<FileAttributes>, FsError> {
        let (slot, inode, _) = self.state.find_inode(ino)?;
        let opens = self.state.open_files.get_mut().expect("no panic");
        let count = &mut opens.get_mut(&slot.0).expect("it was held").count;
        *count -= 1;
        if *count == 0 {
            opens.remove(&slot.0);
            if inode.links == 0 {
                self.run(cost::free_orphans(1), |tx| tx.free_unheld(slot, inode.generation.get()))?;
            }
        }
        Ok(None)
    }

    pub(crate) fn levels(&self, ino: Ino) -> u8 {
        let inode = self.state.find_directory(ino).map(|(_, inode)| inode);
        inode.and_then(|inode| NameTree::of(&inode).levels(self.state.arena())).unwrap_or(0)
    }

    pub(crate) fn load(&self) -> Arena {
        let read = |&(offset, len): &(u64, usize)| self.objects.read(ARENA, offset, len);
        Arena::load(&mut |ranges| Ok(ranges.iter().map(read).collect())).expect("an arena")
    }

    pub(crate) fn make(
        &mut self,
        parent: Ino,
        name: &str,
        kind: FileKind,
    ) -> Result<FileAttributes, FsError> {
        let name = name.as_bytes().to_vec();
        let mode = 0o644;
        let caller = OWNER;
        let made = self.apply(&ModelOperation::Make { caller, parent, name, kind, mode, device: 0 });
        made.map(|made| made.expect("making tells attributes"))
    }

    pub(crate) fn file(&mut self, parent: Ino, name: &str) -> Ino {
        self.make(parent, name, FileKind::File).expect("a new file").ino
    }

    pub(crate) fn directory(&mut self, parent: Ino, name: &str) -> Ino {
        self.make(parent, name, FileKind::Directory).expect("a new directory").ino
    }

    /// Checks that the arena in memory and its pages agree, byte for byte, and that all rules hold.
    pub(crate) fn verify(&self) {
        let below = self.load();
        for region in ArenaRegion::ALL {
            let same = region_bytes(&self.state, region) == region_bytes(&below, region);
            assert!(same, "{region:?} differs between memory and below");
        }
        assert_eq!(self.findings(), []);
    }
}

/// A region up to its end. Bytes that were never written are zeros, whether memory for them exists or not.
fn region_bytes(arena: &Arena, region: ArenaRegion) -> Vec<u8> {
    let len = arena.used_bytes(region);
    arena.bytes(region.base(), len).map_or_else(|_| vec![0; len], <[u8]>::to_vec)
}

/// Everything in memory that a transaction may change, for comparison.
pub(crate) fn snapshot(state: &FsState) -> Vec<Vec<u8>> {
    ArenaRegion::ALL.into_iter().map(|region| region_bytes(state.arena(), region)).collect()
}

impl ModelSubject for InMemoryFs {
    fn now(&self) -> i64 {
        self.now
    }

    fn set_now(&mut self, now: i64) {
        self.now = now;
    }

    fn apply(&mut self, operation: &ModelOperation) -> Result<Option<FileAttributes>, FsError> {
        match operation.clone() {
            ModelOperation::Make { caller, parent, name, kind, mode, device } => {
                let new = match kind {
                    FileKind::Directory => NewInode::Directory { mode },
                    _ => NewInode::Node { kind, mode, device },
                };
                let cost = cost::make(self.levels(parent), 0);
                self.run(cost, |tx| tx.make(caller, parent, &name, new)).map(Some)
            }
            ModelOperation::Symlink { caller, parent, name, target } => {
                let cost = cost::make(self.levels(parent), target.len());
                self.run(cost, |tx| tx.make(caller, parent, &name, NewInode::Symlink { target: &target }))
                    .map(Some)
            }
            ModelOperation::Link { ino, parent, name } => {
                self.run(cost::add(self.levels(parent), 0), |tx| tx.link(ino, parent, &name)).map(Some)
            }
            ModelOperation::Unlink { parent, name } => {
                self.run(cost::remove(self.levels(parent)), |tx| tx.unlink(parent, &name)).map(|_| None)
            }
            ModelOperation::RemoveDirectory { parent, name } => self
                .run(cost::remove(self.levels(parent)), |tx| tx.remove_directory(parent, &name))
                .map(|()| None),
            ModelOperation::Rename { from, to, if_exists, whiteout } => {
                let levels = (self.levels(from.0), self.levels(to.0));
                let cost = match whiteout {
                    Some(_) => cost::rename_leaving_whiteout(levels.0, levels.1),
                    None => cost::rename(levels.0, levels.1),
                };
                self.run(cost, |tx| tx.rename((from.0, &from.1), (to.0, &to.1), if_exists, whiteout))
            }
            ModelOperation::Exchange { one, other } => self
                .run(cost::exchange(), |tx| tx.exchange((one.0, &one.1), (other.0, &other.1)))
                .map(|()| None),
            ModelOperation::SetXattr { ino, name, value, how } => {
                let present = self.state.find_inode(ino).and_then(|(_, inode, _)| self.state.xattrs(&inode));
                let present = present.map_or(0, |string| string.len());
                let cost = cost::set_xattr(present, value.len());
                self.change_xattr(cost, ino, &name, XattrChange::Set { value, how }, present)
            }
            ModelOperation::RemoveXattr { ino, name } => {
                self.change_xattr(cost::remove_xattr(), ino, &name, XattrChange::Remove, usize::MAX)
            }
            ModelOperation::Write { ino, offset, bytes } => {
                let cost = write_cost(offset, bytes.len());
                let write = |tx: &mut FsTransaction<'_>| {
                    let (slot, inode) = tx.find_file(ino)?;
                    let bytes = tx.file_bytes();
                    let object = tx.note_write(slot, inode, offset, bytes.len(), 0)?;
                    tx.add_data_change(ObjectChange::FileWrite { object, offset, bytes, size: inode.size() });
                    Ok(())
                };
                self.run_with(&bytes, cost, write).map(|()| None)
            }
            ModelOperation::Set { ino, set } => {
                self.run(cost::attributes(true), |tx| tx.set_attributes(ino, &set)).map(Some)
            }
            ModelOperation::Allocate { ino, what, range, size } => {
                let whole_pages_go =
                    what != FallocateMode::Allocate && (range.0 | range.1).is_multiple_of(4096);
                self.run(cost::allocate(whole_pages_go), |tx| tx.allocate(ino, what, range, size))
                    .map(|()| None)
            }
            ModelOperation::Hold { ino } => self.hold(ino),
            ModelOperation::Unhold { ino } => self.unhold(ino),
        }
    }

    fn rehearse(&mut self, operation: &ModelOperation) {
        // These change open counts, outside of any transaction.
        if matches!(operation, ModelOperation::Hold { .. } | ModelOperation::Unhold { .. }) {
            return;
        }
        let before = snapshot(&self.state);
        self.gives_up = true;
        let given_up = self.apply(operation);
        self.gives_up = false;
        assert!(given_up.is_err() && snapshot(&self.state) == before, "{operation:?} left a trace");
    }

    fn attributes(&self, ino: Ino) -> Result<FileAttributes, FsError> {
        let (slot, ..) = self.state.find_inode(ino)?;
        self.state.attributes(slot)
    }

    fn read(&self, ino: Ino) -> Result<Vec<u8>, FsError> {
        let (object, len, _) = self.state.clip(ino, 0, usize::MAX)?;
        Ok(self.objects.read(object, 0, len))
    }

    fn read_link(&self, ino: Ino) -> Result<Vec<u8>, FsError> {
        let (_, inode, _) = self.state.find_inode(ino)?;
        self.state.link_target(&inode).map(<[u8]>::to_vec)
    }

    fn xattrs(&self, ino: Ino) -> Result<BTreeMap<Vec<u8>, Vec<u8>>, FsError> {
        let (_, inode, _) = self.state.find_inode(ino)?;
        let names = self.state.xattr_names(&inode)?;
        let value = |name: &[u8]| self.state.xattr(&inode, XattrKey::parse(name)?)?.ok_or(FsError::NoXattr);
        names.into_iter().map(|name| value(&name).map(|value| (name, value))).collect()
    }

    fn lookup(&self, parent: Ino, name: &[u8]) -> Result<Ino, FsError> {
        let (_, inode) = self.state.find_directory(parent)?;
        let found = self.state.lookup_name(&inode, name)?.ok_or(FsError::NotFound)?;
        Ok(self.state.numbering.ino(found.slot))
    }

    fn list(&self, ino: Ino) -> Result<Vec<ModelListing>, FsError> {
        let (_, inode) = self.state.find_directory(ino)?;
        let mut after = Some(0);
        let mut all = Vec::new();
        while let Some(cookie) = after {
            after = NameTree::of(&inode).list(self.state.arena(), cookie, &mut |one| {
                all.push((one.key, one.name.to_vec(), self.state.numbering.ino(one.slot), one.kind));
                true
            })?;
        }
        Ok(all)
    }

    fn reopen(&mut self) {
        self.verify();
        self.state = FsState::new(VolumeId::MAIN, self.load()).expect("a state");
        for (slot, generation) in self.state.orphans().expect("orphans") {
            self.run(cost::free_orphans(1), |tx| tx.free_unheld(slot, generation)).expect("an orphan goes");
        }
    }

    fn findings(&self) -> Vec<FsFinding> {
        let mut findings = Vec::new();
        check(&self.state, &mut |finding| findings.push(finding));
        findings
    }
}

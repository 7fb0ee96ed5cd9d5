//! The file system without a cache: changes go to a plain map of pages.

use super::model::{Listing, Operation, Subject};
use crate::allocate::Allocate;
use crate::arena::{Arena, State, Transaction, within};
use crate::check::{Finding, check};
use crate::cost;
use crate::create::New;
use crate::data::write_cost;
use crate::directory::Tree;
use crate::error::FsError;
use crate::format::{Region, arena_of};
use crate::types::{Attributes, Caller, Ino, Kind};
use crate::xattr::{Key, Outcome, XattrChange};
use cache::{Change, Cost};
use device::{BLOCK_BYTES, ObjectId, PageNo, PageTransfer, VolumeId};
use std::collections::BTreeMap;
use std::ops::Range;

/// The metadata of the volume.
pub(super) const ARENA: ObjectId = arena_of(VolumeId::MAIN);

pub(crate) const SECRET: [u8; 16] = *b"a secret of 16 b";
pub(crate) const OWNER: Caller = Caller { uid: 1000, gid: 100, umask: 0 };

/// What lies below: every object's pages.
#[derive(Default, Clone)]
pub(crate) struct Objects(BTreeMap<(ObjectId, u64), [u8; BLOCK_BYTES]>);

impl Objects {
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

    fn apply(&mut self, change: &Change<'_>) {
        match *change {
            Change::Write { object, offset, bytes } | Change::BypassWrite { object, offset, bytes, .. } => {
                self.write(object, offset, bytes);
            }
            Change::Settle { .. } => {}
            Change::Zero { object, offset, len } => {
                for (&(_, page), bytes) in self.0.range_mut((object, 0)..=(object, u64::MAX)) {
                    let start = page * BLOCK_BYTES as u64;
                    let from = offset.saturating_sub(start).min(BLOCK_BYTES as u64) as usize;
                    let to = (offset + len).saturating_sub(start).min(BLOCK_BYTES as u64) as usize;
                    bytes[from.min(to)..to].fill(0);
                }
            }
            Change::Delete { object } => self.0.retain(|&(of, _), _| of != object),
            Change::Clone { transfer } => self.copy(&transfer),
            Change::Move { .. } => unreachable!("no operation moves pages"),
        }
    }

    fn copy(&mut self, transfer: &PageTransfer) {
        let (source, target) = (transfer.source(), transfer.target());
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
        let (from, to) = (offset.max(number * page), end.min((number + 1) * page));
        (number, (from % page) as usize, (from - offset) as usize..(to - offset) as usize)
    })
}

/// The state and what lies below it.
pub(crate) struct Bench {
    pub(crate) state: State,
    pub(crate) objects: Objects,
    pub(crate) now: i64,
    /// Bytes of the last transaction's changes to the arena.
    pub(crate) arena_bytes: u64,
    /// Transactions are given up once their work is done, as when the cache refuses them.
    gives_up: bool,
}

impl Bench {
    pub(crate) fn new() -> Bench {
        let state = State::blank(VolumeId::MAIN, SECRET).expect("a blank state");
        let mut bench = Bench { state, objects: Objects::default(), now: 0, arena_bytes: 0, gives_up: false };
        let cost = Cost { pages: 10, bytes: 4096, records: 100, ..Cost::NONE };
        bench.run(cost, |tx| tx.create(OWNER, SECRET)).expect("a new file system");
        bench
    }

    /// Does what `Core::commit` does, on plain memory.
    pub(crate) fn run<T>(
        &mut self,
        cost: Cost,
        work: impl FnOnce(&mut Transaction<'_>) -> Result<T, FsError>,
    ) -> Result<T, FsError> {
        self.run_with(&[], cost, work)
    }

    /// The same, with the bytes that `work` writes into a file.
    fn run_with<T>(
        &mut self,
        bytes: &[u8],
        cost: Cost,
        work: impl FnOnce(&mut Transaction<'_>) -> Result<T, FsError>,
    ) -> Result<T, FsError> {
        let mut tx = Transaction::begin(&mut self.state, self.now, bytes);
        let value = work(&mut tx)?;
        let changes = tx.changes();
        assert!(within(&changes, cost), "{:?} of {changes:?} is more than {cost:?}", Cost::of(&changes));
        if self.gives_up {
            return Err(FsError::NoSpace);
        }
        let arena = changes.iter().filter_map(|change| match change {
            Change::Write { object: ARENA, bytes, .. } => Some(bytes.len() as u64),
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
        cost: Cost,
        ino: Ino,
        name: &[u8],
        change: XattrChange,
        stated: usize,
    ) -> Result<Option<Attributes>, FsError> {
        let key = Key::parse(name)?;
        let outcome = self.run(cost, |tx| tx.change_xattr(ino, key, &change, stated))?;
        assert_eq!(outcome, Outcome::Done, "nobody else changed it");
        Ok(None)
    }

    fn hold(&mut self, ino: Ino) -> Result<Option<Attributes>, FsError> {
        let (slot, ..) = self.state.find(ino)?;
        self.state.opens.get_mut().expect("no panic").entry(slot.0).or_default().count += 1;
        Ok(None)
    }

    fn unhold(&mut self, ino: Ino) -> Result<Option<Attributes>, FsError> {
        let (slot, hot, _) = self.state.find(ino)?;
        let opens = self.state.opens.get_mut().expect("no panic");
        let count = &mut opens.get_mut(&slot.0).expect("it was held").count;
        *count -= 1;
        if *count == 0 {
            opens.remove(&slot.0);
            if hot.links == 0 {
                self.run(cost::free(1), |tx| tx.free_unheld(slot, hot.generation.get()))?;
            }
        }
        Ok(None)
    }

    pub(crate) fn levels(&self, ino: Ino) -> u8 {
        let hot = self.state.find_directory(ino).map(|(_, hot)| hot);
        hot.and_then(|hot| Tree::of(&hot).levels(self.state.arena())).unwrap_or(0)
    }

    pub(crate) fn load(&self) -> Arena {
        let read = |&(offset, len): &(u64, usize)| self.objects.read(ARENA, offset, len);
        Arena::load(&mut |ranges| Ok(ranges.iter().map(read).collect())).expect("an arena")
    }

    pub(crate) fn make(&mut self, parent: Ino, name: &str, kind: Kind) -> Result<Attributes, FsError> {
        let (name, mode, caller) = (name.as_bytes().to_vec(), 0o644, OWNER);
        let made = self.apply(&Operation::Make { caller, parent, name, kind, mode, device: 0 });
        made.map(|made| made.expect("making tells attributes"))
    }

    pub(crate) fn file(&mut self, parent: Ino, name: &str) -> Ino {
        self.make(parent, name, Kind::File).expect("a new file").ino
    }

    pub(crate) fn directory(&mut self, parent: Ino, name: &str) -> Ino {
        self.make(parent, name, Kind::Directory).expect("a new directory").ino
    }

    /// Checks that memory and what lies below agree, byte for byte, and that all rules hold.
    pub(crate) fn verify(&self) {
        let below = self.load();
        for region in Region::ALL {
            let same = region_bytes(&self.state, region) == region_bytes(&below, region);
            assert!(same, "{region:?} differs between memory and below");
        }
        assert_eq!(self.findings(), []);
    }
}

/// A region up to its end. What was never touched is zeros, whether memory for it is there or not.
fn region_bytes(arena: &Arena, region: Region) -> Vec<u8> {
    let len = arena.used_bytes(region);
    arena.bytes(region.base(), len).map_or_else(|_| vec![0; len], <[u8]>::to_vec)
}

/// Everything in memory that a transaction may change, to compare.
pub(crate) fn snapshot(state: &State) -> Vec<Vec<u8>> {
    Region::ALL.into_iter().map(|region| region_bytes(state.arena(), region)).collect()
}

impl Subject for Bench {
    fn now(&self) -> i64 {
        self.now
    }

    fn set_now(&mut self, now: i64) {
        self.now = now;
    }

    fn apply(&mut self, operation: &Operation) -> Result<Option<Attributes>, FsError> {
        match operation.clone() {
            Operation::Make { caller, parent, name, kind, mode, device } => {
                let new = match kind {
                    Kind::Directory => New::Directory { mode },
                    _ => New::Node { kind, mode, device },
                };
                let cost = cost::make(self.levels(parent), 0);
                self.run(cost, |tx| tx.make(caller, parent, &name, new)).map(Some)
            }
            Operation::Symlink { caller, parent, name, target } => {
                let cost = cost::make(self.levels(parent), target.len());
                self.run(cost, |tx| tx.make(caller, parent, &name, New::Symlink { target: &target }))
                    .map(Some)
            }
            Operation::Link { ino, parent, name } => {
                self.run(cost::add(self.levels(parent), 0), |tx| tx.link(ino, parent, &name)).map(Some)
            }
            Operation::Unlink { parent, name } => {
                self.run(cost::remove(self.levels(parent)), |tx| tx.unlink(parent, &name)).map(|()| None)
            }
            Operation::RemoveDirectory { parent, name } => self
                .run(cost::remove(self.levels(parent)), |tx| tx.remove_directory(parent, &name))
                .map(|()| None),
            Operation::Rename { from, to, if_exists, whiteout } => {
                let levels = (self.levels(from.0), self.levels(to.0));
                let cost = match whiteout {
                    Some(_) => cost::rename_leaving_whiteout(levels.0, levels.1),
                    None => cost::rename(levels.0, levels.1),
                };
                self.run(cost, |tx| tx.rename((from.0, &from.1), (to.0, &to.1), if_exists, whiteout))
            }
            Operation::Exchange { one, other } => self
                .run(cost::exchange(), |tx| tx.exchange((one.0, &one.1), (other.0, &other.1)))
                .map(|()| None),
            Operation::SetXattr { ino, name, value, how } => {
                let present = self.state.find(ino).and_then(|(_, hot, _)| self.state.xattrs(&hot));
                let present = present.map_or(0, |string| string.len());
                let cost = cost::set_xattr(present, value.len());
                self.change_xattr(cost, ino, &name, XattrChange::Set { value, how }, present)
            }
            Operation::RemoveXattr { ino, name } => {
                self.change_xattr(cost::remove_xattr(), ino, &name, XattrChange::Remove, usize::MAX)
            }
            Operation::Write { ino, offset, bytes } => {
                let cost = write_cost(offset, bytes.len());
                self.run_with(&bytes, cost, |tx| tx.write_data(ino, offset, false, 0)).map(|()| None)
            }
            Operation::Set { ino, set } => {
                self.run(cost::attributes(true), |tx| tx.set_attributes(ino, &set)).map(Some)
            }
            Operation::Allocate { ino, what, range, size } => {
                let whole_pages_go = what != Allocate::Space && (range.0 | range.1).is_multiple_of(4096);
                self.run(cost::allocate(whole_pages_go), |tx| tx.allocate(ino, what, range, size))
                    .map(|()| None)
            }
            Operation::Hold { ino } => self.hold(ino),
            Operation::Unhold { ino } => self.unhold(ino),
        }
    }

    fn rehearse(&mut self, operation: &Operation) {
        // These change open counts, outside of any transaction.
        if matches!(operation, Operation::Hold { .. } | Operation::Unhold { .. }) {
            return;
        }
        let before = snapshot(&self.state);
        self.gives_up = true;
        let given_up = self.apply(operation);
        self.gives_up = false;
        assert!(given_up.is_err() && snapshot(&self.state) == before, "{operation:?} left a trace");
    }

    fn attributes(&self, ino: Ino) -> Result<Attributes, FsError> {
        let (slot, ..) = self.state.find(ino)?;
        self.state.attributes(slot)
    }

    fn read(&self, ino: Ino) -> Result<Vec<u8>, FsError> {
        let (object, len, _) = self.state.clip(ino, 0, usize::MAX)?;
        Ok(self.objects.read(object, 0, len))
    }

    fn read_link(&self, ino: Ino) -> Result<Vec<u8>, FsError> {
        let (_, hot, _) = self.state.find(ino)?;
        self.state.link_target(&hot).map(<[u8]>::to_vec)
    }

    fn xattrs(&self, ino: Ino) -> Result<BTreeMap<Vec<u8>, Vec<u8>>, FsError> {
        let (_, hot, _) = self.state.find(ino)?;
        let names = self.state.xattr_names(&hot)?;
        let value = |name: &[u8]| self.state.xattr(&hot, Key::parse(name)?)?.ok_or(FsError::NoXattr);
        names.into_iter().map(|name| value(&name).map(|value| (name, value))).collect()
    }

    fn lookup(&self, parent: Ino, name: &[u8]) -> Result<Ino, FsError> {
        let (_, hot) = self.state.find_directory(parent)?;
        let found = self.state.name(&hot, name)?.ok_or(FsError::NotFound)?;
        Ok(self.state.numbers.ino(found.slot))
    }

    fn list(&self, ino: Ino) -> Result<Vec<Listing>, FsError> {
        let (_, hot) = self.state.find_directory(ino)?;
        let (mut after, mut all) = (Some(0), Vec::new());
        while let Some(cookie) = after {
            after = Tree::of(&hot).list(self.state.arena(), cookie, &mut |one| {
                all.push((one.key, one.name.to_vec(), self.state.numbers.ino(one.slot), one.kind));
                true
            })?;
        }
        Ok(all)
    }

    fn reopen(&mut self) {
        self.verify();
        self.state = State::new(VolumeId::MAIN, self.load()).expect("a state");
        for (slot, generation) in self.state.orphans().expect("orphans") {
            self.run(cost::free(1), |tx| tx.free_unheld(slot, generation)).expect("an orphan goes");
        }
    }

    fn findings(&self) -> Vec<Finding> {
        let mut findings = Vec::new();
        check(&self.state, &mut |finding| findings.push(finding));
        findings
    }
}

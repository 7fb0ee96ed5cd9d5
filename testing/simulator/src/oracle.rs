//! Decides whether the state after a crash keeps the promise. The state must be exactly the one after some
//! prefix of the changes, in the order in which they took effect. That prefix must hold every change that a
//! completed sync covers.

use crate::change::{ChangeErrno, ModelChange};
use crate::model::{FsModel, ModelBody, ModelId};
use crate::stack::{SeenBody, SeenTree};
use crash_oracle::{CrashHistory, CrashModel, HistoryMoment, SyncedBytes, WritePath};
use fs::Ino;
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

/// The model's history. The run owns it.
#[derive(Clone)]
pub(crate) struct HistoryOracle {
    history: CrashHistory<FsModel>,
    /// The moments after changes that are not known to be durable with all their bytes, each with the time of
    /// the change's reply.
    answered: VecDeque<(HistoryMoment, Duration)>,
    /// The history of a copy while it is made. It begins at the request for the copy.
    copy: Option<Box<HistoryOracle>>,
}

/// A change that took effect, with its time, and the number of a new inode if the reply told it.
#[derive(Debug, Clone)]
pub(crate) struct ChangeEffect {
    change: ModelChange,
    ino: Option<Ino>,
    at: Option<i64>,
}

impl CrashModel for FsModel {
    type Change = ChangeEffect;
    type File = ModelId;
    type Made = Option<ModelId>;
    type Refusal = ChangeErrno;

    fn apply(&mut self, effect: &ChangeEffect, bypass: WritePath) -> Result<Option<ModelId>, ChangeErrno> {
        self.bypass = bypass;
        let made = self.make(&effect.change, effect.at)?;
        if let Some(id) = made {
            self.get_mut(id).ino = effect.ino;
        }
        Ok(made)
    }

    fn settle_before(&mut self, file: Option<&ModelId>, number: u64) {
        match file {
            Some(file) => self.inodes.get_mut(file).into_iter().for_each(|file| file.settle_before(number)),
            None => self.inodes.values_mut().for_each(|inode| inode.settle_before(number)),
        }
    }

    fn describe(effect: &ChangeEffect) -> String {
        effect.change.describe()
    }
}

/// The place of the recovered state in the history.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct RecoveredPrefix {
    /// Changes since the last completed sync that survived.
    pub(crate) kept: usize,
    /// Changes since the last completed sync that had completed.
    pub(crate) completed: usize,
}

impl HistoryOracle {
    /// The history of an empty, durable file system.
    pub(crate) fn new() -> HistoryOracle {
        HistoryOracle::of(FsModel::new())
    }

    /// A history whose only state is `model`.
    fn of(model: FsModel) -> HistoryOracle {
        HistoryOracle { history: CrashHistory::new(model), answered: VecDeque::new(), copy: None }
    }

    /// The state after all changes: what running programs see.
    pub(crate) fn now(&self) -> &FsModel {
        self.history.now()
    }

    /// A history whose only state is the present one.
    pub(crate) fn as_of_now(&self) -> HistoryOracle {
        let mut now = self.now().clone();
        now.settle_before(None, u64::MAX);
        HistoryOracle::of(now)
    }

    /// Allows writes of whole pages to bypass the buffer from now on. All earlier changes must be durable.
    pub(crate) fn allow_bypassing(&mut self) {
        self.history.allow_bypassing();
    }

    /// Begins the history of a copy: changes from now on may be in the copy, too.
    pub(crate) fn begin_copy(&mut self) {
        self.copy = Some(Box::new(self.as_of_now()));
    }

    /// Ends the history of a copy. Returns it with the number of changes since
    /// [`begin_copy`](HistoryOracle::begin_copy).
    pub(crate) fn end_copy(&mut self) -> (HistoryOracle, u64) {
        let copy = *self.copy.take().expect("a copy was begun");
        let meanwhile = copy.history.unsynced_changes() as u64;
        (copy, meanwhile)
    }

    /// Records that `change` took effect at the time `at` and was answered by `answered`. Returns the inode
    /// that it made. Fails where the model refuses the change.
    pub(crate) fn took_effect(
        &mut self,
        change: ModelChange,
        ino: Option<Ino>,
        at: Option<i64>,
        answered: Duration,
    ) -> Result<Option<ModelId>, ChangeErrno> {
        let effect = ChangeEffect { change, ino, at };
        let made = self.history.record(effect.clone())?;
        if let Some(copy) = &mut self.copy {
            copy.history.record(effect).expect("a copy accepts what its source did");
        }
        self.answered.push_back((self.moment(), answered));
        Ok(made)
    }

    /// The present moment. A sync issued now covers the changes before it.
    pub(crate) fn moment(&self) -> HistoryMoment {
        self.history.moment()
    }

    /// Records that a sync issued at `moment` completed.
    pub(crate) fn synced(&mut self, moment: HistoryMoment, what: SyncedBytes<ModelId>) {
        self.history.synced(moment, what);
    }

    /// Records that all changes answered by the time `answered` are durable.
    pub(crate) fn durable_until(&mut self, answered: Duration) {
        let older = self.answered.iter().take_while(|(_, one)| *one <= answered).count();
        let newest = self.answered.drain(..older).next_back();
        if let Some((after, _)) = newest {
            self.synced(after, SyncedBytes::All);
        }
    }

    /// Finds the prefix whose state is `seen`, and goes on from there. `outstanding` are the changes whose
    /// outcome no client was told.
    pub(crate) fn recovered(
        &mut self,
        seen: &SeenTree,
        outstanding: &[ModelChange],
    ) -> Result<RecoveredPrefix, String> {
        let completed = self.history.unsynced_changes();
        let mut comparison = ModelComparison::new(seen);
        match self.history.find(|model| comparison.difference(model)) {
            Ok(found) => {
                self.go_on(found.model, &comparison);
                Ok(RecoveredPrefix { kept: found.kept, completed })
            }
            Err(mut none) => {
                none.newest.bypass = self.history.next_write_path();
                let with_some = with_some_of(&none.newest, outstanding, seen);
                let (model, comparison) = with_some.ok_or(none.report)?;
                self.go_on(model, &comparison);
                Ok(RecoveredPrefix { kept: completed, completed })
            }
        }
    }

    fn go_on(&mut self, mut model: FsModel, comparison: &ModelComparison<'_>) {
        model.drop_nameless();
        for (id, &ino) in &comparison.pairs {
            let inode = model.inodes.get_mut(id).expect("compared inodes are in the model");
            inode.ino = Some(ino);
            inode.times.learn(&comparison.seen.0[&ino].attributes);
            if let (ModelBody::File(file), SeenBody::File(bytes)) =
                (&mut inode.body, &comparison.seen.0[&ino].body)
            {
                file.found(bytes);
            }
        }
        self.history.restart(model);
        self.answered.clear();
    }
}

/// Finds a model in which some of `outstanding` took effect, in some order, and that equals `seen`. Tries one
/// order only of two successive writes that do not overlap.
fn with_some_of<'a>(
    model: &FsModel,
    outstanding: &[ModelChange],
    seen: &'a SeenTree,
) -> Option<(FsModel, ModelComparison<'a>)> {
    let all: Vec<(usize, &ModelChange)> = outstanding.iter().enumerate().collect();
    with_some_after(model, None, &all, seen)
}

fn with_some_after<'a>(
    model: &FsModel,
    last: Option<(usize, &ModelChange)>,
    left: &[(usize, &ModelChange)],
    seen: &'a SeenTree,
) -> Option<(FsModel, ModelComparison<'a>)> {
    left.iter().find_map(|&(number, change)| {
        if last.is_some_and(|(before, last)| number < before && last.is_write_apart_from(change)) {
            return None;
        }
        let mut with = model.clone();
        with.make(change, None).ok()?;
        let mut comparison = ModelComparison::new(seen);
        if comparison.difference(&with).is_none() {
            return Some((with, comparison));
        }
        let rest: Vec<_> = left.iter().filter(|(other, _)| *other != number).copied().collect();
        with_some_after(&with, Some((number, change)), &rest, seen)
    })
}

/// A comparison of one recovered file system with several models of one history.
struct ModelComparison<'a> {
    seen: &'a SeenTree,
    /// The inode number of each model inode, in the newest comparison.
    pairs: BTreeMap<ModelId, Ino>,
    /// Results of earlier comparisons of contents. Most files are the same in all models.
    compared: BTreeMap<(ModelId, u64, Ino), Option<String>>,
}

impl<'a> ModelComparison<'a> {
    fn new(seen: &'a SeenTree) -> ModelComparison<'a> {
        ModelComparison { seen, pairs: BTreeMap::new(), compared: BTreeMap::new() }
    }

    /// Describes the first difference.
    fn difference(&mut self, model: &FsModel) -> Option<String> {
        self.pairs.clear();
        let mut wanted = vec![(ModelId::ROOT, Ino::ROOT, String::new())];
        while let Some((id, ino, path)) = wanted.pop() {
            match self.pairs.insert(id, ino) {
                Some(before) if before != ino => {
                    return Some(format!("{path}: two names of {id:?} lead to {before:?} and {ino:?}"));
                }
                Some(_) => continue,
                None => {}
            }
            if let Some(difference) = self.inode_difference(model, id, ino) {
                return Some(format!("{path}/: {difference}"));
            }
            if let (ModelBody::Directory { names, .. }, SeenBody::Directory(seen)) =
                (&model.get(id).body, &self.seen.0[&ino].body)
            {
                if let Some(difference) = names_difference(names, seen) {
                    return Some(format!("{path}/: {difference}"));
                }
                let below = names.iter().zip(seen.values());
                wanted.extend(
                    below.map(|((name, &id), &ino)| (id, ino, format!("{path}/{}", name.escape_ascii()))),
                );
            }
        }
        None
    }

    fn inode_difference(&mut self, model: &FsModel, id: ModelId, ino: Ino) -> Option<String> {
        let (inode, seen) = (model.get(id), &self.seen.0[&ino]);
        let found = &seen.attributes;
        if found.kind != inode.body.kind() {
            return Some(format!("is a {:?}, expected a {:?}", found.kind, inode.body.kind()));
        }
        if inode.ino.is_some_and(|known| known != ino) {
            return Some(format!("its number is {ino:?}, and was {:?}", inode.ino));
        }
        if found.mode != inode.mode {
            return Some(format!("mode {:o}, expected {:o}", found.mode, inode.mode));
        }
        if (found.uid, found.gid) != (inode.uid, inode.gid) {
            let (owner, expected) = ((found.uid, found.gid), (inode.uid, inode.gid));
            return Some(format!("it belongs to {owner:?}, expected {expected:?}"));
        }
        if let Some(difference) = inode.times.difference(found) {
            return Some(difference);
        }
        let links = expected_links(model, id);
        if found.links != links {
            return Some(format!("{} links, expected {links}", found.links));
        }
        if let Some(difference) = xattr_difference(&inode.xattrs, &seen.xattrs) {
            return Some(difference);
        }
        match (&inode.body, &seen.body) {
            (ModelBody::Node(_, expected), SeenBody::Node(found)) if expected != found => {
                Some(format!("is the device {found}, expected {expected}"))
            }
            (ModelBody::File(file), SeenBody::File(bytes)) => {
                let compared = self.compared.entry((id, file.version(), ino));
                compared.or_insert_with(|| file.difference(bytes)).clone()
            }
            (ModelBody::Symlink(target), SeenBody::Symlink(found)) if target != found => {
                Some(format!("leads to {}, expected {}", found.escape_ascii(), target.escape_ascii()))
            }
            _ => None,
        }
    }
}

/// Describes the first extended attribute that differs.
pub(crate) fn xattr_difference(
    expected: &BTreeMap<Vec<u8>, Vec<u8>>,
    found: &BTreeMap<Vec<u8>, Vec<u8>>,
) -> Option<String> {
    let name = expected.keys().chain(found.keys()).find(|name| expected.get(*name) != found.get(*name))?;
    let show = |value: Option<&Vec<u8>>| match value {
        Some(value) => format!("{} bytes: {:02x?}…", value.len(), &value[..value.len().min(40)]),
        None => "nothing".to_owned(),
    };
    let (expected, found) = (show(expected.get(name)), show(found.get(name)));
    Some(format!("{} is {found}, expected {expected}", name.escape_ascii()))
}

/// The link count that `stat` must report. A directory counts its own `.` and the `..` of its subdirectories.
pub(crate) fn expected_links(model: &FsModel, id: ModelId) -> u32 {
    let inode = model.get(id);
    match inode.body {
        ModelBody::Directory { .. } if inode.links > 0 => 2 + model.subdirectories(id),
        _ => inode.links,
    }
}

fn names_difference(expected: &BTreeMap<Vec<u8>, ModelId>, found: &BTreeMap<Vec<u8>, Ino>) -> Option<String> {
    if let Some(name) = expected.keys().find(|name| !found.contains_key(*name)) {
        return Some(format!("{} is missing", name.escape_ascii()));
    }
    let name = found.keys().find(|name| !expected.contains_key(*name))?;
    Some(format!("{} should not be there", name.escape_ascii()))
}

#[cfg(test)]
mod tests {
    use super::super::stack::SeenInode;
    use super::*;
    use crate::model::CALLER;
    use crash_oracle::BypassScope;
    use fs::{FileAttributes, FileKind};
    use std::sync::Arc;

    fn attributes(ino: Ino, kind: FileKind, size: u64) -> FileAttributes {
        let (mode, links) = if kind == FileKind::Directory { (0o755, 2) } else { (0o600, 1) };
        let (generation, stored_bytes, uid, gid) = (0, 0, CALLER.uid, CALLER.gid);
        let (accessed, modified, changed, created) = (0, 0, 0, 0);
        FileAttributes {
            ino,
            generation,
            kind,
            size,
            stored_bytes,
            mode,
            links,
            uid,
            gid,
            device: 0,
            accessed,
            modified,
            changed,
            created,
        }
    }

    /// A root with one file.
    fn seen(name: &[u8], content: &[u8]) -> SeenTree {
        let file = Ino(7);
        let root = SeenInode {
            attributes: attributes(Ino::ROOT, FileKind::Directory, 0),
            body: SeenBody::Directory(BTreeMap::from([(name.to_vec(), file)])),
            xattrs: BTreeMap::new(),
        };
        let inode = SeenInode {
            attributes: attributes(file, FileKind::File, content.len() as u64),
            body: SeenBody::File(content.to_vec()),
            xattrs: BTreeMap::new(),
        };
        SeenTree(BTreeMap::from([(Ino::ROOT, root), (file, inode)]))
    }

    fn write(file: ModelId, offset: u64, byte: u8) -> ModelChange {
        ModelChange::Write { file, offset, bytes: Arc::new(vec![byte]), bypasses: BypassScope::Nothing }
    }

    /// An oracle that saw a file made and synced, then two bytes written to it.
    fn history() -> (HistoryOracle, ModelId) {
        let mut oracle = HistoryOracle::new();
        let make = ModelChange::Make {
            parent: ModelId::ROOT,
            name: b"a".to_vec(),
            kind: FileKind::File,
            mode: 0o600,
        };
        let file = oracle
            .took_effect(make, Some(Ino(7)), None, Duration::ZERO)
            .expect("legal")
            .expect("a file is made");
        oracle.synced(oracle.moment(), SyncedBytes::All);
        oracle.took_effect(write(file, 0, 1), None, None, Duration::ZERO).expect("legal");
        oracle.took_effect(write(file, 1, 2), None, None, Duration::ZERO).expect("legal");
        (oracle, file)
    }

    #[test]
    fn every_prefix_since_the_sync_is_found_and_nothing_else() {
        for (content, kept) in [(&[0u8; 0] as &[u8], 0), (&[1], 1), (&[1, 2], 2)] {
            let found = history().0.recovered(&seen(b"a", content), &[]).expect("a prefix");
            assert_eq!(found, RecoveredPrefix { kept, completed: 2 });
        }
        for content in [&[0u8, 2] as &[u8], &[2], &[1, 2, 0]] {
            assert!(history().0.recovered(&seen(b"a", content), &[]).is_err(), "{content:?} is no prefix");
        }
        assert!(history().0.recovered(&seen(b"b", &[1]), &[]).is_err(), "the name is wrong");
    }

    #[test]
    fn an_outstanding_change_may_be_there_or_not() {
        for (content, legal) in [(&[1u8, 2] as &[u8], true), (&[1, 2, 3], true), (&[1, 0, 3], false)] {
            let (mut oracle, file) = history();
            let found = oracle.recovered(&seen(b"a", content), &[write(file, 2, 3)]);
            assert_eq!(found.is_ok(), legal, "{content:?}");
        }
    }
}

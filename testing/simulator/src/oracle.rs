//! Decides whether the state after a crash keeps the promise. The state of all mounted volumes together must be
//! exactly the one after some prefix of the changes, in the order in which they took effect. That prefix must
//! hold every change that a completed sync covers.

use crate::change::{ChangeErrno, ModelChange};
use crate::model::{FsModel, ModelBody, ModelId};
use crate::stack::{SeenBody, SeenTree};
use crash_oracle::{CrashHistory, CrashModel, HistoryMoment, SyncedBytes, WritePath};
use fs::Ino;
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;
use store::VolumeId;

/// The joint history of all mounted volumes. The run owns it.
#[derive(Clone)]
pub(crate) struct HistoryOracle {
    history: CrashHistory<BTreeMap<VolumeId, FsModel>>,
    /// The moments after changes that are not known to be durable with all their bytes, each with the time of
    /// the change's reply.
    answered: VecDeque<(HistoryMoment, Duration)>,
    /// A volume, and the history of its copy while the copy is made. It begins at the request for the copy.
    copy: Option<(VolumeId, CrashHistory<FsModel>)>,
}

/// The possible states of a volume that is not mounted. More than one state is possible until the first
/// comparison.
#[derive(Clone)]
pub(crate) struct UnmountedStates {
    history: CrashHistory<FsModel>,
    /// Changes whose outcome no client was told.
    outstanding: Vec<ModelChange>,
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
    /// The history of one volume, with an empty, durable file system.
    pub(crate) fn new(volume: VolumeId) -> HistoryOracle {
        let history = CrashHistory::new(BTreeMap::from([(volume, FsModel::new())]));
        HistoryOracle { history, answered: VecDeque::new(), copy: None }
    }

    /// The state of a mounted volume after all changes: what running programs see.
    pub(crate) fn now(&self, volume: VolumeId) -> &FsModel {
        &self.history.now()[&volume]
    }

    /// The bytes of all regular files in all mounted volumes.
    pub(crate) fn bytes(&self) -> u64 {
        self.history.now().values().map(FsModel::bytes).sum()
    }

    /// The present state of a mounted volume, alone or with some of `outstanding`.
    pub(crate) fn as_of_now(&self, volume: VolumeId, outstanding: Vec<ModelChange>) -> UnmountedStates {
        let mut now = self.now(volume).clone();
        now.settle_before(None, u64::MAX);
        UnmountedStates { history: CrashHistory::new(now), outstanding }
    }

    /// Allows writes of whole pages to bypass the buffer from now on. All earlier changes must be durable.
    pub(crate) fn allow_bypassing(&mut self) {
        self.history.allow_bypassing();
    }

    /// Adds a volume, which is mounted now. Its only possible state is `model`.
    pub(crate) fn mount(&mut self, volume: VolumeId, model: FsModel) {
        self.history.add(volume, model);
    }

    /// Removes a volume, which is not mounted any more. All of its changes are durable.
    pub(crate) fn unmount(&mut self, volume: VolumeId) -> UnmountedStates {
        UnmountedStates::of(self.history.remove(&volume))
    }

    /// Begins the history of a copy: changes of the volume from now on may be in the copy, too.
    pub(crate) fn begin_copy(&mut self, volume: VolumeId) {
        self.copy = Some((volume, self.as_of_now(volume, Vec::new()).history));
    }

    /// Ends the history of a copy, which may also have some of `outstanding`. Returns it with the number of
    /// changes since [`begin_copy`](HistoryOracle::begin_copy).
    pub(crate) fn end_copy(&mut self, outstanding: Vec<ModelChange>) -> (UnmountedStates, u64) {
        let (_, history) = self.copy.take().expect("a copy was begun");
        let meanwhile = history.unsynced_changes() as u64;
        (UnmountedStates { history, outstanding }, meanwhile)
    }

    /// Records that `change` of a mounted volume took effect at the time `at` and was answered by `answered`.
    /// Returns the inode that it made. Fails where the model refuses the change.
    pub(crate) fn took_effect(
        &mut self,
        (volume, change): (VolumeId, ModelChange),
        ino: Option<Ino>,
        at: Option<i64>,
        answered: Duration,
    ) -> Result<Option<ModelId>, ChangeErrno> {
        let effect = ChangeEffect { change, ino, at };
        let made = self.history.record((volume, effect.clone()))?;
        if let Some((_, copy)) = self.copy.as_mut().filter(|(source, _)| *source == volume) {
            copy.record(effect).expect("a copy accepts what its source did");
        }
        self.answered.push_back((self.moment(), answered));
        Ok(made)
    }

    /// The present moment. A sync issued now covers the changes before it.
    pub(crate) fn moment(&self) -> HistoryMoment {
        self.history.moment()
    }

    /// Records that a sync issued at `moment` completed.
    pub(crate) fn synced(&mut self, moment: HistoryMoment, what: SyncedBytes<(VolumeId, Option<ModelId>)>) {
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

    /// Finds the prefix whose state is `seen` in all volumes, and goes on from there. `outstanding` are the
    /// changes whose outcome no client was told.
    pub(crate) fn recovered(
        &mut self,
        seen: &BTreeMap<VolumeId, SeenTree>,
        outstanding: &[(VolumeId, ModelChange)],
    ) -> Result<RecoveredPrefix, String> {
        assert!(seen.keys().eq(self.history.now().keys()), "every mounted volume is compared");
        let completed = self.history.unsynced_changes();
        let mut comparisons: BTreeMap<VolumeId, ModelComparison<'_>> =
            seen.iter().map(|(&volume, seen)| (volume, ModelComparison::new(seen))).collect();
        let found = self.history.find(|models| {
            let pairs = models.iter().zip(comparisons.values_mut());
            pairs.into_iter().find_map(|((volume, model), comparison)| {
                Some(format!("volume {volume}: {}", comparison.difference(model)?))
            })
        });
        let (models, kept) = match found {
            Ok(found) => {
                let pairs = found.model.into_iter().zip(comparisons.values());
                (
                    pairs.map(|((volume, model), comparison)| (volume, comparison.learn(model))).collect(),
                    found.kept,
                )
            }
            // Nobody knows the order of outstanding changes in different volumes.
            Err(none) => {
                let bypass = self.history.next_write_path();
                let with_some = none.newest.into_iter().map(|(volume, mut model)| {
                    let of_volume = outstanding.iter().filter(|(other, _)| *other == volume);
                    let of_volume: Vec<ModelChange> = of_volume.map(|(_, change)| change.clone()).collect();
                    model.bypass = bypass;
                    Some((volume, with_some_of(&model, &of_volume, &seen[&volume])?))
                });
                (with_some.collect::<Option<_>>().ok_or(none.report)?, completed)
            }
        };
        self.history.restart(models);
        self.answered.clear();
        Ok(RecoveredPrefix { kept, completed })
    }
}

impl UnmountedStates {
    /// The only possible state is `model`.
    pub(crate) fn of(model: FsModel) -> UnmountedStates {
        UnmountedStates { history: CrashHistory::new(model), outstanding: Vec::new() }
    }

    /// Whether only one state is possible.
    pub(crate) fn is_known(&self) -> bool {
        self.history.unsynced_changes() == 0 && self.outstanding.is_empty()
    }

    /// Finds the state that is `seen`. From then on no other state is possible.
    pub(crate) fn compare(&mut self, seen: &SeenTree) -> Result<RecoveredPrefix, String> {
        let completed = self.history.unsynced_changes();
        let mut comparison = ModelComparison::new(seen);
        let (model, kept) = match self.history.find(|model| comparison.difference(model)) {
            Ok(found) => (comparison.learn(found.model), found.kept),
            Err(mut none) => {
                none.newest.bypass = self.history.next_write_path();
                (with_some_of(&none.newest, &self.outstanding, seen).ok_or(none.report)?, completed)
            }
        };
        self.history.restart(model);
        self.outstanding.clear();
        Ok(RecoveredPrefix { kept, completed })
    }

    /// The only possible state, if there is only one.
    pub(crate) fn known(&self) -> Option<&FsModel> {
        self.is_known().then(|| self.history.now())
    }

    /// The state that the last comparison found.
    pub(crate) fn into_model(self) -> FsModel {
        self.history.now().clone()
    }
}

/// Finds a model in which none or some of `outstanding` took effect, in some order, and that equals `seen`.
/// Tries one order only of two successive writes that do not overlap.
fn with_some_of(model: &FsModel, outstanding: &[ModelChange], seen: &SeenTree) -> Option<FsModel> {
    let all: Vec<(usize, &ModelChange)> = outstanding.iter().enumerate().collect();
    with_some_after(model, None, &all, seen)
}

fn with_some_after(
    model: &FsModel,
    last: Option<(usize, &ModelChange)>,
    left: &[(usize, &ModelChange)],
    seen: &SeenTree,
) -> Option<FsModel> {
    let mut comparison = ModelComparison::new(seen);
    if comparison.difference(model).is_none() {
        return Some(comparison.learn(model.clone()));
    }
    left.iter().find_map(|&(number, change)| {
        if last.is_some_and(|(before, last)| number < before && last.is_write_apart_from(change)) {
            return None;
        }
        let mut with = model.clone();
        with.make(change, None).ok()?;
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

    /// Takes what was seen over into the model of the newest comparison, which found no difference.
    fn learn(&self, mut model: FsModel) -> FsModel {
        model.drop_nameless();
        for (id, &ino) in &self.pairs {
            let inode = model.inodes.get_mut(id).expect("compared inodes are in the model");
            inode.ino = Some(ino);
            inode.times.learn(&self.seen.0[&ino].attributes);
            if let (ModelBody::File(file), SeenBody::File(bytes)) = (&mut inode.body, &self.seen.0[&ino].body)
            {
                file.found(bytes);
            }
        }
        model
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
    fn seen(name: &[u8], content: &[u8]) -> BTreeMap<VolumeId, SeenTree> {
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
        BTreeMap::from([(VolumeId::MAIN, SeenTree(BTreeMap::from([(Ino::ROOT, root), (file, inode)])))])
    }

    fn write(file: ModelId, offset: u64, byte: u8) -> ModelChange {
        ModelChange::Write { file, offset, bytes: Arc::new(vec![byte]), bypasses: BypassScope::Nothing }
    }

    /// An oracle that saw a file made and synced, then two bytes written to it.
    fn history() -> (HistoryOracle, ModelId) {
        let mut oracle = HistoryOracle::new(VolumeId::MAIN);
        let make = ModelChange::Make {
            parent: ModelId::ROOT,
            name: b"a".to_vec(),
            kind: FileKind::File,
            mode: 0o600,
        };
        let file = oracle
            .took_effect((VolumeId::MAIN, make), Some(Ino(7)), None, Duration::ZERO)
            .expect("legal")
            .expect("a file is made");
        oracle.synced(oracle.moment(), SyncedBytes::All);
        oracle.took_effect((VolumeId::MAIN, write(file, 0, 1)), None, None, Duration::ZERO).expect("legal");
        oracle.took_effect((VolumeId::MAIN, write(file, 1, 2)), None, None, Duration::ZERO).expect("legal");
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
            let found = oracle.recovered(&seen(b"a", content), &[(VolumeId::MAIN, write(file, 2, 3))]);
            assert_eq!(found.is_ok(), legal, "{content:?}");
        }
    }
}

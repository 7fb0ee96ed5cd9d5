//! Decides whether what is there after a crash keeps the promise: it is exactly the state after some prefix of the
//! changes, in the order in which they took effect, and that prefix holds everything that a completed sync covers.

use crate::change::{Change, Refusal};
use crate::model::{Body, Id, Model};
use crate::stack::{Seen, SeenBody};
use fs::Ino;
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

/// Why a history can be replayed.
const REPLAYS: &str = "the model accepted it when it happened";
/// How many candidates a report shows.
const CANDIDATES_SHOWN: usize = 12;

/// The model's history. Owned by the run.
#[derive(Clone)]
pub(crate) struct Oracle {
    /// The state that must at least be there: everything before the last completed sync was issued.
    durable: Model,
    /// What took effect since, oldest first.
    since: VecDeque<Effect>,
    /// The state after all of them: what running programs see.
    pub(crate) now: Model,
    /// Number of the first change in `since`, counted from the start of the run.
    first: u64,
    /// Changes that are not known to be durable with all their bytes, by their numbers, and when their clients were answered.
    answered: VecDeque<(u64, Duration)>,
    /// While a copy is made: its history, which begins when it was asked for.
    copy: Option<Box<Oracle>>,
}

/// A change that took effect, when, and the number of the inode that it made, if it made one and the reply said so.
#[derive(Debug, Clone)]
struct Effect {
    change: Change,
    ino: Option<Ino>,
    at: Option<i64>,
}

/// A moment in the history: the number of changes before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Moment(u64);

/// What a sync is of, beside everything that is logged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Synced {
    Logged,
    /// All bytes of one file.
    File(Id),
    /// Everything.
    All,
}

/// Where in the history the recovered state lies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Found {
    /// Changes since the last completed sync that survived.
    pub(crate) kept: usize,
    /// Changes since then that had completed.
    pub(crate) completed: usize,
}

impl Oracle {
    /// An empty, durable file system.
    pub(crate) fn new() -> Oracle {
        Oracle::of(Model::new())
    }

    /// One of which nothing but `model` was ever there.
    fn of(model: Model) -> Oracle {
        let first = model.number;
        Oracle {
            durable: model.clone(),
            since: VecDeque::new(),
            now: model,
            first,
            answered: VecDeque::new(),
            copy: None,
        }
    }

    /// That of what is nothing but what programs see now.
    pub(crate) fn as_of_now(&self) -> Oracle {
        let mut now = self.now.clone();
        now.settle_before(u64::MAX);
        now.bypasses = false;
        Oracle::of(now)
    }

    /// Whole pages that are written may bypass the buffer from now on. All before is durable.
    pub(crate) fn allow_bypassing(&mut self) {
        assert!(self.since.is_empty(), "what comes before was made under another rule");
        (self.now.bypasses, self.durable.bypasses) = (true, true);
    }

    /// From now on, what takes effect may be in a copy, too.
    pub(crate) fn begin_copy(&mut self) {
        self.copy = Some(Box::new(self.as_of_now()));
    }

    /// The copy is made: what it may be, and how many changes took effect since [`begin_copy`](Oracle::begin_copy).
    pub(crate) fn end_copy(&mut self) -> (Oracle, u64) {
        let copy = *self.copy.take().expect("a copy was begun");
        let meanwhile = copy.since.len() as u64;
        (copy, meanwhile)
    }

    /// `change` took effect at the time `at` and was answered by `answered`; refuses it where the model says that it cannot have.
    /// Returns the inode that it made.
    pub(crate) fn took_effect(
        &mut self,
        change: Change,
        ino: Option<Ino>,
        at: Option<i64>,
        answered: Duration,
    ) -> Result<Option<Id>, Refusal> {
        let effect = Effect { change, ino, at };
        let made = replay(&mut self.now, &effect)?;
        if let Some(copy) = &mut self.copy {
            replay(&mut copy.now, &effect).expect(REPLAYS);
            copy.since.push_back(effect.clone());
        }
        self.answered.push_back((self.moment().0, answered));
        self.since.push_back(effect);
        Ok(made)
    }

    /// Now: what a sync that is issued here covers.
    pub(crate) fn moment(&self) -> Moment {
        Moment(self.first + self.since.len() as u64)
    }

    /// A sync of this that was issued at `moment` completed.
    pub(crate) fn synced(&mut self, moment: Moment, what: Synced) {
        while self.first < moment.0 {
            let effect = self.since.pop_front().expect("a moment lies in the history");
            replay(&mut self.durable, &effect).expect(REPLAYS);
            self.first += 1;
        }
        match what {
            Synced::Logged => {}
            Synced::File(file) => {
                let file = self.durable.inodes.get_mut(&file).into_iter();
                file.for_each(|file| file.settle_before(moment.0));
            }
            Synced::All => self.durable.settle_before(moment.0),
        }
    }

    /// Everything that was answered until then is durable.
    pub(crate) fn durable_until(&mut self, answered: Duration) {
        let older = self.answered.iter().take_while(|(_, one)| *one <= answered).count();
        let newest = self.answered.drain(..older).next_back();
        if let Some((last, _)) = newest {
            self.synced(Moment(last + 1), Synced::All);
        }
    }

    /// Finds the prefix that `seen` is, and goes on from there. `outstanding` are the changes whose outcome nobody
    /// was told.
    pub(crate) fn recovered(&mut self, seen: &Seen, outstanding: &[Change]) -> Result<Found, String> {
        let completed = self.since.len();
        let mut comparison = Comparison::new(seen);
        let mut model = self.durable.clone();
        let mut differences = Vec::new();
        for kept in 0..=completed {
            match comparison.difference(&model) {
                None => return Ok(self.go_on(model, &comparison, Found { kept, completed })),
                Some(difference) => differences.push(difference),
            }
            if let Some(effect) = self.since.get(kept) {
                replay(&mut model, effect).expect(REPLAYS);
            }
        }
        match with_some_of(&model, outstanding, seen) {
            Some((model, comparison)) => {
                Ok(self.go_on(model, &comparison, Found { kept: completed, completed }))
            }
            None => Err(self.explain(&differences)),
        }
    }

    fn go_on(&mut self, mut model: Model, comparison: &Comparison<'_>, found: Found) -> Found {
        model.drop_nameless();
        for (id, &ino) in &comparison.pairs {
            let inode = model.inodes.get_mut(id).expect("compared inodes are in the model");
            inode.ino = Some(ino);
            inode.times.learn(&comparison.seen.0[&ino].attributes);
            if let SeenBody::File(bytes) = &comparison.seen.0[&ino].body {
                inode.found(bytes);
            }
        }
        self.first += self.since.len() as u64;
        model.number = self.first;
        self.since.clear();
        self.answered.clear();
        self.now = model.clone();
        self.durable = model;
        found
    }

    fn explain(&self, differences: &[String]) -> String {
        let mut text = String::from("what is there is the state after no prefix of the history:\n");
        let skipped = differences.len().saturating_sub(CANDIDATES_SHOWN);
        for (kept, difference) in differences.iter().enumerate() {
            if kept == 0 || kept > skipped {
                let base = if kept == 0 { " (the last completed sync)" } else { "" };
                text += &format!("  after change {kept}{base}: {difference}\n");
            }
            if let Some(effect) = self.since.get(kept).filter(|_| kept >= skipped) {
                text += &format!("    then change {}: {}\n", kept + 1, effect.change.describe());
            }
        }
        text
    }
}

fn replay(model: &mut Model, effect: &Effect) -> Result<Option<Id>, Refusal> {
    let made = model.apply(&effect.change, effect.at)?;
    if let Some(id) = made {
        model.inodes.get_mut(&id).expect("it was just made").ino = effect.ino;
    }
    Ok(made)
}

/// A model in which some of `outstanding`, in some order, took effect, too. Of two writes in a row that do not overlap one order is tried.
fn with_some_of<'a>(
    model: &Model,
    outstanding: &[Change],
    seen: &'a Seen,
) -> Option<(Model, Comparison<'a>)> {
    let all: Vec<(usize, &Change)> = outstanding.iter().enumerate().collect();
    with_some_after(model, None, &all, seen)
}

fn with_some_after<'a>(
    model: &Model,
    last: Option<(usize, &Change)>,
    left: &[(usize, &Change)],
    seen: &'a Seen,
) -> Option<(Model, Comparison<'a>)> {
    left.iter().find_map(|&(number, change)| {
        if last.is_some_and(|(before, last)| number < before && last.is_write_apart_from(change)) {
            return None;
        }
        let mut with = model.clone();
        with.apply(change, None).ok()?;
        let mut comparison = Comparison::new(seen);
        if comparison.difference(&with).is_none() {
            return Some((with, comparison));
        }
        let rest: Vec<_> = left.iter().filter(|(other, _)| *other != number).copied().collect();
        with_some_after(&with, Some((number, change)), &rest, seen)
    })
}

/// A comparison of one recovered file system with several models of one history.
struct Comparison<'a> {
    seen: &'a Seen,
    /// Which inode is which, in the newest comparison.
    pairs: BTreeMap<Id, Ino>,
    /// Contents compared already: most files are the same in all models.
    compared: BTreeMap<(Id, u64, Ino), Option<String>>,
}

impl<'a> Comparison<'a> {
    fn new(seen: &'a Seen) -> Comparison<'a> {
        Comparison { seen, pairs: BTreeMap::new(), compared: BTreeMap::new() }
    }

    /// The first difference found, in words.
    fn difference(&mut self, model: &Model) -> Option<String> {
        self.pairs.clear();
        let mut wanted = vec![(Id::ROOT, Ino::ROOT, String::new())];
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
            if let (Body::Directory { names, .. }, SeenBody::Directory(seen)) =
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

    fn inode_difference(&mut self, model: &Model, id: Id, ino: Ino) -> Option<String> {
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
            (Body::Node(_, expected), SeenBody::Node(found)) if expected != found => {
                Some(format!("is the device {found}, expected {expected}"))
            }
            (Body::File(_), SeenBody::File(bytes)) => {
                let compared = self.compared.entry((id, inode.version, ino));
                compared.or_insert_with(|| inode.loose.difference(inode.content(), bytes)).clone()
            }
            (Body::Symlink(target), SeenBody::Symlink(found)) if target != found => {
                Some(format!("leads to {}, expected {}", found.escape_ascii(), target.escape_ascii()))
            }
            _ => None,
        }
    }
}

/// The first extended attribute that differs.
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

/// The link count that `stat` must tell: a directory counts its own dot and its children's dot-dots.
pub(crate) fn expected_links(model: &Model, id: Id) -> u32 {
    let inode = model.get(id);
    match inode.body {
        Body::Directory { .. } if inode.links > 0 => 2 + model.subdirectories(id),
        _ => inode.links,
    }
}

fn names_difference(expected: &BTreeMap<Vec<u8>, Id>, found: &BTreeMap<Vec<u8>, Ino>) -> Option<String> {
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
    fn seen(name: &[u8], content: &[u8]) -> Seen {
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
        Seen(BTreeMap::from([(Ino::ROOT, root), (file, inode)]))
    }

    fn write(file: Id, offset: u64, byte: u8) -> Change {
        Change::Write { file, offset, bytes: Arc::new(vec![byte]), bypasses: false }
    }

    /// An oracle that saw a file made, synced, and two bytes written to it.
    fn history() -> (Oracle, Id) {
        let mut oracle = Oracle::new();
        let make = Change::Make { parent: Id::ROOT, name: b"a".to_vec(), kind: FileKind::File, mode: 0o600 };
        let file = oracle
            .took_effect(make, Some(Ino(7)), None, Duration::ZERO)
            .expect("legal")
            .expect("a file is made");
        oracle.synced(oracle.moment(), Synced::All);
        oracle.took_effect(write(file, 0, 1), None, None, Duration::ZERO).expect("legal");
        oracle.took_effect(write(file, 1, 2), None, None, Duration::ZERO).expect("legal");
        (oracle, file)
    }

    #[test]
    fn every_prefix_since_the_sync_is_found_and_nothing_else() {
        for (content, kept) in [(&[0u8; 0] as &[u8], 0), (&[1], 1), (&[1, 2], 2)] {
            let found = history().0.recovered(&seen(b"a", content), &[]).expect("a prefix");
            assert_eq!(found, Found { kept, completed: 2 });
        }
        for content in [&[0u8, 2] as &[u8], &[2], &[1, 2, 0]] {
            assert!(history().0.recovered(&seen(b"a", content), &[]).is_err(), "{content:?} is no prefix");
        }
        assert!(history().0.recovered(&seen(b"b", &[1]), &[]).is_err(), "the name is wrong");
    }

    #[test]
    fn what_was_synced_must_be_there() {
        let (mut oracle, _) = history();
        oracle.synced(oracle.moment(), Synced::All);
        assert!(oracle.recovered(&seen(b"a", &[1]), &[]).is_err());
        assert!(oracle.recovered(&seen(b"a", &[1, 2]), &[]).is_ok());
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

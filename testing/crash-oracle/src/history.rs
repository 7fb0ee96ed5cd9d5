//! The changes of a model in their order, and the search for the prefix that a crash has left.

use crate::crash_file::WritePath;
use std::collections::{BTreeMap, VecDeque};
use std::fmt::{Debug, Display};

/// The number of prefixes that a report shows.
const PREFIXES_SHOWN: usize = 12;

/// A plain model of the files under test. Each change turns one state into the next.
pub trait CrashModel: Clone {
    /// A change, of the model and of the files.
    type Change: Clone;
    /// The model's name for a file.
    type File;
    /// What a change made, for the test.
    type Made;
    /// The reason why a change is impossible.
    type Refusal: Debug;

    /// Makes a change. `path` is the path of bytes that may bypass the log; others are logged.
    fn apply(&mut self, change: &Self::Change, path: WritePath) -> Result<Self::Made, Self::Refusal>;

    /// Makes all bytes certain that changes before `number` wrote: to one file, or to all.
    fn settle_before(&mut self, file: Option<&Self::File>, number: u64);

    /// Describes a change in words, for a report.
    fn describe(change: &Self::Change) -> String;
}

/// Several models with one history: each change belongs to one of them, and one prefix must explain all.
impl<K: Ord + Clone + Display, M: CrashModel> CrashModel for BTreeMap<K, M> {
    type Change = (K, M::Change);
    /// A file of one model, or all of its files.
    type File = (K, Option<M::File>);
    type Made = M::Made;
    type Refusal = M::Refusal;

    fn apply(&mut self, (key, change): &(K, M::Change), path: WritePath) -> Result<M::Made, M::Refusal> {
        self.get_mut(key).expect("a change belongs to a model of the history").apply(change, path)
    }

    fn settle_before(&mut self, file: Option<&(K, Option<M::File>)>, number: u64) {
        match file {
            None => self.values_mut().for_each(|model| model.settle_before(None, number)),
            Some((key, file)) => {
                let model = self.get_mut(key).into_iter();
                model.for_each(|model| model.settle_before(file.as_ref(), number));
            }
        }
    }

    fn describe((key, change): &(K, M::Change)) -> String {
        format!("in {key}: {}", M::describe(change))
    }
}

/// A moment in a history: the number of changes before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HistoryMoment(u64);

impl HistoryMoment {
    /// The number of changes before this moment, from the start of the history on.
    pub fn changes(self) -> u64 {
        self.0
    }
}

/// The bytes that a sync covers. Every sync also covers the order: all earlier changes, except for bytes that
/// were written past the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SyncedBytes<F> {
    /// No bytes that were written past the log.
    Logged,
    /// All bytes of one file.
    File(F),
    /// All bytes of all files.
    All,
}

/// A prefix of the history whose state was found.
#[derive(Debug, Clone)]
pub struct FoundPrefix<M> {
    /// The changes of the prefix since the last answered sync was issued.
    pub kept: usize,
    /// The end of the prefix.
    pub moment: HistoryMoment,
    /// The state after the prefix.
    pub model: M,
}

/// The answer that no prefix has the state that was found.
#[derive(Debug)]
pub struct NoPrefix<M> {
    /// The state after all changes.
    pub newest: M,
    /// How each prefix differs, in words.
    pub report: String,
}

/// The states that may be found after a crash now.
#[derive(Debug, Clone)]
pub struct CrashHistory<M: CrashModel> {
    /// All changes before the last answered sync was issued.
    durable: M,
    /// Changes that took effect since, oldest first.
    since: VecDeque<M::Change>,
    /// The state after all changes: what running programs see.
    now: M,
    /// The number of changes before `since`, from the start of the history on.
    first: u64,
    /// Whether bytes may go past the log. Without that, every state is exactly a prefix.
    bypasses: bool,
}

impl<M: CrashModel> CrashHistory<M> {
    /// A history whose only state is `model`. All bytes are logged.
    pub fn new(model: M) -> CrashHistory<M> {
        let since = VecDeque::new();
        CrashHistory { durable: model.clone(), since, now: model, first: 0, bypasses: false }
    }

    /// Lets bytes go past the log from now on. All earlier changes must be durable.
    pub fn allow_bypassing(&mut self) {
        assert!(self.since.is_empty(), "what comes before was made under another rule");
        self.bypasses = true;
    }

    /// The path that bytes may take in the next change.
    pub fn next_write_path(&self) -> WritePath {
        self.write_path(self.moment().0)
    }

    fn write_path(&self, number: u64) -> WritePath {
        if self.bypasses { WritePath::Bypassing(number) } else { WritePath::Logged }
    }

    /// The state that running programs see.
    pub fn now(&self) -> &M {
        &self.now
    }

    /// The number of changes since the last answered sync was issued.
    pub fn unsynced_changes(&self) -> usize {
        self.since.len()
    }

    /// The present moment. A sync issued now covers the changes before it.
    pub fn moment(&self) -> HistoryMoment {
        HistoryMoment(self.first + self.since.len() as u64)
    }

    /// Records a change that took effect. Fails if the model refuses the change.
    pub fn record(&mut self, change: M::Change) -> Result<M::Made, M::Refusal> {
        let made = self.now.apply(&change, self.next_write_path())?;
        self.since.push_back(change);
        Ok(made)
    }

    /// Records that a sync issued at `moment` was answered.
    pub fn synced(&mut self, moment: HistoryMoment, bytes: SyncedBytes<M::File>) {
        while self.first < moment.0 {
            let change = self.since.pop_front().expect("a moment lies in the history");
            let path = self.write_path(self.first);
            replay(&mut self.durable, &change, path);
            self.first += 1;
        }
        match bytes {
            SyncedBytes::Logged => {}
            SyncedBytes::File(file) => self.durable.settle_before(Some(&file), moment.0),
            SyncedBytes::All => self.durable.settle_before(None, moment.0),
        }
    }

    /// Goes on from `model`, which was found. It is the only state now.
    pub fn restart(&mut self, model: M) {
        self.first = self.moment().0;
        self.since.clear();
        self.now = model.clone();
        self.durable = model;
    }

    /// Finds the shortest prefix whose state was found. `difference` describes how a state differs from what
    /// was found. Every prefix that is tried has all changes that a sync covers.
    pub fn find(
        &self,
        mut difference: impl FnMut(&M) -> Option<String>,
    ) -> Result<FoundPrefix<M>, NoPrefix<M>> {
        let mut model = self.durable.clone();
        let mut differences = Vec::new();
        for kept in 0..=self.since.len() {
            match difference(&model) {
                None => return Ok(self.prefix(kept, model)),
                Some(difference) => differences.push(difference),
            }
            self.replay_next(&mut model, kept);
        }
        Err(NoPrefix { newest: model, report: self.explain(&differences) })
    }

    /// Finds the shortest and the longest prefix whose state was found. The error describes how each prefix
    /// differs.
    pub fn find_both(
        &self,
        mut difference: impl FnMut(&M) -> Option<String>,
    ) -> Result<(FoundPrefix<M>, FoundPrefix<M>), String> {
        let shortest = self.find(&mut difference).map_err(|none| none.report)?;
        let mut longest = shortest.clone();
        let mut model = shortest.model.clone();
        for kept in shortest.kept..self.since.len() {
            self.replay_next(&mut model, kept);
            if difference(&model).is_none() {
                longest = self.prefix(kept + 1, model.clone());
            }
        }
        Ok((shortest, longest))
    }

    fn prefix(&self, kept: usize, model: M) -> FoundPrefix<M> {
        FoundPrefix { kept, moment: HistoryMoment(self.first + kept as u64), model }
    }

    /// Makes the change after the first `kept` ones, if there is one.
    fn replay_next(&self, model: &mut M, kept: usize) {
        if let Some(change) = self.since.get(kept) {
            replay(model, change, self.write_path(self.first + kept as u64));
        }
    }

    fn explain(&self, differences: &[String]) -> String {
        let mut text = String::from("what is there is the state after no prefix of the history:\n");
        let skipped = differences.len().saturating_sub(PREFIXES_SHOWN);
        for (kept, difference) in differences.iter().enumerate() {
            if kept == 0 || kept > skipped {
                let base = if kept == 0 { " (the last completed sync)" } else { "" };
                text += &format!("  after change {kept}{base}: {difference}\n");
            }
            if let Some(change) = self.since.get(kept).filter(|_| kept >= skipped) {
                text += &format!("    then change {}: {}\n", kept + 1, M::describe(change));
            }
        }
        text
    }
}

impl<K: Ord + Clone + Display, M: CrashModel> CrashHistory<BTreeMap<K, M>> {
    /// Adds a model, whose present state is durable.
    pub fn add(&mut self, key: K, model: M) {
        let before = self.durable.insert(key.clone(), model.clone());
        assert!(before.is_none(), "{key} is a model of the history already");
        self.now.insert(key, model);
    }

    /// Removes a model, whose changes must all be durable. Returns its state.
    pub fn remove(&mut self, key: &K) -> M {
        assert!(self.since.iter().all(|(other, _)| other != key), "{key} has changes that are not durable");
        self.now.remove(key);
        self.durable.remove(key).expect("only models of the history are removed")
    }
}

fn replay<M: CrashModel>(model: &mut M, change: &M::Change, path: WritePath) {
    model.apply(change, path).expect("the model accepted it when it happened");
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::CrashFile;
    use std::convert::Infallible;

    /// A write of one byte at an offset.
    type ByteWrite = (u64, u8);

    impl CrashModel for CrashFile {
        type Change = ByteWrite;
        type File = ();
        type Made = ();
        type Refusal = Infallible;

        fn apply(&mut self, &(offset, byte): &ByteWrite, _: WritePath) -> Result<(), Infallible> {
            self.write(offset, &[byte], WritePath::Logged);
            Ok(())
        }

        fn settle_before(&mut self, _: Option<&()>, number: u64) {
            CrashFile::settle_before(self, number);
        }

        fn describe((offset, byte): &ByteWrite) -> String {
            format!("{byte} at {offset}")
        }
    }

    /// A file of which the first byte was synced, and two more bytes were not.
    fn history() -> CrashHistory<CrashFile> {
        let mut history = CrashHistory::new(CrashFile::default());
        let Ok(()) = history.record((0, 1));
        history.synced(history.moment(), SyncedBytes::All);
        let Ok(()) = history.record((1, 2));
        let Ok(()) = history.record((1, 3));
        history
    }

    fn found(history: &CrashHistory<CrashFile>, bytes: &[u8]) -> Option<usize> {
        history.find(|model| model.difference(bytes)).ok().map(|prefix| prefix.kept)
    }

    #[test]
    fn a_prefix_with_all_that_was_synced_is_found() {
        for (bytes, kept) in [(&[1][..], 0), (&[1, 2], 1), (&[1, 3], 2)] {
            assert_eq!(found(&history(), bytes), Some(kept));
        }
        for bytes in [&[][..], &[0, 2], &[1, 4], &[1, 3, 0]] {
            assert_eq!(found(&history(), bytes), None, "{bytes:?}");
        }
        let mut history = history();
        let prefix = history.find(|model| model.difference(&[1, 2])).expect("a prefix");
        history.restart(prefix.model);
        assert_eq!([&[1, 2][..], &[1, 3]].map(|bytes| found(&history, bytes)), [Some(0), None]);
    }

    #[test]
    fn the_shortest_and_the_longest_prefix_are_found() {
        let mut history = history();
        for byte in [5, 2] {
            let Ok(()) = history.record((1, byte));
        }
        let (shortest, longest) = history.find_both(|model| model.difference(&[1, 2])).expect("two prefixes");
        assert_eq!((shortest.kept, longest.kept), (1, 4));
    }

    /// Three bytes written to two files in turn. None is synced.
    fn joint_history() -> CrashHistory<BTreeMap<&'static str, CrashFile>> {
        let files = ["a", "b"].map(|key| (key, CrashFile::zeros(1)));
        let mut history = CrashHistory::new(BTreeMap::from(files));
        for (key, byte) in [("a", 1), ("b", 2), ("a", 3)] {
            let Ok(()) = history.record((key, (0, byte)));
        }
        history
    }

    fn found_in_both(history: &CrashHistory<BTreeMap<&'static str, CrashFile>>, bytes: [u8; 2]) -> bool {
        let difference = |models: &BTreeMap<_, CrashFile>| {
            models["a"].difference(&bytes[..1]).or_else(|| models["b"].difference(&bytes[1..]))
        };
        history.find(difference).is_ok()
    }

    #[test]
    fn one_prefix_explains_all_models() {
        let mut history = joint_history();
        let legal = |history: &_| {
            let all = [0, 1, 3].into_iter().flat_map(|a| [0, 2].map(|b| [a, b]));
            all.filter(|&bytes| found_in_both(history, bytes)).collect::<Vec<_>>()
        };
        assert_eq!(legal(&history), [[0, 0], [1, 0], [1, 2], [3, 2]]);
        // A sync of one file covers the order of both.
        history.synced(HistoryMoment(2), SyncedBytes::File(("b", None)));
        assert_eq!(legal(&history), [[1, 2], [3, 2]]);
    }

    #[test]
    fn a_model_joins_and_leaves_between_changes() {
        let mut history = joint_history();
        history.add("c", CrashFile::zeros(1));
        let Ok(()) = history.record(("c", (0, 4)));
        history.synced(HistoryMoment(3), SyncedBytes::All);
        assert_eq!(history.remove(&"a").bytes(), [3]);
        let found = |byte| history.find(|models| models["c"].difference(&[byte])).map(|found| found.kept);
        assert_eq!([found(0).ok(), found(4).ok(), found(1).ok()], [Some(0), Some(1), None]);
    }

    #[test]
    fn a_report_names_each_change_and_what_differs_after_it() {
        let none = history().find(|model| model.difference(&[1, 4])).expect_err("no prefix");
        let lines: Vec<&str> = none.report.lines().collect();
        assert_eq!(lines.len(), 6, "{}", none.report);
        assert_eq!(lines[2], "    then change 1: 2 at 1");
        assert!(lines[1].starts_with("  after change 0 (the last completed sync): 2 bytes, expected 1;"));
        assert_eq!(none.newest.bytes(), [1, 3]);
    }
}

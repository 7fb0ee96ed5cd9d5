//! The masks of files: examples on the whole stack, and random operations against a model that computes the
//! mask of every path anew.

use super::in_memory::{InMemoryFs, OWNER};
use super::model::{ModelFs, ModelSubject};
use super::random::Source;
use super::simulated_stack::SimulatedStack;
use crate::Fs;
use crate::file_rules::{FileRuleKeeper, FileRuleTable, NAMES_MAX, PATH_BYTES_MAX, STEP_BYTES};
use crate::types::{FileKind, IfExists, Ino};
use device::SeededRng;
use request::{RuleMask, RuleSet};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

const ROOT: Ino = Ino::ROOT;

/// Rule 1 holds for every file.
const RULES: &str = "critical file=/wal/**\n\
                     background title=tar\n\
                     background file=/dump/*\n\
                     critical file=**/hot";
const PLAIN: RuleMask = RuleMask(0b0010);
const WAL: RuleMask = RuleMask(0b0011);
const DUMP: RuleMask = RuleMask(0b0110);

fn rules(text: &str) -> Arc<RuleSet> {
    Arc::new(RuleSet::parse(text).expect("rules"))
}

/// A file system with [`RULES`].
struct RuledFs(SimulatedStack);

impl RuledFs {
    /// With the empty directories `wal` and `dump`.
    fn new() -> (RuledFs, Ino, Ino) {
        let fs = RuledFs(SimulatedStack::roomy(1, 16384));
        fs.set_rules(RULES);
        let wal = fs.directory(ROOT, "wal");
        let dump = fs.directory(ROOT, "dump");
        (fs, wal, dump)
    }

    fn fs(&self) -> &Fs {
        self.0.fs()
    }

    fn set_rules(&self, text: &str) {
        self.fs().set_rules(rules(text));
    }

    fn make(&self, parent: Ino, name: &str, kind: FileKind) -> Ino {
        let make = |done| self.fs().make(OWNER, parent, name.as_bytes(), kind, 0o755, done);
        self.0.wait(make).expect("a new file").ino
    }

    fn file(&self, parent: Ino, name: &str) -> Ino {
        self.make(parent, name, FileKind::File)
    }

    fn directory(&self, parent: Ino, name: &str) -> Ino {
        self.make(parent, name, FileKind::Directory)
    }

    fn rename(&self, from: (Ino, &str), to: (Ino, &str)) {
        let from = (from.0, from.1.as_bytes());
        let to = (to.0, to.1.as_bytes());
        self.0.wait(|done| self.fs().rename(from, to, IfExists::Replace, done)).expect("renamed");
    }

    fn link(&self, ino: Ino, parent: Ino, name: &str) {
        self.0.wait(|done| self.fs().link(ino, parent, name.as_bytes(), done)).expect("another name");
    }

    fn unlink(&self, parent: Ino, name: &str) {
        self.0.wait(|done| self.fs().unlink(parent, name.as_bytes(), done)).expect("removed");
    }

    fn rules_of(&self, ino: Ino) -> RuleMask {
        self.fs().rules_of(ino)
    }

    /// Files in the table.
    fn kept(&self) -> usize {
        self.fs().core().rule_table.len()
    }
}

#[test]
fn new_rules_hold_for_files_that_exist() {
    let (fs, wal, dump) = RuledFs::new();
    let deep = fs.directory(wal, "deep");
    let segment = fs.file(deep, "segment");
    let table = fs.file(dump, "table");
    let other = fs.file(ROOT, "other");
    let no_text = |done| fs.fs().make(OWNER, wal, b"\xff\n", FileKind::File, 0o600, done);
    let no_text = fs.0.wait(no_text).expect("a new file").ino;
    fs.set_rules("critical file=/dump/**");
    assert_eq!([segment, table, other].map(|ino| fs.rules_of(ino).0), [0, 1, 0]);
    fs.set_rules(RULES);
    assert_eq!([deep, segment, no_text, table].map(|ino| fs.rules_of(ino)), [WAL, WAL, WAL, DUMP]);
    assert_eq!([ROOT, wal, other].map(|ino| fs.rules_of(ino)), [PLAIN; 3]);
    assert_eq!(fs.kept(), 4);
}

#[test]
fn rules_about_no_file_keep_nothing() {
    let fs = RuledFs(SimulatedStack::roomy(1, 16384));
    let file = fs.file(ROOT, "hot");
    assert_eq!(fs.rules_of(file), RuleMask::NONE);
    fs.set_rules(RULES);
    assert_eq!(fs.kept(), 1);
    fs.set_rules("background title=tar\ncritical");
    let new = fs.file(ROOT, "new");
    assert_eq!([file, new].map(|ino| fs.rules_of(ino)), [RuleMask(0b11); 2]);
    assert_eq!(fs.kept(), 0);
    assert!(fs.fs().core().read_state().rule_keeper.is_none());
}

#[test]
fn a_new_file_has_its_mask_on_completion() {
    let (fs, wal, _) = RuledFs::new();
    let seen = Arc::new(Mutex::new(None));
    let into = seen.clone();
    let reader = fs.fs().clone();
    let done = move |made: Result<crate::FileAttributes, _>| {
        *into.lock().expect("no panic") = Some(reader.rules_of(made.expect("a new file").ino));
    };
    fs.fs().make(OWNER, wal, b"segment", FileKind::File, 0o600, Box::new(done));
    assert_eq!(*seen.lock().expect("no panic"), Some(WAL));
    let link = |done| fs.fs().symlink(OWNER, wal, b"link", b"target", done);
    let symlink = fs.0.wait(link).expect("a symbolic link").ino;
    let pipe = fs.make(wal, "pipe", FileKind::Fifo);
    let name = b"null";
    let device = |done| fs.fs().make_device(OWNER, wal, name, (FileKind::CharDevice, 259), 0o600, done);
    let device = fs.0.wait(device).expect("a device").ino;
    assert_eq!([symlink, pipe, device].map(|ino| fs.rules_of(ino)), [WAL; 3]);
}

#[test]
fn a_renamed_file_has_the_rules_of_its_new_name() {
    let (fs, wal, dump) = RuledFs::new();
    let file = fs.file(ROOT, "file");
    fs.rename((ROOT, "file"), (wal, "file"));
    assert_eq!(fs.rules_of(file), WAL);
    fs.rename((wal, "file"), (dump, "file"));
    assert_eq!(fs.rules_of(file), DUMP);
    fs.rename((dump, "file"), (ROOT, "file"));
    assert_eq!(fs.rules_of(file), PLAIN);
    fs.rename((ROOT, "file"), (ROOT, "hot"));
    assert_eq!(fs.rules_of(file), RuleMask(0b1010));
    assert_eq!(fs.kept(), 1);
}

#[test]
fn a_whiteout_has_the_rules_of_the_old_name() {
    let (fs, wal, _) = RuledFs::new();
    let file = fs.file(wal, "file");
    let from = (wal, &b"file"[..]);
    let to = (ROOT, &b"file"[..]);
    let rename = |done| fs.fs().rename_leaving_whiteout(OWNER, from, to, IfExists::Refuse, done);
    let whiteout = fs.0.wait(rename).expect("renamed").expect("a whiteout").ino;
    assert_eq!([whiteout, file].map(|ino| fs.rules_of(ino)), [WAL, PLAIN]);
}

#[test]
fn renaming_a_directory_above_changes_all_below() {
    let (fs, wal, _) = RuledFs::new();
    let above = fs.directory(wal, "above");
    let below = fs.directory(above, "below");
    let file = fs.file(below, "file");
    assert_eq!([above, below, file].map(|ino| fs.rules_of(ino)), [WAL; 3]);
    fs.rename((wal, "above"), (ROOT, "above"));
    assert_eq!([above, below, file].map(|ino| fs.rules_of(ino)), [PLAIN; 3]);
    assert_eq!(fs.kept(), 0);
    fs.rename((ROOT, "wal"), (ROOT, "empty"));
    fs.rename((ROOT, "above"), (ROOT, "wal"));
    assert_eq!([above, below, file].map(|ino| fs.rules_of(ino)), [PLAIN, WAL, WAL]);
}

#[test]
fn exchanged_files_and_directories_exchange_rules() {
    let (fs, wal, dump) = RuledFs::new();
    let segment = fs.file(wal, "segment");
    let table = fs.file(dump, "table");
    let exchange = |one: (Ino, &'static [u8]), other: (Ino, &'static [u8])| {
        fs.0.wait(|done| fs.fs().exchange(one, other, done)).expect("exchanged");
    };
    exchange((wal, b"segment"), (dump, b"table"));
    assert_eq!([segment, table].map(|ino| fs.rules_of(ino)), [DUMP, WAL]);
    exchange((ROOT, b"wal"), (ROOT, b"dump"));
    assert_eq!([segment, table].map(|ino| fs.rules_of(ino)), [WAL, DUMP]);
}

#[test]
fn a_file_with_several_names_has_the_rules_of_all() {
    let (fs, wal, dump) = RuledFs::new();
    let file = fs.file(ROOT, "file");
    fs.link(file, wal, "file");
    fs.link(file, dump, "file");
    let both = RuleMask(WAL.0 | DUMP.0);
    assert_eq!(fs.rules_of(file), both);
    fs.unlink(ROOT, "file");
    assert_eq!(fs.rules_of(file), both);
    fs.unlink(wal, "file");
    assert_eq!(fs.rules_of(file), DUMP);
}

#[test]
fn names_beyond_the_limit_are_ignored() {
    let (fs, wal, dump) = RuledFs::new();
    let file = fs.file(wal, "0");
    (1..NAMES_MAX).for_each(|number| fs.link(file, wal, &number.to_string()));
    fs.link(file, dump, "ignored");
    assert_eq!(fs.rules_of(file), WAL);
    (0..NAMES_MAX).for_each(|number| fs.unlink(wal, &number.to_string()));
    assert_eq!(fs.rules_of(file), PLAIN);
    fs.set_rules(RULES);
    assert_eq!(fs.rules_of(file), DUMP);
}

#[test]
fn a_reused_number_has_no_rules_of_the_old_file() {
    let (fs, wal, _) = RuledFs::new();
    let old = fs.file(wal, "old");
    fs.unlink(wal, "old");
    assert_eq!(fs.kept(), 0);
    let new = fs.file(ROOT, "new");
    assert_eq!((new, fs.rules_of(new)), (old, PLAIN));
}

#[test]
fn an_unlinked_file_keeps_its_rules_while_open() {
    let (fs, wal, _) = RuledFs::new();
    let file = fs.file(wal, "file");
    fs.fs().hold(file).expect("held");
    fs.unlink(wal, "file");
    assert_eq!(fs.rules_of(file), WAL);
    fs.fs().unhold(file, 1);
    assert_eq!(fs.kept(), 0);
}

/// A directory that a walk enters in three steps, and its files.
fn make_large(fs: &RuledFs, parent: Ino) -> Vec<Ino> {
    let large = fs.directory(parent, "large");
    let pad = "x".repeat(200);
    let files = 3 * STEP_BYTES / pad.len();
    (0..files).map(|number| fs.file(large, &format!("{number}{pad}"))).collect()
}

#[test]
fn a_directory_renamed_during_its_walk_is_walked_anew() {
    let (fs, wal, _) = RuledFs::new();
    let files = make_large(&fs, wal);
    fs.rename((wal, "large"), (ROOT, "large"));
    fs.rename((ROOT, "large"), (wal, "large"));
    while fs.fs().step_rules() {}
    assert!(files.iter().all(|&ino| fs.rules_of(ino) == WAL));
}

#[test]
fn a_large_renamed_directory_is_walked_in_steps() {
    let (fs, wal, _) = RuledFs::new();
    let files = make_large(&fs, wal);
    let with = |mask| files.iter().filter(|&&ino| fs.rules_of(ino) == mask).count();
    assert_eq!(with(WAL), files.len());
    fs.rename((wal, "large"), (ROOT, "large"));
    let first = with(PLAIN);
    assert!(first > 0 && first < files.len(), "{first} files in the first step");
    fs.file(ROOT, "small");
    fs.rename((ROOT, "small"), (ROOT, "other"));
    assert_eq!(with(PLAIN), first);
    assert!(fs.fs().step_rules());
    assert!(with(PLAIN) > first);
    while fs.fs().step_rules() {}
    assert_eq!(with(PLAIN), files.len());
    assert_eq!(fs.kept(), 0);
}

#[test]
fn paths_beyond_the_limit_match_no_pattern() {
    let (fs, _, _) = RuledFs::new();
    let name = "d".repeat(250);
    let (mut at, mut depth) = (ROOT, 0);
    while depth * (name.len() + 1) < 2 * PATH_BYTES_MAX {
        at = fs.directory(at, &name);
        depth += 1;
    }
    let file = fs.file(at, "hot");
    assert_eq!(fs.rules_of(file), PLAIN);
    fs.rename((ROOT, &name), (ROOT, "short"));
    assert_eq!(fs.rules_of(file), PLAIN);
    let shallow = fs.file(ROOT, "hot");
    assert_eq!(fs.rules_of(shallow), RuleMask(0b1010));
}

const RANDOM_RULES: [&str; 3] = [
    "critical file=/name1*/**\nbackground\nbackground file=**/name2\ncritical file=/*/name*3",
    "background file=/**\ncritical file=/name*/name*/*",
    "critical file=**/name*4*/**\nbackground title=tar file=**/name?",
];

/// The mask of every file that has a name, each path computed anew.
fn model_masks(model: &ModelFs, rules: &RuleSet) -> BTreeMap<Ino, RuleMask> {
    let mut masks = BTreeMap::from([(ROOT, rules.file_mask(b"/"))]);
    let mut directories = vec![(ROOT, b"/".to_vec())];
    while let Some((directory, path)) = directories.pop() {
        for (name, &ino) in &model.nodes[&directory].names {
            let mut path_of_name = [&path[..], name].concat();
            let mask = if path.len() > PATH_BYTES_MAX {
                rules.unnamed_file_mask()
            } else {
                rules.file_mask(&path_of_name)
            };
            let all = masks.entry(ino).or_insert(rules.unnamed_file_mask());
            *all = RuleMask(all.0 | mask.0);
            if model.nodes[&ino].kind == FileKind::Directory {
                path_of_name.push(b'/');
                directories.push((ino, path_of_name));
            }
        }
    }
    masks
}

/// Random operations and rules. After each, walks at most so many directories as `walks` says, and compares when
/// none is pending.
fn run_random(seed: u64, mut walks: impl FnMut(&mut SeededRng) -> u64, compares_unlinked: bool) {
    let mut subject = InMemoryFs::new();
    let mut model = ModelFs::new(OWNER, subject.now());
    let mut source = Source::new(seed, 20);
    let mut random = SeededRng::new(seed);
    let mut table = Arc::new(FileRuleTable::default());
    let mut rules = rules(RANDOM_RULES[0]);
    let mut expected = BTreeMap::new();
    let mut compared = 0;
    for step in 0..1500 {
        if step == 0 || random.once_in(100) {
            rules = self::rules(RANDOM_RULES[random.below(3) as usize]);
            table = Arc::new(FileRuleTable::default());
            table.reset(true, rules.unnamed_file_mask());
            let keeper = FileRuleKeeper::new(table.clone(), rules.clone());
            subject.state.rule_keeper = Some(Mutex::new(keeper));
            expected.clear();
        }
        let operation = source.next(&model);
        subject.rehearse(&operation);
        if let Ok(made) = subject.apply(&operation) {
            model.apply(&operation, made.map(|made| made.ino)).expect("the model does it, too");
        }
        let state = &subject.state;
        let mut keeper = state.rule_keeper.as_ref().expect("rules").lock().expect("no panic");
        let is_done =
            (0..walks(&mut random)).any(|_| keeper.walk(state, random.below(300) as usize).is_none());
        if !is_done {
            continue;
        }
        compared += 1;
        // A file without a name keeps the mask of its last one.
        expected.retain(|ino, _| model.nodes.contains_key(ino));
        expected.extend(model_masks(&model, &rules));
        if !compares_unlinked {
            expected.retain(|ino, _| model.nodes[ino].links > 0);
        }
        for (&ino, &mask) in &expected {
            assert_eq!(table.rules_of(ino), mask, "seed {seed}, step {step}, {operation:?}: {ino:?}");
        }
        if compares_unlinked {
            let is_directory = |ino: &&Ino| model.nodes[ino].kind == FileKind::Directory;
            assert_eq!(keeper.directories() + 1, expected.keys().filter(is_directory).count());
            let special = expected.values().filter(|&&mask| mask != rules.unnamed_file_mask());
            assert_eq!(table.len(), special.count(), "seed {seed}, step {step}, {operation:?}");
        }
    }
    assert!(compared > 100, "compared {compared} times");
}

#[test]
fn random_operations_give_each_path_its_mask() {
    for seed in 0..6 {
        run_random(seed, |_| u64::MAX, true);
    }
}

#[test]
fn operations_during_a_walk_give_each_path_its_mask() {
    for seed in 10..22 {
        run_random(seed, |random| random.below(4), false);
    }
}

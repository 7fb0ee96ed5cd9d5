//! Random operations on a subject and on the model, step by step.

use super::in_memory::{InMemoryFs, OWNER};
use super::model::xattr::{ACCESS, DEFAULT, acl};
use super::model::{ModelFs, ModelOperation, ModelSubject};
use crate::error::FsError;
use crate::ops::allocate::{FallocateMode, SizePolicy};
use crate::types::{
    CallerCredentials, FileKind, IfExists, Ino, PrivilegeChange, SetAttributes, SetTime, SetXattrMode,
};
use device::SeededRng;

/// A seeded source of operations that make sense often and not always.
pub(crate) struct Source {
    random: SeededRng,
    /// Different names: many make directories big, few make names meet.
    names: u64,
}

impl Source {
    pub(crate) fn new(seed: u64, names: u64) -> Source {
        Source { random: SeededRng::new(seed), names }
    }

    fn name(&mut self) -> Vec<u8> {
        let number = self.random.below(self.names);
        // Long names now and then, up to the limit.
        let pad = if number.is_multiple_of(13) { (number * 7 % 240) as usize } else { 0 };
        format!("name{number}{}", "x".repeat(pad)).into_bytes()
    }

    fn ino(&mut self, model: &ModelFs, wanted: impl Fn(FileKind) -> bool) -> Ino {
        // Seldom one that does not fit, or that was never there.
        if self.random.once_in(60) {
            return Ino(self.random.below(1 << 52) + 2);
        }
        let any = self.random.once_in(30);
        let fitting: Vec<Ino> =
            model.nodes.iter().filter(|(_, node)| any || wanted(node.kind)).map(|(&ino, _)| ino).collect();
        if fitting.is_empty() { Ino::ROOT } else { fitting[self.random.below(fitting.len() as u64) as usize] }
    }

    /// A directory, and in it mostly a name that exists.
    fn place(&mut self, model: &ModelFs) -> (Ino, Vec<u8>) {
        let parent = self.ino(model, |kind| kind == FileKind::Directory);
        let names = model.nodes.get(&parent).map(|node| &node.names);
        match names {
            Some(names) if !names.is_empty() && !self.random.once_in(5) => {
                let at = self.random.below(names.len() as u64) as usize;
                (parent, names.keys().nth(at).expect("below its length").clone())
            }
            _ => (parent, self.name()),
        }
    }

    pub(crate) fn next(&mut self, model: &ModelFs) -> ModelOperation {
        let directory = |kind| kind == FileKind::Directory;
        let file = |kind| kind == FileKind::File;
        let caller = CallerCredentials {
            uid: self.random.below(3) as u32,
            gid: self.random.below(3) as u32,
            umask: [0, 0o22, 0o77][self.random.below(3) as usize],
        };
        match self.random.below(125) {
            0..30 => {
                let (kind, device) = self.kind();
                let mode = [0o644, 0o755, 0o2755, 0o600, 0o4711][self.random.below(5) as usize];
                let (parent, name) = (self.ino(model, directory), self.name());
                ModelOperation::Make { caller, parent, name, kind, mode, device }
            }
            30..35 => {
                let target = vec![b't'; 1 + self.random.below(300) as usize];
                ModelOperation::Symlink {
                    caller,
                    parent: self.ino(model, directory),
                    name: self.name(),
                    target,
                }
            }
            35..40 => {
                let ino = self.ino(model, |kind| kind != FileKind::Directory);
                ModelOperation::Link { ino, parent: self.ino(model, directory), name: self.name() }
            }
            40..52 => {
                let (parent, name) = self.place(model);
                ModelOperation::Unlink { parent, name }
            }
            52..57 => {
                let (parent, name) = self.place(model);
                ModelOperation::RemoveDirectory { parent, name }
            }
            57..70 => {
                let from = self.place(model);
                let to = if self.random.once_in(2) {
                    self.place(model)
                } else {
                    (self.ino(model, directory), self.name())
                };
                let if_exists = if self.random.once_in(5) { IfExists::Refuse } else { IfExists::Replace };
                let whiteout = self.random.once_in(4).then_some(caller);
                ModelOperation::Rename { from, to, if_exists, whiteout }
            }
            70..82 => {
                let bytes = vec![self.random.next_u64() as u8 | 1; 1 + self.random.below(9000) as usize];
                ModelOperation::Write { ino: self.ino(model, file), offset: self.random.below(20_000), bytes }
            }
            82..87 => {
                let what = [FallocateMode::Allocate, FallocateMode::ZeroRange, FallocateMode::PunchHole]
                    [self.random.below(3) as usize];
                let size = if self.random.once_in(3) { SizePolicy::Keep } else { SizePolicy::Grow };
                // Often whole pages, which become holes.
                let unit = if self.random.once_in(2) { 4096 } else { 1 };
                let range =
                    (self.random.below(25_000) / unit * unit, (1 + self.random.below(12_000 / unit)) * unit);
                ModelOperation::Allocate { ino: self.ino(model, file), what, range, size }
            }
            87..92 => ModelOperation::Set { ino: self.ino(model, |_| true), set: self.set() },
            92..97 => ModelOperation::Hold { ino: self.ino(model, |_| true) },
            97..102 => ModelOperation::Exchange { one: self.place(model), other: self.place(model) },
            102..122 => self.xattr(model),
            _ => {
                let held: Vec<Ino> =
                    model.nodes.iter().filter(|(_, node)| node.held > 0).map(|(&ino, _)| ino).collect();
                match held.len() as u64 {
                    0 => ModelOperation::Hold { ino: Ino::ROOT },
                    count => ModelOperation::Unhold { ino: held[self.random.below(count) as usize] },
                }
            }
        }
    }

    /// What to make, with a device's number.
    fn kind(&mut self) -> (FileKind, u32) {
        match self.random.below(16) {
            0..4 => (FileKind::Directory, 0),
            4 => (FileKind::Fifo, 0),
            5 => (FileKind::Socket, 0),
            6 => (FileKind::CharDevice, self.random.next_u64() as u32),
            7 => (FileKind::BlockDevice, self.random.next_u64() as u32),
            _ => (FileKind::File, 0),
        }
    }

    fn xattr(&mut self, model: &ModelFs) -> ModelOperation {
        let ino = self.ino(model, |_| true);
        let name = match self.random.below(8) {
            0 => ACCESS.to_vec(),
            1 | 2 => DEFAULT.to_vec(),
            3 => b"security.capability".to_vec(),
            4 => b"trusted.t".to_vec(),
            other => format!("user.{other}{}", "n".repeat(self.random.below(3) as usize)).into_bytes(),
        };
        if self.random.once_in(4) {
            return ModelOperation::RemoveXattr { ino, name };
        }
        let value = match &name[..] {
            ACCESS | DEFAULT => self.acl(),
            _ => {
                // Mostly small; now and then over a block, over several, and over the limit.
                let most = [40, 40, 40, 300, 5000, 66_000][self.random.below(6) as usize];
                vec![self.random.next_u64() as u8; self.random.below(most) as usize]
            }
        };
        let how = [SetXattrMode::Any, SetXattrMode::Any, SetXattrMode::Create, SetXattrMode::Replace];
        ModelOperation::SetXattr { ino, name, value, how: how[self.random.below(4) as usize] }
    }

    /// A valid list: minimal, or with people named.
    fn acl(&mut self) -> Vec<u8> {
        let mut permissions = || self.random.below(8) as u16;
        let all = u32::MAX;
        let (owner, group, others) =
            ((1, permissions(), all), (4, permissions(), all), (32, permissions(), all));
        let (user, mask) = ((2, permissions(), 5), (16, permissions(), all));
        match self.random.below(3) {
            0 => acl(&[owner, group, others]),
            1 => acl(&[owner, group, mask, others]),
            _ => {
                // Many, now and then: a list that fills most of a page.
                let users = if self.random.once_in(4) { 400 } else { 1 };
                let users = (0..users).map(|id| (2, user.1, id));
                acl(&[vec![owner], users.collect(), vec![group, mask, others]].concat())
            }
        }
    }

    fn set(&mut self) -> SetAttributes {
        let random = &mut self.random;
        SetAttributes {
            mode: random.once_in(3).then(|| random.below(0o10000) as u16),
            uid: random.once_in(4).then(|| random.below(3) as u32),
            gid: random.once_in(4).then(|| random.below(3) as u32),
            size: random.once_in(3).then(|| random.below(25_000)),
            accessed: random.once_in(4).then(|| SetTime::To(random.next_u64() as i64)),
            modified: random.once_in(4).then_some(SetTime::Now),
            privileges: match random.below(8) {
                0 => PrivilegeChange::Drop,
                1 => PrivilegeChange::DropAll,
                _ => PrivilegeChange::Keep,
            },
        }
    }
}

/// Runs `steps` operations on both and compares; `check_every` so often everything, reopening included.
pub(crate) fn run(subject: &mut dyn ModelSubject, seed: u64, names: u64, steps: u64, check_every: u64) {
    let mut model = ModelFs::new(OWNER, subject.now());
    let mut source = Source::new(seed, names);
    for step in 1..=steps {
        model.now += 1;
        subject.set_now(model.now);
        let operation = source.next(&model);
        subject.rehearse(&operation);
        let found = subject.apply(&operation);
        let made = found.as_ref().ok().and_then(|made| made.map(|made| made.ino));
        let expected = match (&found, &operation) {
            // The model needs the number of what was made; without one it must not make anything.
            (Err(error), ModelOperation::Make { .. } | ModelOperation::Symlink { .. }) => {
                model.clone().apply(&operation, Some(Ino(u64::MAX))).expect_err(&format!("refused: {error}"))
            }
            _ => match model.apply(&operation, made) {
                Ok(()) => FsError::NoSpace,
                Err(error) => error,
            },
        };
        let succeeded = matches!(expected, FsError::NoSpace);
        let same = match &found {
            Ok(_) => succeeded,
            Err(error) => std::mem::discriminant(error) == std::mem::discriminant(&expected),
        };
        assert!(same, "seed {seed}, step {step}: {operation:?}: {found:?}, expected {expected:?}");
        if step % check_every == 0 {
            model.compare(subject);
            assert_eq!(subject.findings(), [], "seed {seed}, step {step}");
            subject.reopen();
            model.reopen();
            model.compare(subject);
            assert_eq!(subject.findings(), [], "seed {seed}, step {step}, reopened");
        }
    }
}

#[test]
fn random_operations_do_what_a_plain_model_does() {
    for seed in 0..8 {
        run(&mut InMemoryFs::new(), seed, 30, 2000, 500);
    }
}

#[test]
fn a_crash_after_any_operation_leaves_what_a_plain_model_has() {
    // The cache makes each transaction durable as a whole and in order, so what lies below after each of them is all
    // that a crash can leave. Open counts are lost with it.
    for seed in 200..206 {
        run(&mut InMemoryFs::new(), seed, 12, 400, 1);
    }
}

#[test]
fn random_operations_in_big_directories_do_what_a_plain_model_does() {
    for seed in 100..102 {
        run(&mut InMemoryFs::new(), seed, 100_000, 12_000, 4000);
    }
}

//! Every program of one or two operations over a tiny name space, with a power cut at every write and flush: most bugs
//! that crashes show need no more.

use super::client::When;
use super::model::{Change, Id, Model, Name};
use super::run::Run;
use super::workload::Request;
use super::{Failure, Options};
use fs::{IfExists, Kind};
use std::sync::Arc;

/// What a program may do. Names are paths below the root, at most two long.
#[derive(Debug, Clone, Copy)]
enum Step {
    Make(&'static str, Kind),
    Write(&'static str, u64, usize),
    SetSize(&'static str, u64),
    SetMode(&'static str),
    Unlink(&'static str),
    RemoveDirectory(&'static str),
    Rename(&'static str, &'static str),
    Link(&'static str, &'static str),
    Symlink(&'static str),
}

/// What is there before each program, durable and at home: two files and two directories.
const BEFORE: [Step; 6] = [
    Step::Make("a", Kind::File),
    Step::Write("a", 0, 10_000),
    Step::Make("d", Kind::Directory),
    Step::Make("d/x", Kind::File),
    Step::Write("d/x", 0, 100),
    Step::Make("e", Kind::Directory),
];

/// Every kind of operation on every kind of name: there, not there, in another directory.
const STEPS: [Step; 28] = [
    Step::Make("b", Kind::File),
    Step::Make("d/y", Kind::File),
    Step::Make("f", Kind::Directory),
    Step::Make("e/f", Kind::Directory),
    Step::Write("a", 100, 50),
    Step::Write("a", 4096, 4096),
    Step::Write("a", 3000, 9000),
    Step::Write("a", 10_000, 300),
    Step::Write("a", 40_000, 10),
    Step::Write("d/x", 0, 100),
    Step::Write("b", 0, 5000),
    Step::SetSize("a", 0),
    Step::SetSize("a", 5000),
    Step::SetSize("a", 4096),
    Step::SetSize("a", 30_000),
    Step::SetMode("a"),
    Step::SetMode("d"),
    Step::Unlink("a"),
    Step::Unlink("d/x"),
    Step::RemoveDirectory("e"),
    Step::Rename("a", "b"),
    Step::Rename("a", "d/x"),
    Step::Rename("d/x", "a"),
    Step::Rename("d/x", "e/y"),
    Step::Rename("d", "e"),
    Step::Rename("d", "e/f"),
    Step::Link("a", "e/y"),
    Step::Symlink("e/s"),
];

/// Power cuts tried in one program: more writes and flushes than any of them makes.
const CUTS_MAX: u64 = 500;

/// Runs all programs of up to `steps` operations; returns how many programs, and how many crashes in them.
pub(crate) fn exhaust(options: &Options, steps: usize) -> Result<(u64, u64), Failure> {
    let before = before(options).map_err(|what| fail(options, "the beginning", what))?;
    let (mut programs, mut crashes) = (0, 0);
    for first in STEPS {
        let mut tails: Vec<Vec<Step>> = vec![Vec::new()];
        if steps > 1 {
            tails.extend(STEPS.into_iter().map(|second| vec![second]));
        }
        for tail in tails {
            let program: Vec<Step> = std::iter::once(first).chain(tail).collect();
            programs += 1;
            crashes += every_cut(options, &before, &program)
                .map_err(|what| fail(options, &format!("the program {program:?}"), what))?;
        }
    }
    Ok((programs, crashes))
}

fn fail(options: &Options, place: &str, what: String) -> Failure {
    Failure { what: format!("seed {}: {place}: {what}", options.seed), operations: 0, hash: 0 }
}

fn before(options: &Options) -> Result<Run, String> {
    let mut run = Run::new(options)?;
    for step in BEFORE {
        perform(&mut run, step)?;
    }
    run.stop_and_compare()?;
    Ok(run)
}

/// Runs `program` with the power cut after 0, 1, 2 … writes and flushes, until it is not cut any more.
fn every_cut(options: &Options, before: &Run, program: &[Step]) -> Result<u64, String> {
    for cut in 0..CUTS_MAX {
        let mut run = before.fork(options.seed.wrapping_add(cut))?;
        run.media.power.cut_after(cut);
        let survived = perform_all(&mut run, program).map_err(|what| format!("cut {cut}: {what}"))?;
        if survived {
            return Ok(cut);
        }
        run.die_now().map_err(|what| format!("cut {cut}: {what}"))?;
    }
    Err(format!("does not end within {CUTS_MAX} writes and flushes"))
}

/// Each step, a sync after it, and everything home; `false` where the power is lost.
fn perform_all(run: &mut Run, program: &[Step]) -> Result<bool, String> {
    for &step in program {
        perform(run, step)?;
        run.ask(0, When::Now, Request::Sync)?;
        run.settle()?;
        if run.media.power.lost() {
            return Ok(false);
        }
    }
    let drained = run.stack().cache.drain();
    run.deliver()?;
    match drained {
        Ok(()) => Ok(true),
        Err(_) if run.media.power.lost() => Ok(false),
        Err(error) => Err(format!("the drain fails: {error}")),
    }
}

fn perform(run: &mut Run, step: Step) -> Result<(), String> {
    // What needs a name that an earlier step took away means nothing.
    if let Some(change) = change(&run.oracle.now, step) {
        run.ask(0, When::Now, Request::Change(change))?;
        run.settle()?;
    }
    Ok(())
}

fn place(model: &Model, path: &str) -> Option<(Id, Name)> {
    match path.split_once('/') {
        None => Some((Id::ROOT, path.into())),
        Some((directory, name)) => {
            let parent = model.lookup(Id::ROOT, directory.as_bytes()).ok()?;
            model.get(parent).is_directory().then(|| (parent, name.into()))
        }
    }
}

fn change(model: &Model, step: Step) -> Option<Change> {
    let inode = |path| place(model, path).and_then(|(parent, name)| model.lookup(parent, &name).ok());
    let file = |path| inode(path).filter(|&id| model.get(id).body.kind() == Kind::File);
    Some(match step {
        Step::Make(path, kind) => {
            let (parent, name) = place(model, path)?;
            Change::Make { parent, name, kind, mode: 0o700 }
        }
        Step::Write(path, offset, len) => {
            let bytes = Arc::new((0..len).map(|at| 1 + (at % 251) as u8).collect());
            Change::Write { file: file(path)?, offset, bytes }
        }
        Step::SetSize(path, size) => Change::SetSize { file: file(path)?, size },
        Step::SetMode(path) => Change::SetMode { inode: inode(path)?, mode: 0o751 },
        Step::Unlink(path) => {
            let (parent, name) = place(model, path)?;
            Change::Unlink { parent, name }
        }
        Step::RemoveDirectory(path) => {
            inode(path).filter(|&id| model.get(id).is_directory())?;
            let (parent, name) = place(model, path)?;
            Change::RemoveDirectory { parent, name }
        }
        Step::Rename(from, to) => {
            Change::Rename { from: place(model, from)?, to: place(model, to)?, if_exists: IfExists::Replace }
        }
        Step::Link(from, to) => {
            let (parent, name) = place(model, to)?;
            Change::Link { file: file(from)?, parent, name }
        }
        Step::Symlink(path) => {
            let (parent, name) = place(model, path)?;
            Change::Symlink { parent, name, target: b"../a".to_vec() }
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_program_of_one_operation_survives_every_power_cut() {
        let (programs, crashes) = exhaust(&Options::for_test(1), 1).expect("no promise is broken");
        assert_eq!(programs, STEPS.len() as u64);
        assert!(crashes > 5 * programs, "{crashes} crashes in {programs} programs: too few to mean anything");
    }
}

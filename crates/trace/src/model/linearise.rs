//! Puts overlapping calls into one order, each inside its interval, so that the model explains their results.
//!
//! A call takes effect at some moment between entry and return. By default that is its return, where a lock was granted and
//! a wait ended; for calls that make tasks, write to pipes or replace a program, it is the entry, because others see their
//! effect before they return. If the model contradicts a call's result, calls that have begun by then are tried first.

use super::world::World;
use crate::action::Step;
use crate::names::Names;
use crate::op::{Ask, Call, Fd, Op};
use std::collections::BTreeMap;

/// Calls tried before one whose result is contradicted: as many as there are tasks, in practice.
const CANDIDATES_MAX: usize = 64;

/// Applies all calls and gives each step, with its call, to `each`, in the order found.
pub fn linearise(world: &mut World, calls: Vec<Call>, mut each: impl FnMut(Step)) {
    let mut calls: Vec<Option<Call>> = calls.into_iter().map(Some).collect();
    let mut queue: BTreeMap<(u64, u64, usize), usize> = BTreeMap::new();
    let mut per_task: BTreeMap<u32, std::collections::VecDeque<usize>> = BTreeMap::new();
    let mut order: Vec<usize> = (0..calls.len()).collect();
    order.sort_by_key(|at| calls[*at].as_ref().map(|call| (call.start, call.line)));
    for at in order {
        let call = calls[at].as_ref().expect("nothing is applied yet");
        queue.insert(key(call, at, &world.names), at);
        per_task.entry(call.task).or_default().push_back(at);
    }
    while let Some((_, first)) = queue.pop_first() {
        let Some(call) = calls[first].take() else { continue };
        // A task's calls keep their order, whatever their stamps say.
        let mut before = Vec::new();
        let own = per_task.get_mut(&call.task).expect("every call has a task");
        while let Some(next) = own.pop_front().filter(|next| *next != first) {
            before.extend(calls[next].take());
        }
        for call in before {
            each(world.apply(&call));
        }
        if !world.explains(&call) {
            reorder(world, &call, &mut calls, &queue, &mut per_task, &mut each);
        }
        each(world.apply(&call));
    }
}

/// Tries calls that overlap with `call`, one after the other, until its result is explained.
fn reorder(
    world: &mut World,
    call: &Call,
    calls: &mut [Option<Call>],
    queue: &BTreeMap<(u64, u64, usize), usize>,
    per_task: &mut BTreeMap<u32, std::collections::VecDeque<usize>>,
    each: &mut impl FnMut(Step),
) {
    let overlapping = queue.values().take(CANDIDATES_MAX).copied();
    let candidates: Vec<usize> = overlapping
        .filter(|at| {
            calls[*at].as_ref().is_some_and(|other| other.start <= call.end && other.task != call.task)
        })
        .collect();
    for at in candidates {
        let Some(other) = calls[at].take() else { continue };
        let next = per_task.get(&other.task).and_then(|own| own.front()) == Some(&at);
        // Only a change can help, and only one that is explained itself.
        if !next || !changes(&other) || !helps(world, &other, call) {
            calls[at] = Some(other);
            continue;
        }
        per_task.get_mut(&other.task).expect("every call has a task").pop_front();
        world.repairs.reordered += 1;
        each(world.apply(&other));
        if world.explains(call) {
            return;
        }
    }
    world.repairs.races += 1;
}

/// Whether `other` is explained now and concerns a name or number that `call` concerns.
fn helps(world: &mut World, other: &Call, call: &Call) -> bool {
    world.explains(other) && (related(other, call) || other.task == call.task)
}

fn related(other: &Call, call: &Call) -> bool {
    let (names, others) = (paths(call), paths(other));
    let descriptors = matches!(
        (&call.ask, &other.ask),
        (
            Ask::File(Op::Open { .. }) | Ask::Opaque { .. } | Ask::Duplicate { .. } | Ask::Pipe { .. },
            Ask::File(Op::Close { .. }) | Ask::Duplicate { .. }
        )
    );
    let bytes = matches!(call.ask, Ask::File(Op::Read { .. }))
        && matches!(other.ask, Ask::File(Op::Write { .. } | Op::Resize { .. }));
    let ends = matches!(call.ask, Ask::Wait { .. }) && other.ask == Ask::Exit;
    descriptors || bytes || ends || (!names.is_empty() && !others.is_empty())
}

fn paths(call: &Call) -> Vec<crate::names::Name> {
    match &call.ask {
        Ask::File(
            Op::Open { at, .. }
            | Op::Stat { at, .. }
            | Op::Access { at, .. }
            | Op::ReadLink { at, .. }
            | Op::MakeDir { at, .. }
            | Op::RemoveDir { at }
            | Op::Unlink { at }
            | Op::Symlink { at, .. }
            | Op::ChangeDir { at, .. },
        ) => vec![at.path],
        Ask::File(Op::Rename { from, to, .. } | Op::Link { from, to, .. }) => vec![from.path, to.path],
        _ => Vec::new(),
    }
}

fn changes(call: &Call) -> bool {
    let op = match &call.ask {
        Ask::File(op) => op,
        Ask::Exit | Ask::Duplicate { .. } | Ask::CloseRange { .. } | Ask::Clone { .. } => return true,
        _ => return false,
    };
    match op {
        Op::Open { flags, .. } => flags & (libc::O_CREAT | libc::O_TRUNC) as u32 != 0,
        Op::Close { .. }
        | Op::Write { .. }
        | Op::MakeDir { .. }
        | Op::RemoveDir { .. }
        | Op::Unlink { .. } => true,
        Op::Rename { .. }
        | Op::Link { .. }
        | Op::Symlink { .. }
        | Op::Resize { .. }
        | Op::Allocate { .. } => true,
        _ => false,
    }
}

/// When a call takes effect by default; ties keep the order of the lines.
fn key(call: &Call, at: usize, names: &Names) -> (u64, u64, usize) {
    let pipe = |fd: Fd| {
        call.notes.iter().any(|(noted, note)| *noted == fd && names.bytes(*note).starts_with(b"pipe:["))
    };
    let early = match &call.ask {
        Ask::Clone { .. } | Ask::Exec | Ask::Wake { .. } => true,
        Ask::File(Op::Write { on, at: None, .. }) => pipe(*on),
        _ => false,
    };
    (if early { call.start } else { call.end }, call.line, at)
}

//! What a benchmark must hold to before anything trusts its numbers: a checksum does not stop a hostile author.

use super::{Benchmark, InitialKind};
use crate::action::Action;
use crate::error::TraceError;
use crate::names::Name;
use crate::op::{Handle, NO_HANDLE, Op, Place};
use std::path::Path;

/// More threads than this are no trace of a program.
const THREADS_MAX: u32 = 1 << 20;
/// Descriptions and requests: one action makes at most one of the former, and the kernel limits the latter.
const PER_ACTION_MAX: u64 = 1 << 16;

pub(super) fn validate(benchmark: &Benchmark, path: &Path) -> Result<(), TraceError> {
    let wrong = |section, why: &str| TraceError::Contents { path: path.into(), section, why: why.into() };
    let about = &benchmark.about;
    let count = benchmark.actions.len() as u64;
    if about.threads > THREADS_MAX || u64::from(about.threads) > count {
        return Err(wrong("about", "more threads than actions"));
    }
    let most = (count + 1).saturating_mul(PER_ACTION_MAX);
    if u64::from(about.handles) > most || u64::from(about.requests) > most {
        return Err(wrong("about", "more handles or requests than actions can make"));
    }
    if about.naps.iter().any(|nap| u64::from(nap.action.max(nap.ends_with)) >= count) {
        return Err(wrong("about", "a nap of an action that does not exist"));
    }
    let names = benchmark.names.len();
    let known = |name: Name| (name.0 as usize) < names;
    let tree = benchmark.tree.iter().all(|initial| {
        known(initial.path)
            && initial.attributes.iter().all(|(name, _)| known(*name))
            && match &initial.kind {
                InitialKind::Link(name) | InitialKind::HardLink(name) => known(*name),
                _ => true,
            }
    });
    if !tree || !benchmark.inherited.iter().all(|one| known(one.path) && one.handle < about.handles) {
        return Err(wrong("tree", "a name or handle that does not exist"));
    }
    let actions = benchmark.actions.iter().all(|action| {
        let mut good = known(action.name) && action.thread < about.threads;
        visit(action, |handle| good &= handle < about.handles || handle == NO_HANDLE, |_| {});
        visit(action, |_| {}, |name| good &= known(name));
        if let Op::Collect { requests, .. } = &action.op {
            good &= requests.iter().all(|request| *request < about.requests);
        }
        if let Op::Submit { first, requests, .. } = &action.op {
            good &= u64::from(*first) + requests.len() as u64 <= u64::from(about.requests);
        }
        good
    });
    if !actions {
        return Err(wrong("actions", "a name, thread, handle or request that does not exist"));
    }
    match benchmark.orders.iter().all(|order| order.is_acyclic(benchmark.actions.len())) {
        true => Ok(()),
        false => Err(wrong("orders", "an edge that runs backwards")),
    }
}

/// Every handle and name of an action.
fn visit(action: &Action, mut handle: impl FnMut(Handle), mut name: impl FnMut(Name)) {
    let mut place = |at: &Place<Handle>| {
        handle(at.dir);
        name(at.path);
    };
    match &action.op {
        Op::Nothing | Op::SyncAll | Op::Collect { .. } => {}
        Op::Open { at, made, .. } | Op::ChangeDir { at, made } => {
            place(at);
            handle(*made);
        }
        Op::Stat { at, .. }
        | Op::Access { at, .. }
        | Op::StatFs { at }
        | Op::MakeDir { at, .. }
        | Op::MakeNode { at, .. }
        | Op::ListAttributes { at, .. }
        | Op::RemoveDir { at }
        | Op::Unlink { at }
        | Op::SetMode { at, .. }
        | Op::SetOwner { at, .. }
        | Op::SetTimes { at, .. }
        | Op::Resize { at, .. } => place(at),
        Op::ReadLink { at, target } => {
            place(at);
            target.iter().for_each(|target| name(*target));
        }
        Op::Symlink { target, at } => {
            place(at);
            name(*target);
        }
        Op::GetAttribute { at, name: attribute, .. }
        | Op::SetAttribute { at, name: attribute, .. }
        | Op::RemoveAttribute { at, name: attribute, .. } => {
            place(at);
            name(*attribute);
        }
        Op::Rename { from, to, .. } | Op::Link { from, to, .. } | Op::Exchange { one: from, other: to } => {
            place(from);
            place(to);
        }
        Op::Close { all, unlocked } => all.iter().chain(unlocked).for_each(|one| handle(*one)),
        Op::Read { on, .. }
        | Op::Write { on, .. }
        | Op::ReadWith { on, .. }
        | Op::WriteWith { on, .. }
        | Op::SetFlags { on, .. }
        | Op::Seek { on, .. }
        | Op::Allocate { on, .. }
        | Op::Advise { on, .. }
        | Op::Sync { on, .. }
        | Op::List { on, .. }
        | Op::Flock { on, .. }
        | Op::Lock { on, .. } => handle(*on),
        Op::Copy { from, to, .. } => {
            handle(*from);
            handle(*to);
        }
        Op::Submit { requests, .. } => requests.iter().for_each(|request| handle(request.on)),
    }
}

/// The names in an action's operation.
pub(crate) fn names_of(action: &Action, name: impl FnMut(Name)) {
    visit(action, |_| {}, name);
}

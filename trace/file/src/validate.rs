//! Checks a compiled trace before any code trusts its numbers. A checksum does not stop a hostile author.

use crate::action::Action;
use crate::block::{ActionBlock, FileTail};
use crate::contents::{CompiledTrace, InitialKind};
use crate::error::TraceError;
use crate::names::Name;
use crate::op::{Handle, NO_HANDLE, Op};
use crate::operands::Operand;
use std::path::Path;

/// Maximum number of tasks in a trace. A replay has a thread for each, and Linux has at most four million in
/// all programs. One takes about half a kilobyte here.
pub const TASKS_MAX: u32 = 1 << 20;
/// Maximum number of descriptions and requests for each action. An action makes at most one description, and
/// the kernel limits requests.
const PER_ACTION_MAX: u64 = 1 << 16;

/// Checks a compiled trace while it is read. Blocks refer to later parts of the file, so the validator keeps
/// the highest numbers until then.
pub(crate) struct Validator<'a> {
    path: &'a Path,
    orders: usize,
    actions: u64,
    /// One more than the highest number seen.
    names: u64,
    threads: u64,
    handles: u64,
    requests: u64,
}

impl<'a> Validator<'a> {
    pub(crate) fn new(path: &'a Path, orders: usize) -> Validator<'a> {
        Validator { path, orders, actions: 0, names: 0, threads: 0, handles: 0, requests: 0 }
    }

    fn wrong(&self, section: &'static str, why: &str) -> TraceError {
        TraceError::Contents { path: self.path.into(), section, why: why.into() }
    }

    /// Checks the next block: its waits belong to its actions and lead to earlier actions.
    pub(crate) fn block(&mut self, block: &ActionBlock) -> Result<(), TraceError> {
        let first = self.actions;
        self.actions += block.actions.len() as u64;
        if self.actions > u64::from(u32::MAX) {
            return Err(self.wrong("actions", "more actions than can be numbered"));
        }
        block.actions.iter().for_each(|action| self.action(action));
        let good = block.waits.len() == self.orders
            && block.waits.iter().all(|order| {
                order.counts.len() == block.actions.len()
                    && order.counts.iter().map(|count| u64::from(*count)).sum::<u64>()
                        == order.waits.len() as u64
                    && (first..)
                        .zip(order.each())
                        .all(|(to, waits)| waits.iter().all(|wait| u64::from(wait.on) < to))
            });
        if good { Ok(()) } else { Err(self.wrong("actions", "an edge that runs backwards")) }
    }

    fn action(&mut self, action: &Action) {
        self.threads = self.threads.max(u64::from(action.thread) + 1);
        self.names = self.names.max(u64::from(action.name.0) + 1);
        // The first number of an empty batch belongs to the next batch, which may not exist.
        let refused = matches!(&action.op, Op::Submit { requests, .. } if requests.is_empty());
        action.op.operands(|part| match part {
            Operand::Place(at) => {
                self.handles = self.handles.max(above(at.dir));
                self.names = self.names.max(u64::from(at.path.0) + 1);
            }
            Operand::Handle(handle) => self.handles = self.handles.max(above(*handle)),
            Operand::Name(name) => self.names = self.names.max(u64::from(name.0) + 1),
            Operand::Request(request) if !refused => {
                self.requests = self.requests.max(u64::from(*request) + 1);
            }
            Operand::Request(_) | Operand::Context(_) => {}
        });
        // The other requests have the numbers that follow.
        if let Op::Submit { first, requests, .. } = &action.op {
            self.requests = self.requests.max(u64::from(*first) + requests.len() as u64);
        }
    }

    /// Checks the tail: every number seen must exist.
    pub(crate) fn finish(&self, tail: &FileTail) -> Result<(), TraceError> {
        let CompiledTrace { about, names, tree, inherited, .. } = &tail.rest;
        if tail.asked.len() != self.orders {
            return Err(self.wrong("about", "orders without counts"));
        }
        // An action shows its own thread, and makes at most one other.
        if about.threads > TASKS_MAX || u64::from(about.threads) > 2 * self.actions {
            return Err(self.wrong("about", "more threads than actions can make"));
        }
        let most = (self.actions + 1).saturating_mul(PER_ACTION_MAX);
        if u64::from(about.handles) > most || u64::from(about.requests) > most {
            return Err(self.wrong("about", "more handles or requests than actions can make"));
        }
        if about.naps.iter().any(|nap| u64::from(nap.action.max(nap.ends_with)) >= self.actions) {
            return Err(self.wrong("about", "a nap of an action that does not exist"));
        }
        let known = |name: Name| (name.0 as usize) < names.len();
        let good = tree.iter().all(|initial| {
            known(initial.path)
                && initial.attributes.iter().all(|(name, _)| known(*name))
                && match &initial.kind {
                    InitialKind::Link(name) | InitialKind::HardLink(name) => known(*name),
                    _ => true,
                }
        });
        if !good || !inherited.iter().all(|one| known(one.path) && one.handle < about.handles) {
            return Err(self.wrong("tree", "a name or handle that does not exist"));
        }
        let all = self.names <= names.len() as u64
            && self.threads <= u64::from(about.threads)
            && self.handles <= u64::from(about.handles)
            && self.requests <= u64::from(about.requests);
        if all {
            Ok(())
        } else {
            Err(self.wrong("actions", "a name, thread, handle or request that does not exist"))
        }
    }
}

/// One more than a handle's number; 0 for no handle.
fn above(handle: Handle) -> u64 {
    if handle == NO_HANDLE { 0 } else { u64::from(handle) + 1 }
}

//! What a compiled trace must hold to before anything trusts its numbers: a checksum does not stop a hostile author.

use crate::action::Action;
use crate::block::{ActionBlock, FileTail};
use crate::contents::{CompiledTrace, InitialKind};
use crate::error::TraceError;
use crate::names::Name;
use crate::op::{Handle, NO_HANDLE, Op};
use crate::operands::Operand;
use std::path::Path;

/// Tasks of a trace: a replay has a thread for each, and Linux has four million at most, at one time and of all programs. One takes
/// about half a kilobyte here.
pub const TASKS_MAX: u32 = 1 << 20;
/// Descriptions and requests: one action makes at most one of the former, and the kernel limits the latter.
const PER_ACTION_MAX: u64 = 1 << 16;

/// Looks at a compiled trace as it is read. What blocks refer to comes after them, so the highest numbers are kept until then.
pub(crate) struct Validator<'a> {
    path: &'a Path,
    orders: usize,
    actions: u64,
    /// One more than the highest that came up.
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

    /// The next block: its waits belong to its actions and run backwards in time.
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
        // The first of a batch of none is the next batch's, and there may be no next one.
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
        // Those behind the first have the numbers that follow.
        if let Op::Submit { first, requests, .. } = &action.op {
            self.requests = self.requests.max(u64::from(*first) + requests.len() as u64);
        }
    }

    /// Everything else: what came up must be there.
    pub(crate) fn finish(&self, tail: &FileTail) -> Result<(), TraceError> {
        let CompiledTrace { about, names, tree, inherited, .. } = &tail.rest;
        if tail.asked.len() != self.orders {
            return Err(self.wrong("about", "orders without counts"));
        }
        // An action shows its own thread, and makes another one at most.
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

/// One more than a handle's number; nothing for none.
fn above(handle: Handle) -> u64 {
    if handle == NO_HANDLE { 0 } else { u64::from(handle) + 1 }
}

//! Actions of one benchmark with the numbers of another that it becomes a part of.

use crate::action::Action;
use crate::names::Name;
use crate::op::{Handle, NO_HANDLE, Op, Place, Request};

/// What is added to each number; names have new ones.
#[derive(Debug, Clone, Default)]
pub(super) struct Numbers {
    pub(super) names: Vec<Name>,
    pub(super) threads: u32,
    pub(super) handles: u32,
    pub(super) requests: u32,
    pub(super) contexts: u32,
}

impl Numbers {
    pub(super) fn name(&self, name: Name) -> Name {
        self.names[name.0 as usize]
    }

    pub(super) fn handle(&self, handle: Handle) -> Handle {
        if handle == NO_HANDLE { NO_HANDLE } else { handle + self.handles }
    }

    fn place(&self, at: Place<Handle>) -> Place<Handle> {
        Place { dir: self.handle(at.dir), path: self.name(at.path) }
    }

    fn all(&self, handles: &[Handle]) -> Box<[Handle]> {
        handles.iter().map(|handle| self.handle(*handle)).collect()
    }

    pub(super) fn action(&self, action: &Action) -> Action {
        let (thread, name) = (action.thread + self.threads, self.name(action.name));
        Action { thread, name, op: self.op(&action.op), ..action.clone() }
    }

    fn op(&self, op: &Op<Handle>) -> Op<Handle> {
        let mut op = op.clone();
        match &mut op {
            Op::Nothing | Op::SyncAll => {}
            Op::Open { at, made, .. } | Op::ChangeDir { at, made } => {
                (*at, *made) = (self.place(*at), self.handle(*made));
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
            | Op::Resize { at, .. } => *at = self.place(*at),
            Op::ReadLink { at, target } => {
                (*at, *target) = (self.place(*at), target.map(|name| self.name(name)))
            }
            Op::Symlink { target, at } => (*at, *target) = (self.place(*at), self.name(*target)),
            Op::GetAttribute { at, name, .. }
            | Op::SetAttribute { at, name, .. }
            | Op::RemoveAttribute { at, name, .. } => (*at, *name) = (self.place(*at), self.name(*name)),
            Op::Rename { from, to, .. }
            | Op::Link { from, to, .. }
            | Op::Exchange { one: from, other: to } => {
                (*from, *to) = (self.place(*from), self.place(*to));
            }
            Op::Close { all, unlocked } => (*all, *unlocked) = (self.all(all), self.all(unlocked)),
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
            | Op::Lock { on, .. } => *on = self.handle(*on),
            Op::Copy { from, to, .. } => (*from, *to) = (self.handle(*from), self.handle(*to)),
            Op::Submit { context, first, requests } => {
                (*context, *first) = (*context + self.contexts, *first + self.requests);
                let on = |request: &Request<Handle>| Request { on: self.handle(request.on), ..*request };
                *requests = requests.iter().map(on).collect();
            }
            Op::Collect { context, requests } => {
                *context += self.contexts;
                requests.iter_mut().for_each(|request| *request += self.requests);
            }
        }
        op
    }
}

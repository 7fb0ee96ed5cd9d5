//! Renumbers the actions of a compiled trace for the merged trace that they become a part of.

use trace_file::{Action, Handle, NO_HANDLE, Name, OperandMut};

/// The offset added to each kind of number. Names get new numbers instead.
#[derive(Debug, Clone, Default)]
pub(super) struct Renumbering {
    pub(super) names: Vec<Name>,
    pub(super) threads: u32,
    pub(super) handles: u32,
    pub(super) requests: u32,
    pub(super) contexts: u32,
}

impl Renumbering {
    pub(super) fn name(&self, name: Name) -> Name {
        self.names[name.0 as usize]
    }

    pub(super) fn handle(&self, handle: Handle) -> Handle {
        if handle == NO_HANDLE { NO_HANDLE } else { handle + self.handles }
    }

    pub(super) fn action(&self, action: &Action) -> Action {
        let mut action = action.clone();
        action.thread += self.threads;
        action.name = self.name(action.name);
        action.op.operands_mut(|part| match part {
            OperandMut::Place(at) => (at.dir, at.path) = (self.handle(at.dir), self.name(at.path)),
            OperandMut::Handle(handle) => *handle = self.handle(*handle),
            OperandMut::Name(name) => *name = self.name(*name),
            OperandMut::Context(context) => *context += self.contexts,
            OperandMut::Request(request) => *request += self.requests,
        });
        action
    }
}

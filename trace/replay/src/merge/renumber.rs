//! Actions of one benchmark with the numbers of another that it becomes a part of.

use trace_file::{Action, Handle, NO_HANDLE, Name, OperandMut};

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

//! The operands of an operation, in one table for code that checks, renumbers or compares them.

use crate::action::Action;
use crate::names::Name;
use crate::op::{Op, Place};

/// Makes the table twice: to read operands and to change them.
macro_rules! operands {
    ($(#[$doc:meta])* $part:ident, $(#[$how:meta])* $visit:ident $(, $mutable:tt)?) => {
        $(#[$doc])*
        pub enum $part<'a, D> {
            /// The place of a file.
            Place(&'a $($mutable)? Place<D>),
            /// A descriptor or handle.
            Handle(&'a $($mutable)? D),
            /// A name outside of a place: the target of a link, an attribute.
            Name(&'a $($mutable)? Name),
            /// An asynchronous context.
            Context(&'a $($mutable)? u32),
            /// The number of an asynchronous request.
            Request(&'a $($mutable)? u32),
        }

        impl<D> Op<D> {
            $(#[$how])*
            pub fn $visit<'a>(&'a $($mutable)? self, mut each: impl FnMut($part<'a, D>)) {
                match self {
                    Op::Nothing | Op::SyncAll => {}
                    Op::Open { at, made, .. } | Op::ChangeDir { at, made } => {
                        each($part::Place(at));
                        each($part::Handle(made));
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
                    | Op::Resize { at, .. }
                    | Op::ReadLink { at, target: None } => each($part::Place(at)),
                    Op::ReadLink { at, target: Some(name) }
                    | Op::Symlink { at, target: name }
                    | Op::GetAttribute { at, name, .. }
                    | Op::SetAttribute { at, name, .. }
                    | Op::RemoveAttribute { at, name, .. } => {
                        each($part::Place(at));
                        each($part::Name(name));
                    }
                    Op::Rename { from, to, .. }
                    | Op::Link { from, to, .. }
                    | Op::Exchange { one: from, other: to } => {
                        each($part::Place(from));
                        each($part::Place(to));
                    }
                    Op::Close { all, unlocked } => {
                        all.into_iter().chain(unlocked).for_each(|handle| each($part::Handle(handle)));
                    }
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
                    | Op::Lock { on, .. } => each($part::Handle(on)),
                    Op::Copy { from, to, .. } => {
                        each($part::Handle(from));
                        each($part::Handle(to));
                    }
                    Op::Submit { context, first, requests } => {
                        each($part::Context(context));
                        each($part::Request(first));
                        requests.into_iter().for_each(|request| each($part::Handle(&$($mutable)? request.on)));
                    }
                    Op::Collect { context, requests } => {
                        each($part::Context(context));
                        requests.into_iter().for_each(|request| each($part::Request(request)));
                    }
                }
            }
        }
    };
}

operands!(
    /// An operand.
    Operand,
    /// Calls a function with each operand, in the order of the arguments.
    operands
);
operands!(
    /// An operand that can be changed.
    OperandMut,
    /// Calls a function with each operand, which the function may change.
    operands_mut,
    mut
);

/// Calls `name` with each name in an action's operation.
pub fn names_of(action: &Action, mut name: impl FnMut(Name)) {
    action.op.operands(|part| match part {
        Operand::Place(at) => name(at.path),
        Operand::Name(other) => name(*other),
        _ => {}
    });
}

//! What a parser yields: one call, or the end of a task, as the trace shows it. Nothing is interpreted yet.

/// A line of the trace, or two that belong together.
#[derive(Debug, Clone, PartialEq)]
pub struct Event {
    /// The thread id in the trace; 0 where the form shows none.
    pub task: u32,
    /// Nanoseconds since the epoch (or since the first line) at which the call was entered.
    pub start: u64,
    /// The same at which it returned; equal to `start` where the trace does not tell.
    pub end: u64,
    /// Of the line on which it began, from 1.
    pub line: u64,
    /// What happened.
    pub what: What,
}

/// What happened.
#[derive(Debug, Clone, PartialEq)]
pub enum What {
    /// A system call.
    Call {
        /// Its name, such as `openat`.
        name: String,
        /// Its arguments, as printed.
        args: Vec<Value>,
        /// What it returned.
        result: Recorded,
    },
    /// The task ended: by itself, or by a signal.
    Ended,
    /// The task ended because another thread of its process called exec. That thread goes on under this task's number.
    Superseded {
        /// The number of that thread until then.
        by: u32,
    },
}

/// What a call returned.
#[derive(Debug, Clone, PartialEq)]
pub enum Recorded {
    /// A number, and the note that `-y` prints beside a descriptor.
    Value(i64, Option<Vec<u8>>),
    /// An error, by name.
    Error(String),
    /// It never returned, or the trace does not say.
    Unknown,
    /// A signal interrupted it, and the kernel calls it again: the next call of the task goes on with it.
    Restarts,
}

/// An argument, as printed.
#[derive(Debug, Clone, PartialEq)]
pub enum Value {
    /// `4096`, `0x7f00`, `0644`.
    Number(i64),
    /// `O_RDONLY|O_CLOEXEC`, `NULL`: names, joined as printed.
    Symbol(String),
    /// `"name"`; `whole` is false if strace cut it off.
    Text {
        /// The bytes, escapes undone.
        bytes: Vec<u8>,
        /// Whether that is all of it.
        whole: bool,
    },
    /// `3</etc/passwd>`, `AT_FDCWD</srv>`: a number with a note.
    Descriptor {
        /// The number; `AT_FDCWD` is [`libc::AT_FDCWD`].
        number: i32,
        /// What strace says that it is.
        note: Vec<u8>,
    },
    /// `[a, b]`.
    List(Vec<Value>),
    /// `{a=1, b=2}`.
    Fields(Vec<(String, Value)>),
    /// `...`, or something that could not be read.
    Elided,
}

impl Value {
    /// The field of that name, in a structure.
    pub fn field(&self, name: &str) -> Option<&Value> {
        match self {
            Value::Fields(fields) => fields.iter().find(|(field, _)| field == name).map(|(_, value)| value),
            _ => None,
        }
    }
}

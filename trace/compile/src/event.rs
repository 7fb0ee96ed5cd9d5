//! A call or the end of a task, as a parser reads it from the trace. Nothing is interpreted yet.

/// A line of the trace, or the two halves of an unfinished and resumed call.
#[derive(Debug, Clone, PartialEq)]
pub struct TraceEvent {
    /// The thread id in the trace; 0 if the trace shows none.
    pub task: u32,
    /// Time of entry, in nanoseconds since the epoch (or since the first line).
    pub start: u64,
    /// Time of return, in the same unit. Equal to `start` if the trace does not show the duration.
    pub end: u64,
    /// Number of the line on which the event began, from 1.
    pub line: u64,
    /// The kind of the event.
    pub what: EventKind,
}

/// The kind of the event.
#[derive(Debug, Clone, PartialEq)]
pub enum EventKind {
    /// A system call.
    Call {
        /// Its name, such as `openat`.
        name: String,
        /// Its arguments, as printed.
        args: Vec<Value>,
        /// The result.
        result: Recorded,
    },
    /// The task ended by itself or by a signal.
    Ended,
    /// The task ended because another thread of its process called exec. That thread continues under this
    /// task's number.
    Superseded {
        /// The previous number of that thread.
        by: u32,
    },
}

/// The result of a call, as printed.
#[derive(Debug, Clone, PartialEq)]
pub enum Recorded {
    /// A number, and the note that `-y` prints beside a descriptor.
    Value(i64, Option<Vec<u8>>),
    /// An error, by name.
    Error(String),
    /// The call never returned, or the trace omits the result.
    Unknown,
    /// A signal interrupted the call, and the kernel restarts it. The task's next call continues it.
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
        /// Whether `bytes` is the whole text.
        whole: bool,
    },
    /// `3</etc/passwd>`, `AT_FDCWD</srv>`: a number with a note.
    Descriptor {
        /// The number; `AT_FDCWD` is [`libc::AT_FDCWD`].
        number: i32,
        /// The file or object that strace prints beside the number.
        note: Vec<u8>,
    },
    /// `[a, b]`.
    List(Vec<Value>),
    /// `{a=1, b=2}`.
    Fields(Vec<(String, Value)>),
    /// `...`, or an argument that could not be read.
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

//! The origin of a request: its task, its class, and what it asks for.

use crate::request_kind::RequestKind;

/// Whether somebody waits for a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[repr(u8)]
pub enum RequestClass {
    /// Somebody waits for the request. The class of every request that no rule matches.
    #[default]
    Critical,
    /// Nobody waits for the request.
    Background,
}

impl RequestClass {
    /// The word for the class in rules.
    pub fn name(self) -> &'static str {
        match self {
            RequestClass::Critical => "critical",
            RequestClass::Background => "background",
        }
    }

    /// The class for which rules have this word.
    pub fn named(word: &str) -> Option<RequestClass> {
        [RequestClass::Critical, RequestClass::Background].into_iter().find(|class| class.name() == word)
    }
}

/// Where a request comes from, and what it asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Origin {
    /// The thread id of the caller; 0 if it is unknown.
    pub task: u32,
    /// The index of the rule that decided the class, or [`NO_RULE`](Origin::NO_RULE).
    pub rule: u8,
    /// The class of the request.
    pub class: RequestClass,
    /// What the request asks for.
    pub kind: RequestKind,
    /// Whether all that it writes is logged at once, and none of its pages bypasses the buffer: a critical rule
    /// names its file, which therefore is a log or the like, whose last page is written and synced again and again.
    pub logs_at_once: bool,
    /// The inode number of its file, or of the directory of its name; 0 if there is none.
    pub file: u64,
}

// Every request carries one.
const _: () = assert!(size_of::<Origin>() <= 16);

impl Origin {
    /// In place of a rule's index: no rule matches.
    pub const NO_RULE: u8 = 64;

    /// An unknown task, and no rule.
    pub const UNMATCHED: Origin = Origin {
        task: 0,
        rule: Origin::NO_RULE,
        class: RequestClass::Critical,
        kind: RequestKind::Other,
        logs_at_once: false,
        file: 0,
    };
}

//! The kinds of requests, for which latencies and waits are reported.

/// The kind of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum RequestKind {
    /// Finding a name.
    Lookup,
    /// Reading attributes.
    Getattr,
    /// Setting attributes, truncation among them.
    Setattr,
    /// Reading bytes.
    Read,
    /// Writing bytes.
    Write,
    /// Making a file or directory durable.
    Fsync,
    /// Making a file, directory or link.
    Create,
    /// Removing a name.
    Unlink,
    /// Moving a name.
    Rename,
    /// Listing a directory.
    Readdir,
    /// Everything else.
    Other,
}

impl RequestKind {
    /// Every kind, in the order in which they are shown.
    pub const ALL: [RequestKind; 11] = [
        RequestKind::Lookup,
        RequestKind::Getattr,
        RequestKind::Setattr,
        RequestKind::Read,
        RequestKind::Write,
        RequestKind::Fsync,
        RequestKind::Create,
        RequestKind::Unlink,
        RequestKind::Rename,
        RequestKind::Readdir,
        RequestKind::Other,
    ];

    /// Its name in `status`.
    pub fn name(self) -> &'static str {
        match self {
            RequestKind::Lookup => "lookup",
            RequestKind::Getattr => "getattr",
            RequestKind::Setattr => "setattr",
            RequestKind::Read => "read",
            RequestKind::Write => "write",
            RequestKind::Fsync => "fsync",
            RequestKind::Create => "create",
            RequestKind::Unlink => "unlink",
            RequestKind::Rename => "rename",
            RequestKind::Readdir => "readdir",
            RequestKind::Other => "other",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_is_listed_at_its_own_place() {
        assert!(RequestKind::ALL.iter().enumerate().all(|(at, &kind)| kind as usize == at));
    }
}

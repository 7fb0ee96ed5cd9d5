//! The interface between the server and the storage engine.

/// A disk that the server exports.
///
/// Any thread may call the methods, also several at once. Each call returns soon, without waiting for a
/// device. A method calls `done` exactly once: from any thread, also before the method returns. If `done` is
/// dropped without a call, the client gets EIO.
///
/// The server calls the methods only with ranges inside the disk that are not empty. Requests in flight at
/// the same time may take effect in any order.
///
/// A client may use several connections at once. A flush on one connection therefore covers the writes that
/// have completed on all connections.
pub trait Disk: Send + Sync + 'static {
    /// The size in bytes. The size never changes while the disk is exported.
    fn size(&self) -> u64;

    /// Whether the disk refuses every change. The answer never changes while the disk is exported.
    fn is_read_only(&self) -> bool;

    /// Reads `len` bytes at `offset`. `len` is at most 32 MiB.
    fn read(&self, offset: u64, len: usize, done: DiskCompletion<Vec<u8>>);

    /// Writes `bytes`, at most 32 MiB, at `offset`.
    fn write(&self, offset: u64, bytes: Vec<u8>, durability: Durability, done: DiskCompletion<()>);

    /// Makes `len` bytes at `offset` read as zeros. The disk does not write the zeros one by one, so a long
    /// range takes no longer than a short one.
    fn zero(&self, offset: u64, len: u64, durability: Durability, done: DiskCompletion<()>);

    /// Makes every change durable whose completion has run before this call.
    fn flush(&self, done: DiskCompletion<()>);

    /// Finds the extents of the `len` bytes at `offset`. The first extent begins at `offset`, and each extent
    /// begins at the end of the one before. The disk reports at least one extent and at most `max`. The
    /// extents may end before the range does, or after the end of the range.
    fn extents(&self, offset: u64, len: u64, max: usize, done: DiskCompletion<Vec<Extent>>);
}

/// Receives the outcome of one operation of a [`Disk`]. The call never blocks.
pub type DiskCompletion<T> = Box<dyn FnOnce(Result<T, DiskError>) + Send>;

/// When a change must be durable.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Durability {
    /// The change is durable after a later flush.
    Later,
    /// The change is durable when it completes. The protocol calls this "force unit access" (FUA).
    Now,
}

/// A part of a disk in which all bytes are of one kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Extent {
    /// The length in bytes, at least 1.
    pub len: u64,
    /// The kind of the bytes.
    pub kind: ExtentKind,
}

/// The kind of the bytes of an [`Extent`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ExtentKind {
    /// The disk stores the bytes.
    Data,
    /// The bytes take no space, and read as zeros.
    Hole,
}

/// The reason why a [`Disk`] failed an operation. The server sends the errno of the variant to the client.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum DiskError {
    /// The storage below the disk is full (ENOSPC).
    #[error("no space left for the disk")]
    NoSpace,
    /// The disk refuses changes (EPERM).
    #[error("the disk is read-only")]
    ReadOnly,
    /// The storage below the disk failed, or the bytes are damaged (EIO).
    #[error("the disk cannot read or write these bytes")]
    Io,
    /// The disk does not support the operation with these arguments (EINVAL).
    #[error("the disk does not support this request")]
    Invalid,
    /// The disk is being closed (ESHUTDOWN).
    #[error("the disk is being closed")]
    ShuttingDown,
}

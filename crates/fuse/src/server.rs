//! The table from FUSE requests to operations of `fs`.
//!
//! Each reply to a look-up makes the kernel remember an inode, and counts as one opener ([`Fs::hold`]);
//! FORGET removes it. The kernel remembers an inode as long as it is open, so open files need no count of
//! their own, and OPEN is answered with ENOSYS: from then on the kernel opens and closes files without
//! asking. It asks only where the root has the mark of [atomic writes](fs::ATOMIC_WRITES_MARK): a marked file
//! that is opened for writing is opened for direct I/O, because the kernel may split a write that goes through
//! its page cache.

mod completions;
#[cfg(test)]
mod tests;

use crate::attributes::{
    attr_reply, attributes_to_set, caller, entry_reply, mknod_kind, mode_of, no_entry, permissions,
};
use crate::background_requests::LockedInodes;
use crate::connection::PendingReply;
use crate::errno::reply_errno;
use crate::hole_search::HoleSearch;
use crate::kernel_settings::{BACKGROUND_MAX, KernelCachePolicy};
use crate::latency::{LatencyTimer, RequestCounter, RequestLatencies};
use crate::listing::{ListedEntry, ReplySpace, list_dots};
use crate::page_invalidation::PageInvalidator;
use crate::privileges::write_dropping_privileges;
use crate::proc_reader::{KillDetector, ProcReader};
use crate::protocol::{
    BatchForget, CopyCount, CopyReply, CreateReply, FuseOp, IS_DIRECT_IO, IS_WRITE_BACK, ListingReply,
    OpenReply, RequestHeader, SetattrIn, StatfsReply, WRITE_KILLS_PRIVILEGES, WriteReply,
};
use crate::range_flags;
use crate::request_classes::RequestClasses;
use crate::thread_hints::CLASS_ATTRIBUTE;
use crate::xattr::{list_for, reply_xattr, set_xattr_mode};
use fs::{
    ATOMIC_WRITES_MARK, CallerCredentials, FILE_BYTES_MAX, FileAttributes, FileKind, Fs, FsCompletion,
    FsError, IfExists, Ino,
};
use host::TaskReadError;
use request::{Origin, RequestClass, RuleDecision};
use rustix::io::Errno;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

/// Answers the kernel's requests from a file system.
#[derive(Clone)]
pub struct FuseServer {
    /// Its origin is that of the last request.
    fs: Fs,
    /// The class of the last request. `None` while no rules are in force.
    class: Option<RequestClass>,
    pub(crate) parts: Arc<ServerParts>,
}

/// Everything but the file system, whose handle has the origin of a request.
pub(crate) struct ServerParts {
    latencies: Arc<RequestLatencies>,
    requests: Arc<RequestCounter>,
    classes: Arc<RequestClasses>,
    kernel_cache: KernelCachePolicy,
    /// Whether the kernel asks before it opens a file, so that files can be marked for atomic writes.
    asks_to_open: bool,
    pub(crate) page_invalidator: PageInvalidator,
    pub(crate) proc_reader: ProcReader,
    kill_detector: KillDetector,
    /// How long the kernel may cache names and attributes.
    ttl: Duration,
}

impl FuseServer {
    /// What makes the kernel forget pages of files, for changes that do not come from the kernel.
    pub fn page_invalidator(&self) -> PageInvalidator {
        self.parts.page_invalidator.clone()
    }

    /// Whether files can be marked for [atomic writes](fs::ATOMIC_WRITES_MARK): the root had the mark when the server was made.
    pub fn has_atomic_writes(&self) -> bool {
        self.parts.asks_to_open
    }

    /// A server of `fs` that records latencies in `latencies`, counts requests in `requests`, and decides
    /// about their origins by `classes`.
    pub fn new(
        fs: &Fs,
        latencies: Arc<RequestLatencies>,
        requests: Arc<RequestCounter>,
        classes: Arc<RequestClasses>,
        kernel_cache: KernelCachePolicy,
    ) -> FuseServer {
        let parts = ServerParts {
            latencies,
            requests,
            classes,
            kernel_cache,
            asks_to_open: fs.xattr(Ino::ROOT, ATOMIC_WRITES_MARK).is_ok(),
            page_invalidator: PageInvalidator::default(),
            proc_reader: ProcReader::default(),
            kill_detector: KillDetector::default(),
            ttl: kernel_cache.ttl(),
        };
        FuseServer { fs: fs.clone(), class: None, parts: Arc::new(parts) }
    }

    /// Performs a request. The reply is sent before this returns, or later by another thread.
    pub(crate) fn serve(&mut self, header: &RequestHeader, op: FuseOp<'_>, mut reply: PendingReply) {
        let node = Ino(header.node);
        let decided = self.parts.classes.decide(header.pid, node, || self.fs.rules_of(node));
        let RuleDecision { rule, class, logs_at_once } = decided.unwrap_or(RuleDecision::NO_RULE);
        self.class = decided.map(|_| class);
        self.fs.set_origin(Origin {
            task: header.pid,
            rule,
            class,
            kind: op.kind(),
            logs_at_once,
            file: header.node,
        });
        if class == RequestClass::Background {
            self.list_background(header, &op, &mut reply);
        }
        self.perform(header, op, reply);
    }

    /// Lists a background request until its reply is sent, if a thread looks at such requests. Those without a
    /// task are not listed: nothing can be lent to them.
    fn list_background(&self, header: &RequestHeader, op: &FuseOp<'_>, reply: &mut PendingReply) {
        let Some(background) = self.parts.classes.background().filter(|_| header.pid != 0) else { return };
        if let Some(locks) = LockedInodes::of(header, op) {
            reply.keep_listed(background.enter(header.unique, header.pid, locks));
        }
    }

    fn perform(&self, header: &RequestHeader, op: FuseOp<'_>, reply: PendingReply) {
        let node = Ino(header.node);
        let caller = |umask| caller(header, umask);
        match op {
            FuseOp::Lookup { name } => self.lookup(node, name, reply),
            FuseOp::Forget { lookups } => self.fs.forget(node, lookups),
            FuseOp::BatchForget(forgotten) => self.batch_forget(forgotten),
            FuseOp::Getattr => self.getattr(node, reply),
            FuseOp::Setattr(asked) => self.setattr(node, &asked, reply),
            FuseOp::Readlink => self.readlink(node, reply),
            FuseOp::Symlink { name, target } => self.symlink(caller(0), node, name, target, reply),
            FuseOp::Mknod { name, mode, device, umask } => {
                self.mknod(caller(umask), node, name, mode, device, reply);
            }
            FuseOp::Mkdir { name, mode, umask } => self.mkdir(caller(umask), node, name, mode, reply),
            FuseOp::Unlink { name } => self.fs.unlink(node, name, self.empty_completion(reply)),
            FuseOp::Rmdir { name } => self.fs.remove_directory(node, name, self.empty_completion(reply)),
            FuseOp::Rename { name, new_parent, new_name, flags } => {
                self.rename(caller(0), (node, name), (Ino(new_parent), new_name), flags, reply);
            }
            FuseOp::Link { of, name } => {
                self.fs.link(Ino(of), node, name, self.entry_completion(reply));
            }
            FuseOp::Open { flags } => self.open(node, flags, reply),
            FuseOp::Read { offset, size, flags } => self.read(node, offset, size, flags, reply),
            FuseOp::Write { handle, offset, data, flags, open_flags }
                if may_be_part_of_page(header.pid, flags, handle, offset.wrapping_add(data.len() as u64)) =>
            {
                self.write_unless_killed(header.pid, node, (offset, data), flags, open_flags, reply);
            }
            FuseOp::Write { offset, data, flags, open_flags, .. } => {
                self.write(node, (offset, data), flags, open_flags, reply);
            }
            FuseOp::Statfs => self.statfs(reply),
            FuseOp::Release | FuseOp::Releasedir | FuseOp::Destroy => reply.ok(),
            FuseOp::Fsync => self.fs.sync_file(node, self.empty_completion(reply)),
            FuseOp::Setxattr { name: CLASS_ATTRIBUTE, value, .. } => self.set_class(header.pid, value, reply),
            FuseOp::Getxattr { name: CLASS_ATTRIBUTE, size } => self.get_class(header.pid, size, reply),
            FuseOp::Removexattr { name: CLASS_ATTRIBUTE } => self.remove_class(header.pid, reply),
            // Here a mark would promise what the kernel does not keep.
            FuseOp::Setxattr { name: ATOMIC_WRITES_MARK, .. } if !self.parts.asks_to_open => {
                reply.error(Errno::OPNOTSUPP);
            }
            FuseOp::Setxattr { name, value, flags } => self.setxattr(node, name, value, flags, reply),
            FuseOp::Getxattr { name, size } => self.getxattr(node, name, size, reply),
            FuseOp::Listxattr { size } => self.listxattr(header.uid, node, size, reply),
            FuseOp::Removexattr { name } => {
                self.fs.remove_xattr(node, name, self.empty_completion(reply));
            }
            FuseOp::Opendir => self.opendir(reply),
            FuseOp::Readdir { offset, size } => self.readdir(node, offset, size, reply),
            FuseOp::Readdirplus { offset, size } => self.readdirplus(node, offset, size, reply),
            FuseOp::Fsyncdir => self.fs.sync_names(self.empty_completion(reply)),
            FuseOp::Create { name, mode, umask } => self.create(caller(umask), node, name, mode, reply),
            FuseOp::Fallocate { offset, len, mode } => self.fallocate(node, (offset, len), mode, reply),
            FuseOp::Lseek { offset, whence } => self.lseek(node, offset, whence, reply),
            FuseOp::CopyFileRange { offset, to, to_offset, len, count } => {
                self.copy_file_range((node, offset, len), (Ino(to), to_offset), count, reply);
            }
        }
    }

    /// A timer for an operation that a completion answers.
    fn shared_timer(&self) -> LatencyTimer {
        self.parts.requests.note();
        LatencyTimer::start(self.parts.latencies.clone(), self.fs.origin().kind, self.class)
    }

    /// A timer for an operation that its handler answers.
    fn short_timer(&self) -> LatencyTimer<&RequestLatencies> {
        self.parts.requests.note();
        LatencyTimer::start(&self.parts.latencies, self.fs.origin().kind, self.class)
    }

    fn lookup(&self, parent: Ino, name: &[u8], reply: PendingReply) {
        let _timer = self.short_timer();
        let found = match name {
            // The kernel has a file handle of an inode that it forgot.
            b"." => self.fs.find_and_hold(parent),
            b".." => self.fs.parent(parent).and_then(|parent| self.fs.find_and_hold(parent)),
            name => self.fs.lookup_and_hold(parent, name),
        };
        match found {
            Ok(found) => reply.body(&entry_reply(&found, self.parts.ttl)),
            // The kernel may cache that, too, because new names come only from the kernel.
            Err(FsError::NotFound) => reply.body(&no_entry(self.parts.ttl)),
            Err(error) => reply.error(reply_errno(&error)),
        }
    }

    fn batch_forget(&self, forgotten: BatchForget<'_>) {
        for (node, lookups) in forgotten.nodes() {
            self.fs.forget(Ino(node), lookups);
        }
    }

    fn getattr(&self, node: Ino, reply: PendingReply) {
        let _timer = self.short_timer();
        match self.fs.attributes(node) {
            Ok(now) => reply.body(&attr_reply(&now, self.parts.ttl)),
            Err(error) => reply.error(reply_errno(&error)),
        }
    }

    fn setattr(&self, node: Ino, asked: &SetattrIn, reply: PendingReply) {
        self.fs.set_attributes(node, attributes_to_set(asked), self.attr_completion(reply));
    }

    fn readlink(&self, node: Ino, reply: PendingReply) {
        let _timer = self.short_timer();
        match self.fs.read_link(node) {
            Ok(target) => reply.bytes(&target),
            Err(error) => reply.error(reply_errno(&error)),
        }
    }

    fn symlink(
        &self,
        caller: CallerCredentials,
        parent: Ino,
        name: &[u8],
        target: &[u8],
        reply: PendingReply,
    ) {
        self.fs.symlink(caller, parent, name, target, self.entry_completion(reply));
    }

    fn mkdir(&self, caller: CallerCredentials, parent: Ino, name: &[u8], mode: u32, reply: PendingReply) {
        let done = self.entry_completion(reply);
        self.fs.make(caller, parent, name, FileKind::Directory, permissions(mode), done);
    }

    fn mknod(
        &self,
        caller: CallerCredentials,
        parent: Ino,
        name: &[u8],
        mode: u32,
        device: u32,
        reply: PendingReply,
    ) {
        let Some(kind) = mknod_kind(mode) else { return reply.error(Errno::INVAL) };
        let mode = permissions(mode);
        let done = self.entry_completion(reply);
        match kind {
            FileKind::CharDevice | FileKind::BlockDevice => {
                self.fs.make_device(caller, parent, name, (kind, device), mode, done);
            }
            _ => self.fs.make(caller, parent, name, kind, mode, done),
        }
    }

    fn create(&self, caller: CallerCredentials, parent: Ino, name: &[u8], mode: u32, reply: PendingReply) {
        let timer = self.shared_timer();
        let fs = self.fs.clone();
        let ServerParts { ttl, asks_to_open, .. } = *self.parts;
        let done: FsCompletion<FileAttributes> = Box::new(move |made| {
            let _timer = timer;
            match made.and_then(|made| fs.hold(made.ino).map(|()| made)) {
                Ok(made) => {
                    // The file may have inherited the mark. If it is open for reading only, direct I/O does no harm.
                    let marked = if asks_to_open { fs.atomic_page_bytes(made.ino) } else { Ok(None) };
                    let open = OpenReply::of_file(marked.unwrap_or(None));
                    reply.body(&CreateReply { entry: entry_reply(&made, ttl), open });
                }
                Err(error) => reply.error(reply_errno(&error)),
            }
        });
        self.fs.make(caller, parent, name, FileKind::File, permissions(mode), done);
    }

    fn open(&self, node: Ino, flags: i32, reply: PendingReply) {
        if !self.parts.asks_to_open {
            return reply.error(Errno::NOSYS);
        }
        let _timer = self.short_timer();
        // A file that is open for reading only has no writes, and its reads may come from the kernel's page cache.
        if flags & libc::O_ACCMODE == libc::O_RDONLY {
            return reply.body(&OpenReply::of_file(None));
        }
        match self.fs.atomic_page_bytes(node) {
            Ok(page_bytes) => reply.body(&OpenReply::of_file(page_bytes)),
            Err(error) => reply.error(reply_errno(&error)),
        }
    }

    fn rename(
        &self,
        caller: CallerCredentials,
        from: (Ino, &[u8]),
        to: (Ino, &[u8]),
        flags: u32,
        reply: PendingReply,
    ) {
        let if_exists = match flags & libc::RENAME_NOREPLACE {
            0 => IfExists::Replace,
            _ => IfExists::Refuse,
        };
        match flags & !libc::RENAME_NOREPLACE {
            0 => self.fs.rename(from, to, if_exists, self.empty_completion(reply)),
            libc::RENAME_WHITEOUT => {
                let done = self.empty_completion(reply);
                let done: FsCompletion<_> = Box::new(move |moved| done(moved.map(drop)));
                self.fs.rename_leaving_whiteout(caller, from, to, if_exists, done);
            }
            libc::RENAME_EXCHANGE if if_exists == IfExists::Replace => {
                self.fs.exchange(from, to, self.empty_completion(reply));
            }
            _ => reply.error(Errno::INVAL),
        }
    }

    fn read(&self, node: Ino, offset: u64, size: u32, flags: u32, reply: PendingReply) {
        if flags & IS_DIRECT_IO == 0 {
            self.fs.note_client_caching(node);
        }
        let timer = self.shared_timer();
        let done: FsCompletion<Vec<u8>> = Box::new(move |read| {
            let mut timer = timer;
            match read {
                Ok(bytes) => {
                    timer.set_bytes(bytes.len() as u64);
                    reply.bytes(&bytes);
                }
                Err(error) => reply.error(reply_errno(&error)),
            }
        });
        self.fs.read(node, offset, size as usize, done);
    }

    fn write(
        &self,
        node: Ino,
        (offset, data): (u64, &[u8]),
        flags: u32,
        open_flags: i32,
        reply: PendingReply,
    ) {
        let data = clip_to_file_max(offset, data);
        // A request is at most 1 MiB long.
        let timer = self.shared_timer();
        let bytes = data.len() as u32;
        let around_pages = flags & IS_DIRECT_IO != 0;
        if !around_pages {
            self.fs.note_client_caching(node);
        }
        let server = around_pages.then(|| self.clone());
        let finish = move |done: Result<(), FsError>| {
            let answer = move || {
                let mut timer = timer;
                match done {
                    Ok(()) => {
                        timer.set_bytes(bytes.into());
                        reply.body(&WriteReply { bytes, padding: 0 });
                    }
                    Err(error) => reply.error(reply_errno(&error)),
                }
            };
            // Also if the write failed: an O_SYNC write whose sync failed has changed the file.
            match server {
                Some(server) => {
                    server.invalidate_written(node, offset..offset.saturating_add(bytes.into()), answer)
                }
                None => answer(),
            }
        };
        let write = WriteRequest {
            ino: node,
            offset,
            data,
            is_synchronous: open_flags & (libc::O_SYNC | libc::O_DSYNC) != 0,
            drops_privileges: flags & WRITE_KILLS_PRIVILEGES != 0,
        };
        write.run(&self.fs, finish);
    }

    /// Makes a write that may end in the middle of a page of the program, unless the program was killed: the kernel stops
    /// reading the program's memory then, and passes on what it has.
    fn write_unless_killed(
        &self,
        task: u32,
        node: Ino,
        (offset, data): (u64, &[u8]),
        flags: u32,
        open_flags: i32,
        reply: PendingReply,
    ) {
        let server = self.clone();
        let data = data.to_vec();
        self.parts.proc_reader.run(move || {
            if server.parts.kill_detector.is_killed(task) {
                return reply.error(Errno::INTR);
            }
            server.write(node, (offset, &data), flags, open_flags, reply);
        });
    }

    /// After an O_DIRECT write, invalidates the kernel's pages of the written range, then calls `then`.
    ///
    /// The kernel does so itself, but before the write. A page that it reads between that and the write has
    /// the old bytes, and stays if the program does not wait for its write (libaio, io_uring).
    fn invalidate_written(&self, ino: Ino, written: Range<u64>, then: impl FnOnce() + Send + 'static) {
        let Some(kept) = self.fs.client_cache_note(ino) else { return then() };
        if self.parts.page_invalidator.unfinished() >= INVALIDATIONS_AWAITED_MAX {
            self.parts.page_invalidator.invalidate(ino, written, || {});
            return then();
        }
        if kept.age < INVALIDATE_ALL_AFTER {
            return self.parts.page_invalidator.invalidate(ino, written, then);
        }
        let fs = self.fs.clone();
        let page_invalidator = self.parts.page_invalidator.clone();
        self.fs.wait_for_write_space(move |are_taken| {
            // Dirty pages of other ranges would be lost, because the kernel cannot write them back.
            if !are_taken {
                return page_invalidator.invalidate(ino, written, then);
            }
            page_invalidator.invalidate(ino, 0..u64::MAX, move || {
                fs.clear_client_cache_note(ino, kept);
                then();
            });
        });
    }

    fn setxattr(&self, node: Ino, name: &[u8], value: &[u8], flags: i32, reply: PendingReply) {
        let Some(how) = set_xattr_mode(flags) else { return reply.error(Errno::INVAL) };
        self.fs.set_xattr(node, name, value, how, self.empty_completion(reply));
    }

    fn getxattr(&self, node: Ino, name: &[u8], size: u32, reply: PendingReply) {
        let _timer = self.short_timer();
        reply_xattr(self.fs.xattr(node, name), size, reply);
    }

    fn listxattr(&self, uid: u32, node: Ino, size: u32, reply: PendingReply) {
        let _timer = self.short_timer();
        reply_xattr(self.fs.xattr_names(node).map(|names| list_for(uid, names)), size, reply);
    }

    /// Sets the class of the calling thread, or removes it. Refused if /proc does not show the thread.
    fn set_class(&self, thread: u32, value: &[u8], reply: PendingReply) {
        let class = std::str::from_utf8(value).ok().and_then(RequestClass::named);
        if class.is_none() && !value.is_empty() {
            return reply.error(Errno::INVAL);
        }
        self.with_classes(move |classes| reply_class_set(classes.set_hint(thread, class), reply));
    }

    fn get_class(&self, thread: u32, size: u32, reply: PendingReply) {
        self.with_classes(move |classes| {
            let class = classes.hint(thread).ok_or(FsError::NoXattr);
            reply_xattr(class.map(|class| class.name().into()), size, reply);
        });
    }

    fn remove_class(&self, thread: u32, reply: PendingReply) {
        self.with_classes(move |classes| match classes.hint(thread) {
            Some(_) => reply_class_set(classes.set_hint(thread, None), reply),
            None => reply.error(Errno::NODATA),
        });
    }

    /// Answers a request about the class of its thread, later.
    fn with_classes(&self, answer: impl FnOnce(&RequestClasses) + Send + 'static) {
        let timer = self.shared_timer();
        let classes = self.parts.classes.clone();
        self.parts.proc_reader.run(move || {
            let _timer = timer;
            answer(&classes);
        });
    }

    fn opendir(&self, reply: PendingReply) {
        match self.parts.kernel_cache {
            // From then on the kernel opens directories without asking, and caches listings.
            KernelCachePolicy::Full => reply.error(Errno::NOSYS),
            KernelCachePolicy::None => reply.body(&OpenReply::default()),
        }
    }

    fn readdir(&self, node: Ino, offset: u64, size: u32, reply: PendingReply) {
        let _timer = self.short_timer();
        let mut listing = ListingReply::new(size);
        match self.list(node, offset, &mut listing) {
            Ok(()) => reply.bytes(listing.bytes()),
            Err(error) => reply.error(reply_errno(&error)),
        }
    }

    fn list(&self, ino: Ino, offset: u64, listing: &mut ListingReply) -> Result<(), FsError> {
        let mut add = |listed: ListedEntry<'_>| {
            let fits = listing.add(listed.ino.0, listed.offset, mode_of(listed.kind), listed.name);
            if fits { ReplySpace::Left } else { ReplySpace::Full }
        };
        match list_dots(&self.fs, ino, offset, &mut |dot| Ok(add(dot)))? {
            Some(cookie) => self
                .fs
                .read_directory(ino, cookie, &mut |entry| add(ListedEntry::of(entry)) == ReplySpace::Left),
            None => Ok(()),
        }
    }

    fn readdirplus(&self, node: Ino, offset: u64, size: u32, reply: PendingReply) {
        let _timer = self.short_timer();
        let mut listing = ListingReply::new(size);
        match self.list_plus(node, offset, &mut listing) {
            Ok(()) => reply.bytes(listing.bytes()),
            Err(error) => reply.error(reply_errno(&error)),
        }
    }

    /// Lists entries with attributes. The kernel remembers all of them except `.` and `..`.
    fn list_plus(&self, ino: Ino, offset: u64, listing: &mut ListingReply) -> Result<(), FsError> {
        let mut add = |listed: ListedEntry<'_>, found: &FileAttributes| {
            let fits = listing.add_with(&entry_reply(found, self.parts.ttl), listed.offset, listed.name);
            if fits { ReplySpace::Left } else { ReplySpace::Full }
        };
        let mut add_dot = |dot: ListedEntry<'_>| Ok(add(dot, &self.fs.attributes(dot.ino)?));
        match list_dots(&self.fs, ino, offset, &mut add_dot)? {
            Some(cookie) => self.fs.read_directory_and_hold(ino, cookie, &mut |entry, found| {
                add(ListedEntry::of(entry), found) == ReplySpace::Left
            }),
            None => Ok(()),
        }
    }

    fn fallocate(&self, node: Ino, range: (u64, u64), mode: i32, reply: PendingReply) {
        match range_flags::fallocate_mode(mode) {
            Ok((what, size)) => {
                self.fs.allocate(node, what, range, size, self.empty_completion(reply));
            }
            Err(error) => reply.error(error),
        }
    }

    fn lseek(&self, node: Ino, offset: i64, whence: i32, reply: PendingReply) {
        let done = range_flags::seek_completion(self.shared_timer(), reply);
        match range_flags::seek_whence(offset, whence) {
            Ok((offset, what)) => {
                let fs = self.fs.clone();
                let page_invalidator = self.parts.page_invalidator.clone();
                HoleSearch { fs, page_invalidator, ino: node, offset, target: what }.find(done);
            }
            Err(error) => done(Err(error)),
        }
    }

    fn copy_file_range(
        &self,
        (from, offset, len): (Ino, u64, u64),
        (to, at): (Ino, u64),
        count: CopyCount,
        reply: PendingReply,
    ) {
        let timer = self.shared_timer();
        let fs = self.fs.clone();
        let reply = move |copied: Result<u64, FsError>| {
            let _timer = timer;
            match (copied, count) {
                (Ok(bytes), CopyCount::Bits32) => reply.body(&WriteReply { bytes: bytes as u32, padding: 0 }),
                (Ok(bytes), CopyCount::Bits64) => reply.body(&CopyReply { bytes }),
                // EOPNOTSUPP makes the kernel copy by reading and writing.
                (Err(error), _) => reply.error(reply_errno(&error)),
            }
        };
        match fs.attributes(from).map(|source| source.size.saturating_sub(offset).min(len)) {
            Ok(0) => return reply(Ok(0)),
            Ok(1..COPY_BYTES_MIN) => return reply(Err(FsError::Unsupported)),
            Ok(COPY_BYTES_MIN..) => {}
            Err(error) => return reply(Err(error)),
        }
        // The request does not say whether the target was opened with O_SYNC, so every copy is synced.
        let copied = move |copied: Result<u64, FsError>| match copied {
            Ok(copied) => fs.sync_bytes(to, Box::new(move |synced| reply(synced.map(|()| copied)))),
            Err(error) => reply(Err(error)),
        };
        self.fs.copy_range(from, (offset, len.min(COPY_BYTES_MAX)), to, at, Box::new(copied));
    }

    fn statfs(&self, reply: PendingReply) {
        let _timer = self.short_timer();
        let usage = self.fs.usage();
        let block_bytes = device::BLOCK_BYTES as u32;
        reply.body(&StatfsReply {
            blocks: usage.blocks,
            blocks_free: usage.available,
            blocks_available: usage.available,
            inodes: usage.inodes,
            inodes_free: usage.inodes_free,
            block_bytes,
            name_bytes_max: NAME_BYTES_MAX,
            fragment_bytes: block_bytes,
            ..StatfsReply::default()
        });
    }
}

/// After this time without cached reads and writes of a file, an O_DIRECT write invalidates all of the file's
/// pages. The next ones then need no invalidation, and take two thirds of the time.
const INVALIDATE_ALL_AFTER: Duration = Duration::from_secs(60);

/// An O_DIRECT write waits for its invalidation only if fewer than this many are unfinished. While it waits
/// it occupies one of the kernel's [`BACKGROUND_MAX`] requests, and the read that the invalidation waits for
/// needs one, too.
const INVALIDATIONS_AWAITED_MAX: usize = BACKGROUND_MAX as usize / 2;

/// Bytes of the smallest copy that shares pages. A sharing copy takes a commit and up to two flushes of the store, for
/// which its readers wait; the kernel copies fewer bytes in less time.
const COPY_BYTES_MIN: u64 = 1 << 20;

/// Bytes of the largest copy: it is one transaction, and the count fits a reply of 32 bits.
const COPY_BYTES_MAX: u64 = 1 << 30;

/// Bytes of the longest name, for `statfs`.
const NAME_BYTES_MAX: u32 = 255;

/// Whether a write of a task may be the first part of a page that has to stay whole: it ends within such a page. The handle
/// is the size of the page, or 0: see [`OpenReply::of_file`].
///
/// A write without a task comes from the kernel, or from another pid namespace, whose tasks cannot be looked up.
fn may_be_part_of_page(task: u32, flags: u32, handle: u64, end: u64) -> bool {
    task != 0 && flags & IS_WRITE_BACK == 0 && handle != 0 && !end.is_multiple_of(handle)
}

/// Clips a write to the largest file. POSIX: as much as fits is written; if nothing fits, EFBIG.
fn clip_to_file_max(offset: u64, data: &[u8]) -> &[u8] {
    match FILE_BYTES_MAX.checked_sub(offset) {
        Some(left) if left > 0 => &data[..data.len().min(usize::try_from(left).unwrap_or(usize::MAX))],
        // `fs` refuses the whole write.
        _ => data,
    }
}

/// A WRITE request. Nearly always it completes without waiting.
struct WriteRequest<'a> {
    ino: Ino,
    offset: u64,
    data: &'a [u8],
    /// The write completes when it is durable (`O_SYNC`, `O_DSYNC`).
    is_synchronous: bool,
    /// The file loses its privileges before its content changes.
    drops_privileges: bool,
}

impl WriteRequest<'_> {
    /// Writes, then calls `finish`. Only a write that has to wait allocates memory.
    fn run(self, fs: &Fs, finish: impl FnOnce(Result<(), FsError>) + Send + 'static) {
        let kills = self.drops_privileges && fs.is_privileged(self.ino);
        let at_once = if kills { None } else { fs.try_write(self.ino, self.offset, self.data) };
        match at_once {
            Some(done) if self.is_synchronous => then_sync(fs.clone(), self.ino, Box::new(finish))(done),
            Some(done) => finish(done),
            None => {
                let finish: FsCompletion<()> = Box::new(finish);
                let done = if self.is_synchronous { then_sync(fs.clone(), self.ino, finish) } else { finish };
                if kills {
                    write_dropping_privileges(fs, self.ino, self.offset, self.data, done);
                } else {
                    fs.write(self.ino, self.offset, self.data.to_vec(), done);
                }
            }
        }
    }
}

/// A completion of a write that syncs the file, then completes `finish`.
fn then_sync(fs: Fs, ino: Ino, finish: FsCompletion<()>) -> FsCompletion<()> {
    Box::new(move |written| match written {
        Ok(()) => fs.sync_bytes(ino, finish),
        Err(error) => finish(Err(error)),
    })
}

/// Replies to a request that sets or removes the class of its thread.
fn reply_class_set(outcome: Result<(), TaskReadError>, reply: PendingReply) {
    match outcome {
        Ok(()) => reply.ok(),
        Err(_) => reply.error(Errno::OPNOTSUPP),
    }
}

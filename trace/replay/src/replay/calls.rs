//! Makes the system call of each operation, through safe wrappers.

use super::kernel::ReplayKernel;
use super::target::CallBuffer;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::{
    Access, Advice, AtFlags, CWD, FallocateFlags, FileType, FlockOperation, Gid, Mode, OFlags, RawDir,
    RenameFlags, SeekFrom, Timespec, Timestamps, Uid,
};
use rustix::io::{Errno, ReadWriteFlags};
use std::mem::MaybeUninit;
use std::num::NonZeroU64;
use std::sync::Arc;
use trace_file::{Handle, LockKind, NO_HANDLE, Op, Place};

type Returned = Result<i64, Errno>;
const EMPTY: AtFlags = AtFlags::EMPTY_PATH;

/// Executes an operation that needs only the kernel.
pub(super) fn call(kernel: &ReplayKernel<'_>, op: &Op<Handle>, buffer: &mut CallBuffer) -> Returned {
    match op {
        Op::Read { on, bytes, at } => {
            let file = kernel.file(*on)?;
            let into = buffer.take(*bytes);
            let moved = match at {
                None => rustix::io::read(&*file, into),
                Some(at) => rustix::io::pread(&*file, into, *at),
            };
            moved.map(|moved| moved as i64)
        }
        Op::Write { on, bytes, at } => {
            let file = kernel.file(*on)?;
            let from = buffer.take(*bytes);
            let moved = match at {
                None => rustix::io::write(&*file, from),
                Some(at) => rustix::io::pwrite(&*file, from, *at),
            };
            moved.map(|moved| moved as i64)
        }
        Op::ReadWith { on, bytes, at, flags } => {
            let into = &mut [std::io::IoSliceMut::new(buffer.take(*bytes))];
            let (at, flags) = (at.unwrap_or(u64::MAX), ReadWriteFlags::from_bits_retain(*flags));
            rustix::io::preadv2(&*kernel.file(*on)?, into, at, flags).map(|moved| moved as i64)
        }
        Op::WriteWith { on, bytes, at, flags } => {
            let from = &[std::io::IoSlice::new(buffer.take(*bytes))];
            let (at, flags) = (at.unwrap_or(u64::MAX), ReadWriteFlags::from_bits_retain(*flags));
            rustix::io::pwritev2(&*kernel.file(*on)?, from, at, flags).map(|moved| moved as i64)
        }
        Op::SetFlags { on, flags } => {
            done(rustix::fs::fcntl_setfl(&*kernel.file(*on)?, OFlags::from_bits_retain(*flags)))
        }
        Op::Seek { on, offset, whence } => seek(&*kernel.file(*on)?, *offset, *whence),
        Op::Sync { on, kind } => done(kernel.sync(*on, *kind)),
        Op::SyncAll => {
            kernel.sync_all();
            Ok(0)
        }
        Op::List { on, .. } => list(&*kernel.file(*on)?),
        Op::Allocate { on, mode, start, bytes } => {
            let flags = FallocateFlags::from_bits_retain(*mode);
            done(rustix::fs::fallocate(&*kernel.file(*on)?, flags, *start, *bytes))
        }
        Op::Advise { on, start, bytes, advice } => advise(&*kernel.file(*on)?, (*start, *bytes), *advice),
        Op::Flock { on, kind } => {
            let how = match kind {
                LockKind::Shared => FlockOperation::NonBlockingLockShared,
                LockKind::Exclusive => FlockOperation::NonBlockingLockExclusive,
                LockKind::Unlock => FlockOperation::NonBlockingUnlock,
            };
            done(rustix::fs::flock(&*kernel.file(*on)?, how))
        }
        Op::Lock { on, kind, start, bytes, .. } => lock(&*kernel.file(*on)?, *kind, *start, *bytes),
        Op::Copy { from, from_at, to, to_at, bytes } => {
            let (from, to) = (kernel.file(*from)?, kernel.file(*to)?);
            let (mut from_at, mut to_at) = (*from_at, *to_at);
            let bytes = usize::try_from(*bytes).unwrap_or(usize::MAX);
            let moved = rustix::fs::copy_file_range(&*from, from_at.as_mut(), &*to, to_at.as_mut(), bytes);
            moved.map(|moved| moved as i64)
        }
        _ => on_name(kernel, op, buffer),
    }
}

fn seek(file: impl AsFd, offset: i64, whence: u32) -> Returned {
    let to = match whence as i32 {
        libc::SEEK_SET => SeekFrom::Start(offset as u64),
        libc::SEEK_CUR => SeekFrom::Current(offset),
        libc::SEEK_END => SeekFrom::End(offset),
        libc::SEEK_DATA => SeekFrom::Data(offset as u64),
        libc::SEEK_HOLE => SeekFrom::Hole(offset as u64),
        _ => return Err(Errno::INVAL),
    };
    rustix::fs::seek(file, to).map(|at| at as i64)
}

fn done(result: rustix::io::Result<()>) -> Returned {
    result.map(|()| 0)
}

fn list(file: &OwnedFd) -> Returned {
    let mut space = [MaybeUninit::uninit(); 32 << 10];
    let mut entries = RawDir::new(file, &mut space);
    let mut bytes = 0;
    // One call fills the buffer. Reading the buffer to its end makes no other call.
    while let Some(entry) = entries.next() {
        bytes += 24 + entry?.file_name().count_bytes() as i64;
        if entries.is_buffer_empty() {
            break;
        }
    }
    Ok(bytes)
}

fn advise(file: impl AsFd, (start, bytes): (u64, u64), advice: u32) -> Returned {
    let advice = match advice as i32 {
        libc::POSIX_FADV_RANDOM => Advice::Random,
        libc::POSIX_FADV_SEQUENTIAL => Advice::Sequential,
        libc::POSIX_FADV_WILLNEED => Advice::WillNeed,
        libc::POSIX_FADV_DONTNEED => Advice::DontNeed,
        libc::POSIX_FADV_NOREUSE => Advice::NoReuse,
        _ => Advice::Normal,
    };
    done(rustix::fs::fadvise(file, start, NonZeroU64::new(bytes), advice))
}

/// Takes or releases a lock without waiting, because the order puts a blocking lock where it was granted. A
/// replay is one process, so a lock belongs to the description through which its owner holds it.
pub(super) fn lock(file: impl AsFd, kind: LockKind, start: u64, bytes: u64) -> Returned {
    let kind = match kind {
        LockKind::Shared => libc::F_RDLCK,
        LockKind::Exclusive => libc::F_WRLCK,
        LockKind::Unlock => libc::F_UNLCK,
    };
    let (l_start, l_len) = (start as i64, bytes as i64);
    let lock = libc::flock { l_type: kind as i16, l_whence: libc::SEEK_SET as i16, l_start, l_len, l_pid: 0 };
    match nix::fcntl::fcntl(file, nix::fcntl::FcntlArg::F_OFD_SETLK(&lock)) {
        Ok(value) => Ok(value.into()),
        Err(errno) => Err(Errno::from_raw_os_error(errno as i32)),
    }
}

/// A place in the form that the `*at` calls take.
struct Ready<'a> {
    dir: Option<Arc<OwnedFd>>,
    path: &'a [u8],
}

impl Ready<'_> {
    fn dir(&self) -> BorrowedFd<'_> {
        self.dir.as_ref().map_or(CWD, |dir| dir.as_fd())
    }

    /// The flags of a call. An empty path means the descriptor itself.
    fn flags(&self, follow: bool) -> AtFlags {
        let empty = if self.path.is_empty() { EMPTY } else { AtFlags::empty() };
        if follow { empty } else { empty | AtFlags::SYMLINK_NOFOLLOW }
    }
}

fn on_name(kernel: &ReplayKernel<'_>, op: &Op<Handle>, buffer: &mut CallBuffer) -> Returned {
    let ready =
        |at: &Place<Handle>| Ok::<_, Errno>(Ready { dir: kernel.dir(at)?, path: kernel.name(at.path) });
    match op {
        Op::Open { at, flags, mode, made } => {
            let flags = OFlags::from_bits_retain(*flags) | OFlags::CLOEXEC;
            opened(kernel, &ready(at)?, flags, Mode::from_raw_mode(*mode), *made)
        }
        Op::ChangeDir { at, made } => opened(
            kernel,
            &ready(at)?,
            OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC,
            Mode::empty(),
            *made,
        ),
        Op::MakeDir { at, mode } => {
            let at = ready(at)?;
            done(rustix::fs::mkdirat(at.dir(), at.path, Mode::from_raw_mode(*mode)))
        }
        Op::RemoveDir { at } => {
            let at = ready(at)?;
            done(rustix::fs::unlinkat(at.dir(), at.path, AtFlags::REMOVEDIR))
        }
        Op::Unlink { at } => {
            let at = ready(at)?;
            done(rustix::fs::unlinkat(at.dir(), at.path, AtFlags::empty()))
        }
        Op::Rename { from, to, flags } => {
            let (from, to) = (ready(from)?, ready(to)?);
            done(match flags {
                0 => rustix::fs::renameat(from.dir(), from.path, to.dir(), to.path),
                _ => {
                    let flags = RenameFlags::from_bits_retain(*flags);
                    rustix::fs::renameat_with(from.dir(), from.path, to.dir(), to.path, flags)
                }
            })
        }
        Op::Link { from, to, follow } => {
            let (from, to) = (ready(from)?, ready(to)?);
            let follow = if *follow { AtFlags::SYMLINK_FOLLOW } else { AtFlags::empty() };
            let flags = if from.path.is_empty() { EMPTY } else { follow };
            done(rustix::fs::linkat(from.dir(), from.path, to.dir(), to.path, flags))
        }
        Op::MakeNode { at, mode } => make_node(&ready(at)?, *mode),
        Op::Exchange { one, other } => exchange(&ready(one)?, &ready(other)?),
        Op::GetAttribute { at, .. }
        | Op::SetAttribute { at, .. }
        | Op::ListAttributes { at, .. }
        | Op::RemoveAttribute { at, .. } => {
            let at = ready(at)?;
            super::attributes::call(at.dir.as_deref(), at.path, op, kernel, buffer)
        }
        Op::Symlink { target, at } => {
            let at = ready(at)?;
            done(rustix::fs::symlinkat(kernel.name(*target), at.dir(), at.path))
        }
        _ => on_attributes(op, ready),
    }
}

fn on_attributes<'a>(
    op: &Op<Handle>,
    ready: impl Fn(&Place<Handle>) -> Result<Ready<'a>, Errno>,
) -> Returned {
    match op {
        Op::Stat { at, follow, .. } => {
            let at = ready(at)?;
            rustix::fs::statat(at.dir(), at.path, at.flags(*follow)).map(|found| found.st_size)
        }
        Op::Access { at, mode } => {
            let at = ready(at)?;
            done(rustix::fs::accessat(at.dir(), at.path, Access::from_bits_retain(*mode), AtFlags::empty()))
        }
        Op::ReadLink { at, .. } => {
            let at = ready(at)?;
            let target = rustix::fs::readlinkat(at.dir(), at.path, Vec::with_capacity(256))?;
            Ok(target.count_bytes() as i64)
        }
        Op::StatFs { at } => {
            let at = ready(at)?;
            let file = if at.path.is_empty() { None } else { Some(look(&at)?) };
            rustix::fs::fstatfs(file.as_ref().map_or(at.dir(), |file| file.as_fd())).map(|_| 0)
        }
        Op::SetMode { at, mode } => {
            let at = ready(at)?;
            let mode = Mode::from_raw_mode(*mode);
            done(if at.path.is_empty() {
                rustix::fs::fchmod(at.dir(), mode)
            } else {
                rustix::fs::chmodat(at.dir(), at.path, mode, AtFlags::empty())
            })
        }
        Op::SetOwner { at, follow, user, group } => {
            let at = ready(at)?;
            let (user, group) = (user.map(Uid::from_raw), group.map(Gid::from_raw));
            done(rustix::fs::chownat(at.dir(), at.path, user, group, at.flags(*follow)))
        }
        Op::SetTimes { at, follow } => {
            let at = ready(at)?;
            let now = Timespec { tv_sec: 0, tv_nsec: rustix::fs::UTIME_NOW };
            let times = Timestamps { last_access: now, last_modification: now };
            done(if at.path.is_empty() {
                rustix::fs::futimens(at.dir(), &times)
            } else {
                rustix::fs::utimensat(at.dir(), at.path, &times, at.flags(*follow))
            })
        }
        Op::Resize { at, size } => {
            let at = ready(at)?;
            if at.path.is_empty() {
                return done(rustix::fs::ftruncate(at.dir(), *size));
            }
            let flags = OFlags::WRONLY | OFlags::CLOEXEC;
            let file = rustix::fs::openat(at.dir(), at.path, flags, Mode::empty())?;
            done(rustix::fs::ftruncate(&file, *size))
        }
        _ => Err(Errno::NOSYS),
    }
}

/// Makes a file of this mode. A regular file stands for a device or pipe, which would lead out of the target
/// or block.
fn make_node(at: &Ready<'_>, mode: u32) -> Returned {
    let kind = match mode & libc::S_IFMT {
        libc::S_IFSOCK => FileType::Socket,
        _ => FileType::RegularFile,
    };
    done(rustix::fs::mknodat(at.dir(), at.path, kind, Mode::from_raw_mode(mode & 0o7777), 0))
}

/// Exchanges two names in one step if the file system can, otherwise by a link and two renames.
fn exchange(one: &Ready<'_>, other: &Ready<'_>) -> Returned {
    let (a, b) = ((one.dir(), one.path), (other.dir(), other.path));
    match rustix::fs::renameat_with(a.0, a.1, b.0, b.1, RenameFlags::EXCHANGE) {
        Err(Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP) => {}
        result => return done(result),
    }
    let aside = [a.1, b".exchanged"].concat();
    rustix::fs::linkat(a.0, a.1, a.0, &aside[..], AtFlags::empty())?;
    rustix::fs::renameat(b.0, b.1, a.0, a.1)?;
    done(rustix::fs::renameat(a.0, &aside[..], b.0, b.1))
}

fn look(at: &Ready<'_>) -> Result<OwnedFd, Errno> {
    rustix::fs::openat(at.dir(), at.path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())
}

fn opened(kernel: &ReplayKernel<'_>, at: &Ready<'_>, flags: OFlags, mode: Mode, made: Handle) -> Returned {
    let file = rustix::fs::openat(at.dir(), at.path, flags, mode)?;
    if made != NO_HANDLE {
        kernel.opened(made, file);
    }
    Ok(0)
}

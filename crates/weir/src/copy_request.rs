//! A request to copy a file: the daemon's side of `weir cp`.
//!
//! The client sends two open files along. What it may do with them, the kernel has decided when it opened them: the daemon
//! looks only at how they are open. Source and target may lie in different mounts of the daemon.

use crate::mounted_volume::MountedVolume;
use crate::store_daemon::{RequestRefusal, StoreDaemon};
use fs::{Fs, FsCompletion, FsError, Ino};
use rustix::fs::{AtFlags, FileType, OFlags, StatxFlags, fcntl_getfl, statx};
use serde_json::{Value, json};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::mpsc::channel;

/// Makes the second of two open files, which is empty, a copy of the first. The copy is durable and in the store when this
/// returns, so that the source's volume can be deleted even in a full store.
pub(crate) fn answer(daemon: &StoreDaemon, files: Vec<OwnedFd>) -> Result<Value, RequestRefusal> {
    let Ok([source, target]) = <[OwnedFd; 2]>::try_from(files) else {
        return Err(RequestRefusal::new(&"copy_file: needs two open files", None));
    };
    let source_file = OpenFile::of(&source, daemon, OFlags::RDONLY)?;
    let target_file = OpenFile::of(&target, daemon, OFlags::WRONLY)?;
    let copied = source_file.fs.copy_source(source_file.ino).map_err(refusal)?;
    let OpenFile { mounted, fs, ino } = target_file;
    let bytes = wait(|done| fs.copy_file(copied, ino, done))?;
    let durable = wait(|done| fs.sync_bytes(ino, done));
    // A read waits for the store to have the copy.
    let stored = wait(|done| fs.read(ino, 0, 1, done)).map(drop);
    mounted.forget_in_kernel(ino);
    durable.and(stored)?;
    Ok(json!({ "bytes": bytes }))
}

/// A file of a mounted volume that a client has open.
struct OpenFile {
    mounted: Arc<MountedVolume>,
    fs: Fs,
    ino: Ino,
}

impl OpenFile {
    /// The file behind a descriptor, which must be open for `access`. Asks no file system: the descriptor may be of one that
    /// never answers.
    fn of(descriptor: &OwnedFd, daemon: &StoreDaemon, access: OFlags) -> Result<OpenFile, RequestRefusal> {
        let unusable = |_| RequestRefusal::new(&"copy_file: a descriptor that cannot be used", None);
        let flags = fcntl_getfl(descriptor).map_err(unusable)?;
        let mode = flags & OFlags::RWMODE;
        if flags.contains(OFlags::PATH) || (mode != OFlags::RDWR && mode != access) {
            let word = if access == OFlags::RDONLY { "reading" } else { "writing" };
            return Err(RequestRefusal::new(&format!("a file that is not open for {word}"), None));
        }
        let at = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
        let found = statx(descriptor, c"", at, StatxFlags::INO | StatxFlags::TYPE).map_err(unusable)?;
        let device = (found.stx_dev_major, found.stx_dev_minor);
        let mounted = daemon.mounts().into_iter().find(|mounted| mounted.device == device);
        let is_file = FileType::from_raw_mode(found.stx_mode.into()) == FileType::RegularFile;
        let open = mounted.filter(|_| is_file).and_then(|mounted| Some((mounted.fs()?, mounted)));
        let Some((fs, mounted)) = open else {
            let help = "both must be on mounts of one store; otherwise use `cp`";
            return Err(RequestRefusal::new(
                &"not a file of a volume that this daemon has mounted",
                Some(help.into()),
            ));
        };
        Ok(OpenFile { mounted, fs, ino: Ino(found.stx_ino) })
    }
}

fn refusal(error: FsError) -> RequestRefusal {
    RequestRefusal::new(&error, error.help())
}

/// Calls an operation, and waits for its outcome.
fn wait<T: Send + 'static>(operation: impl FnOnce(FsCompletion<T>)) -> Result<T, RequestRefusal> {
    let (tell, told) = channel();
    operation(Box::new(move |outcome| drop(tell.send(outcome))));
    let is_ending = |_| RequestRefusal::new(&"the daemon is ending", None);
    told.recv().map_err(is_ending)?.map_err(refusal)
}

//! A file system in this process, without the kernel's door: what its own operations cost.

use std::fs::create_dir_all;
use std::sync::Arc;
use std::sync::mpsc::sync_channel;

use cache::Settings;
use fs::{Caller, Completion, Fs, FsError, Ino, Kind};
use host::Access;

use super::error::BenchError;
use super::program::run;
use super::slow_device::remove_on_drop;
use super::system::weir;
use super::undo;
use super::workload::PAGE_BYTES;
use crate::media::Media;
use crate::stack::{Stack, Workers};

const STORE_BYTES: u64 = 4 << 30;
const BUFFER_BYTES: u64 = 512 << 20;

/// Lets `work` use a new file system, with its background work going on.
pub(super) fn with_fs<T>(
    settings: Settings,
    work: impl FnOnce(&Arc<Fs>) -> Result<T, FsError>,
) -> Result<T, BenchError> {
    undo::install()?;
    let root = std::env::temp_dir().join(format!("weir-bench-{}", std::process::id()));
    let _files = remove_on_drop(&root);
    create_dir_all(&root).map_err(|error| BenchError::io("cannot create", &root, error))?;
    let store = root.join("store");
    run(weir("format")
        .arg(&store)
        .args([format!("--size={STORE_BYTES}"), format!("--buffer-size={BUFFER_BYTES}")]))?;
    let closed = |error| BenchError::Weir(Box::new(error));
    let media = Media::find(&store, None).map_err(closed)?;
    let stack = Stack::open(media, settings, Access::Write, crate::volume::DEFAULT).map_err(closed)?;
    let workers = Workers::start(&stack.cache, Access::Write).map_err(closed)?;
    let done = work(&stack.fs);
    let drained = workers.stop_and_drain();
    let failed = |source| BenchError::Fs { source };
    let done = done.map_err(failed)?;
    drained.map_err(|source| failed(FsError::Cache(source)))?;
    Ok(done)
}

/// As the door does it.
pub(super) fn write(fs: &Arc<Fs>, file: Ino, offset: u64, bytes: &[u8]) -> Result<(), FsError> {
    fs.write_at_once(file, offset, bytes)
        .unwrap_or_else(|| wait(|done| fs.write(file, offset, bytes.to_vec(), done)))
}

/// A new file with all of so many pages.
pub(super) fn lay_out(fs: &Arc<Fs>, name: &str, pages: u64) -> Result<Ino, FsError> {
    let caller = Caller { uid: 0, gid: 0, umask: 0 };
    let made = wait(|done| fs.make(caller, Ino::ROOT, name.as_bytes(), Kind::File, 0o600, done))?;
    let page = vec![1; PAGE_BYTES as usize];
    (0..pages).try_for_each(|number| write(fs, made.ino, number * PAGE_BYTES, &page))?;
    Ok(made.ino)
}

/// What an operation that ends in a completion gave.
pub(super) fn wait<T: Send + 'static>(operation: impl FnOnce(Completion<T>)) -> Result<T, FsError> {
    let (sender, receiver) = sync_channel(1);
    operation(Box::new(move |result| {
        let _ = sender.send(result);
    }));
    receiver.recv().expect("every operation completes")
}

//! A write: at once where nothing has to be waited for, which is nearly always.

use crate::privileges::write_without_powers;
use fs::{Completion, Fs, FsError, Ino};
use std::sync::Arc;

/// One request.
pub(crate) struct Write<'a> {
    pub(crate) ino: Ino,
    pub(crate) offset: u64,
    pub(crate) data: &'a [u8],
    /// It completes when it is durable (`O_SYNC`, `O_DSYNC`).
    pub(crate) is_synchronous: bool,
    /// Its writer may not keep the file's powers.
    pub(crate) takes_powers: bool,
}

impl Write<'_> {
    /// Writes, and calls `finish` in the end. Only a write that has to wait needs memory of its own.
    pub(crate) fn run(self, fs: &Arc<Fs>, finish: impl FnOnce(Result<(), FsError>) + Send + 'static) {
        let kills = self.takes_powers && fs.is_privileged(self.ino);
        let at_once = if kills { None } else { fs.write_at_once(self.ino, self.offset, self.data) };
        match at_once {
            Some(done) if self.is_synchronous => then_sync(fs.clone(), Box::new(finish))(done),
            Some(done) => finish(done),
            None => {
                let finish: Completion<()> = Box::new(finish);
                let done = if self.is_synchronous { then_sync(fs.clone(), finish) } else { finish };
                match kills {
                    true => write_without_powers(fs, self.ino, self.offset, self.data, done),
                    false => fs.write(self.ino, self.offset, self.data.to_vec(), done),
                }
            }
        }
    }
}

/// Completes `finish` once what was written is durable.
fn then_sync(fs: Arc<Fs>, finish: Completion<()>) -> Completion<()> {
    Box::new(move |written| match written {
        Ok(()) => fs.sync(finish),
        Err(error) => finish(Err(error)),
    })
}

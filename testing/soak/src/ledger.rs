//! The steps that were acknowledged, in a file outside of the mount, where no crash of the mount reaches it.

use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// A line for each sync: the number of the last step before it, and the time in seconds since 1970.
pub(crate) struct Ledger {
    file: File,
    last: u64,
    stop: PathBuf,
}

impl Ledger {
    /// A new ledger of a client that ends when the file `stop` exists.
    pub(crate) fn create(path: &Path, stop: &Path) -> io::Result<Ledger> {
        Ok(Ledger { file: File::create(path)?, last: 0, stop: stop.to_owned() })
    }

    pub(crate) fn acknowledge(&mut self, step: u64) -> io::Result<()> {
        self.last = step;
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        writeln!(self.file, "{step} {}.{:06}", now.as_secs(), now.subsec_micros())
    }

    /// The last step that was acknowledged.
    pub(crate) fn last(&self) -> u64 {
        self.last
    }

    pub(crate) fn must_stop(&self) -> bool {
        self.stop.exists()
    }

    /// Makes a change again while the file system is full, and says so. Each refusal is an answer, so the last step is noted again,
    /// to show that the client does not hang.
    pub(crate) fn while_full<T>(
        &mut self,
        mut change: impl FnMut() -> io::Result<T>,
    ) -> io::Result<Option<T>> {
        loop {
            match change() {
                Err(error) if error.kind() == io::ErrorKind::StorageFull => {
                    if self.must_stop() {
                        return Ok(None);
                    }
                    eprintln!("after step {}: {error}", self.last);
                    self.acknowledge(self.last)?;
                    std::thread::sleep(Duration::from_millis(200));
                }
                Err(error) => return Err(error),
                Ok(done) => return Ok(Some(done)),
            }
        }
    }
}

/// The last step that was acknowledged by the time `since`; `None` if there was none.
pub(crate) fn acknowledged(path: &Path, since: f64) -> io::Result<Option<u64>> {
    let mut last = None;
    for line in std::fs::read_to_string(path)?.lines() {
        let (step, time) = line.split_once(' ').unwrap_or((line, ""));
        match (step.parse::<u64>(), time.parse::<f64>()) {
            (Ok(step), Ok(time)) if time <= since => last = Some(step),
            (Ok(_), Ok(_)) => break,
            _ => return Err(io::Error::other(format!("{}: a line that is none: {line}", path.display()))),
        }
    }
    Ok(last)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn knows_what_was_acknowledged_at_a_time() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("ledger");
        std::fs::write(&path, "0 10.000000\n7 11.500000\n9 12.000000\n").unwrap();
        let at = |since| acknowledged(&path, since).unwrap();
        assert_eq!([at(9.9), at(11.0), at(11.5), at(99.0)], [None, Some(0), Some(7), Some(9)]);
    }
}

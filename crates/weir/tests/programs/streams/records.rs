//! Small records beside the streams, each synced as databases do. A ledger keeps the acknowledged records.

use crate::ledger::Ledger;
use crate::streams::history::{NEVER, Tick};
use crate::streams::judge::Moments;
use crate::streams::writer::World;
use crash_oracle::PAGE_BYTES;
use std::collections::BTreeSet;
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::time::Duration;

/// A file of records, and its known state.
pub(super) struct Records {
    pub path: PathBuf,
    ledger: Ledger,
    /// The records that this life wrote, each with the begin and end of its write.
    written: Vec<(u64, Tick, Tick)>,
    /// The begin of the newest acknowledged sync.
    synced: Tick,
    pause: Duration,
    /// Where the last whole record ends.
    whole_bytes: u64,
}

/// The content of a file of records.
pub(super) struct Found {
    pub ids: BTreeSet<u64>,
    pub moments: Moments,
    whole_bytes: u64,
}

fn record(id: u64) -> String {
    format!("{id:08} {}\n", "x".repeat((id * 37 % 300) as usize))
}

impl Records {
    pub(super) fn new(path: PathBuf, beside: &Path) -> Records {
        let ledger = Ledger::create(beside);
        Records { path, ledger, written: Vec::new(), synced: 0, pause: Duration::ZERO, whole_bytes: 0 }
    }

    pub(super) fn begin_anew(&mut self, pause: Duration) {
        (self.written, self.synced, self.pause) = (Vec::new(), 0, pause);
    }

    /// Writes until the daemon is dead.
    pub(super) fn live(&mut self, world: &World) {
        if let Err(error) = self.write(world) {
            assert!(world.is_killed.load(Ordering::SeqCst), "records: {error}");
        }
    }

    fn write(&mut self, world: &World) -> io::Result<()> {
        let mut file: File = OpenOptions::new().create(true).append(true).open(&self.path)?;
        file.set_len(self.whole_bytes)?;
        loop {
            let id = self.ledger.claim();
            self.written.push((id, world.tick(), NEVER));
            file.write_all(record(id).as_bytes())?;
            self.written.last_mut().expect("it was pushed").2 = world.tick();
            let begun = world.tick();
            file.sync_data()?;
            self.synced = begun;
            self.ledger.acknowledge(id);
            std::thread::sleep(self.pause);
        }
    }

    pub(super) fn count(&self) -> usize {
        self.ledger.count().acknowledged
    }

    /// The records in a file, and the moments at which the file had exactly these.
    ///
    /// The last record may be torn at the end of a page: if a write begins in a page that the kernel does not
    /// cache, the kernel sends the bytes for that page first.
    pub(super) fn judge(&self, path: &Path) -> Result<Found, String> {
        let text = match std::fs::read_to_string(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => String::new(),
            text => text.map_err(|error| format!("records: {error}"))?,
        };
        let (mut found, mut at) = (BTreeSet::new(), 0);
        for line in text.split_inclusive('\n') {
            let wrong = || format!("at byte {at} of {} lies {line:?}", text.len());
            let id = line.get(..8).and_then(|id| id.parse().ok());
            let is_part =
                |id| text.len() % PAGE_BYTES == 0 && !line.ends_with('\n') && record(id).starts_with(line);
            match id {
                Some(id) if line == record(id) && found.last().is_none_or(|&last| last < id) => {
                    found.insert(id)
                }
                Some(id) if is_part(id) => break,
                None if text.len() % PAGE_BYTES == 0 && line.len() < 8 => break,
                _ => return Err(wrong()),
            };
            at += line.len();
        }
        let there = self.written.iter().filter(|(id, ..)| found.contains(id)).count();
        let from = there.checked_sub(1).map_or(0, |last| self.written[last].1);
        let to = self.written.get(there).map_or(NEVER, |next| next.2);
        Ok(Found { ids: found, moments: Moments { from, to }, whole_bytes: at as u64 })
    }

    /// After a crash.
    pub(super) fn verify(&mut self, when: &str) -> Moments {
        let found = self.judge(&self.path).unwrap_or_else(|why| panic!("{when}: {why}"));
        self.ledger.verify(&found.ids, when);
        self.whole_bytes = found.whole_bytes;
        found.moments.both(Moments { from: self.synced, to: NEVER })
    }
}

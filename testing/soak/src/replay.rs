//! Runs a client whose changes take effect one by one, and finds the step after which a directory was left.

use std::io;
use std::ops::RangeInclusive;
use std::path::Path;
use std::time::Duration;

use crate::ledger::Ledger;
use crate::random::Random;

/// The most steps from one sync to the next.
pub(crate) const BATCH: u64 = 32;

/// A client that knows what it wrote: a crash leaves the state after one of its steps.
pub(crate) trait Client {
    /// Makes the empty state, durable, before the first step.
    fn create(&mut self, directory: &Path) -> io::Result<()>;

    /// Makes the change of the next step in memory alone.
    fn remember(&mut self);

    /// Makes the change of the next step on the file system. It can be called again if the file system is full.
    fn change(&mut self) -> io::Result<()>;

    /// Makes all changes durable.
    fn sync(&mut self) -> io::Result<()>;

    /// Reads what is there, to compare it with.
    fn read(&mut self, directory: &Path) -> io::Result<()>;

    /// Whether the state after the last remembered step is what was read.
    fn is_equal(&self) -> bool;

    /// How the two differ.
    fn difference(&self) -> String;
}

/// Makes changes until the ledger says stop.
pub(crate) fn run(client: &mut impl Client, directory: &Path, ledger: &mut Ledger) -> io::Result<()> {
    if ledger.while_full(|| client.create(directory))?.is_none() {
        return Ok(());
    }
    ledger.acknowledge(0)?;
    let mut step = 0;
    while !ledger.must_stop() {
        for _ in 0..1 + Random::new(0, step).below(BATCH) {
            if ledger.while_full(|| client.change())?.is_none() {
                return Ok(());
            }
            client.remember();
            step += 1;
        }
        client.sync()?;
        ledger.acknowledge(step)?;
        std::thread::sleep(Duration::from_millis(30));
    }
    Ok(())
}

/// The step after which the directory was left: one of `steps`, or one of the batch that may have been begun after them.
pub(crate) fn verify(
    client: &mut impl Client,
    directory: &Path,
    steps: RangeInclusive<u64>,
) -> Result<u64, String> {
    client.read(directory).map_err(|error| format!("{}: {error}", directory.display()))?;
    for _ in 0..*steps.start() {
        client.remember();
    }
    let oldest = client.difference();
    for step in *steps.start()..=steps.end() + BATCH {
        if client.is_equal() {
            return Ok(step);
        }
        client.remember();
    }
    let (place, first, last) = (directory.display(), steps.start(), steps.end() + BATCH);
    Err(format!(
        "{place} is not as after any of the steps {first} to {last}\n  after {first}: {oldest}\n  after {last}: {}",
        client.difference()
    ))
}

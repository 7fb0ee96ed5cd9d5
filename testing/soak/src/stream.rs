//! Large files that are written in order, as a backup or a recorder writes them.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::ledger::Ledger;
use crate::random::Random;

const PAGE: usize = 4096;
const PAGES_PER_WRITE: u64 = 64;
/// Files that are kept; the oldest is removed once there are more.
const KEPT: u64 = 4;
/// Pause between two writes: some 25 MiB/s.
const PAUSE: Duration = Duration::from_millis(10);

/// What the number of a file determines.
struct Plan {
    seed: u64,
    number: u64,
    pages: u64,
    /// How often the file is written from its beginning to its end.
    generations: u64,
    synced_before_rename: bool,
}

impl Plan {
    fn new(seed: u64, number: u64) -> Plan {
        let mut random = Random::new(seed, number);
        Plan {
            seed,
            number,
            pages: 64 + random.below(6000),
            generations: 1 + random.below(2),
            synced_before_rename: random.below(2) == 0,
        }
    }

    fn page(&self, page: u64, generation: u64, bytes: &mut [u8]) {
        Random::new(self.seed ^ (generation << 32), (self.number << 32) | page).fill(bytes);
    }
}

fn whole(directory: &Path, number: u64) -> PathBuf {
    directory.join(format!("{number}.whole"))
}

fn unfinished(directory: &Path, number: u64) -> PathBuf {
    directory.join(format!("{number}.unfinished"))
}

/// Writes file after file until the ledger says stop.
pub(crate) fn run(seed: u64, directory: &Path, ledger: &mut Ledger) -> io::Result<()> {
    if ledger.while_full(|| std::fs::create_dir_all(directory))?.is_none() {
        return Ok(());
    }
    File::open(directory)?.sync_all()?;
    ledger.acknowledge(0)?;
    for number in 1.. {
        let plan = Plan::new(seed, number);
        let Some(file) = write(&plan, directory, ledger)? else {
            return Ok(());
        };
        if plan.synced_before_rename {
            file.sync_all()?;
        }
        let rename = || std::fs::rename(unfinished(directory, number), whole(directory, number));
        if ledger.while_full(rename)?.is_none() {
            return Ok(());
        }
        file.sync_all()?;
        ledger.acknowledge(number)?;
        if number > KEPT {
            std::fs::remove_file(whole(directory, number - KEPT))?;
        }
    }
    Ok(())
}

fn write(plan: &Plan, directory: &Path, ledger: &mut Ledger) -> io::Result<Option<File>> {
    let path = unfinished(directory, plan.number);
    let create = || OpenOptions::new().write(true).create_new(true).open(&path);
    if ledger.while_full(create)?.is_none() {
        return Ok(None);
    }
    let mut bytes = vec![0; PAGE * PAGES_PER_WRITE as usize];
    let mut open = None;
    for generation in 0..plan.generations {
        let mut file = OpenOptions::new().write(true).open(&path)?;
        for first in (0..plan.pages).step_by(PAGES_PER_WRITE as usize) {
            let pages = PAGES_PER_WRITE.min(plan.pages - first);
            for page in 0..pages {
                plan.page(first + page, generation, &mut bytes[page as usize * PAGE..][..PAGE]);
            }
            let mut rest = &bytes[..pages as usize * PAGE];
            while !rest.is_empty() {
                match ledger.while_full(|| file.write(rest))? {
                    Some(written) => rest = &rest[written..],
                    None => return Ok(None),
                }
            }
            if ledger.must_stop() {
                return Ok(None);
            }
            std::thread::sleep(PAUSE);
        }
        open = Some(file);
    }
    Ok(open)
}

/// The newest file that is whole, if the files `KEPT` before it are whole, too, and every page of the next one is from that file.
pub(crate) fn verify(seed: u64, directory: &Path, acknowledged: RangeInclusive<u64>) -> Result<u64, String> {
    let mut numbers = Vec::new();
    let mut begun = Vec::new();
    for entry in std::fs::read_dir(directory).map_err(|error| format!("{}: {error}", directory.display()))? {
        let name = entry.map_err(|error| error.to_string())?.file_name().to_string_lossy().into_owned();
        let list = if name.ends_with(".whole") { &mut numbers } else { &mut begun };
        let number = name.split('.').next().unwrap_or_default().parse::<u64>();
        list.push(number.map_err(|_| format!("the name {name} was invented"))?);
    }
    numbers.sort_unstable();
    let newest = numbers.last().copied().unwrap_or(0);
    let oldest = numbers.first().copied().unwrap_or(1);
    let in_order = numbers.iter().copied().eq(oldest..=newest);
    let kept = numbers.len() as u64;
    if !in_order || kept < KEPT.min(newest) || kept > KEPT + 1 {
        return Err(format!("the whole files are {numbers:?}"));
    }
    if newest < *acknowledged.start() || newest > acknowledged.end() + 1 {
        return Err(format!("{acknowledged:?} was the newest file by then, and {newest} is"));
    }
    if begun.iter().any(|number| *number != newest + 1) {
        return Err(format!("unfinished files are {begun:?}, and {newest} is whole"));
    }
    for number in numbers {
        let plan = Plan::new(seed, number);
        let pages = compare(&plan, &whole(directory, number), plan.generations - 1)?;
        if pages != plan.pages as f64 {
            return Err(format!("file {number} has {pages} of {} pages", plan.pages));
        }
    }
    for number in begun {
        compare(&Plan::new(seed, number), &unfinished(directory, number), 0)?;
    }
    Ok(newest)
}

/// How many pages the file has, all of which must be of generation `oldest` or a later one.
fn compare(plan: &Plan, path: &Path, oldest: u64) -> Result<f64, String> {
    let place = path.display();
    let mut file = File::open(path).map_err(|error| format!("{place}: {error}"))?;
    let (mut found, mut expected) = (vec![0; PAGE], vec![0; PAGE]);
    let mut length = 0;
    for page in 0.. {
        let mut filled = 0;
        while filled < PAGE {
            match file.read(&mut found[filled..]).map_err(|error| format!("{place}, page {page}: {error}"))? {
                0 => break,
                read => filled += read,
            }
        }
        length += filled;
        if filled == 0 {
            break;
        }
        let is_of = |generation| {
            plan.page(page, generation, &mut expected);
            expected[..filled] == found[..filled]
        };
        if page >= plan.pages || !(oldest..plan.generations).any(is_of) {
            let zeros = found[..filled].iter().all(|byte| *byte == 0);
            let what = if zeros { "has zeros" } else { "was never written so" };
            return Err(format!("{place}: page {page} of {} {what}", plan.pages));
        }
    }
    Ok(length as f64 / PAGE as f64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::FileExt;

    /// Files 1 to 6 of seed 5, of which the last is not finished.
    fn six_files() -> tempfile::TempDir {
        let directory = tempfile::tempdir_in("/var/tmp").unwrap();
        let mut bytes = vec![0; PAGE];
        for number in 2..=6 {
            let plan = Plan::new(5, number);
            let end = if number == 6 { plan.pages / 2 } else { plan.pages };
            let path =
                if number == 6 { unfinished(directory.path(), 6) } else { whole(directory.path(), number) };
            let file = File::create(path).unwrap();
            for page in 0..end {
                plan.page(page, plan.generations - 1, &mut bytes);
                file.write_all_at(&bytes, page * PAGE as u64).unwrap();
            }
        }
        directory
    }

    #[test]
    fn finds_the_newest_file() {
        let directory = six_files();
        assert_eq!(verify(5, directory.path(), 5..=5), Ok(5));
        assert_eq!(verify(5, directory.path(), 4..=4), Ok(5));
    }

    #[test]
    fn lost_files_and_other_bytes_are_found() {
        let directory = six_files();
        assert!(verify(5, directory.path(), 6..=6).is_err());
        assert!(verify(5, directory.path(), 3..=3).is_err());
        let file = OpenOptions::new().write(true).open(unfinished(directory.path(), 6)).unwrap();
        file.write_all_at(&[0; PAGE], 0).unwrap();
        assert!(verify(5, directory.path(), 5..=5).is_err_and(|error| error.contains("has zeros")));
        std::fs::remove_file(unfinished(directory.path(), 6)).unwrap();
        assert_eq!(verify(5, directory.path(), 5..=5), Ok(5));
        std::fs::remove_file(whole(directory.path(), 3)).unwrap();
        assert!(verify(5, directory.path(), 5..=5).is_err());
    }
}

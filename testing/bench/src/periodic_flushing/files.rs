//! The files of a server. Each is present or absent, and one thread at a time works with it.

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use device::SeededRng;

/// Shape of the gamma distribution from which filebench draws sizes.
const SHAPE: f64 = 1.5;

/// A set of files.
pub(super) struct FileSet {
    directory: PathBuf,
    /// Files in each directory.
    width: u64,
    mean_bytes: u64,
    state: Mutex<FileNumbers>,
}

/// Numbers of the files that no thread has taken.
#[derive(Debug, Default)]
struct FileNumbers {
    present: Vec<u64>,
    absent: Vec<u64>,
}

/// Whether a file exists.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum FilePresence {
    Present,
    Absent,
}

impl FileNumbers {
    fn of(&mut self, presence: FilePresence) -> &mut Vec<u64> {
        match presence {
            FilePresence::Present => &mut self.present,
            FilePresence::Absent => &mut self.absent,
        }
    }
}

impl FileSet {
    /// A set of `count` files below `directory`, `width` to a directory. [`FileSet::make`] creates
    /// `present_percent` of them.
    pub(super) fn new(
        directory: &Path,
        count: u64,
        width: u64,
        mean_bytes: u64,
        present_percent: u64,
    ) -> FileSet {
        let present = count * present_percent / 100;
        let state = FileNumbers { present: (0..present).collect(), absent: (present..count).collect() };
        FileSet { directory: directory.to_path_buf(), width, mean_bytes, state: Mutex::new(state) }
    }

    /// Makes the directories, and the files that are present at first.
    pub(super) fn make(&self, random: &mut SeededRng, bytes: &[u8]) -> io::Result<()> {
        let (present, count) = {
            let state = self.state();
            (state.present.clone(), state.present.len() + state.absent.len())
        };
        for directory in 0..(count as u64).div_ceil(self.width) {
            fs::create_dir_all(self.directory.join(directory.to_string()))?;
        }
        for number in present {
            write(&mut fs::File::create(self.path(number))?, bytes, self.size(random))?;
        }
        Ok(())
    }

    pub(super) fn path(&self, number: u64) -> PathBuf {
        self.directory.join((number / self.width).to_string()).join(number.to_string())
    }

    /// The size of a new file, in bytes.
    pub(super) fn size(&self, random: &mut SeededRng) -> u64 {
        (gamma(random) * self.mean_bytes as f64 / SHAPE) as u64
    }

    /// Takes a random file that no other thread works with.
    pub(super) fn take(&self, presence: FilePresence, random: &mut SeededRng) -> Option<u64> {
        let mut state = self.state();
        let of = state.of(presence);
        (!of.is_empty()).then(|| of.swap_remove(random.index(of.len())))
    }

    /// Returns a file to the set.
    pub(super) fn put(&self, number: u64, presence: FilePresence) {
        self.state().of(presence).push(number);
    }

    fn state(&self) -> MutexGuard<'_, FileNumbers> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Writes `count` bytes, repeating `bytes` as often as needed.
pub(super) fn write(file: &mut fs::File, bytes: &[u8], count: u64) -> io::Result<()> {
    let mut left = count;
    while left > 0 {
        let now = left.min(bytes.len() as u64);
        file.write_all(&bytes[..now as usize])?;
        left -= now;
    }
    Ok(())
}

/// Draws from the gamma distribution of shape 1.5 and scale 1: the sum of an exponential variable and half
/// the square of a normal one.
fn gamma(random: &mut SeededRng) -> f64 {
    let mut uniform = || ((random.next_u64() >> 11) + 1) as f64 / (1_u64 << 53) as f64;
    let [one, two, angle] = [uniform(), uniform(), uniform()];
    -one.ln() - two.ln() * (std::f64::consts::TAU * angle).cos().powi(2)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_the_mean_that_was_asked_for() {
        let files = FileSet::new(Path::new(""), 1, 1, 16_384, 100);
        let mut random = SeededRng::new(1);
        let sizes: Vec<f64> = (0..100_000).map(|_| files.size(&mut random) as f64).collect();
        let mean = sizes.iter().sum::<f64>() / sizes.len() as f64;
        assert!((mean / 16_384.0 - 1.0).abs() < 0.02, "{mean}");
        // The variance of a gamma distribution is its mean, squared, over its shape.
        let variance = sizes.iter().map(|size| (size - mean).powi(2)).sum::<f64>() / sizes.len() as f64;
        assert!((variance * SHAPE / mean.powi(2) - 1.0).abs() < 0.05, "{variance}");
    }

    #[test]
    fn a_file_is_taken_once_until_it_is_put_back() {
        let files = FileSet::new(Path::new(""), 4, 2, 1, 50);
        let mut random = SeededRng::new(1);
        let first = files.take(FilePresence::Present, &mut random).expect("two are there");
        let second = files.take(FilePresence::Present, &mut random).expect("two are there");
        assert_ne!(first, second);
        assert_eq!(files.take(FilePresence::Present, &mut random), None);
        files.put(first, FilePresence::Absent);
        files.put(second, FilePresence::Present);
        assert_eq!(files.take(FilePresence::Present, &mut random), Some(second));
    }
}

//! A tree of small files as a tar archive. The same seed gives the same archive.

use std::io::{self, Write};

use device::SeededRng;

/// The largest file of the usual tree. The mean is 11 KiB, because the product of two uniform numbers averages a quarter of its
/// maximum.
pub(super) const FILE_BYTES_MAX: u64 = 44 << 10;
/// Length of a line of text, with its end.
const LINE_BYTES: usize = 64;
const FILES_PER_DIRECTORY: u64 = 50;
const DIRECTORIES_PER_DIRECTORY: u64 = 20;

/// Block size of the tar format.
const BLOCK_BYTES: usize = 512;
/// 2023-11-14. Any past time would do.
const MODIFIED: u64 = 1_700_000_000;

/// A directory (`bytes` is `None`), or a file of `bytes` bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct TarEntry {
    pub(super) name: String,
    pub(super) bytes: Option<u64>,
}

/// Entries of a directory `tree` with `files` files of at most `file_bytes_max` bytes, fifty to a directory. Each
/// directory precedes its contents.
pub(super) fn entries(files: u64, file_bytes_max: u64, random: &mut SeededRng) -> Vec<TarEntry> {
    let directory = |name: String| TarEntry { name, bytes: None };
    let mut entries = vec![directory("tree/".to_owned())];
    for file in 0..files {
        let leaf = file / FILES_PER_DIRECTORY;
        let upper = format!("tree/d{:02}/", leaf / DIRECTORIES_PER_DIRECTORY);
        let lower = format!("{upper}e{:02}/", leaf % DIRECTORIES_PER_DIRECTORY);
        if file % (FILES_PER_DIRECTORY * DIRECTORIES_PER_DIRECTORY) == 0 {
            entries.push(directory(upper));
        }
        if file % FILES_PER_DIRECTORY == 0 {
            entries.push(directory(lower.clone()));
        }
        let most = random.below(file_bytes_max + 1);
        entries
            .push(TarEntry { name: format!("{lower}file-{file:05}"), bytes: Some(random.below(most + 1)) });
    }
    entries
}

/// Writes the entries as an archive (ustar), with file contents from `fill`.
pub(super) fn write(
    entries: &[TarEntry],
    fill: fn(&mut SeededRng, &mut [u8]),
    random: &mut SeededRng,
    out: &mut impl Write,
) -> io::Result<()> {
    let largest = entries.iter().filter_map(|entry| entry.bytes).max().unwrap_or(0);
    let mut body = vec![0; largest as usize];
    for entry in entries {
        out.write_all(&header(entry))?;
        let bytes = entry.bytes.unwrap_or(0) as usize;
        fill(random, &mut body[..bytes]);
        out.write_all(&body[..bytes])?;
        out.write_all(&[0; BLOCK_BYTES][..bytes.next_multiple_of(BLOCK_BYTES) - bytes])?;
    }
    out.write_all(&[0; 2 * BLOCK_BYTES])
}

/// Fills `bytes` with random data, which no file system can compress.
pub(super) fn fill(random: &mut SeededRng, bytes: &mut [u8]) {
    for chunk in bytes.chunks_mut(8) {
        chunk.copy_from_slice(&random.next_u64().to_le_bytes()[..chunk.len()]);
    }
}

/// Fills `bytes` with lines of hexadecimal digits.
pub(super) fn fill_with_lines(random: &mut SeededRng, bytes: &mut [u8]) {
    for line in bytes.chunks_mut(LINE_BYTES) {
        let digits = format!("{:016x}", random.next_u64()).repeat(LINE_BYTES.div_ceil(16));
        let (last, text) = line.split_last_mut().expect("a chunk is not empty");
        text.copy_from_slice(&digits.as_bytes()[..text.len()]);
        *last = b'\n';
    }
}

/// The header of an entry, described in tar(5).
fn header(entry: &TarEntry) -> [u8; BLOCK_BYTES] {
    let mut header = [0; BLOCK_BYTES];
    let mut put = |at: usize, text: &str| header[at..at + text.len()].copy_from_slice(text.as_bytes());
    let (kind, mode) = if entry.bytes.is_some() { ("0", "0000644") } else { ("5", "0000755") };
    put(0, &entry.name);
    put(100, mode);
    put(108, "0000000");
    put(116, "0000000");
    put(124, &format!("{:011o}", entry.bytes.unwrap_or(0)));
    put(136, &format!("{MODIFIED:011o}"));
    // The checksum counts its own field as spaces.
    put(148, "        ");
    put(156, kind);
    put(257, "ustar\x0000");
    let sum: u32 = header.iter().copied().map(u32::from).sum();
    header[148..155].copy_from_slice(format!("{sum:06o}\0").as_bytes());
    header
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::process::Command;

    fn archive(files: u64, seed: u64) -> (Vec<TarEntry>, Vec<u8>) {
        let mut random = SeededRng::new(seed);
        let entries = entries(files, FILE_BYTES_MAX, &mut random);
        let mut archive = Vec::new();
        write(&entries, fill, &mut random, &mut archive).expect("memory takes it");
        (entries, archive)
    }

    #[test]
    fn the_same_seed_gives_the_same_archive() {
        assert!(archive(70, 3) == archive(70, 3));
        assert!(archive(70, 3) != archive(70, 4));
    }

    #[test]
    fn twenty_thousand_files_lie_in_four_hundred_directories_and_have_eleven_kib_on_average() {
        let entries = entries(20_000, FILE_BYTES_MAX, &mut SeededRng::new(1));
        let sizes: Vec<u64> = entries.iter().filter_map(|entry| entry.bytes).collect();
        assert_eq!(sizes.len(), 20_000);
        let mean = sizes.iter().sum::<u64>() / 20_000;
        assert!((10_800..11_800).contains(&mean), "{mean} bytes");
        // Also twenty directories above them, and the root.
        assert_eq!(entries.len() - sizes.len(), 400 + 20 + 1);
    }

    #[test]
    fn text_is_whole_lines() {
        let mut text = vec![0; 150];
        fill_with_lines(&mut SeededRng::new(1), &mut text);
        assert_eq!(text.iter().filter(|&&byte| byte == b'\n').count(), 3);
        assert!(text.iter().all(|byte| *byte == b'\n' || byte.is_ascii_hexdigit()));
        assert_eq!(text.last(), Some(&b'\n'));
    }

    #[test]
    fn tar_takes_out_what_was_put_in() {
        let (entries, archive) = archive(70, 5);
        let directory = tempfile::tempdir().expect("a temporary directory");
        let file = directory.path().join("tree.tar");
        fs::write(&file, archive).expect("it is written");
        let done = Command::new("tar").arg("xf").arg(&file).current_dir(directory.path()).output();
        let done = done.expect("tar runs");
        assert!(done.status.success() && done.stderr.is_empty(), "{done:?}");
        for entry in entries {
            let found = fs::metadata(directory.path().join(&entry.name)).expect("it is there");
            assert_eq!(found.is_file().then_some(found.len()), entry.bytes, "{}", entry.name);
        }
    }
}

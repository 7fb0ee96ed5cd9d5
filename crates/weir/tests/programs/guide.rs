//! A page of the documents whose commands are run. Its blocks marked `sh` are run, also those in comments, which prepare what the
//! next commands find. All other blocks need what a test has not: a device, a server, a boot.

use crate::common::{detach, succeeds};
use crate::kills::PATIENCE;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Stands for the test's directory while the page's directories are replaced.
pub(crate) const ROOT: &str = "@ROOT@";

/// Directories of the machine, which no command of a test may touch.
const OF_THE_MACHINE: [&str; 5] = ["/dev/", "/mnt/", "/run/", "/srv/", "/var/"];

/// The page's blocks of commands that were not run yet.
pub(crate) struct Guide {
    pub(crate) blocks: Vec<String>,
    pub(crate) root: PathBuf,
    /// The page's directories, and what the test has instead.
    directories: &'static [(&'static str, &'static str)],
}

impl Guide {
    pub(crate) fn new(
        page: &str,
        root: &Path,
        directories: &'static [(&'static str, &'static str)],
    ) -> Guide {
        let fenced = page.split("```").skip(1).step_by(2);
        let blocks = fenced.filter_map(|block| block.strip_prefix("sh\n")).map(str::to_owned).collect();
        Guide { blocks, root: root.to_owned(), directories }
    }

    /// Runs the one block that contains `words`. Each command of the block must succeed. Returns what they
    /// printed.
    #[track_caller]
    pub(crate) fn run(&mut self, words: &str) -> String {
        let is_meant = |block: &String| block.contains(words);
        let count = self.blocks.iter().filter(|block| is_meant(block)).count();
        assert_eq!(count, 1, "blocks that were not run yet and contain {words:?}: {:?}", self.blocks);
        let index = self.blocks.iter().position(is_meant).expect("there is one");
        self.run_block(index)
    }

    /// Runs all blocks in their order. Each command must succeed.
    #[track_caller]
    pub(crate) fn run_all(&mut self) {
        while !self.blocks.is_empty() {
            self.run_block(0);
        }
    }

    #[track_caller]
    fn run_block(&mut self, index: usize) -> String {
        let block = self.blocks.remove(index);
        let script = self.in_the_test(&block);
        let program = Path::new(env!("CARGO_BIN_EXE_weir")).parent().expect("a directory").to_owned();
        let others = std::env::var_os("PATH").unwrap_or_default();
        let path = std::iter::once(program).chain(std::env::split_paths(&others));
        let path = std::env::join_paths(path).expect("no colon in a directory's name");
        let mut shell = Command::new("bash");
        shell.args(["-euo", "pipefail", "-c", &script]).env("PATH", path).stdin(Stdio::null());
        // Installed, it lies beside weir; cargo leaves it beside this test.
        let test = std::env::current_exe().expect("this program");
        shell.env("WEIR_SHIM", test.with_file_name("libweir_shim.so"));
        String::from_utf8_lossy(&succeeds(&mut shell).stdout).into_owned()
    }

    /// The block with the test's directories instead of the page's.
    fn in_the_test(&self, block: &str) -> String {
        let replace = |text: String, (page, test): &(&str, &str)| text.replace(page, test);
        let text = self.directories.iter().fold(block.to_owned(), replace);
        let rest = text.replace("/dev/null", "");
        let mut words = rest.split(|char: char| char.is_whitespace() || "'\"=".contains(char));
        let is_outside = |word: &str| {
            !word.contains(ROOT) && OF_THE_MACHINE.iter().any(|directory| word.contains(directory))
        };
        let outside = words.find(|word| is_outside(word));
        assert_eq!(outside, None, "a directory of the page has no place in the test: {text}");
        text.replace(ROOT, self.root.to_str().expect("UTF-8"))
    }
}

/// Sees to it that nothing of the page stays, even if an assertion fails: processes, mounts and loop devices
/// of the test's directory. A mount that the test has made itself, and its daemon, are left to the test.
pub(crate) struct Cleanup {
    pub(crate) root: PathBuf,
    own: Option<OwnMount>,
}

/// A mount that the test has made itself, not a command of the page.
pub(crate) struct OwnMount {
    pub(crate) mount_point: PathBuf,
    pub(crate) daemon: u32,
}

impl Cleanup {
    pub(crate) fn new(root: PathBuf, own: Option<OwnMount>) -> Cleanup {
        Cleanup { root, own }
    }

    /// Processes that name a file of the test's directory, by their ids.
    fn processes(&self) -> Vec<u32> {
        let root = self.root.to_str().expect("UTF-8");
        let named = fs::read_dir("/proc").expect("it is mounted").flatten().filter_map(|entry| {
            let pid = entry.file_name().to_str()?.parse::<u32>().ok()?;
            // The process may have ended since; the command line of a zombie is empty.
            let command = fs::read(entry.path().join("cmdline")).ok()?;
            String::from_utf8_lossy(&command).contains(root).then_some(pid)
        });
        named.filter(|pid| self.own.as_ref().is_none_or(|own| own.daemon != *pid)).collect()
    }

    /// Mount points in the test's directory, the latest mount first.
    fn mount_points(&self) -> Vec<PathBuf> {
        let table = fs::read_to_string("/proc/self/mountinfo").expect("a mount table");
        let points = table.lines().rev().filter_map(|line| line.split(' ').nth(4)).map(PathBuf::from);
        let is_of_the_page = |point: &PathBuf| {
            point.starts_with(&self.root) && self.own.as_ref().is_none_or(|own| own.mount_point != *point)
        };
        points.filter(is_of_the_page).collect()
    }

    /// Loop devices of files in the test's directory.
    pub(crate) fn loop_devices(&self) -> Vec<PathBuf> {
        let disks = fs::read_dir("/sys/block").expect("sysfs is mounted").flatten();
        let of_the_test = disks.filter(|disk| {
            let file = fs::read_to_string(disk.path().join("loop/backing_file")).unwrap_or_default();
            Path::new(file.trim_end()).starts_with(&self.root)
        });
        of_the_test.map(|disk| Path::new("/dev").join(disk.file_name())).collect()
    }

    /// Fails unless everything ends, by itself and soon.
    #[track_caller]
    pub(crate) fn assert_nothing_left(&self) {
        let begin = Instant::now();
        loop {
            let left = (self.processes(), self.mount_points(), self.loop_devices());
            if left.0.is_empty() && left.1.is_empty() && left.2.is_empty() {
                return;
            }
            assert!(begin.elapsed() < PATIENCE, "processes, mounts and loop devices that stay: {left:?}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

impl Drop for Cleanup {
    fn drop(&mut self) {
        for pid in self.processes() {
            let _ = Command::new("kill").args(["-s", "KILL", &pid.to_string()]).status();
        }
        for dir in self.mount_points() {
            detach(&dir);
        }
        for device in self.loop_devices() {
            let _ = Command::new("losetup").arg("--detach").arg(device).status();
        }
    }
}

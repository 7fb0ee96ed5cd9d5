//! Many small files that are created, written, renamed and removed.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions, Permissions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use crate::random::Random;
use crate::replay::Client;

const DIRECTORIES: u64 = 16;
/// About as many files exist.
const FILES: usize = 1500;
/// Names are drawn from as many, so that renames and new files meet old ones.
const NAMES: u64 = 4000;
/// No file is longer than a page, so that each write is made as a whole.
const LONGEST: u64 = 4096;

#[derive(Debug, Clone, PartialEq, Eq)]
struct SmallFile {
    mode: u32,
    bytes: Vec<u8>,
}

/// Each change is made as a whole.
enum Change {
    Create { name: String },
    Write { name: String, offset: u64, bytes: Vec<u8> },
    Rename { from: String, to: String },
    SetMode { name: String, mode: u32 },
    Remove { name: String },
}

/// The files, as they were written and as they were found.
pub(crate) struct Files {
    seed: u64,
    step: u64,
    directory: PathBuf,
    written: BTreeMap<String, SmallFile>,
    found: BTreeMap<String, SmallFile>,
}

impl Files {
    pub(crate) fn new(seed: u64) -> Files {
        let (written, found) = Default::default();
        Files { seed, step: 0, directory: PathBuf::new(), written, found }
    }

    fn next(&self) -> Change {
        let mut random = Random::new(self.seed, self.step + 1);
        let new = random.below(NAMES);
        let new = format!("{}/{new}", new % DIRECTORIES);
        let old = self.written.keys().nth(random.below(self.written.len().max(1) as u64) as usize).cloned();
        let many = self.written.len() >= FILES;
        match (old, random.below(10)) {
            (Some(name), 0..2) if many => Change::Remove { name },
            (Some(name), 2..6) => {
                let offset = random.below(LONGEST / 2);
                let mut bytes = vec![0; (1 + random.below(LONGEST - offset)) as usize];
                random.fill(&mut bytes);
                Change::Write { name, offset, bytes }
            }
            (Some(from), 6) => Change::Rename { from, to: new },
            (Some(name), 7) => Change::SetMode { name, mode: 0o600 | random.below(0o100) as u32 },
            (Some(name), _) if self.written.contains_key(&new) => Change::Remove { name },
            _ => Change::Create { name: new },
        }
    }
}

impl Client for Files {
    fn create(&mut self, directory: &Path) -> io::Result<()> {
        self.directory = directory.to_owned();
        for number in 0..DIRECTORIES {
            std::fs::create_dir_all(directory.join(number.to_string()))?;
        }
        self.sync()
    }

    fn remember(&mut self) {
        match self.next() {
            Change::Create { name } => {
                self.written.insert(name, SmallFile { mode: 0o600, bytes: Vec::new() });
            }
            Change::Write { name, offset, bytes } => {
                let file = self.written.get_mut(&name).expect("an old name");
                let end = offset as usize + bytes.len();
                file.bytes.resize(file.bytes.len().max(end), 0);
                file.bytes[offset as usize..end].copy_from_slice(&bytes);
            }
            Change::Rename { from, to } => {
                let file = self.written.remove(&from).expect("an old name");
                self.written.insert(to, file);
            }
            Change::SetMode { name, mode } => self.written.get_mut(&name).expect("an old name").mode = mode,
            Change::Remove { name } => {
                self.written.remove(&name);
            }
        }
        self.step += 1;
    }

    fn change(&mut self) -> io::Result<()> {
        let path = |name: &String| self.directory.join(name);
        match self.next() {
            Change::Create { name } => {
                OpenOptions::new().write(true).create_new(true).mode(0o600).open(path(&name)).map(drop)
            }
            Change::Write { name, offset, bytes } => {
                let file = OpenOptions::new().write(true).open(path(&name))?;
                file.write_all_at(&bytes, offset)
            }
            Change::Rename { from, to } => std::fs::rename(path(&from), path(&to)),
            Change::SetMode { name, mode } => {
                std::fs::set_permissions(path(&name), Permissions::from_mode(mode))
            }
            Change::Remove { name } => std::fs::remove_file(path(&name)),
        }
    }

    fn sync(&mut self) -> io::Result<()> {
        File::open(&self.directory)?.sync_all()
    }

    fn read(&mut self, directory: &Path) -> io::Result<()> {
        for number in 0..DIRECTORIES {
            for entry in std::fs::read_dir(directory.join(number.to_string()))? {
                let entry = entry?;
                let name = format!("{number}/{}", entry.file_name().to_string_lossy());
                let mode = entry.metadata()?.permissions().mode() & 0o7777;
                self.found.insert(name, SmallFile { mode, bytes: std::fs::read(entry.path())? });
            }
        }
        Ok(())
    }

    fn is_equal(&self) -> bool {
        self.written == self.found
    }

    fn difference(&self) -> String {
        let missing = self.written.keys().filter(|name| !self.found.contains_key(*name));
        let invented = self.found.keys().filter(|name| !self.written.contains_key(*name));
        let changed = self
            .written
            .iter()
            .filter(|(name, file)| self.found.get(*name).is_some_and(|found| found != *file));
        let changed = changed.map(|(name, _)| name);
        let list =
            |names: Vec<&String>| format!("{} {:?}", names.len(), names.iter().take(3).collect::<Vec<_>>());
        let (missing, invented) = (list(missing.collect()), list(invented.collect()));
        format!("missing: {missing}; invented: {invented}; other content: {}", list(changed.collect()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::replay;

    #[test]
    fn the_step_is_found_and_a_change_of_any_file() {
        let directory = tempfile::tempdir().unwrap();
        let mut client = Files::new(3);
        client.create(directory.path()).unwrap();
        for _ in 0..3000 {
            client.change().unwrap();
            client.remember();
        }
        let verify = |least| replay::verify(&mut Files::new(3), directory.path(), least..=least);
        assert_eq!(verify(2990), Ok(3000));
        assert!(verify(3001).is_err());
        assert!(verify(2900).is_err());
        std::fs::write(directory.path().join("3/invented"), "").unwrap();
        assert!(verify(2990).is_err());
    }
}

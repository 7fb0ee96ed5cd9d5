//! Files outside of the listed trees that the program used and did not change. After the run they are still
//! as before, so they are added to the list then, when the trace shows their names.

use super::line;
use crate::event::{EventKind, Recorded, TraceEvent, Value};
use std::collections::BTreeMap;
use std::fs::Metadata;
use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

/// The kernel's limit on links in one walk.
const LINKS_MAX: u32 = 40;
/// Maximum number of paths that are looked up. The model must infer the others.
const PATHS_MAX: usize = 1 << 20;
/// Directories whose contents the kernel generates.
const MADE_UP: [&str; 3] = ["/proc", "/sys", "/dev"];

/// Paths in a trace, and whether the file's size matters. It does not if the file was only run or looked up.
#[derive(Debug, Default)]
pub(super) struct UnlistedFiles(BTreeMap<PathBuf, bool>);

impl UnlistedFiles {
    /// Notes the paths of one call. Relative paths count if the trace shows their directory.
    pub(super) fn add(&mut self, event: &TraceEvent) {
        let EventKind::Call { name, args, result } = &event.what else { return };
        let sized =
            matches!(result, Recorded::Value(..)) && (name.starts_with("open") || name.contains("stat"));
        let mut base: Option<&[u8]> = None;
        for value in args {
            match value {
                Value::Descriptor { note, .. } => {
                    base = Some(note);
                    self.note(note, sized);
                }
                Value::Text { bytes, whole: true } if bytes.starts_with(b"/") => self.note(bytes, sized),
                Value::Text { bytes, whole: true } if !bytes.is_empty() => {
                    if let Some(base) = base {
                        self.note(&[base, b"/", bytes].concat(), sized);
                    }
                }
                _ => {}
            }
        }
        if let Recorded::Value(_, Some(note)) = result {
            self.note(note, true);
        }
    }

    fn note(&mut self, path: &[u8], sized: bool) {
        let path = Path::new(std::ffi::OsStr::from_bytes(path));
        let made_up = MADE_UP.iter().any(|dir| path.starts_with(dir));
        if path.is_absolute() && !made_up && !path.as_os_str().as_bytes().contains(&b'\n') {
            if let Some(known) = self.0.get_mut(path) {
                *known |= sized;
            } else if self.0.len() < PATHS_MAX {
                self.0.insert(path.into(), sized);
            }
        }
    }

    /// Lists files that exist and were not changed since `before`, with all directories on the way, except
    /// those in `trees`.
    pub(super) fn list(&self, trees: &[PathBuf], before: SystemTime, out: &mut impl Write) -> io::Result<()> {
        let mut lister = Lister { trees, before, seen: BTreeMap::new() };
        for (path, sized) in &self.0 {
            lister.walk(path, *sized);
        }
        let mut all: Vec<_> =
            lister.seen.into_iter().filter_map(|(path, found)| Some((path, found?))).collect();
        all.sort_by(|(a, _), (b, _)| a.cmp(b));
        for (path, (meta, sized)) in all {
            line(&path, &meta, if meta.is_dir() { Some('D') } else { None }, sized, out)?;
        }
        Ok(())
    }
}

struct Lister<'a> {
    trees: &'a [PathBuf],
    before: SystemTime,
    /// The file at each path, and whether its size matters. `None` if the file has changed.
    seen: BTreeMap<PathBuf, Option<(Metadata, bool)>>,
}

impl Lister<'_> {
    /// Walks along a path as the kernel does, and notes every file on the way.
    fn walk(&mut self, path: &Path, sized: bool) {
        let mut left: Vec<_> = parts(path);
        let (mut at, mut links) = (PathBuf::from("/"), 0);
        while let Some(part) = left.pop() {
            if part == b".." {
                at.pop();
                continue;
            }
            let next = at.join(std::ffi::OsStr::from_bytes(&part));
            let last = left.is_empty();
            if self.trees.iter().any(|tree| next.starts_with(tree)) {
                return;
            }
            let before = self.before;
            let found = self.seen.entry(next.clone()).or_insert_with(|| unchanged(&next, before));
            let Some((meta, matters)) = found else { return };
            *matters |= sized && last;
            if !meta.is_symlink() {
                at = next;
                continue;
            }
            links += 1;
            let Ok(target) = std::fs::read_link(&next) else { return };
            if links > LINKS_MAX {
                return;
            }
            if target.is_absolute() {
                at = PathBuf::from("/");
            }
            left.extend(parts(&target));
        }
    }
}

/// The components of a path, last one first.
fn parts(path: &Path) -> Vec<Vec<u8>> {
    let bytes = path.as_os_str().as_bytes();
    let parts = bytes.split(|byte| *byte == b'/').filter(|part| !part.is_empty() && *part != b".");
    parts.rev().map(<[u8]>::to_vec).collect()
}

/// The metadata of an unchanged file. A file must not have changed since `before`. A directory changes with
/// every name in it, so it only has to be older than `before`.
fn unchanged(path: &Path, before: SystemTime) -> Option<(Metadata, bool)> {
    let meta = path.symlink_metadata().ok()?;
    let since = before.duration_since(SystemTime::UNIX_EPOCH).ok()?.as_secs_f64();
    let changed = meta.ctime() as f64 + meta.ctime_nsec() as f64 / 1e9;
    let same = if meta.is_dir() {
        meta.created().is_ok_and(|born| born < before)
    } else {
        changed < since && (meta.is_file() || meta.is_symlink())
    };
    same.then_some((meta, false))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::time::Duration;

    fn listed(touched: &UnlistedFiles, trees: &[PathBuf], before: SystemTime) -> String {
        let mut out = Vec::new();
        touched.list(trees, before, &mut out).expect("memory does not fail");
        String::from_utf8(out).expect("names of this test")
    }

    #[test]
    fn what_was_used_and_is_unchanged_is_listed_with_its_links_and_what_was_changed_is_not() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let dir = dir.path().canonicalize().expect("a path");
        fs::create_dir_all(dir.join("real/deep")).expect("directories");
        fs::write(dir.join("real/file"), b"12345").expect("a file");
        fs::write(dir.join("real/program"), b"12345").expect("a file");
        std::os::unix::fs::symlink("real", dir.join("link")).expect("a link");
        std::thread::sleep(Duration::from_millis(20));
        let before = SystemTime::now();
        std::thread::sleep(Duration::from_millis(20));
        fs::write(dir.join("real/new"), b"1").expect("a file");
        let mut touched = UnlistedFiles::default();
        touched.note(dir.join("link/deep/../file").as_os_str().as_bytes(), true);
        touched.note(dir.join("real/program").as_os_str().as_bytes(), false);
        touched.note(dir.join("real/new").as_os_str().as_bytes(), true);
        touched.note(dir.join("real/absent").as_os_str().as_bytes(), true);
        let text = listed(&touched, &[], before);
        let lines: Vec<(&str, &str)> = text
            .lines()
            .filter_map(|line| {
                let mut fields = line.splitn(6, ' ');
                let (kind, size) = (fields.next()?, fields.nth(1)?);
                let path = fields.nth(2)?.split('\t').next()?.strip_prefix(dir.to_str()?)?;
                Some((path, if kind == "f" { size } else { kind })).filter(|(path, _)| !path.is_empty())
            })
            .collect();
        let wanted = [
            ("/link", "l"),
            ("/real", "D"),
            ("/real/deep", "D"),
            ("/real/file", "5"),
            ("/real/program", "0"),
        ];
        assert_eq!(lines, wanted);
        assert_eq!(listed(&touched, &[PathBuf::from("/")], before), "");
    }
}

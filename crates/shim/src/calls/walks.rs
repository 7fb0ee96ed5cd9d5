//! Functions of the C library that list directories by themselves: `scandir`, `glob`, `ftw`.
//!
//! The functions of the program that they call may use files of the store, too: see [`outside`].

use crate::calls::attributes::{lstat64, stat64};
use crate::calls::directories::{WeirListing, closedir, name_of, opendir, readdir64};
use crate::place;
use crate::symbol::{Answer, outside, pass_on, set_errno, symbols};
use rustix::io::Errno;
use std::collections::HashSet;
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::io;
use std::mem::offset_of;

type Path = *const c_char;
type Entry = *mut libc::dirent64;
type EntryFilter = Option<unsafe extern "C" fn(*const libc::dirent64) -> c_int>;
type EntryOrder = Option<unsafe extern "C" fn(*const c_void, *const c_void) -> c_int>;
type Visit = unsafe extern "C" fn(Path, *const libc::stat, c_int, *mut VisitPlace) -> c_int;
type SimpleVisit = unsafe extern "C" fn(Path, *const libc::stat, c_int) -> c_int;

symbols! {
    scandir(path: Path, into: *mut *mut Entry, filter: EntryFilter, order: EntryOrder) -> c_int = scan(CWD, path, into, filter, order);
    scandir64(path: Path, into: *mut *mut Entry, filter: EntryFilter, order: EntryOrder) -> c_int = scan(CWD, path, into, filter, order);
    scandirat(at: c_int, path: Path, into: *mut *mut Entry, filter: EntryFilter, order: EntryOrder) -> c_int = scan(at, path, into, filter, order);
    scandirat64(at: c_int, path: Path, into: *mut *mut Entry, filter: EntryFilter, order: EntryOrder) -> c_int = scan(at, path, into, filter, order);
    glob(pattern: Path, flags: c_int, on_error: *const c_void, into: *mut GlobResult) -> c_int = match_names(pattern, flags, on_error, into);
    glob64(pattern: Path, flags: c_int, on_error: *const c_void, into: *mut GlobResult) -> c_int = match_names(pattern, flags, on_error, into);
    ftw(path: Path, visit: SimpleVisit, descriptors: c_int) -> c_int = { let _ = descriptors; walk(path, Visitor::Simple(visit), 0) };
    ftw64(path: Path, visit: SimpleVisit, descriptors: c_int) -> c_int = { let _ = descriptors; walk(path, Visitor::Simple(visit), 0) };
    nftw(path: Path, visit: Visit, descriptors: c_int, flags: c_int) -> c_int = { let _ = descriptors; walk(path, Visitor::Full(visit), flags) };
    nftw64(path: Path, visit: Visit, descriptors: c_int, flags: c_int) -> c_int = { let _ = descriptors; walk(path, Visitor::Full(visit), flags) };
}

const CWD: c_int = libc::AT_FDCWD;

/// The C library's `glob_t`, with the functions that `glob` uses with GLOB_ALTDIRFUNC.
#[repr(C)]
pub(crate) struct GlobResult {
    count: usize,
    paths: *mut *mut c_char,
    reserved: usize,
    flags: c_int,
    close_directory: unsafe extern "C" fn(*mut c_void) -> c_int,
    read_directory: unsafe extern "C" fn(*mut c_void) -> Entry,
    open_directory: unsafe extern "C" fn(Path) -> *mut c_void,
    lstat: unsafe extern "C" fn(Path, *mut libc::stat) -> c_int,
    stat: unsafe extern "C" fn(Path, *mut libc::stat) -> c_int,
}

/// `glob` with our functions for directories.
fn match_names(pattern: Path, flags: c_int, on_error: *const c_void, into: *mut GlobResult) -> Answer<c_int> {
    const ALTDIRFUNC: c_int = 1 << 9;
    if flags & ALTDIRFUNC != 0 {
        return None;
    }
    if let Err(error) = place::find(CWD, pattern)? {
        return Some(Err(error));
    }
    // SAFETY: the program passes memory for a `glob_t`. Without the flag it has no functions of the program.
    unsafe {
        (&raw mut (*into).close_directory).write(closedir);
        (&raw mut (*into).read_directory).write(readdir64);
        (&raw mut (*into).open_directory).write(opendir);
        (&raw mut (*into).lstat).write(lstat64);
        (&raw mut (*into).stat).write(stat64);
    }
    Some(Ok(outside(|| {
        pass_on!(
            next::glob,
            (pattern, flags | ALTDIRFUNC, on_error, into),
            (Path, c_int, *const c_void, *mut GlobResult) -> c_int
        )
    })))
}

fn scan(
    at: c_int,
    path: Path,
    into: *mut *mut Entry,
    filter: EntryFilter,
    order: EntryOrder,
) -> Answer<c_int> {
    place::at(at, path, |place| {
        let mut entries = EntryList(Vec::new());
        WeirListing::each_of(place, |entry| entries.add(entry, filter))?;
        // SAFETY: each element is a pointer to an entry, which is what `order` compares.
        unsafe {
            if let Some(order) = order {
                outside(|| {
                    libc::qsort(
                        entries.0.as_mut_ptr().cast(),
                        entries.0.len(),
                        size_of::<Entry>(),
                        Some(order),
                    )
                });
            }
            let bytes = entries.0.len() * size_of::<Entry>();
            let list = libc::malloc(bytes.max(1)).cast::<Entry>();
            if list.is_null() {
                return Err(Errno::NOMEM.into());
            }
            std::ptr::copy_nonoverlapping(entries.0.as_ptr(), list, entries.0.len());
            into.write(list);
        }
        let count = entries.0.len();
        std::mem::take(&mut entries.0);
        Ok(count as c_int)
    })
}

/// Entries for the program, which it will free.
struct EntryList(Vec<Entry>);

impl EntryList {
    fn add(&mut self, entry: &libc::dirent64, filter: EntryFilter) -> io::Result<()> {
        if let Some(filter) = filter {
            // SAFETY: the program's function takes an entry, and ours lives during the call.
            let is_wanted = outside(|| unsafe { filter(entry) }) != 0;
            if !is_wanted {
                return Ok(());
            }
        }
        let bytes = offset_of!(libc::dirent64, d_name) + name_of(entry).len() + 1;
        // SAFETY: the copied bytes are the beginning of the entry, up to the end of its name.
        unsafe {
            let copy = libc::malloc(bytes);
            if copy.is_null() {
                return Err(Errno::NOMEM.into());
            }
            std::ptr::copy_nonoverlapping(std::ptr::from_ref(entry).cast(), copy, bytes);
            let copy = copy.cast::<libc::dirent64>();
            (&raw mut (*copy).d_reclen).write(bytes as u16);
            self.0.push(copy);
        }
        Ok(())
    }
}

impl Drop for EntryList {
    fn drop(&mut self) {
        // SAFETY: `add` has allocated them, and the program has not got them.
        self.0.iter().for_each(|&entry| unsafe { libc::free(entry.cast()) });
    }
}

/// `struct FTW`.
#[repr(C)]
pub(crate) struct VisitPlace {
    /// Where the last name of the path begins.
    base: c_int,
    level: c_int,
}

enum Visitor {
    Full(Visit),
    Simple(SimpleVisit),
}

/// The kind of a visited name, with its number in `ftw.h`.
#[derive(Clone, Copy)]
enum VisitedKind {
    File = 0,
    Directory = 1,
    Unreadable = 2,
    NoAttributes = 3,
    Link = 4,
    DirectoryAfter = 5,
    DanglingLink = 6,
}

const FTW_PHYS: c_int = 1;
const FTW_CHDIR: c_int = 4;
const FTW_DEPTH: c_int = 8;
const FTW_ACTIONRETVAL: c_int = 16;
const FTW_SKIP_SUBTREE: c_int = 2;
const FTW_SKIP_SIBLINGS: c_int = 3;

struct Walk {
    visitor: Visitor,
    flags: c_int,
    /// Directories that were entered, if links are followed: none is entered twice.
    entered: HashSet<u64>,
}

fn walk(path: Path, visitor: Visitor, flags: c_int) -> Answer<c_int> {
    if let Err(error) = place::find(CWD, path)? {
        return Some(Err(error));
    }
    if flags & FTW_CHDIR != 0 {
        return Some(Err(Errno::OPNOTSUPP.into()));
    }
    let path = place::bytes_of(path)?;
    let end = path.iter().rposition(|&byte| byte != b'/').map_or(1, |last| last + 1);
    let mut walk = Walk { visitor, flags, entered: HashSet::new() };
    let result = walk.visit_tree(&path[..end], 0);
    Some(result.map(|result| if result == FTW_SKIP_SUBTREE && walk.has_actions() { 0 } else { result }))
}

impl Walk {
    fn has_actions(&self) -> bool {
        self.flags & FTW_ACTIONRETVAL != 0
    }

    /// Visits the file or directory at the path, and a directory's whole tree. A result other than 0 ends the walk.
    fn visit_tree(&mut self, path: &[u8], level: c_int) -> io::Result<c_int> {
        let name = CString::new(path)?;
        // SAFETY: attributes are plain numbers.
        let mut found: libc::stat = unsafe { std::mem::zeroed() };
        let kind = match self.attributes(&name, &mut found) {
            Ok(kind) => kind,
            Err(error) if level == 0 => return Err(error),
            Err(error) if error.raw_os_error() == Some(libc::EACCES) => VisitedKind::NoAttributes,
            Err(error) => return Err(error),
        };
        if !matches!(kind, VisitedKind::Directory) {
            return Ok(self.call(&name, &found, kind, level));
        }
        if self.flags & FTW_PHYS == 0 && !self.entered.insert(found.st_ino) {
            return Ok(0);
        }
        let names = match place::at(CWD, name.as_ptr(), |place| {
            let mut names = Vec::new();
            WeirListing::each_of(place, |entry| {
                names.push(name_of(entry).to_vec());
                Ok(())
            })?;
            Ok(names)
        }) {
            Some(Ok(names)) => names,
            Some(Err(error)) if error.raw_os_error() == Some(libc::EACCES) => {
                return Ok(self.call(&name, &found, VisitedKind::Unreadable, level));
            }
            Some(Err(error)) => return Err(error),
            None => return Err(Errno::NOENT.into()),
        };
        if self.flags & FTW_DEPTH == 0 {
            let result = self.call(&name, &found, VisitedKind::Directory, level);
            if result == FTW_SKIP_SUBTREE && self.has_actions() {
                return Ok(0);
            }
            if result != 0 {
                return Ok(result);
            }
        }
        for below in names.iter().filter(|below| !matches!(below.as_slice(), b"." | b"..")) {
            let result = self.visit_tree(&[path, b"/", below.as_slice()].concat(), level + 1)?;
            if result == FTW_SKIP_SIBLINGS && self.has_actions() {
                break;
            }
            if result != 0 {
                return Ok(result);
            }
        }
        if self.flags & FTW_DEPTH != 0 {
            return Ok(self.call(&name, &found, VisitedKind::DirectoryAfter, level));
        }
        Ok(0)
    }

    fn attributes(&self, name: &CStr, into: &mut libc::stat) -> io::Result<VisitedKind> {
        let succeeds = |call: unsafe extern "C" fn(Path, *mut libc::stat) -> c_int, into: &mut libc::stat| {
            // SAFETY: the path ends with a zero byte, and there is room for attributes.
            match outside(|| unsafe { call(name.as_ptr(), into) }) {
                0 => Ok(()),
                _ => Err(io::Error::last_os_error()),
            }
        };
        if self.flags & FTW_PHYS != 0 {
            succeeds(lstat64, into)?;
        } else if let Err(error) = succeeds(stat64, into) {
            succeeds(lstat64, into).map_err(|_| error)?;
            return Ok(VisitedKind::DanglingLink);
        }
        Ok(match into.st_mode & libc::S_IFMT {
            libc::S_IFDIR => VisitedKind::Directory,
            libc::S_IFLNK => VisitedKind::Link,
            _ => VisitedKind::File,
        })
    }

    /// Calls the program's function.
    fn call(&self, name: &CStr, found: &libc::stat, kind: VisitedKind, level: c_int) -> c_int {
        let base = name.to_bytes().iter().rposition(|&byte| byte == b'/').map_or(0, |slash| slash + 1);
        let mut place = VisitPlace { base: base as c_int, level };
        set_errno(0);
        // SAFETY: the arguments live during the call, and the functions take them so.
        outside(|| unsafe {
            match self.visitor {
                Visitor::Full(visit) => visit(name.as_ptr(), found, kind as c_int, &mut place),
                Visitor::Simple(visit) => {
                    // It knows fewer kinds.
                    let kind = match kind {
                        VisitedKind::Link => VisitedKind::File,
                        VisitedKind::DirectoryAfter => VisitedKind::Directory,
                        VisitedKind::DanglingLink => VisitedKind::NoAttributes,
                        kind => kind,
                    };
                    visit(name.as_ptr(), found, kind as c_int)
                }
            }
        })
    }
}

const _: () = assert!(size_of::<GlobResult>() == size_of::<libc::glob_t>());

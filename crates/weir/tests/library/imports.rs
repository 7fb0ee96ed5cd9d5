//! The library's table of symbols, compared with what programs import from the C library.

use crate::run::shim;
use object::{Object, ObjectSymbol};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use test_support::has_program;

/// Programs that the limits of `weir run` speak of. The packages of CI have them all.
const PROGRAMS: &str = "cat chmod chown cksum comm cp csplit cut dd df dir du head id install join ln ls mkdir mkfifo mknod mktemp \
    mv nl od paste pr readlink realpath rm rmdir sha256sum shred shuf sort split stat sum sync tac tail tee test touch truncate \
    uniq unlink vdir wc find xargs grep tar rsync git sqlite3 cc c++ dash sed";

/// A symbol is about files if its name has one of these.
const STEMS: &str = "open read write stat dir link chmod chown access xattr sync allocate truncate seek lock mount exec spawn dup \
    fcntl ioctl map temp tmp glob ftw fts_ path pipe poll select close creat mknod fifo utime futime advise send splice cwd root \
    umask notify aio syscall fork remove rename getdents epoll";

/// Names that have a stem by chance.
const NOT_FILES: &str = "pthread_ __pthread_ posix_spawnattr_ posix_spawn_file_actions_ clock sched_ __clock sem_ gethost iconv_ catopen catclose \
    __libc_single_threaded __cxa_thread setlocale duplocale __duplocale strdup strndup wcsdup __strdup __strndup sendto sendmsg \
    sendmmsg send setns getopt dirname __xpg_basename openlog closelog dlopen dlclose regexec addmntent endmntent _dl_ sockatmark";

/// File symbols that need not be in the table, with the reason.
const NOT_IN_TABLE: &[(&str, &str)] = &[
    (
        "fread fread_unlocked __fread_chk __fread_unlocked_chk fseek fseeko fseeko64 __freading flockfile funlockfile fwrite \
      fwrite_unlocked clearerr_unlocked fflush_unlocked fileno_unlocked fputc_unlocked fputs_unlocked __fsetlocking ftrylockfile",
        "work on a stream, which is ours from `fopen` on",
    ),
    (
        "pipe pipe2 openpty forkpty memfd_create epoll_create epoll_create1 epoll_wait shm_open shm_unlink sem_open eventfd_read \
      eventfd_write popen_noexec",
        "are about descriptors that are not files of the store",
    ),
    ("poll __poll_chk select pselect ppoll epoll_ctl", "refuse a placeholder (POLLNVAL, EBADF), visibly"),
    (
        "inotify_init inotify_init1 inotify_add_watch inotify_rm_watch fanotify_init fanotify_mark",
        "see no path of the store (ENOENT)",
    ),
    ("fork", "calls the library's handlers by `pthread_atfork`"),
    ("vfork", "is defined beside the table"),
    ("syscall", "is for system calls that a program makes by itself: EBADF and ENOENT"),
    ("globfree globfree64 closedir_r pclose", "free what the program has, or wait for a program"),
    (
        "chroot mount umount umount2 pivot_root unshare",
        "are the administrator's, and see no path of the store",
    ),
    ("tmpfile tmpfile64 tmpnam tempnam mktemp", "are on the machine's /tmp, or only make names"),
    ("sethostname gethostname uname", "are not about files"),
];

fn words(list: &str) -> BTreeSet<String> {
    list.split_whitespace().map(str::to_owned).collect()
}

/// The dynamic symbols of a program or library: those that it defines, or those that it imports. Empty for a script.
fn symbols(path: &Path, is_wanted: fn(&object::Symbol<'_, '_>) -> bool) -> BTreeSet<String> {
    let bytes = fs::read(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let Ok(file) = object::File::parse(&*bytes) else { return BTreeSet::new() };
    let found = file.dynamic_symbols().filter(is_wanted);
    found.filter_map(|symbol| symbol.name().ok().map(str::to_owned)).collect()
}

fn said_by(program: &str, arguments: &[&str]) -> String {
    let output = Command::new(program).args(arguments).output().expect("it is there");
    String::from_utf8(output.stdout).unwrap()
}

/// The programs, what the compiler starts, and Python with the libraries that it loads for files and databases.
fn objects() -> Vec<PathBuf> {
    let present = PROGRAMS.split_whitespace().filter(|name| has_program(name));
    let mut paths: Vec<PathBuf> = present
        .map(|name| said_by("sh", &["-c", &format!("command -v {name}")]).trim().to_owned())
        .map(|path| if path.starts_with('/') { path } else { format!("/usr/bin/{path}") })
        .map(PathBuf::from)
        .collect();
    if has_program("cc") {
        paths.extend(
            ["cc1", "as", "ld"]
                .map(|part| said_by("cc", &[&format!("-print-prog-name={part}")]).trim().into()),
        );
        paths.push(said_by("cc", &["-print-file-name=libstdc++.so.6"]).trim().into());
        // `as` and `ld` are named without a directory if they are in PATH.
        paths
            .iter_mut()
            .filter(|path| path.is_relative())
            .for_each(|path| *path = Path::new("/usr/bin").join(&*path));
    }
    if has_program("python3") {
        let script =
            "import mmap, fcntl, sqlite3, zipfile, subprocess; print(open('/proc/self/maps').read())";
        let maps = said_by("python3", &["-c", script]);
        let loaded = maps.lines().filter_map(|line| Some(PathBuf::from(&line[line.find('/')?..])));
        let is_own = |path: &PathBuf| {
            !["/libc.so", "/ld-linux", "/libc-", "/locale", "/gconv"]
                .iter()
                .any(|name| path.to_string_lossy().contains(name))
        };
        paths.extend(loaded.filter(is_own));
    }
    paths.sort();
    paths.dedup();
    paths
}

fn c_library() -> PathBuf {
    let maps = fs::read_to_string("/proc/self/maps").unwrap();
    let line = maps.lines().find(|line| line.contains("/libc.so.6")).expect("this test uses glibc");
    line[line.find('/').unwrap()..].into()
}

#[test]
fn each_file_symbol_that_programs_import_is_served_or_has_a_reason() {
    let served = symbols(&shim(), |symbol| symbol.is_definition());
    let of_c_library = symbols(&c_library(), |symbol| symbol.is_definition());
    let excused: BTreeSet<String> = NOT_IN_TABLE.iter().flat_map(|(names, _)| words(names)).collect();
    let stems = words(STEMS);
    let chance = words(NOT_FILES);
    let objects = objects();
    let mut imports = 0;
    let mut missing: BTreeMap<String, &Path> = BTreeMap::new();
    for path in &objects {
        for name in symbols(path, |symbol| symbol.is_undefined()).intersection(&of_c_library) {
            let is_file = stems.iter().any(|stem| name.contains(stem.as_str()))
                && !chance.iter().any(|prefix| name.starts_with(prefix.as_str()));
            imports += usize::from(is_file);
            if is_file && !served.contains(name) && !excused.contains(name) {
                missing.insert(name.clone(), path);
            }
        }
    }
    assert!(missing.is_empty(), "{missing:#?}");
    // That the comparison compares something.
    assert!(
        objects.len() < 30 || imports > 500,
        "{} objects import only {imports} file symbols",
        objects.len()
    );
    let both: Vec<&String> = excused.intersection(&served).filter(|name| *name != "vfork").collect();
    assert!(both.is_empty(), "they are served: {both:?}");
}

//! The report of `weir run --explain` at the end of a process.

use crate::symbol::Symbol;
use crate::{calls, mappings, settings, streams};
use object::{Object, ObjectSymbol};
use std::collections::BTreeSet;

/// All symbols that are served.
pub(crate) fn symbols() -> impl Iterator<Item = &'static Symbol> {
    [
        calls::attributes::SYMBOLS,
        calls::bytes::SYMBOLS,
        calls::descriptors::SYMBOLS,
        calls::directories::SYMBOLS,
        calls::names::SYMBOLS,
        calls::processes::SYMBOLS,
        calls::walks::SYMBOLS,
        mappings::SYMBOLS,
        streams::SYMBOLS,
    ]
    .into_iter()
    .flatten()
    .copied()
}

/// Prints one line for each kind of answer, if there is an answer, or if this is the process that `weir run` became.
pub(crate) fn print() {
    let is_first = settings::explains().is_some_and(|pid| pid == std::process::id());
    print_lines(is_first);
}

/// As [`print()`], if the process has touched the store.
pub(crate) fn print_if_served() {
    print_lines(false);
}

/// In a forked child: forgets the calls of the parent, which prints them itself.
pub(crate) fn forget_of_parent() {
    symbols().for_each(Symbol::reset_counts);
}

fn print_lines(always: bool) {
    if settings::explains().is_none() {
        return;
    }
    let mut served = Vec::new();
    let mut refused = Vec::new();
    let mut passed_on = 0;
    for symbol in symbols() {
        let counts = symbol.counts();
        passed_on += counts.passed_on;
        if counts.served > 0 {
            served.push(format!("{} {}", symbol.name(), counts.served));
        }
        if counts.refused > 0 {
            let errno = std::io::Error::from_raw_os_error(counts.last_errno);
            refused.push(format!("{} {}, the last with: {errno}", symbol.name(), counts.refused));
        }
    }
    if served.is_empty() && refused.is_empty() && !always {
        return;
    }
    let program = std::env::args_os().next().unwrap_or_default();
    let program = format!("{} ({})", program.to_string_lossy(), std::process::id());
    let list = |of: &[String], separator| if of.is_empty() { "none".to_owned() } else { of.join(separator) };
    settings::say(&format!("{program}: served: {}", list(&served, ", ")));
    settings::say(&format!("{program}: passed on to the C library: {passed_on}"));
    settings::say(&format!("{program}: refused: {}", list(&refused, "; ")));
    let missing: Vec<String> = missing_symbols().into_iter().collect();
    settings::say(&format!(
        "{program}: not served, and called by the program or its libraries: {}",
        list(&missing, ", ")
    ));
}

/// Functions of the C library that take paths or descriptors, or work on listings and streams, and that the shim does not
/// serve. On a path of the store they fail.
const UNSERVED: &[&str] = &[
    "acct",
    "aio_fsync",
    "aio_fsync64",
    "aio_read",
    "aio_read64",
    "aio_write",
    "aio_write64",
    "fanotify_mark",
    "fts_open",
    "fts64_open",
    "getdents64",
    "inotify_add_watch",
    "io_uring_setup",
    "lio_listio",
    "mktemp",
    "name_to_handle_at",
    "open_by_handle_at",
    "open_tree",
    "openat2",
    "tempnam",
    "tmpfile",
    "tmpfile64",
    "vmsplice",
];

/// The functions in [`UNSERVED`] that the loaded objects import. Calls within the C library are not imports.
fn missing_symbols() -> BTreeSet<String> {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap_or_default();
    let paths: BTreeSet<&str> = maps
        .lines()
        .filter(|line| line.split_whitespace().nth(1).is_some_and(|permissions| permissions.contains('x')))
        .filter_map(|line| line.find('/').map(|at| &line[at..]))
        .filter(|path| !["libc.so", "ld-linux", "libweir_shim"].iter().any(|known| path.contains(known)))
        .collect();
    let mut missing = BTreeSet::new();
    for path in paths {
        let Ok(bytes) = std::fs::read(path) else { continue };
        let Ok(file) = object::File::parse(&*bytes) else { continue };
        let undefined = file.dynamic_symbols().filter(|symbol| symbol.is_undefined());
        let names = undefined.filter_map(|symbol| symbol.name().ok().map(str::to_owned));
        missing.extend(names.filter(|name| UNSERVED.contains(&name.as_str())));
    }
    missing
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_served_symbol_is_called_unserved() {
        let both: Vec<&str> = symbols().map(Symbol::name).filter(|name| UNSERVED.contains(name)).collect();
        assert!(both.is_empty(), "{both:?}");
    }

    #[test]
    fn each_symbol_is_served_once() {
        let mut names: Vec<&str> = symbols().map(Symbol::name).collect();
        names.sort_unstable();
        let count = names.len();
        names.dedup();
        assert_eq!(names.len(), count);
    }
}

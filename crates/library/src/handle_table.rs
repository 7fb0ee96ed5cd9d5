//! Open files by number, for languages in which a program may use a file after it has closed it.

use arc_swap::ArcSwapOption;
use rustix::io::Errno;
use std::collections::HashMap;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

/// The next number, of all tables of the process: no number is used twice. Numbers are multiples of 16, so that each can also
/// stand in a pointer that is aligned.
static NEXT: AtomicU64 = AtomicU64::new(STEP);
const STEP: u64 = 16;

type OpenByNumber<T> = RwLock<HashMap<u64, Arc<T>>>;

/// Open files, or other things that a program opens and closes, by number.
///
/// A number that was closed is never used again, so a late call fails with EBADF and never meets another file.
pub struct HandleTable<T> {
    /// `None`: nothing was opened in this process.
    open: ArcSwapOption<OpenByNumber<T>>,
}

impl<T> HandleTable<T> {
    /// An empty table.
    pub const fn new() -> HandleTable<T> {
        HandleTable { open: ArcSwapOption::const_empty() }
    }

    /// Adds something, and returns its number, which is never 0.
    pub fn add(&self, opened: T) -> u64 {
        let number = NEXT.fetch_add(STEP, Ordering::Relaxed);
        self.open.rcu(|open| open.clone().unwrap_or_default());
        if let Some(open) = &*self.open.load() {
            open.write().unwrap_or_else(PoisonError::into_inner).insert(number, Arc::new(opened));
        }
        number
    }

    /// The open file with this number.
    ///
    /// # Errors
    /// EBADF after it was closed, and in a forked process whose parent opened it.
    pub fn get(&self, number: u64) -> io::Result<Arc<T>> {
        let open = self.open.load();
        let open = open.as_ref().ok_or(Errno::BADF)?;
        let found = open.read().unwrap_or_else(PoisonError::into_inner).get(&number).cloned();
        found.ok_or_else(|| Errno::BADF.into())
    }

    /// Closes what has this number, and returns it. Calls that use it go on to their ends.
    ///
    /// # Errors
    /// As of [`get`](HandleTable::get).
    pub fn remove(&self, number: u64) -> io::Result<Arc<T>> {
        let open = self.open.load();
        let open = open.as_ref().ok_or(Errno::BADF)?;
        let removed = open.write().unwrap_or_else(PoisonError::into_inner).remove(&number);
        removed.ok_or_else(|| Errno::BADF.into())
    }

    /// Closes all to which the condition applies.
    pub fn remove_where(&self, applies: impl Fn(&T) -> bool) {
        let open = self.open.load();
        let Some(open) = open.as_ref() else { return };
        let removed: Vec<_> = {
            let mut open = open.write().unwrap_or_else(PoisonError::into_inner);
            open.extract_if(|_, opened| applies(opened)).collect()
        };
        // The end of a file may change the store. So the table is not locked any more.
        drop(removed);
    }

    /// Empties the table in a forked process, without touching what its parent has opened: threads that held its locks
    /// are not here.
    pub fn forget_of_parent(&self) {
        std::mem::forget(self.open.swap(None));
    }
}

impl<T> Default for HandleTable<T> {
    fn default() -> HandleTable<T> {
        HandleTable::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_that_was_closed_is_refused_for_ever() {
        let (table, other) = (HandleTable::new(), HandleTable::new());
        let first = table.add("first");
        assert_eq!(other.get(first).ok(), None::<Arc<&str>>, "it is of another table");
        assert_eq!(*table.get(first).unwrap(), "first");
        table.remove(first).unwrap();
        for number in [first, 0, u64::MAX] {
            assert_eq!(table.get(number).unwrap_err().raw_os_error(), Some(Errno::BADF.raw_os_error()));
            assert_eq!(table.remove(number).unwrap_err().raw_os_error(), Some(Errno::BADF.raw_os_error()));
        }
        let (second, third) = (table.add("second"), table.add("third"));
        assert!(second != first && third != first && second % STEP == 0);
        table.remove_where(|opened| *opened == "second");
        assert!(table.get(second).is_err() && table.get(third).is_ok());
        table.forget_of_parent();
        assert!(table.get(third).is_err());
        let fourth = table.add("fourth");
        assert!(fourth > third && table.get(fourth).is_ok());
    }
}

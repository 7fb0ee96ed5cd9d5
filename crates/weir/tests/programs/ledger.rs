//! A ledger of the database's replies to a client. It lies on the host file system, so no kill of the daemon
//! affects it.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::sync::Mutex;

/// One line per event: `? id` before a transaction is sent, `+ id` once its commit was acknowledged or it was
/// seen, `- id` when it was found to be lost. Only a transaction that was never acknowledged may be lost.
pub(crate) struct Ledger {
    book: Mutex<Book>,
}

struct Book {
    file: File,
    next: u64,
    acknowledged: BTreeSet<u64>,
    in_doubt: BTreeSet<u64>,
    lost: BTreeSet<u64>,
}

/// How many transactions there were.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Count {
    pub acknowledged: usize,
    /// Sent, and not answered.
    pub in_doubt: usize,
}

impl Ledger {
    pub(crate) fn create(path: &Path) -> Ledger {
        let file = File::create(path).expect("a ledger");
        let (acknowledged, in_doubt, lost) = Default::default();
        Ledger { book: Mutex::new(Book { file, next: 0, acknowledged, in_doubt, lost }) }
    }

    /// A new id, in doubt until it is acknowledged.
    pub(crate) fn claim(&self) -> u64 {
        let mut book = self.book();
        let id = book.next;
        book.next += 1;
        book.line('?', id);
        book.in_doubt.insert(id);
        id
    }

    /// The database said that the transaction is committed.
    pub(crate) fn acknowledge(&self, id: u64) {
        let mut book = self.book();
        assert!(book.in_doubt.remove(&id), "{id} was not claimed, or acknowledged twice");
        book.line('+', id);
        book.acknowledged.insert(id);
    }

    pub(crate) fn count(&self) -> Count {
        let book = self.book();
        Count { acknowledged: book.acknowledged.len(), in_doubt: book.in_doubt.len() }
    }

    /// Compares the database's content after a crash with the ledger. From then on the found rows count as
    /// acknowledged, since a client has seen them, and missing rows must stay missing.
    pub(crate) fn verify(&self, found: &BTreeSet<u64>, when: &str) {
        let mut book = self.book();
        let missing: Vec<_> = book.acknowledged.difference(found).take(20).collect();
        let total = book.acknowledged.len();
        assert!(
            missing.is_empty(),
            "{when}: of {total} acknowledged transactions these are gone: {missing:?}"
        );
        let risen: Vec<_> = book.lost.intersection(found).take(20).collect();
        assert!(risen.is_empty(), "{when}: these were lost after an earlier kill, and are back: {risen:?}");
        let invented: Vec<_> = found.iter().filter(|&&id| id >= book.next).take(20).collect();
        assert!(invented.is_empty(), "{when}: nobody sent these: {invented:?}");
        for id in std::mem::take(&mut book.in_doubt) {
            let is_there = found.contains(&id);
            book.line(if is_there { '+' } else { '-' }, id);
            if is_there {
                book.acknowledged.insert(id)
            } else {
                book.lost.insert(id)
            };
        }
    }

    fn book(&self) -> std::sync::MutexGuard<'_, Book> {
        self.book.lock().expect("nobody panics with the ledger in hand")
    }
}

impl Book {
    fn line(&mut self, event: char, id: u64) {
        writeln!(self.file, "{event} {id}").expect("the ledger takes a line");
    }
}

/// The ids in two lists of lines `id`. Each list holds one half of each transaction, so both must have the
/// same ids.
#[track_caller]
pub(crate) fn whole(left: &BTreeSet<u64>, right: &BTreeSet<u64>, when: &str) -> BTreeSet<u64> {
    let halves: Vec<_> = left.symmetric_difference(right).take(20).collect();
    assert!(halves.is_empty(), "{when}: of these transactions only half is there: {halves:?}");
    left.clone()
}

#[test]
fn the_ledger_sees_what_is_lost_risen_or_invented() {
    let directory = tempfile::tempdir().expect("a directory");
    let ledger = || {
        let ledger = Ledger::create(&directory.path().join("ledger"));
        let ids: Vec<u64> = (0..3).map(|_| ledger.claim()).collect();
        ledger.acknowledge(ids[1]);
        ledger
    };
    let check = |found: &[u64]| {
        let ledger = ledger();
        let found = found.iter().copied().collect();
        std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| ledger.verify(&found, "a test"))).is_ok()
    };
    assert!(check(&[1]) && check(&[0, 1]) && check(&[0, 1, 2]));
    assert!(!check(&[0, 2]), "an acknowledged one is gone");
    assert!(!check(&[1, 3]), "one was invented");
    let ledger = ledger();
    ledger.verify(&BTreeSet::from([1, 2]), "the first crash");
    assert_eq!(ledger.count(), Count { acknowledged: 2, in_doubt: 0 });
    let again = std::panic::AssertUnwindSafe(|| ledger.verify(&BTreeSet::from([0, 1, 2]), "the second"));
    assert!(std::panic::catch_unwind(again).is_err(), "a lost one is back");
}

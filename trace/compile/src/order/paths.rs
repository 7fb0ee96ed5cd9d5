//! The state of names, by directory. Names that were not touched for long are forgotten, because a program
//! that makes a new name for each file would fill memory with them. The last actions on any forgotten name of
//! a directory then stand for all of them. That may add unneeded edges, but loses none.

use std::collections::{BTreeMap, HashMap};
use std::rc::Rc;
use trace_file::{ActionId, Name};

/// Maximum number of threads whose actions are kept as prerequisites. Above the limit, the next action waits
/// for all of them, and later actions wait for that action alone. Otherwise each of a thousand threads that
/// list a directory would wait for each of a thousand that made names in it. This may add unneeded edges, but
/// loses none.
pub(super) const THREADS_MAX: usize = 256;

/// Maximum number of known names in all directories: about half a kilobyte each in both orders.
pub(super) const NAMES_MAX: usize = 1 << 17;
/// Directories with fewer names than this keep all of them.
const FEW: usize = 16;
/// The last action of each thread.
pub(super) type Newest = BTreeMap<u32, ActionId>;

/// The state that an order keeps for a name.
pub(super) trait Touched: Default {
    /// Adds all actions that matter to later actions.
    fn newest(&self, newest: &mut Newest);
    /// The state of a forgotten name: these actions came before.
    fn after(newest: Rc<Newest>) -> Self;
}

/// Names of all directories.
#[derive(Debug)]
pub(super) struct Paths<T> {
    directories: HashMap<u32, PathDirectory<T>>,
    count: usize,
    /// The number of names at which some are forgotten.
    most: usize,
}

#[derive(Debug)]
struct PathDirectory<T> {
    known: HashMap<Name, T>,
    /// The last action of each thread on any forgotten name.
    forgotten: Rc<Newest>,
}

impl<T> Default for Paths<T> {
    fn default() -> Paths<T> {
        Paths { directories: HashMap::new(), count: 0, most: NAMES_MAX }
    }
}

/// Notes that `thread` made `action`.
pub(super) fn note(newest: &mut Newest, thread: u32, action: ActionId) {
    let last = newest.entry(thread).or_insert(action);
    *last = action.max(*last);
}

impl<T: Touched> Paths<T> {
    /// The state of a name that a thread touches with an action.
    pub(super) fn of(&mut self, dir: u32, name: Name, made: (u32, ActionId)) -> &mut T {
        let empty = || PathDirectory { known: HashMap::new(), forgotten: Rc::default() };
        let PathDirectory { known, forgotten } = self.directories.entry(dir).or_insert_with(empty);
        known.entry(name).or_insert_with(|| {
            self.count += 1;
            let before = Rc::clone(forgotten);
            if before.len() > THREADS_MAX {
                *forgotten = Rc::new(Newest::from([made]));
            }
            if before.is_empty() { T::default() } else { T::after(before) }
        })
    }

    /// Forgets a directory that no longer exists.
    pub(super) fn remove(&mut self, dir: u32) {
        self.count -= self.directories.remove(&dir).map_or(0, |gone| gone.known.len());
    }

    /// If there are too many names, forgets the older half of the names in directories with more than
    /// average. If that frees few, because many directories have few names each, the limit grows.
    pub(super) fn limit(&mut self) {
        if self.count <= self.most {
            return;
        }
        let average = self.count / self.directories.len().max(1);
        let large = |dir: &&mut PathDirectory<T>| {
            dir.known.len() >= average.max(FEW) && dir.forgotten.len() <= THREADS_MAX
        };
        self.directories.values_mut().filter(large).for_each(PathDirectory::forget_older);
        self.count = self.directories.values().map(|dir| dir.known.len()).sum();
        self.most = NAMES_MAX.max(self.count + self.count / 2);
    }

    #[cfg(test)]
    pub(super) fn count(&self) -> usize {
        self.count
    }
}

impl<T: Touched> PathDirectory<T> {
    fn forget_older(&mut self) {
        let last = |touched: &T| {
            let mut newest = Newest::new();
            touched.newest(&mut newest);
            newest.into_values().max().unwrap_or(0)
        };
        let mut all: Vec<ActionId> = self.known.values().map(last).collect();
        let middle = all.len() / 2;
        let middle = *all.select_nth_unstable(middle).1;
        let forgotten = Rc::make_mut(&mut self.forgotten);
        self.known.retain(|_, touched| {
            let keep = last(touched) >= middle;
            if !keep {
                touched.newest(forgotten);
            }
            keep
        });
        self.known.shrink_to_fit();
    }
}

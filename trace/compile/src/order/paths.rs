//! What is known of names, by directory. Names that nobody touched for long are forgotten: a program that makes a new name for
//! each file would fill memory with them. What came last to any forgotten name of a directory then stands for all of them, so
//! that edges which are not needed may follow, and none is lost.

use std::collections::{BTreeMap, HashMap};
use std::rc::Rc;
use trace_file::{ActionId, Name};

/// Where actions of more threads than these come before what follows, the first action that follows stands for them to the others,
/// which wait for that one alone. Otherwise each of a thousand threads that list a directory would wait for each of a thousand that
/// made names in it. Edges that are not needed follow, and none is lost.
pub(super) const THREADS_MAX: usize = 256;

/// Names that are known, over all directories: about half a kilobyte each in both orders.
pub(super) const NAMES_MAX: usize = 1 << 17;
/// So many names of one directory are always known.
const FEW: usize = 16;
/// The last action of each thread.
pub(super) type Newest = BTreeMap<u32, ActionId>;

/// What an order knows of a name.
pub(super) trait Touched: Default {
    /// Adds all actions that matter to what comes later.
    fn newest(&self, newest: &mut Newest);
    /// What is known of a name that is forgotten: these actions came before.
    fn after(newest: Rc<Newest>) -> Self;
}

/// Names of all directories.
#[derive(Debug)]
pub(super) struct Paths<T> {
    directories: HashMap<u32, Directory<T>>,
    count: usize,
    /// At how many names some are forgotten.
    most: usize,
}

#[derive(Debug)]
struct Directory<T> {
    known: HashMap<Name, T>,
    /// The last action of each thread on any name that is not known any more.
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
    /// What is known of a name that a thread touches with an action.
    pub(super) fn of(&mut self, dir: u32, name: Name, made: (u32, ActionId)) -> &mut T {
        let empty = || Directory { known: HashMap::new(), forgotten: Rc::default() };
        let Directory { known, forgotten } = self.directories.entry(dir).or_insert_with(empty);
        known.entry(name).or_insert_with(|| {
            self.count += 1;
            let before = Rc::clone(forgotten);
            if before.len() > THREADS_MAX {
                *forgotten = Rc::new(Newest::from([made]));
            }
            if before.is_empty() { T::default() } else { T::after(before) }
        })
    }

    /// Forgets a directory that is gone.
    pub(super) fn remove(&mut self, dir: u32) {
        self.count -= self.directories.remove(&dir).map_or(0, |gone| gone.known.len());
    }

    /// If there are too many names, forgets the older half of those in directories that have more than others. If that is
    /// little, because there are many directories with few of them, the limit grows.
    pub(super) fn limit(&mut self) {
        if self.count <= self.most {
            return;
        }
        let average = self.count / self.directories.len().max(1);
        let large = |dir: &&mut Directory<T>| {
            dir.known.len() >= average.max(FEW) && dir.forgotten.len() <= THREADS_MAX
        };
        self.directories.values_mut().filter(large).for_each(Directory::forget_older);
        self.count = self.directories.values().map(|dir| dir.known.len()).sum();
        self.most = NAMES_MAX.max(self.count + self.count / 2);
    }

    #[cfg(test)]
    pub(super) fn count(&self) -> usize {
        self.count
    }
}

impl<T: Touched> Directory<T> {
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

//! A rule that the file systems of one thread can be made to break, so that the simulator can prove that it would notice.
//! Without the feature `planted-bugs` it cannot be.

#[cfg(feature = "planted-bugs")]
thread_local! {
    static NEVER_UNDOES: std::cell::Cell<bool> = const { std::cell::Cell::new(false) };
}

/// From now on, what a transaction has changed in memory stays there when it fails, or not.
#[cfg(feature = "planted-bugs")]
pub fn plant_never_undoes(planted: bool) {
    NEVER_UNDOES.set(planted);
}

#[cfg(feature = "planted-bugs")]
pub(crate) fn never_undoes() -> bool {
    NEVER_UNDOES.get()
}

#[cfg(not(feature = "planted-bugs"))]
pub(crate) fn never_undoes() -> bool {
    false
}

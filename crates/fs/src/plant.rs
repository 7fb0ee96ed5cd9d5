//! A bug that the simulator can plant in the file systems of one thread, to prove that it would find it. Only
//! with the feature `planted-bugs`.

#[cfg(feature = "planted-bugs")]
thread_local! {
    static NEVER_UNDOES: std::cell::Cell<bool> = const { std::cell::Cell::new(false) };
}

/// Sets whether a failed transaction leaves its changes in memory.
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

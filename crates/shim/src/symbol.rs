//! A symbol of the C library that the shim defines, and the way from it to the next definition.

use std::cell::Cell;
use std::ffi::{CStr, c_int, c_void};
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, AtomicU64, AtomicUsize, Ordering};

thread_local! {
    /// Whether this thread is in the shim's own code. What it calls there is passed on: calls of the Rust library, and of a
    /// signal handler that interrupted the shim. So no lock is taken twice.
    static INSIDE: Cell<bool> = const { Cell::new(false) };
}

/// The answer to a call of the program. `None` passes the call on to the next definition.
pub(crate) type Answer<T> = Option<io::Result<T>>;

/// A symbol of the C library.
pub(crate) struct Symbol {
    name: &'static CStr,
    next: AtomicPtr<c_void>,
    served: AtomicU64,
    passed_on: AtomicU64,
    refused: AtomicU64,
    last_errno: AtomicUsize,
}

/// How often a symbol was called.
pub(crate) struct CallCounts {
    pub(crate) served: u64,
    pub(crate) passed_on: u64,
    pub(crate) refused: u64,
    /// The errno of the last refused call.
    pub(crate) last_errno: i32,
}

impl Symbol {
    pub(crate) const fn new(name: &'static CStr) -> Symbol {
        Symbol {
            name,
            next: AtomicPtr::new(null_mut()),
            served: AtomicU64::new(0),
            passed_on: AtomicU64::new(0),
            refused: AtomicU64::new(0),
            last_errno: AtomicUsize::new(0),
        }
    }

    pub(crate) fn name(&self) -> &'static str {
        self.name.to_str().unwrap_or_default()
    }

    /// The next definition, usually the C library's; null if there is none.
    pub(crate) fn next(&self) -> *mut c_void {
        let known = self.next.load(Ordering::Relaxed);
        if !known.is_null() {
            return known;
        }
        // SAFETY: the name ends with a zero byte and lives for ever.
        let found = unsafe { libc::dlsym(libc::RTLD_NEXT, self.name.as_ptr()) };
        self.next.store(found, Ordering::Relaxed);
        found
    }

    /// Counts from 0 again.
    pub(crate) fn reset_counts(&self) {
        [&self.served, &self.passed_on, &self.refused]
            .into_iter()
            .for_each(|count| count.store(0, Ordering::Relaxed));
    }

    pub(crate) fn counts(&self) -> CallCounts {
        CallCounts {
            served: self.served.load(Ordering::Relaxed),
            passed_on: self.passed_on.load(Ordering::Relaxed),
            refused: self.refused.load(Ordering::Relaxed),
            last_errno: self.last_errno.load(Ordering::Relaxed) as i32,
        }
    }

    /// Answers a call by `body`. `None`: the caller passes it on.
    ///
    /// `errno` changes only if the call fails: a program that lists a directory looks at it after a success, too.
    pub(crate) fn serve<T: FailureValue>(&self, body: impl FnOnce() -> Answer<T>) -> Option<T> {
        if INSIDE.get() || !crate::settings::is_active() {
            return None;
        }
        let errno_before = errno();
        INSIDE.set(true);
        let answer = catch_unwind(AssertUnwindSafe(body));
        INSIDE.set(false);
        set_errno(errno_before);
        let Ok(answer) = answer else {
            crate::settings::say(&format!("a bug in weir, in {}: the program ends here", self.name()));
            std::process::abort();
        };
        let counts = crate::settings::explains().is_some();
        match answer {
            None => {
                if counts {
                    self.passed_on.fetch_add(1, Ordering::Relaxed);
                }
                None
            }
            Some(Ok(value)) => {
                if counts {
                    self.served.fetch_add(1, Ordering::Relaxed);
                }
                Some(value)
            }
            Some(Err(error)) => {
                let errno = error.raw_os_error().unwrap_or(libc::EIO);
                if counts {
                    self.refused.fetch_add(1, Ordering::Relaxed);
                    self.last_errno.store(errno as usize, Ordering::Relaxed);
                }
                set_errno(errno);
                Some(T::FAILED)
            }
        }
    }
}

/// Runs `body` as a part of the shim, unless this thread is in the shim already: then it does nothing.
pub(crate) fn inside(body: impl FnOnce()) {
    if !INSIDE.replace(true) {
        body();
        INSIDE.set(false);
    }
}

/// Runs `body`, which the C library calls, as a part of the shim.
pub(crate) fn always_inside<T>(body: impl FnOnce() -> T) -> T {
    let was_inside = INSIDE.replace(true);
    let result = body();
    INSIDE.set(was_inside);
    result
}

/// Runs a function of the program, or one that calls such: the calls in it are served.
pub(crate) fn outside<T>(body: impl FnOnce() -> T) -> T {
    let was_inside = INSIDE.replace(false);
    let result = body();
    INSIDE.set(was_inside);
    result
}

fn errno() -> c_int {
    // SAFETY: the address of this thread's `errno` is valid while the thread runs.
    unsafe { *libc::__errno_location() }
}

pub(crate) fn set_errno(errno: c_int) {
    // SAFETY: as above.
    unsafe { *libc::__errno_location() = errno };
}

/// The result of a C function that fails.
pub(crate) trait FailureValue {
    const FAILED: Self;
}

impl FailureValue for c_int {
    const FAILED: c_int = -1;
}

impl FailureValue for i64 {
    const FAILED: i64 = -1;
}

impl FailureValue for isize {
    const FAILED: isize = -1;
}

impl FailureValue for u32 {
    const FAILED: u32 = 0;
}

impl FailureValue for () {
    const FAILED: () = ();
}

impl<T> FailureValue for *mut T {
    const FAILED: *mut T = null_mut();
}

/// Defines symbols of the C library. Each has its arguments, and an expression of the type [`Answer`].
///
/// The C functions with `...` are defined with the arguments that they can have: on x86-64 and AArch64, integers and
/// pointers are passed alike.
///
/// The parts in brackets run for calls that are passed on. They may run in a signal handler, so they use only atomic
/// variables. `[before: ...]` is an `Option` of the result; with a result the call is not passed on. `[after: ...]` is a
/// function that sees the C library's result.
macro_rules! symbols {
    ($($name:ident($($arg:ident: $ty:ty),*) -> $ret:ty $([before: $before:expr])? $([after: $after:expr])? = $body:expr;)*) => {
        /// The symbols of this module.
        pub(crate) static SYMBOLS: &[&crate::symbol::Symbol] = &[$(&next::$name),*];

        /// Where calls are passed on to.
        #[allow(non_upper_case_globals)]
        pub(crate) mod next {
            $(
                pub(crate) static $name: crate::symbol::Symbol = crate::symbol::Symbol::new(
                    match std::ffi::CStr::from_bytes_with_nul(concat!(stringify!($name), "\0").as_bytes()) {
                        Ok(name) => name,
                        Err(_) => panic!(),
                    },
                );
            )*
        }

        $(
            // A test is no place for the symbol: it would serve the test itself.
            #[cfg_attr(not(test), unsafe(no_mangle))]
            #[cfg_attr(test, allow(dead_code))]
            pub(crate) unsafe extern "C" fn $name($($arg: $ty),*) -> $ret {
                if let Some(answer) = next::$name.serve(|| $body) {
                    return answer;
                }
                $(if let Some(answer) = $before {
                    return answer;
                })?
                let next = next::$name.next();
                if next.is_null() {
                    crate::symbol::set_errno(libc::ENOSYS);
                    return <$ret as crate::symbol::FailureValue>::FAILED;
                }
                // SAFETY: the symbol has this type in the C library, and the arguments are the program's.
                let result = unsafe {
                    let next: unsafe extern "C" fn($($ty),*) -> $ret = std::mem::transmute(next);
                    next($($arg),*)
                };
                $($after(result);)?
                result
            }
        )*
    };
}
pub(crate) use symbols;

/// Calls the next definition of a symbol.
macro_rules! pass_on {
    ($symbol:expr, ($($arg:expr),*), ($($ty:ty),*) -> $ret:ty) => {{
        let next = $symbol.next();
        assert!(!next.is_null(), "{} is in the C library", $symbol.name());
        // SAFETY: the symbol has this type in the C library, and the arguments are valid for it.
        unsafe {
            let next: unsafe extern "C" fn($($ty),*) -> $ret = std::mem::transmute(next);
            next($($arg),*)
        }
    }};
}
pub(crate) use pass_on;

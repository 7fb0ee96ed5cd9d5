#![doc = include_str!("../README.md")]
mod calls;
mod descriptors;
mod explain;
mod locks;
mod mappings;
mod place;
mod session;
mod settings;
mod streams;
mod symbol;

/// Not the C library's, in which a signal handler of the program may have interrupted the program itself.
#[cfg(not(test))]
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

/// Called by the loader before the program begins.
#[cfg_attr(not(test), unsafe(link_section = ".init_array"))]
#[cfg_attr(test, allow(dead_code))]
#[used]
static BEGIN: extern "C" fn() = begin;

/// Called by the loader after the program's exit handlers.
#[cfg_attr(not(test), unsafe(link_section = ".fini_array"))]
#[cfg_attr(test, allow(dead_code))]
#[used]
static END: extern "C" fn() = end;

extern "C" fn begin() {
    explain::symbols().for_each(|symbol| {
        symbol.next();
    });
    // Now the allocator asks to be called around forks, so that it is called behind us: its locks are taken last.
    std::hint::black_box(Box::new(0_u64));
    descriptors::own_by_this_process();
    calls::processes::watch_forks_and_exit();
    settings::read();
}

extern "C" fn end() {
    symbol::inside(calls::processes::end);
}

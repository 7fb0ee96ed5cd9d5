#![doc = include_str!("../README.md")]
mod calls;
mod descriptors;
mod explain;
mod mappings;
mod place;
mod session;
mod settings;
mod streams;
mod symbol;

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
    descriptors::own_by_this_process();
    calls::processes::watch_forks();
    settings::read();
}

extern "C" fn end() {
    symbol::inside(calls::processes::end);
}

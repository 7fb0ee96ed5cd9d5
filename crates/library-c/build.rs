//! Names the version of the interface in the shared library, as `cargo cinstall` does: see README.md. And keeps the library loaded
//! when a program unloads it: weir's threads run its code.

fn main() {
    let version = |part| std::env::var(format!("CARGO_PKG_VERSION_{part}")).expect("cargo sets it");
    // Before 1.0, a minor version may change the interface.
    let interface = match version("MAJOR").as_str() {
        "0" => format!("0.{}", version("MINOR")),
        major => major.to_owned(),
    };
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libweir.so.{interface}");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,nodelete");
    println!("cargo:rerun-if-changed=build.rs");
}

//! The header that C programs include.

use std::path::Path;

#[test]
fn the_committed_header_is_that_of_the_sources() {
    let krate = Path::new(env!("CARGO_MANIFEST_DIR"));
    let config = cbindgen::Config::from_root_or_default(krate);
    let mut made = Vec::new();
    cbindgen::generate_with_config(krate, config).expect("the sources can be read").write(&mut made);
    let made = String::from_utf8(made).expect("UTF-8");
    let path = krate.join("include/weir.h");
    if std::env::var_os("WEIR_WRITE_HEADER").is_some() {
        std::fs::write(&path, &made).expect("the header can be written");
    }
    let committed = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(
        committed == made,
        "write it anew: WEIR_WRITE_HEADER=1 cargo test -p weir-c, and look at `git diff`"
    );
}

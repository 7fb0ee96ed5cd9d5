use crate::common::succeeds;
use crate::weir::Weir;
use std::fs;
use std::path::Path;
use std::process::Command;

const MODULES: usize = 20;

fn generate_crate(directory: &Path) {
    fs::create_dir_all(directory.join("src")).expect("a directory");
    let manifest = "[package]\nname = \"sample\"\nversion = \"0.1.0\"\nedition = \"2024\"\n\n[workspace]\n";
    fs::write(directory.join("Cargo.toml"), manifest).expect("a file");
    let mut main = String::new();
    let mut terms = Vec::new();
    for module in 0..MODULES {
        main += &format!("mod part_{module};\n");
        terms.push(format!("part_{module}::value()"));
        let body = format!("pub fn value() -> u64 {{\n    (0..{module}).map(|n: u64| n * n).sum()\n}}\n");
        fs::write(directory.join(format!("src/part_{module}.rs")), body).expect("a file");
    }
    main += &format!("fn main() {{\n    println!(\"{{}}\", {});\n}}\n", terms.join(" + "));
    fs::write(directory.join("src/main.rs"), main).expect("a file");
}

#[test]
fn cargo_builds_a_crate_on_the_mount_and_what_it_built_runs() {
    let Some(mut weir) = Weir::start("2GiB", "64MiB") else { return };
    let (source, target) = (weir.path().join("sample"), weir.path().join("target"));
    generate_crate(&source);
    let build = || {
        let mut cargo = Command::new(env!("CARGO"));
        cargo.args(["build", "--offline", "--target-dir"]).arg(&target).current_dir(&source);
        let output = succeeds(&mut cargo);
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    build();
    let expected: u64 = (0..MODULES as u64).map(|module| (0..module).map(|n| n * n).sum::<u64>()).sum();
    let printed = succeeds(&mut Command::new(target.join("debug/sample"))).stdout;
    assert_eq!(String::from_utf8_lossy(&printed).trim(), expected.to_string());

    weir.unmount_and_check();
    weir.mount();
    // Cargo compares times to the nanosecond: if one was lost, it would build again.
    assert!(!build().contains("Compiling"), "nothing has changed, and yet cargo builds again");
}

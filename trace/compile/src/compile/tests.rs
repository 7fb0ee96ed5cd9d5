use super::{CompileSettings, compile, compile_to};
use crate::parse::Strace;
use trace_file::TraceError;

/// Makes a trace of usable calls before and after unusable lines.
fn mixed(used: usize, unused: &str) -> String {
    "mkdir(\"/a\", 0755) = 0\n".repeat(used / 2) + unused + &"rmdir(\"/a\") = 0\n".repeat(used - used / 2)
}

/// The error of a compile that requires this share of usable calls, in per cent.
fn refusal(text: &str, used_percent_min: u8) -> Option<String> {
    let settings = CompileSettings { used_percent_min, ..CompileSettings::default() };
    match compile(&mut Strace::new(text.as_bytes()), "trace".as_ref(), &settings) {
        Ok(_) => None,
        Err(error @ TraceError::LittleUsed { .. }) => Some(error.to_string()),
        Err(error) => panic!("{error}"),
    }
}

#[test]
fn trace_that_is_used_by_half_compiles_and_by_less_is_refused() {
    let default = CompileSettings::default().used_percent_min;
    for unused in ["what is this?\n", "close(3\n", "read(3, \"\", 1) = 1\n", "frobnicate(\"/a\") = 0\n"] {
        assert_eq!(refusal(&mixed(10, &unused.repeat(10)), default), None, "{unused}");
        let said = refusal(&mixed(10, &unused.repeat(11)), default).expect(unused);
        assert!(
            said.starts_with("trace: 10 of 21 calls can be used (47 %), and 50 % are asked for."),
            "{said}"
        );
        assert!(said.contains("11: ") && said.contains("(first: line 6)"), "{said}");
    }
}

#[test]
fn share_that_must_be_used_can_be_chosen() {
    let text = mixed(10, "what is this?\n");
    assert_eq!((refusal(&text, 90), refusal(&text, 0)), (None, None));
    assert!(refusal(&text, 100).is_some());
    assert_eq!(refusal(&mixed(10, "--- SIGCHLD {} ---\n\n"), 100), None);
}

#[test]
fn refusal_names_the_most_frequent_reasons() {
    let kinds: String = (0..7).map(|kind| format!("call{kind}(1) = 0\n").repeat(10 - kind)).collect();
    let said = refusal(&mixed(1, &kinds), 50).expect("it is refused");
    let of = |kind: usize, line: usize| {
        format!("{}: call{kind}: no replay of this call exists (first: line {line})", 10 - kind)
    };
    assert!(said.contains(&[of(0, 1), of(1, 11), of(2, 20)].join("; ")), "{said}");
    assert!(said.ends_with("; 2 more reasons"), "{said}");
}

#[test]
fn trace_without_any_call_is_refused_with_the_reason() {
    let said = |text: &str| {
        let compiled =
            compile(&mut Strace::new(text.as_bytes()), "trace".as_ref(), &CompileSettings::default());
        compiled.expect_err("it is refused").to_string()
    };
    let why = "trace: no call could be read from it: 2: no call, signal or end of a task (first: line 1)";
    assert_eq!(said("{\"time\": 1}\n{\"time\": 2}\n"), why);
    assert_eq!(said("\n"), "trace: no call could be read from it");
}

#[test]
fn refused_trace_leaves_no_file() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let output = dir.path().join("compiled");
    let text = mixed(1, &"read(3, \"\", 1) = 1\n".repeat(9));
    let settings = CompileSettings::default();
    let refused = compile_to(&mut Strace::new(text.as_bytes()), "trace".as_ref(), &settings, &output);
    assert!(matches!(refused, Err(TraceError::LittleUsed { used: 1, all: 10, .. })));
    assert_eq!(dir.path().read_dir().expect("the directory is there").count(), 0);
}

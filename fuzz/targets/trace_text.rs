//! Traces of strace and dtruss.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let text = std::io::Cursor::new(bytes.to_vec());
    let mut source = trace_compile::read_trace(text).expect("memory does not fail");
    while source.next_event().expect("memory does not fail").is_some() {}
    assert!(source.coverage().used <= source.coverage().lines);
});

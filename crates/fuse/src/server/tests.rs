use super::*;

#[test]
fn a_write_over_the_last_byte_of_the_largest_file_is_cut_off_there() {
    assert_eq!(clip_to_file_max(FILE_BYTES_MAX - 3, b"abcde"), b"abc");
    assert_eq!(clip_to_file_max(FILE_BYTES_MAX - 5, b"abcde"), b"abcde");
    assert_eq!(clip_to_file_max(0, b"abcde"), b"abcde");
    // Refused further down, as a whole.
    assert_eq!(clip_to_file_max(FILE_BYTES_MAX, b"abcde"), b"abcde");
    assert_eq!(clip_to_file_max(u64::MAX, b"abcde"), b"abcde");
}

//! The bytes of the NBD protocol: constants, the request header, and the replies.
//!
//! The constants have the names of the specification (`doc/proto.md` of the NBD project). All numbers on the
//! wire are big-endian.

use crate::disk::DiskError;

/// The first bytes that a server sends: "NBDMAGIC".
pub(crate) const NBDMAGIC: u64 = 0x4e42_444d_4147_4943;
/// Begins the newstyle handshake, and each option of a client: "IHAVEOPT".
pub(crate) const IHAVEOPT: u64 = 0x4948_4156_454f_5054;
/// Begins each reply to an option.
pub(crate) const NBD_REP_MAGIC: u64 = 0x0003_e889_0455_65a9;
/// Begins each request.
pub(crate) const NBD_REQUEST_MAGIC: u32 = 0x2560_9513;
/// Begins each simple reply.
pub(crate) const NBD_SIMPLE_REPLY_MAGIC: u32 = 0x6744_6698;
/// Begins each chunk of a structured reply.
pub(crate) const NBD_STRUCTURED_REPLY_MAGIC: u32 = 0x668e_33ef;

// The handshake flags of the server. The client flags have the same bits.
pub(crate) const NBD_FLAG_FIXED_NEWSTYLE: u16 = 1 << 0;
pub(crate) const NBD_FLAG_NO_ZEROES: u16 = 1 << 1;
pub(crate) const NBD_FLAG_C_FIXED_NEWSTYLE: u32 = 1 << 0;
pub(crate) const NBD_FLAG_C_NO_ZEROES: u32 = 1 << 1;

pub(crate) const NBD_OPT_EXPORT_NAME: u32 = 1;
pub(crate) const NBD_OPT_ABORT: u32 = 2;
pub(crate) const NBD_OPT_LIST: u32 = 3;
pub(crate) const NBD_OPT_INFO: u32 = 6;
pub(crate) const NBD_OPT_GO: u32 = 7;
pub(crate) const NBD_OPT_STRUCTURED_REPLY: u32 = 8;
pub(crate) const NBD_OPT_LIST_META_CONTEXT: u32 = 9;
pub(crate) const NBD_OPT_SET_META_CONTEXT: u32 = 10;

pub(crate) const NBD_REP_ACK: u32 = 1;
pub(crate) const NBD_REP_SERVER: u32 = 2;
pub(crate) const NBD_REP_INFO: u32 = 3;
pub(crate) const NBD_REP_META_CONTEXT: u32 = 4;
pub(crate) const NBD_REP_ERR_UNSUP: u32 = (1 << 31) | 1;
pub(crate) const NBD_REP_ERR_INVALID: u32 = (1 << 31) | 3;
pub(crate) const NBD_REP_ERR_UNKNOWN: u32 = (1 << 31) | 6;
pub(crate) const NBD_REP_ERR_TOO_BIG: u32 = (1 << 31) | 9;

pub(crate) const NBD_INFO_EXPORT: u16 = 0;
pub(crate) const NBD_INFO_NAME: u16 = 1;
pub(crate) const NBD_INFO_DESCRIPTION: u16 = 2;
pub(crate) const NBD_INFO_BLOCK_SIZE: u16 = 3;

pub(crate) const NBD_FLAG_HAS_FLAGS: u16 = 1 << 0;
pub(crate) const NBD_FLAG_READ_ONLY: u16 = 1 << 1;
pub(crate) const NBD_FLAG_SEND_FLUSH: u16 = 1 << 2;
pub(crate) const NBD_FLAG_SEND_FUA: u16 = 1 << 3;
pub(crate) const NBD_FLAG_SEND_TRIM: u16 = 1 << 5;
pub(crate) const NBD_FLAG_SEND_WRITE_ZEROES: u16 = 1 << 6;
pub(crate) const NBD_FLAG_SEND_DF: u16 = 1 << 7;
pub(crate) const NBD_FLAG_CAN_MULTI_CONN: u16 = 1 << 8;
pub(crate) const NBD_FLAG_SEND_FAST_ZERO: u16 = 1 << 11;

pub(crate) const NBD_CMD_READ: u16 = 0;
pub(crate) const NBD_CMD_WRITE: u16 = 1;
pub(crate) const NBD_CMD_DISC: u16 = 2;
pub(crate) const NBD_CMD_FLUSH: u16 = 3;
pub(crate) const NBD_CMD_TRIM: u16 = 4;
pub(crate) const NBD_CMD_WRITE_ZEROES: u16 = 6;
pub(crate) const NBD_CMD_BLOCK_STATUS: u16 = 7;

pub(crate) const NBD_CMD_FLAG_FUA: u16 = 1 << 0;
pub(crate) const NBD_CMD_FLAG_NO_HOLE: u16 = 1 << 1;
pub(crate) const NBD_CMD_FLAG_DF: u16 = 1 << 2;
pub(crate) const NBD_CMD_FLAG_REQ_ONE: u16 = 1 << 3;
pub(crate) const NBD_CMD_FLAG_FAST_ZERO: u16 = 1 << 4;

pub(crate) const NBD_REPLY_FLAG_DONE: u16 = 1 << 0;
pub(crate) const NBD_REPLY_TYPE_NONE: u16 = 0;
pub(crate) const NBD_REPLY_TYPE_OFFSET_DATA: u16 = 1;
pub(crate) const NBD_REPLY_TYPE_BLOCK_STATUS: u16 = 5;
pub(crate) const NBD_REPLY_TYPE_ERROR: u16 = (1 << 15) | 1;

pub(crate) const NBD_STATE_HOLE: u32 = 1 << 0;
pub(crate) const NBD_STATE_ZERO: u32 = 1 << 1;

/// The most bytes of one read or write. Clients learn this limit as the maximum block size.
pub(crate) const PAYLOAD_BYTES_MAX: u32 = 32 << 20;

/// The longest name of an export that the protocol allows, in bytes.
pub(crate) const NAME_BYTES_MAX: usize = 4096;

/// The number that stands for `base:allocation` in BLOCK_STATUS replies.
pub(crate) const ALLOCATION_CONTEXT_ID: u32 = 1;

/// The length of a request's header in bytes.
pub(crate) const REQUEST_HEADER_BYTES: usize = 28;

/// A request as the client sent it, without a write's payload. No field has been checked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct RequestHeader {
    pub(crate) flags: u16,
    pub(crate) command: u16,
    /// The client's name for the request. The reply repeats the cookie.
    pub(crate) cookie: u64,
    /// Where the range begins, in bytes.
    pub(crate) offset: u64,
    /// The length of the range in bytes.
    pub(crate) len: u32,
}

impl RequestHeader {
    /// Decodes a header. `None`: the magic number is wrong.
    pub(crate) fn decode(bytes: &[u8; REQUEST_HEADER_BYTES]) -> Option<RequestHeader> {
        let mut rest = &bytes[..];
        if take_u32(&mut rest)? != NBD_REQUEST_MAGIC {
            return None;
        }
        Some(RequestHeader {
            flags: take_u16(&mut rest)?,
            command: take_u16(&mut rest)?,
            cookie: take_u64(&mut rest)?,
            offset: take_u64(&mut rest)?,
            len: take_u32(&mut rest)?,
        })
    }

    /// The number of payload bytes that follow the header.
    pub(crate) fn payload_len(&self) -> u32 {
        if self.command == NBD_CMD_WRITE { self.len } else { 0 }
    }
}

/// The error numbers of the protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NbdErrno {
    Eperm = 1,
    Eio = 5,
    Einval = 22,
    Enospc = 28,
    Eshutdown = 108,
}

impl From<DiskError> for NbdErrno {
    fn from(error: DiskError) -> NbdErrno {
        match error {
            DiskError::NoSpace => NbdErrno::Enospc,
            DiskError::ReadOnly => NbdErrno::Eperm,
            DiskError::Io => NbdErrno::Eio,
            DiskError::Invalid => NbdErrno::Einval,
            DiskError::ShuttingDown => NbdErrno::Eshutdown,
        }
    }
}

/// A part of the range of a BLOCK_STATUS request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct StatusDescriptor {
    /// The length in bytes.
    pub(crate) len: u32,
    /// `NBD_STATE_HOLE` and `NBD_STATE_ZERO`, or neither.
    pub(crate) state: u32,
}

/// A simple reply. The data of a successful read follow it. `None` means success.
pub(crate) fn simple_reply(cookie: u64, error: Option<NbdErrno>) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(16);
    bytes.extend(NBD_SIMPLE_REPLY_MAGIC.to_be_bytes());
    bytes.extend(error.map_or(0, |errno| errno as u32).to_be_bytes());
    bytes.extend(cookie.to_be_bytes());
    bytes
}

/// The only chunk of a reply without content.
pub(crate) fn none_chunk(cookie: u64) -> Vec<u8> {
    last_chunk(NBD_REPLY_TYPE_NONE, cookie, 0)
}

/// The head of the only chunk of a reply to a read at `offset`. `data_len` bytes of data follow it, at least
/// one.
pub(crate) fn offset_data_chunk_head(cookie: u64, offset: u64, data_len: u32) -> Vec<u8> {
    let mut bytes = last_chunk(NBD_REPLY_TYPE_OFFSET_DATA, cookie, 8 + data_len);
    bytes.extend(offset.to_be_bytes());
    bytes
}

/// The only chunk of a reply that reports an error. The client may show `message` to a person.
pub(crate) fn error_chunk(cookie: u64, errno: NbdErrno, message: &str) -> Vec<u8> {
    let message = &message.as_bytes()[..message.len().min(NAME_BYTES_MAX)];
    let mut bytes = last_chunk(NBD_REPLY_TYPE_ERROR, cookie, 6 + message.len() as u32);
    bytes.extend((errno as u32).to_be_bytes());
    bytes.extend((message.len() as u16).to_be_bytes());
    bytes.extend(message);
    bytes
}

/// The only chunk of a reply to BLOCK_STATUS.
pub(crate) fn block_status_chunk(cookie: u64, descriptors: &[StatusDescriptor]) -> Vec<u8> {
    let mut bytes = last_chunk(NBD_REPLY_TYPE_BLOCK_STATUS, cookie, 4 + 8 * descriptors.len() as u32);
    bytes.extend(ALLOCATION_CONTEXT_ID.to_be_bytes());
    for descriptor in descriptors {
        bytes.extend(descriptor.len.to_be_bytes());
        bytes.extend(descriptor.state.to_be_bytes());
    }
    bytes
}

/// The header of a chunk with which a structured reply ends. `payload_len` bytes follow the header.
fn last_chunk(chunk_type: u16, cookie: u64, payload_len: u32) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(28);
    bytes.extend(NBD_STRUCTURED_REPLY_MAGIC.to_be_bytes());
    bytes.extend(NBD_REPLY_FLAG_DONE.to_be_bytes());
    bytes.extend(chunk_type.to_be_bytes());
    bytes.extend(cookie.to_be_bytes());
    bytes.extend(payload_len.to_be_bytes());
    bytes
}

/// Appends a reply to an option.
pub(crate) fn append_option_reply(bytes: &mut Vec<u8>, option: u32, reply_type: u32, payload: &[u8]) {
    bytes.extend(NBD_REP_MAGIC.to_be_bytes());
    bytes.extend(option.to_be_bytes());
    bytes.extend(reply_type.to_be_bytes());
    bytes.extend((payload.len() as u32).to_be_bytes());
    bytes.extend(payload);
}

/// Takes the first `len` bytes of `rest`. `None`: `rest` is shorter.
pub(crate) fn take_bytes<'b>(rest: &mut &'b [u8], len: usize) -> Option<&'b [u8]> {
    rest.split_off(..len)
}

/// Takes a number of 2 bytes.
pub(crate) fn take_u16(rest: &mut &[u8]) -> Option<u16> {
    take_array(rest).map(u16::from_be_bytes)
}

/// Takes a number of 4 bytes.
pub(crate) fn take_u32(rest: &mut &[u8]) -> Option<u32> {
    take_array(rest).map(u32::from_be_bytes)
}

/// Takes a number of 8 bytes.
pub(crate) fn take_u64(rest: &mut &[u8]) -> Option<u64> {
    take_array(rest).map(u64::from_be_bytes)
}

/// Takes a length of 4 bytes, and as many bytes as the length says.
pub(crate) fn take_counted<'b>(rest: &mut &'b [u8]) -> Option<&'b [u8]> {
    let len = take_u32(rest)?;
    take_bytes(rest, len as usize)
}

fn take_array<const N: usize>(rest: &mut &[u8]) -> Option<[u8; N]> {
    let (array, after) = rest.split_first_chunk()?;
    *rest = after;
    Some(*array)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The bytes of the hexadecimal digits in `text`. Spaces separate the fields for the reader.
    fn hex(text: &str) -> Vec<u8> {
        let digits: Vec<u8> =
            text.chars().filter_map(|digit| digit.to_digit(16)).map(|digit| digit as u8).collect();
        digits.chunks(2).map(|pair| pair[0] << 4 | pair[1]).collect()
    }

    fn decode(text: &str) -> Option<RequestHeader> {
        RequestHeader::decode(hex(text).as_slice().try_into().expect("28 bytes"))
    }

    #[test]
    fn a_request_header_is_decoded() {
        let header = decode("25609513 0001 0006 0102030405060708 0000000200000003 00001000");
        let expected = RequestHeader {
            flags: NBD_CMD_FLAG_FUA,
            command: NBD_CMD_WRITE_ZEROES,
            cookie: 0x0102_0304_0506_0708,
            offset: 0x2_0000_0003,
            len: 4096,
        };
        assert_eq!(header, Some(expected));
    }

    #[test]
    fn a_wrong_magic_number_is_no_request() {
        assert_eq!(decode("25609514 0000 0000 0000000000000000 0000000000000000 00000000"), None);
        // The magic number of an extended request, and that of an option.
        assert_eq!(decode("21e41c71 0000 0000 0000000000000000 0000000000000000 00000000"), None);
        assert_eq!(decode("49484156 454f5054 0000000700000000 0000000000000000 00000000"), None);
    }

    #[test]
    fn only_writes_have_a_payload() {
        for command in 0..10 {
            let header = RequestHeader { flags: 0, command, cookie: 0, offset: 0, len: 7 };
            assert_eq!(header.payload_len(), if command == NBD_CMD_WRITE { 7 } else { 0 });
        }
    }

    #[test]
    fn replies_have_the_bytes_of_the_specification() {
        assert_eq!(simple_reply(9, None), hex("67446698 00000000 0000000000000009"));
        assert_eq!(simple_reply(9, Some(NbdErrno::Enospc)), hex("67446698 0000001c 0000000000000009"));
        assert_eq!(none_chunk(9), hex("668e33ef 0001 0000 0000000000000009 00000000"));
        assert_eq!(
            offset_data_chunk_head(9, 0x10, 3),
            hex("668e33ef 0001 0001 0000000000000009 0000000b 0000000000000010")
        );
        assert_eq!(
            error_chunk(9, NbdErrno::Eshutdown, "no"),
            hex("668e33ef 0001 8001 0000000000000009 00000008 0000006c 0002 6e6f")
        );
        let descriptors = [
            StatusDescriptor { len: 512, state: 0 },
            StatusDescriptor { len: 1024, state: NBD_STATE_HOLE | NBD_STATE_ZERO },
        ];
        assert_eq!(
            block_status_chunk(9, &descriptors),
            hex("668e33ef 0001 0005 0000000000000009 00000014 00000001 00000200 00000000 00000400 00000003")
        );
    }

    #[test]
    fn a_counted_field_never_exceeds_its_bytes() {
        let whole = hex("00000002 6162 63");
        let mut rest = &whole[..];
        assert_eq!(take_counted(&mut rest), Some(&b"ab"[..]));
        assert_eq!(rest, b"c");
        for lying in ["", "000000", "00000001", "ffffffff 61"] {
            assert_eq!(take_counted(&mut &hex(lying)[..]), None, "{lying}");
        }
    }
}

//! The first part of a connection: greets the client and reads options until both agree.

use crate::negotiation::{
    AfterOption, ExportDescription, ExportNamePadding, NegotiatedFeatures, Negotiation,
};
use crate::protocol::{
    IHAVEOPT, NBD_FLAG_C_FIXED_NEWSTYLE, NBD_FLAG_C_NO_ZEROES, NBD_FLAG_FIXED_NEWSTYLE, NBD_FLAG_NO_ZEROES,
    NBD_OPT_EXPORT_NAME, NBDMAGIC,
};
use std::io::{self, Read, Write};

/// The most options of one client. Clients send fewer than ten.
const OPTIONS_MAX: usize = 1024;

/// The longest option that the server reads, in bytes.
const OPTION_BYTES_MAX: u32 = 64 << 10;

/// Negotiates with a client that has just connected. `None`: the client, or the server, ended the connection
/// as the protocol allows. An error of the kind `InvalidData` means that the client broke the protocol.
pub(crate) fn shake_hands(
    input: &mut impl Read,
    output: &mut impl Write,
    export: &ExportDescription,
) -> io::Result<Option<NegotiatedFeatures>> {
    let mut greeting = Vec::new();
    greeting.extend(NBDMAGIC.to_be_bytes());
    greeting.extend(IHAVEOPT.to_be_bytes());
    greeting.extend((NBD_FLAG_FIXED_NEWSTYLE | NBD_FLAG_NO_ZEROES).to_be_bytes());
    output.write_all(&greeting)?;

    let client_flags = u32::from_be_bytes(read_array(input)?);
    if client_flags & !(NBD_FLAG_C_FIXED_NEWSTYLE | NBD_FLAG_C_NO_ZEROES) != 0 {
        return Err(broken_protocol("the client has set unknown flags"));
    }
    let knows_replies = client_flags & NBD_FLAG_C_FIXED_NEWSTYLE != 0;
    let expects_zeroes = client_flags & NBD_FLAG_C_NO_ZEROES == 0;
    let padding = if expects_zeroes { ExportNamePadding::Zeroes } else { ExportNamePadding::None };

    let mut negotiation = Negotiation::new(export, padding);
    for _ in 0..OPTIONS_MAX {
        if u64::from_be_bytes(read_array(input)?) != IHAVEOPT {
            return Err(broken_protocol("an option has a wrong magic number"));
        }
        let option = u32::from_be_bytes(read_array(input)?);
        let len = u32::from_be_bytes(read_array(input)?);
        // A client of the first newstyle protocol does not understand replies to options.
        if !knows_replies && option != NBD_OPT_EXPORT_NAME {
            return Err(broken_protocol("the client sent an option that needs the fixed newstyle protocol"));
        }
        let mut reply = Vec::new();
        let after = if len > OPTION_BYTES_MAX {
            let after = negotiation.refuse_long_option(option, &mut reply);
            if after == AfterOption::NextOption {
                skip(input, len)?;
            }
            after
        } else {
            let mut data = vec![0; len as usize];
            input.read_exact(&mut data)?;
            negotiation.answer(option, &data, &mut reply)
        };
        output.write_all(&reply)?;
        match after {
            AfterOption::NextOption => {}
            AfterOption::Transmission(features) => return Ok(Some(features)),
            AfterOption::End => return Ok(None),
        }
    }
    Err(broken_protocol("the client sent too many options"))
}

/// Reads `len` bytes and drops them, without memory for all of them.
pub(crate) fn skip(input: &mut impl Read, len: u32) -> io::Result<()> {
    let skipped = io::copy(&mut input.take(len.into()), &mut io::sink())?;
    if skipped < len.into() {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    Ok(())
}

/// The error of a client that does not follow the protocol.
pub(crate) fn broken_protocol(message: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, message)
}

fn read_array<const N: usize>(input: &mut impl Read) -> io::Result<[u8; N]> {
    let mut array = [0; N];
    input.read_exact(&mut array)?;
    Ok(array)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::{NBD_OPT_ABORT, NBD_OPT_GO, NBD_OPT_LIST, NBD_REP_ERR_TOO_BIG};
    use std::io::ErrorKind;

    const GREETING_BYTES: usize = 18;
    const FIXED: u32 = 3;

    fn option(option: u32, data: &[u8]) -> Vec<u8> {
        let mut bytes = IHAVEOPT.to_be_bytes().to_vec();
        bytes.extend(option.to_be_bytes());
        bytes.extend((data.len() as u32).to_be_bytes());
        bytes.extend(data);
        bytes
    }

    /// The outcome for a client that sends its `flags` and `options`, and the reply bytes after the greeting.
    fn shake(flags: u32, options: &[Vec<u8>]) -> (Result<Option<NegotiatedFeatures>, ErrorKind>, Vec<u8>) {
        let export = ExportDescription { name: "disk".into(), size: 4096, is_read_only: false };
        let input = [flags.to_be_bytes().to_vec(), options.concat()].concat();
        let mut output = Vec::new();
        let outcome = shake_hands(&mut &input[..], &mut output, &export);
        assert_eq!(output[..GREETING_BYTES], *b"NBDMAGICIHAVEOPT\0\x03");
        (outcome.map_err(|error| error.kind()), output.split_off(GREETING_BYTES))
    }

    #[test]
    fn faults_end_the_connection() {
        let mut wrong_magic = option(NBD_OPT_LIST, &[]);
        wrong_magic[7] ^= 1;
        let mut cut = option(NBD_OPT_GO, &[0; 6]);
        cut.pop();
        let mut endless = option(NBD_OPT_GO, &[]);
        endless[12..].copy_from_slice(&u32::MAX.to_be_bytes());
        let cases = [
            (1 << 2, vec![], ErrorKind::InvalidData),
            (u32::MAX, vec![], ErrorKind::InvalidData),
            (FIXED, vec![], ErrorKind::UnexpectedEof),
            (FIXED, vec![wrong_magic], ErrorKind::InvalidData),
            (FIXED, vec![cut], ErrorKind::UnexpectedEof),
            (FIXED, vec![endless], ErrorKind::UnexpectedEof),
            (FIXED, vec![option(NBD_OPT_LIST, &[]); OPTIONS_MAX + 1], ErrorKind::InvalidData),
            // Without the fixed newstyle protocol.
            (0, vec![option(NBD_OPT_LIST, &[])], ErrorKind::InvalidData),
        ];
        for (flags, options, kind) in cases {
            let case = format!("flags {flags} and {} options", options.len());
            assert_eq!(shake(flags, &options).0, Err(kind), "{case}");
        }
    }

    #[test]
    fn an_option_of_the_longest_length_is_read() {
        let longest = vec![0xff; OPTION_BYTES_MAX as usize];
        let too_long = vec![0xff; OPTION_BYTES_MAX as usize + 1];
        let options =
            [option(NBD_OPT_GO, &longest), option(NBD_OPT_GO, &too_long), option(NBD_OPT_GO, &[0; 6])];
        let (outcome, replies) = shake(FIXED, &options);
        assert!(outcome.expect("no error").is_some());
        let too_big = NBD_REP_ERR_TOO_BIG.to_be_bytes();
        assert_eq!(replies.windows(4).filter(|window| *window == too_big).count(), 1);
    }

    #[test]
    fn the_oldest_clients_get_padding() {
        for (flags, reply_bytes) in [(0, 134), (FIXED, 10)] {
            let (outcome, reply) = shake(flags, &[option(NBD_OPT_EXPORT_NAME, b"disk")]);
            assert!(outcome.expect("no error").is_some());
            assert_eq!(reply.len(), reply_bytes);
        }
    }

    #[test]
    fn a_client_may_end_the_handshake() {
        assert_eq!(shake(FIXED, &[option(NBD_OPT_ABORT, &[])]).0, Ok(None));
        assert_eq!(shake(FIXED, &[option(NBD_OPT_EXPORT_NAME, b"other")]).0, Ok(None));
        let long_name = vec![b'x'; OPTION_BYTES_MAX as usize + 1];
        assert_eq!(shake(FIXED, &[option(NBD_OPT_EXPORT_NAME, &long_name)]).0, Ok(None));
    }
}

//! A client that sends any bytes. The numbers are written out here, so that the tests check the constants of
//! the server.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::time::Duration;

pub(crate) const OPT_EXPORT_NAME: u32 = 1;
pub(crate) const OPT_GO: u32 = 7;
pub(crate) const OPT_STRUCTURED_REPLY: u32 = 8;
pub(crate) const OPT_SET_META_CONTEXT: u32 = 10;

pub(crate) const CMD_READ: u16 = 0;
pub(crate) const CMD_WRITE: u16 = 1;
pub(crate) const CMD_DISC: u16 = 2;
pub(crate) const CMD_FLUSH: u16 = 3;
pub(crate) const CMD_TRIM: u16 = 4;
pub(crate) const CMD_CACHE: u16 = 5;
pub(crate) const CMD_WRITE_ZEROES: u16 = 6;
pub(crate) const CMD_BLOCK_STATUS: u16 = 7;

pub(crate) const FLAG_FUA: u16 = 1;
pub(crate) const FLAG_NO_HOLE: u16 = 2;
pub(crate) const FLAG_DF: u16 = 4;
pub(crate) const FLAG_REQ_ONE: u16 = 8;
pub(crate) const FLAG_FAST_ZERO: u16 = 16;

pub(crate) const EPERM: u32 = 1;
pub(crate) const EIO: u32 = 5;
pub(crate) const EINVAL: u32 = 22;
pub(crate) const ENOSPC: u32 = 28;
pub(crate) const ESHUTDOWN: u32 = 108;

/// A stream of either family.
pub(crate) trait ClientStream: Read + Write {
    fn set_deadline(&self);
}

impl ClientStream for UnixStream {
    fn set_deadline(&self) {
        self.set_read_timeout(Some(Duration::from_secs(20))).expect("a socket");
    }
}

impl ClientStream for TcpStream {
    fn set_deadline(&self) {
        self.set_read_timeout(Some(Duration::from_secs(20))).expect("a socket");
        // The client sends a write in two parts. Without this, the second part waits for an acknowledgement.
        self.set_nodelay(true).expect("a socket");
    }
}

/// A reply whose format has been checked.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct ClientReply {
    pub(crate) cookie: u64,
    /// 0: success.
    pub(crate) errno: u32,
    /// The data of a read, or the content of a BLOCK_STATUS chunk.
    pub(crate) content: Vec<u8>,
}

/// A connected client.
pub(crate) struct TestClient {
    pub(crate) stream: Box<dyn ClientStream>,
    /// Whether the client negotiated structured replies.
    is_structured: bool,
}

impl TestClient {
    /// Connects, and reads the server's greeting.
    pub(crate) fn connect(stream: impl ClientStream + 'static) -> TestClient {
        stream.set_deadline();
        let mut client = TestClient { stream: Box::new(stream), is_structured: false };
        assert_eq!(client.read_bytes(18), b"NBDMAGICIHAVEOPT\0\x03");
        client.send(&3_u32.to_be_bytes());
        client
    }

    /// Connects, and begins transmission with GO and simple replies.
    pub(crate) fn simple(stream: impl ClientStream + 'static) -> TestClient {
        let mut client = TestClient::connect(stream);
        assert_eq!(client.option(OPT_GO, b"\0\0\0\x04disk\0\0"), [3, 3, 1]);
        client
    }

    /// Connects, and begins transmission with GO, structured replies and block status.
    pub(crate) fn structured(stream: impl ClientStream + 'static) -> TestClient {
        let mut client = TestClient::connect(stream);
        assert_eq!(client.option(OPT_STRUCTURED_REPLY, b""), [1]);
        let query = b"\0\0\0\0\0\0\0\x01\0\0\0\x0fbase:allocation";
        assert_eq!(client.option(OPT_SET_META_CONTEXT, query), [4, 1]);
        assert_eq!(client.option(OPT_GO, b"\0\0\0\0\0\0"), [3, 3, 1]);
        client.is_structured = true;
        client
    }

    pub(crate) fn send(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).expect("the server reads");
    }

    pub(crate) fn read_bytes(&mut self, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.stream.read_exact(&mut bytes).expect("the server writes");
        bytes
    }

    fn read_u16(&mut self) -> u16 {
        u16::from_be_bytes(self.read_bytes(2).try_into().expect("2 bytes"))
    }

    pub(crate) fn read_u32(&mut self) -> u32 {
        u32::from_be_bytes(self.read_bytes(4).try_into().expect("4 bytes"))
    }

    pub(crate) fn read_u64(&mut self) -> u64 {
        u64::from_be_bytes(self.read_bytes(8).try_into().expect("8 bytes"))
    }

    /// Sends an option without reading replies.
    pub(crate) fn send_option(&mut self, option: u32, data: &[u8]) {
        let mut bytes = b"IHAVEOPT".to_vec();
        bytes.extend(option.to_be_bytes());
        bytes.extend((data.len() as u32).to_be_bytes());
        bytes.extend(data);
        self.send(&bytes);
    }

    /// Sends an option, and returns the types of its replies.
    pub(crate) fn option(&mut self, option: u32, data: &[u8]) -> Vec<u32> {
        self.send_option(option, data);
        let mut types = Vec::new();
        loop {
            assert_eq!(self.read_u64(), 0x0003_e889_0455_65a9);
            assert_eq!(self.read_u32(), option);
            let reply_type = self.read_u32();
            let len = self.read_u32();
            self.read_bytes(len as usize);
            types.push(reply_type);
            if reply_type == 1 || reply_type >> 31 == 1 {
                return types;
            }
        }
    }

    /// Sends the header of a request.
    pub(crate) fn send_request(&mut self, command: u16, flags: u16, cookie: u64, offset: u64, len: u32) {
        let mut bytes = 0x2560_9513_u32.to_be_bytes().to_vec();
        bytes.extend(flags.to_be_bytes());
        bytes.extend(command.to_be_bytes());
        bytes.extend(cookie.to_be_bytes());
        bytes.extend(offset.to_be_bytes());
        bytes.extend(len.to_be_bytes());
        self.send(&bytes);
    }

    /// Reads the reply to a request. `content_len` is the length of a simple reply's data.
    pub(crate) fn read_reply(&mut self, content_len: usize) -> ClientReply {
        let magic = self.read_u32();
        if magic == 0x6744_6698 {
            let errno = self.read_u32();
            let cookie = self.read_u64();
            let has_content = errno == 0 && !self.is_structured;
            let content = self.read_bytes(if has_content { content_len } else { 0 });
            assert!(!self.is_structured || content_len == 0, "a simple reply to a read");
            return ClientReply { cookie, errno, content };
        }
        assert!(self.is_structured);
        assert_eq!(magic, 0x668e_33ef);
        assert_eq!(self.read_u16(), 1, "one chunk");
        let chunk_type = self.read_u16();
        let cookie = self.read_u64();
        let len = self.read_u32() as usize;
        let mut errno = 0;
        let content = match chunk_type {
            0 => self.read_bytes(len),
            1 => {
                self.read_u64();
                self.read_bytes(len - 8)
            }
            5 => self.read_bytes(len),
            0x8001 => {
                errno = self.read_u32();
                let message_len = self.read_u16();
                assert_eq!(len, 6 + usize::from(message_len));
                let message = self.read_bytes(message_len.into());
                assert!(String::from_utf8(message).is_ok_and(|message| !message.is_empty()));
                Vec::new()
            }
            _ => panic!("a chunk of type {chunk_type}"),
        };
        ClientReply { cookie, errno, content }
    }

    /// Sends a request without a payload, and returns the errno and the content of its reply.
    pub(crate) fn request(&mut self, command: u16, flags: u16, offset: u64, len: u32) -> (u32, Vec<u8>) {
        self.send_request(command, flags, 99, offset, len);
        let content_len = if command == CMD_READ { len as usize } else { 0 };
        let reply = self.read_reply(content_len);
        assert_eq!(reply.cookie, 99);
        (reply.errno, reply.content)
    }

    /// Writes, and returns the errno of the reply.
    pub(crate) fn write(&mut self, flags: u16, offset: u64, bytes: &[u8]) -> u32 {
        self.send_request(CMD_WRITE, flags, 98, offset, bytes.len() as u32);
        self.send(bytes);
        let reply = self.read_reply(0);
        assert_eq!(reply.cookie, 98);
        reply.errno
    }

    /// Asserts that the server closes the connection without another byte.
    pub(crate) fn assert_closed(mut self) {
        let mut byte = [0];
        match self.stream.read(&mut byte) {
            Ok(0) => {}
            // The server has not read everything that the client sent.
            Err(error) if error.kind() == io::ErrorKind::ConnectionReset => {}
            other => panic!("the connection is not closed: {other:?}"),
        }
    }
}

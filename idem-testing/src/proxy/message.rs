//! The framing of the protocol: a type byte, a length that counts itself, a payload. A client's first messages lack the
//! type byte.

use bytes::{Bytes, BytesMut};

const SSL_REQUEST: u32 = 80_877_103;
const GSS_ENCRYPTION_REQUEST: u32 = 80_877_104;

/// One message, as it stands on the wire.
#[derive(Debug)]
pub(super) struct Message {
    pub(super) bytes: Bytes,
    /// The type byte; 0 for a message that has none.
    pub(super) kind: u8,
}

impl Message {
    /// What follows the length.
    pub(super) fn payload(&self) -> &[u8] {
        &self.bytes[if self.kind == 0 { 4 } else { 5 }..]
    }

    /// Whether it asks for an encrypted connection.
    pub(super) fn asks_for_encryption(&self) -> bool {
        self.kind == 0 && matches!(number(self.payload()), Some(SSL_REQUEST | GSS_ENCRYPTION_REQUEST))
    }

    /// The number at the payload's beginning.
    pub(super) fn number(&self) -> Option<u32> {
        number(self.payload())
    }

    /// The texts that the payload begins with, each ended by a zero byte.
    pub(super) fn texts(&self) -> impl Iterator<Item = &str> {
        self.payload().split(|byte| *byte == 0).map(|text| std::str::from_utf8(text).unwrap_or_default())
    }

    pub(super) fn frontend_name(&self) -> &'static str {
        match self.kind {
            0 => "StartupMessage",
            b'B' => "Bind",
            b'C' => "Close",
            b'D' => "Describe",
            b'E' => "Execute",
            b'H' => "Flush",
            b'P' => "Parse",
            b'Q' => "Query",
            b'S' => "Sync",
            b'X' => "Terminate",
            b'c' | b'd' | b'f' => "Copy",
            b'p' => "Password",
            _ => "message",
        }
    }

    pub(super) fn backend_name(&self) -> &'static str {
        match self.kind {
            b'1' => "ParseComplete",
            b'2' => "BindComplete",
            b'3' => "CloseComplete",
            b'A' => "NotificationResponse",
            b'C' => "CommandComplete",
            b'D' => "DataRow",
            b'E' => "ErrorResponse",
            b'I' => "EmptyQueryResponse",
            b'K' => "BackendKeyData",
            b'N' => "NoticeResponse",
            b'R' => "Authentication",
            b'S' => "ParameterStatus",
            b'T' => "RowDescription",
            b'Z' => "ReadyForQuery",
            b'G' | b'H' | b'W' | b'c' | b'd' => "Copy",
            b'n' => "NoData",
            b's' => "PortalSuspended",
            b't' => "ParameterDescription",
            _ => "message",
        }
    }
}

/// Cuts a stream of bytes into messages.
#[derive(Debug)]
pub(super) struct Framing {
    buffer: BytesMut,
    /// Whether the next message has no type byte.
    begins: bool,
}

impl Framing {
    pub(super) fn of_client() -> Self {
        Self { buffer: BytesMut::new(), begins: true }
    }

    pub(super) fn of_server() -> Self {
        Self { buffer: BytesMut::new(), begins: false }
    }

    /// Where to read into.
    pub(super) fn buffer(&mut self) -> &mut BytesMut {
        &mut self.buffer
    }

    /// The next message, once all of it is there.
    pub(super) fn next(&mut self) -> Option<Message> {
        let type_bytes = usize::from(!self.begins);
        let length = type_bytes + number(self.buffer.get(type_bytes..)?)? as usize;
        if self.buffer.len() < length.max(type_bytes + 4) {
            return None;
        }
        let kind = if self.begins { 0 } else { self.buffer[0] };
        let message = Message { bytes: self.buffer.split_to(length.max(type_bytes + 4)).freeze(), kind };
        self.begins = self.begins && message.asks_for_encryption();
        Some(message)
    }
}

fn number(bytes: &[u8]) -> Option<u32> {
    bytes.first_chunk().map(|chunk| u32::from_be_bytes(*chunk))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(kind: Option<u8>, payload: &[u8]) -> Vec<u8> {
        let mut bytes: Vec<u8> = kind.into_iter().collect();
        bytes.extend((payload.len() as u32 + 4).to_be_bytes());
        bytes.extend(payload);
        bytes
    }

    #[test]
    fn messages_are_found_wherever_the_stream_is_cut() {
        let sent = [
            message(None, &SSL_REQUEST.to_be_bytes()),
            message(None, b"\0\x03\0\0user\0app\0\0"),
            message(Some(b'P'), b"name\0SELECT 1\0\0\0"),
            message(Some(b'S'), b""),
        ];
        let stream = sent.concat();
        for size in 1..stream.len() {
            let mut framing = Framing::of_client();
            let mut found = Vec::new();
            for part in stream.chunks(size) {
                framing.buffer().extend_from_slice(part);
                found.extend(std::iter::from_fn(|| framing.next()));
            }
            assert_eq!(found.iter().map(|message| &message.bytes[..]).collect::<Vec<_>>(), sent);
            assert_eq!(found.iter().map(|message| message.kind).collect::<Vec<_>>(), [0, 0, b'P', b'S']);
            assert!(found[0].asks_for_encryption() && !found[1].asks_for_encryption());
            assert_eq!(found[2].texts().take(2).collect::<Vec<_>>(), ["name", "SELECT 1"]);
        }
    }
}

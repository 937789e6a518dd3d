//! What is answered in the server's place.

use std::fmt;

use bytes::{BufMut, BytesMut};

/// An answer that the server never gave: that of a pooler whose server is gone, or of a server that goes down.
///
/// Such an answer says nothing about the message's effect, whatever its severity and its code, unless the code is one
/// that only a rolled back transaction can have (class 40, say). In particular an `ERROR` is no promise that the
/// connection's transaction is still open.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Word {
    /// An `ErrorResponse`. After `FATAL` and `PANIC` the connection is closed. After `ERROR` it stays open, and a
    /// transaction that it was in has failed, as after any error of a statement.
    Error {
        /// How severe it is.
        severity: Severity,
        /// Its SQLSTATE: five characters.
        code: &'static str,
    },
    /// An `ERROR` of a pooler that has lost its server and goes on with another one: the connection stays open, and is
    /// in no transaction any more.
    ServerLost {
        /// Its SQLSTATE: five characters.
        code: &'static str,
    },
    /// Bytes that are no answer.
    Broken(BrokenFrame),
}

/// How severe an [error](Word::Error) is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Severity {
    /// The statement failed.
    Error,
    /// The session ends.
    Fatal,
    /// All sessions end.
    Panic,
}

/// How an answer's [frame](Word::Broken) is broken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum BrokenFrame {
    /// It ends in the middle, and the connection is closed.
    Half,
    /// It is an `ErrorResponse` without a field. The connection stays open.
    Empty,
    /// Its type is none of the protocol's. The connection stays open.
    UnknownType,
}

/// A pooler's or a proxy's own words for a lost server, those of a server that goes down, is out of disk space, has
/// become a replica or is broken, and one that nobody knows.
const CODES: [&str; 8] = ["08006", "57P01", "57P03", "58000", "XX000", "53100", "25006", "ZZ999"];

impl Word {
    /// Those that stand for all: what PgBouncer, Odyssey, RDS Proxy and a server that fails over really say, each
    /// severity and each state of the connection.
    pub const FEW: [Word; 5] = [
        Word::Error { severity: Severity::Error, code: "25006" },
        Word::Error { severity: Severity::Fatal, code: "57P01" },
        Word::Error { severity: Severity::Panic, code: "XX000" },
        Word::ServerLost { code: "58000" },
        Word::Broken(BrokenFrame::Half),
    ];

    /// Every severity with each of 08006, 57P01, 57P03, 58000, XX000, 53100, 25006 and a code that nobody knows, the
    /// same codes from a pooler that goes on with another server, and every broken frame: 35 in all.
    #[must_use]
    pub fn every() -> Vec<Word> {
        let severities = [Severity::Error, Severity::Fatal, Severity::Panic];
        let errors = severities.into_iter().flat_map(|severity| CODES.map(|code| Word::Error { severity, code }));
        let lost = CODES.map(|code| Word::ServerLost { code });
        let broken = [BrokenFrame::Half, BrokenFrame::Empty, BrokenFrame::UnknownType].map(Word::Broken);
        errors.chain(lost).chain(broken).collect()
    }

    /// Whether the connection is closed after it.
    #[must_use]
    pub fn closes(self) -> bool {
        match self {
            Word::Error { severity, .. } => severity != Severity::Error,
            Word::ServerLost { .. } => false,
            Word::Broken(frame) => frame == BrokenFrame::Half,
        }
    }

    /// Whether the connection is in no transaction after it, and nothing of its session is left.
    pub(super) fn loses_session(self) -> bool {
        matches!(self, Word::ServerLost { .. })
    }

    /// What goes over the wire.
    pub(super) fn bytes(self) -> BytesMut {
        match self {
            Word::Error { severity, code } => error_response(severity.name(), code),
            Word::ServerLost { code } => error_response("ERROR", code),
            Word::Broken(BrokenFrame::Half) => {
                let whole = error_response("FATAL", "57P01");
                BytesMut::from(&whole[..whole.len() / 2])
            }
            Word::Broken(BrokenFrame::Empty) => frame(b'E', &[0]),
            Word::Broken(BrokenFrame::UnknownType) => frame(b'!', b"what no server says"),
        }
    }
}

impl Severity {
    fn name(self) -> &'static str {
        match self {
            Severity::Error => "ERROR",
            Severity::Fatal => "FATAL",
            Severity::Panic => "PANIC",
        }
    }
}

impl fmt::Display for Word {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Word::Error { severity, code } => write!(f, "{} {code}", severity.name()),
            Word::ServerLost { code } => write!(f, "ERROR {code} from another session"),
            Word::Broken(BrokenFrame::Half) => f.write_str("half a frame"),
            Word::Broken(BrokenFrame::Empty) => f.write_str("an empty ErrorResponse"),
            Word::Broken(BrokenFrame::UnknownType) => f.write_str("a frame of an unknown type"),
        }
    }
}

fn error_response(severity: &str, code: &str) -> BytesMut {
    let message = "the server connection was lost (injected by the fault proxy)";
    let mut fields = Vec::with_capacity(128);
    for (field, value) in [(b'S', severity), (b'V', severity), (b'C', code), (b'M', message)] {
        fields.push(field);
        fields.extend_from_slice(value.as_bytes());
        fields.push(0);
    }
    fields.push(0);
    frame(b'E', &fields)
}

/// A message: its type, its length with the length's own four bytes, its payload.
pub(super) fn frame(kind: u8, payload: &[u8]) -> BytesMut {
    let mut bytes = BytesMut::with_capacity(payload.len() + 5);
    bytes.put_u8(kind);
    bytes.put_u32(payload.len() as u32 + 4);
    bytes.put_slice(payload);
    bytes
}

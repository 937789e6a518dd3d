//! What a journal's file looks like.
//!
//! The first line names the format and its version, so that a file that is something else is never taken for a journal,
//! or emptied. Then one line for each event: a check sum, a space, and the event as JSON. A line that a power cut left
//! half written was never acknowledged, so nothing was sent for it, and it is dropped. Damage elsewhere is an error and
//! never skipped: a line that is lost is a payment nobody asks about.

use std::collections::HashMap;
use std::fmt;
use std::time::{Duration, SystemTime};

use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use uuid::Uuid;

use super::Record;
use crate::key::Key;
use crate::under_way::Id;

pub(super) const HEADER: &[u8] = b"idem-client journal, version 1\n";

/// What every version's first line begins with.
const NAME: &[u8] = b"idem-client journal, version ";

/// Hexadecimal digits of a line's check sum: 64 bits of a SHA-256.
const CHECK_SUM: usize = 16;

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Line {
    Begin { operation: String, key: String, target: String, request_hash: String, begun_at_ms: u64, begun_by: Uuid },
    StrikeOff { operation: String, key: String },
}

/// The pending records, in the order in which they were begun.
#[derive(Debug, Default)]
pub(super) struct Pending {
    records: HashMap<Id, (u64, Record)>,
    begun: u64,
}

impl Pending {
    pub(super) fn get(&self, id: &Id) -> Option<&Record> {
        self.records.get(id).map(|(_, record)| record)
    }

    pub(super) fn insert(&mut self, record: Record) {
        self.begun += 1;
        self.records.entry(id_of(&record)).or_insert((self.begun, record));
    }

    pub(super) fn remove(&mut self, id: &Id) -> bool {
        self.records.remove(id).is_some()
    }

    pub(super) fn in_order(&self) -> Vec<Record> {
        let mut records: Vec<_> = self.records.values().collect();
        records.sort_by_key(|(position, _)| *position);
        records.into_iter().map(|(_, record)| record.clone()).collect()
    }

    /// About how many bytes the records take in a file.
    pub(super) fn size(&self) -> u64 {
        self.records.values().map(|(_, record)| 300 + record.target.len() as u64).sum()
    }
}

pub(super) fn id_of(record: &Record) -> Id {
    (record.operation.clone(), record.key.clone())
}

/// A file's events, as far as it is whole.
#[derive(Debug, Default)]
pub(super) struct Contents {
    pub(super) pending: Pending,
    /// How far the file is whole.
    pub(super) whole: usize,
    /// The last line is whole but for its end.
    pub(super) lacks_end: bool,
}

/// Why a file cannot be read as a journal.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Trouble {
    Foreign,
    OtherVersion,
    CutInHeader,
    Damaged { line: usize },
}

impl fmt::Display for Trouble {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Foreign => formatter.write_str("it is no journal and was left as it is; use another path"),
            Self::OtherVersion => {
                formatter.write_str("it has another version and was left as it is; use the release that wrote it")
            }
            Self::CutInHeader => formatter.write_str(
                "it is cut in its first line, so its records are lost; ask the servers about what was sent lately, then \
                 remove it",
            ),
            Self::Damaged { line } => write!(
                formatter,
                "line {line} is damaged; look at it and remove the line, then ask the server about what was sent around \
                 then",
            ),
        }
    }
}

/// Reads the events of a file. An empty file is a journal without events.
pub(super) fn read(bytes: &[u8]) -> Result<Contents, Trouble> {
    if bytes.is_empty() {
        return Ok(Contents::default());
    }
    check_header(bytes)?;
    let mut contents = Contents { whole: HEADER.len(), ..Contents::default() };
    let mut number = 1;
    while contents.whole < bytes.len() {
        number += 1;
        let rest = &bytes[contents.whole..];
        let Some(length) = rest.iter().position(|byte| *byte == b'\n') else {
            return read_tail(contents, rest, number);
        };
        contents.apply(Line::decode(&rest[..length]).ok_or(Trouble::Damaged { line: number })?, number)?;
        contents.whole += length + 1;
    }
    Ok(contents)
}

fn check_header(bytes: &[u8]) -> Result<(), Trouble> {
    if bytes.starts_with(HEADER) {
        Ok(())
    } else if HEADER.starts_with(bytes) {
        Err(Trouble::CutInHeader)
    } else if bytes.starts_with(NAME) {
        Err(Trouble::OtherVersion)
    } else {
        Err(Trouble::Foreign)
    }
}

/// What follows the last line's end was being written when the power went: dropped, unless it is whole. A whole line
/// with something else in the place of its end is damage and not a cut.
fn read_tail(mut contents: Contents, tail: &[u8], number: usize) -> Result<Contents, Trouble> {
    let json = tail.get(CHECK_SUM + 1..).unwrap_or_default();
    let mut values = serde_json::Deserializer::from_slice(json).into_iter::<serde::de::IgnoredAny>();
    if !matches!(values.next(), Some(Ok(_))) {
        return Ok(contents);
    }
    let end = CHECK_SUM + 1 + values.byte_offset();
    match Line::decode(&tail[..end]) {
        Some(line) if end == tail.len() => {
            contents.apply(line, number)?;
            contents.whole += end;
            contents.lacks_end = true;
            Ok(contents)
        }
        Some(_) => Err(Trouble::Damaged { line: number }),
        None => Ok(contents),
    }
}

impl Contents {
    fn apply(&mut self, line: Line, number: usize) -> Result<(), Trouble> {
        let damaged = || Trouble::Damaged { line: number };
        match line {
            begin @ Line::Begin { .. } => self.pending.insert(begin.into_record().ok_or_else(damaged)?),
            Line::StrikeOff { operation, key } => {
                self.pending.remove(&(operation, Key::new(key).map_err(|_| damaged())?));
            }
        }
        Ok(())
    }
}

fn check_sum(json: &[u8]) -> String {
    Sha256::digest(json)[..CHECK_SUM / 2].iter().map(|byte| format!("{byte:02x}")).collect()
}

impl Line {
    pub(super) fn begin(record: &Record) -> Self {
        let since = record.begun_at.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        Self::Begin {
            operation: record.operation.clone(),
            key: record.key.as_str().to_owned(),
            target: record.target.clone(),
            request_hash: record.request_hash.iter().map(|byte| format!("{byte:02x}")).collect(),
            begun_at_ms: u64::try_from(since.as_millis()).unwrap_or(u64::MAX),
            begun_by: record.begun_by,
        }
    }

    pub(super) fn strike_off(id: &Id) -> Self {
        Self::StrikeOff { operation: id.0.clone(), key: id.1.as_str().to_owned() }
    }

    fn into_record(self) -> Option<Record> {
        let Self::Begin { operation, key, target, request_hash, begun_at_ms, begun_by } = self else { return None };
        let key = Key::new(key).ok()?.for_operation(&operation);
        let begun_at = SystemTime::UNIX_EPOCH.checked_add(Duration::from_millis(begun_at_ms))?;
        Some(Record { operation, key, target, request_hash: from_hex(&request_hash)?, begun_at, begun_by })
    }

    pub(super) fn append_to(&self, bytes: &mut Vec<u8>) {
        let json = serde_json::to_vec(self).expect("text and numbers can be JSON");
        bytes.extend_from_slice(check_sum(&json).as_bytes());
        bytes.push(b' ');
        bytes.extend_from_slice(&json);
        bytes.push(b'\n');
    }

    fn decode(line: &[u8]) -> Option<Self> {
        let (sum, rest) = line.split_at_checked(CHECK_SUM)?;
        let json = rest.strip_prefix(b" ")?;
        if sum != check_sum(json).as_bytes() {
            return None;
        }
        serde_json::from_slice(json).ok()
    }
}

fn from_hex(text: &str) -> Option<[u8; 32]> {
    let mut bytes = [0; 32];
    if text.len() != 64 || !text.is_ascii() {
        return None;
    }
    for (position, byte) in bytes.iter_mut().enumerate() {
        *byte = u8::from_str_radix(&text[2 * position..2 * position + 2], 16).ok()?;
    }
    Some(bytes)
}

/// A whole file of the pending records alone.
pub(super) fn whole_file(pending: &Pending) -> Vec<u8> {
    let mut bytes = HEADER.to_vec();
    for record in pending.in_order() {
        Line::begin(&record).append_to(&mut bytes);
    }
    bytes
}

/// What holds for any file: see `__fuzz::journal`.
#[cfg(any(test, fuzzing))]
pub(crate) fn any_file_is_read_or_refused(data: &[u8]) {
    let Ok(contents) = read(data) else { return };
    let mut whole = data[..contents.whole].to_vec();
    let records = |contents: &Contents| contents.pending.in_order();
    if contents.lacks_end {
        assert_eq!(contents.whole, data.len());
        whole.push(b'\n');
    }
    let again = read(&whole).expect("what is whole stays so");
    assert_eq!((records(&again), again.whole, again.lacks_end), (records(&contents), whole.len(), false));
    let rewritten = read(&whole_file(&contents.pending)).expect("what is written can be read");
    assert_eq!(records(&rewritten), records(&contents));
    let key = Key::random();
    Line::begin(&Record::new("another", key.clone(), "POST http://shop.example/", [0; 32])).append_to(&mut whole);
    if contents.whole > 0 {
        let more = read(&whole).expect("it can be appended to");
        assert_eq!(more.pending.in_order().last().map(|record| record.key.clone()), Some(key));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(id: i64) -> Record {
        Record::new("order", Key::of("order", &id), "POST http://shop.example/orders", [7; 32])
    }

    /// Three begun, the second of them struck off, and how many were pending after each line's end.
    fn journal() -> (Vec<u8>, Vec<(usize, Vec<Key>)>) {
        let key = |id: i64| Key::of("order", &id);
        let lines = [
            (Line::begin(&record(1)), vec![key(1)]),
            (Line::begin(&record(2)), vec![key(1), key(2)]),
            (Line::strike_off(&id_of(&record(2))), vec![key(1)]),
            (Line::begin(&record(3)), vec![key(1), key(3)]),
        ];
        let mut bytes = HEADER.to_vec();
        let mut ends = vec![(bytes.len(), vec![])];
        for (line, pending) in lines {
            line.append_to(&mut bytes);
            ends.push((bytes.len(), pending));
        }
        (bytes, ends)
    }

    fn keys(contents: &Contents) -> Vec<Key> {
        contents.pending.in_order().into_iter().map(|record| record.key).collect()
    }

    #[test]
    fn cut_anywhere_it_keeps_every_whole_line_and_tells_of_the_cut() {
        let (bytes, ends) = journal();
        for cut in 0..=bytes.len() {
            let contents = match read(&bytes[..cut]) {
                Ok(contents) => contents,
                Err(trouble) => {
                    assert!(cut < HEADER.len() && trouble == Trouble::CutInHeader, "cut at {cut}: {trouble}");
                    continue;
                }
            };
            // The line is whole without its end, too.
            let (end, pending) = ends.iter().rev().find(|(end, _)| *end <= cut + 1).cloned().unwrap_or_default();
            assert_eq!(keys(&contents), pending, "cut at {cut}");
            assert_eq!(contents.whole, end.min(cut), "cut at {cut}");
            assert_eq!(contents.lacks_end, cut > 0 && end == cut + 1, "cut at {cut}");
        }
    }

    #[test]
    fn a_flipped_bit_anywhere_is_noticed() {
        let (bytes, _) = journal();
        for position in 0..bytes.len() {
            for bit in 0..8 {
                let mut flipped = bytes.clone();
                flipped[position] ^= 1 << bit;
                let contents = read(&flipped);
                assert!(contents.is_err(), "byte {position}, bit {bit}: {contents:?}");
            }
        }
    }

    #[test]
    fn a_cut_after_damage_does_not_hide_it() {
        let (bytes, ends) = journal();
        let first_line_end = ends[1].0 - 1;
        for cut in first_line_end + 1..bytes.len() {
            let mut flipped = bytes[..cut].to_vec();
            flipped[first_line_end] = b'x';
            assert_eq!(read(&flipped).unwrap_err(), Trouble::Damaged { line: 2 }, "cut at {cut}");
        }
    }

    #[test]
    fn zeros_that_a_crash_left_are_a_cut() {
        let (mut bytes, ends) = journal();
        bytes.extend_from_slice(&[0; 512]);
        let contents = read(&bytes).unwrap();
        assert_eq!((contents.whole, keys(&contents)), ends.last().cloned().unwrap());
    }

    #[test]
    fn what_is_no_journal_is_told_from_one_of_another_version() {
        assert_eq!(read(b"{}\n").unwrap_err(), Trouble::Foreign);
        assert_eq!(read(b"\n").unwrap_err(), Trouble::Foreign);
        assert_eq!(read(b"idem-client journal, version 2\n").unwrap_err(), Trouble::OtherVersion);
        assert_eq!(read(b"").unwrap().whole, 0);
    }
}

//! What must hold for any bytes, one function a fuzz target of `fuzz/`. It exists under `cfg(fuzzing)`, and in this
//! crate's own tests, which replay the corpus through it.

use std::time::SystemTime;

use http::header::{HeaderName, HeaderValue};
use http::{HeaderMap, StatusCode};

use crate::back_off::{self, LEAST_ASKED};
use crate::classify::{self, Answer, Fate, Known};
use crate::journal::format;
use crate::key::{Key, MAX_KEY_LENGTH};

/// A journal's file: whatever is in it, it is read whole, with a cut that is told, or refused.
pub fn journal(data: &[u8]) {
    format::any_file_is_read_or_refused(data);
}

/// An answer: a status, header lines, an empty line, a body. Whatever it says, a lost attempt is not denied.
pub fn answer(data: &[u8]) {
    let Some(answer) = read_answer(data) else { return };
    if let Some(asked) = back_off::retry_after(&answer.headers, SystemTime::UNIX_EPOCH) {
        assert!(asked >= LEAST_ASKED);
    }
    let own = answer.status.is_success() || answer.status.is_redirection() || answer.is_replay();
    for classify in [classify::standard, classify::stripe, classify::aws] {
        let verdict = classify(&answer);
        let after = |fate| classify::knowledge(&answer, verdict, fate);
        assert!(after(Fate::Unknown) != Known::NotDone, "a lost attempt is denied");
        assert!(own || after(Fate::Unknown) == Known::Unknown, "only the operation's own answer settles");
        let about_the_key = classify::about_the_key(&answer);
        assert!(about_the_key.is_none_or(|about| about == verdict), "no rule overlooks what is said about the key");
        assert!(about_the_key.is_none() || after(Fate::NotSent) == Known::Unknown);
    }
}

fn read_answer(data: &[u8]) -> Option<Answer> {
    let (status, mut rest) = data.split_at_checked(3)?;
    let status = StatusCode::from_bytes(status).ok()?;
    let mut headers = HeaderMap::new();
    while let Some(end) = rest.iter().position(|byte| *byte == b'\n') {
        let line = &rest[..end];
        rest = &rest[end + 1..];
        let Some(colon) = line.iter().position(|byte| *byte == b':') else { break };
        let name = HeaderName::from_bytes(&line[..colon]).ok()?;
        headers.append(name, HeaderValue::from_bytes(&line[colon + 1..]).ok()?);
    }
    Some(Answer::new(status, headers, rest.to_vec()))
}

/// A key header: what it accepts is a key, in both spellings the same one.
pub fn key(data: &[u8]) {
    let Ok(value) = HeaderValue::from_bytes(data) else { return };
    let Ok(key) = Key::from_header(&value) else { return };
    let text = key.as_str();
    assert!((1..=MAX_KEY_LENGTH).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_graphic()));
    assert_eq!(Key::from_header(&key.to_quoted_header()), Ok(key.clone()), "both spellings are one key");
    assert_eq!(Key::new(text), Ok(key));
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    type Target = fn(&[u8]);

    const TARGETS: [(&str, Target); 3] =
        [("client_journal", super::journal), ("client_answer", super::answer), ("client_key", super::key)];

    fn corpus(target: &str) -> Vec<Vec<u8>> {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fuzz/corpus").join(target);
        let files: Vec<_> =
            fs::read_dir(&folder).expect("a corpus").map(|entry| entry.expect("a file").path()).collect();
        assert!(files.len() > 5, "`{target}` has a corpus");
        files.iter().map(|file| fs::read(file).expect("a file")).collect()
    }

    #[test]
    fn the_corpus_holds() {
        for (target, holds) in TARGETS {
            corpus(target).iter().for_each(|data| holds(data));
        }
    }

    /// A little of what the fuzzer does, on every run: bytes changed, cut out and doubled.
    #[test]
    fn what_is_near_the_corpus_holds() {
        let mut random = fastrand::Rng::with_seed(12);
        for (target, holds) in TARGETS {
            let corpus = corpus(target);
            for _ in 0..3_000 {
                let mut data = corpus[random.usize(..corpus.len())].clone();
                for _ in 0..random.usize(1..4) {
                    let at = random.usize(..=data.len());
                    match random.u8(0..3) {
                        0 if at < data.len() => data[at] = random.u8(..),
                        1 => drop(data.drain(at..(at + random.usize(0..20)).min(data.len()))),
                        _ => data.insert(at, *random.choice(b"\n \":{}0x".iter()).expect("not empty")),
                    }
                }
                holds(&data);
            }
        }
    }
}

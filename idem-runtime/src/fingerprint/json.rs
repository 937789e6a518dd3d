//! Object order and white space do not change what a client asks for, and libraries differ in both between attempts.
//!
//! Written over the bytes and not through a JSON value: numbers keep their text (1 and 1.0 differ, nothing passes through
//! a float), repeated names keep their order, and depth is bounded before it can exhaust the stack.

/// Deeper bodies count byte for byte. serde_json refuses them too.
pub(crate) const MAX_DEPTH: usize = 128;

/// The canonical text, or `None` where `body` is no JSON text of at most [`MAX_DEPTH`] levels.
pub(crate) fn canonical(body: &[u8]) -> Option<Vec<u8>> {
    let text = std::str::from_utf8(body).ok()?;
    let mut scanner = Scanner { rest: text.as_bytes(), canonical: Vec::with_capacity(body.len()) };
    scanner.value(0)?;
    scanner.skip_white_space();
    scanner.rest.is_empty().then_some(scanner.canonical)
}

struct Scanner<'a> {
    rest: &'a [u8],
    canonical: Vec<u8>,
}

/// Where a member's name and the whole member lie in the canonical text.
struct Member {
    start: usize,
    name_end: usize,
    end: usize,
}

impl Scanner<'_> {
    fn value(&mut self, depth: usize) -> Option<()> {
        if depth > MAX_DEPTH {
            return None;
        }
        self.skip_white_space();
        match self.rest.first()? {
            b'{' => self.object(depth),
            b'[' => self.array(depth),
            b'"' => self.string(),
            b't' => self.literal(b"true"),
            b'f' => self.literal(b"false"),
            b'n' => self.literal(b"null"),
            _ => self.number(),
        }
    }

    fn object(&mut self, depth: usize) -> Option<()> {
        self.keep(1);
        let start = self.canonical.len();
        let mut members = Vec::new();
        if !self.take_if(b'}') {
            loop {
                members.push(self.member(depth)?);
                if self.take_if(b'}') {
                    break;
                }
                self.take(b',')?;
            }
        }
        self.sort(start, &mut members);
        self.canonical.push(b'}');
        Some(())
    }

    /// A member ends with a comma, the last one too: sorted members need no repair.
    fn member(&mut self, depth: usize) -> Option<Member> {
        self.skip_white_space();
        let start = self.canonical.len();
        self.string()?;
        let name_end = self.canonical.len();
        self.take(b':')?;
        self.canonical.push(b':');
        self.value(depth + 1)?;
        self.canonical.push(b',');
        Some(Member { start, name_end, end: self.canonical.len() })
    }

    /// Stable: of members with one name the last wins in most readers, so their order counts.
    fn sort(&mut self, start: usize, members: &mut [Member]) {
        let name = |member: &Member| &self.canonical[member.start..member.name_end];
        if members.is_sorted_by_key(name) {
            return;
        }
        members.sort_by_key(name);
        let mut sorted = Vec::with_capacity(self.canonical.len() - start);
        for member in members.iter() {
            sorted.extend_from_slice(&self.canonical[member.start..member.end]);
        }
        self.canonical.truncate(start);
        self.canonical.append(&mut sorted);
    }

    fn array(&mut self, depth: usize) -> Option<()> {
        self.keep(1);
        if !self.take_if(b']') {
            loop {
                self.value(depth + 1)?;
                self.canonical.push(b',');
                if self.take_if(b']') {
                    break;
                }
                self.take(b',')?;
            }
        }
        self.canonical.push(b']');
        Some(())
    }

    /// Escapes are resolved, since `"\u00e9"` and `"é"` are one string; a lone surrogate keeps its escape.
    fn string(&mut self) -> Option<()> {
        self.take(b'"')?;
        self.canonical.push(b'"');
        loop {
            let plain = self.rest.iter().position(|byte| matches!(byte, b'"' | b'\\' | 0..=0x1f))?;
            self.keep(plain);
            match self.rest[0] {
                b'"' => break,
                b'\\' => self.escape()?,
                _ => return None,
            }
        }
        self.keep(1);
        Some(())
    }

    fn escape(&mut self) -> Option<()> {
        let kind = *self.rest.get(1)?;
        if kind == b'u' {
            return self.unicode_escape();
        }
        let character = match kind {
            b'"' | b'\\' | b'/' => kind,
            b'b' => 0x08,
            b'f' => 0x0c,
            b'n' => b'\n',
            b'r' => b'\r',
            b't' => b'\t',
            _ => return None,
        };
        self.rest = &self.rest[2..];
        self.push_character(character.into());
        Some(())
    }

    fn unicode_escape(&mut self) -> Option<()> {
        let first = code_unit(self.rest)?;
        let paired = code_unit(self.rest.get(6..)?).and_then(|second| char::decode_utf16([first, second]).next()?.ok());
        match char::decode_utf16([first]).next()? {
            Ok(character) => {
                self.rest = &self.rest[6..];
                self.push_character(character);
            }
            Err(_) if paired.is_some() => {
                self.rest = &self.rest[12..];
                self.push_character(paired?);
            }
            Err(_) => {
                self.canonical.extend_from_slice(format!("\\u{first:04x}").as_bytes());
                self.rest = &self.rest[6..];
            }
        }
        Some(())
    }

    /// `"` and `\` stay escaped: a string's content must not be able to end it.
    fn push_character(&mut self, character: char) {
        if matches!(character, '"' | '\\') {
            self.canonical.push(b'\\');
        }
        let mut buffer = [0; 4];
        self.canonical.extend_from_slice(character.encode_utf8(&mut buffer).as_bytes());
    }

    fn number(&mut self) -> Option<()> {
        let length = number_length(self.rest)?;
        self.keep(length);
        Some(())
    }

    fn literal(&mut self, literal: &[u8]) -> Option<()> {
        self.rest.starts_with(literal).then(|| self.keep(literal.len()))
    }

    fn keep(&mut self, length: usize) {
        let (kept, rest) = self.rest.split_at(length);
        self.canonical.extend_from_slice(kept);
        self.rest = rest;
    }

    fn take(&mut self, byte: u8) -> Option<()> {
        self.take_if(byte).then_some(())
    }

    fn take_if(&mut self, byte: u8) -> bool {
        self.skip_white_space();
        let found = self.rest.first() == Some(&byte);
        if found {
            self.rest = &self.rest[1..];
        }
        found
    }

    fn skip_white_space(&mut self) {
        let blank = self.rest.iter().take_while(|byte| matches!(byte, b' ' | b'\t' | b'\n' | b'\r')).count();
        self.rest = &self.rest[blank..];
    }
}

/// The code unit of a `\uXXXX` escape that `text` begins with.
fn code_unit(text: &[u8]) -> Option<u16> {
    let digits = text.strip_prefix(b"\\u")?.get(..4)?;
    digits.iter().try_fold(0, |unit, digit| Some(unit << 4 | u16::try_from(char::from(*digit).to_digit(16)?).ok()?))
}

/// The length of the JSON number that `text` begins with.
fn number_length(text: &[u8]) -> Option<usize> {
    let digits = |at: usize| text[at..].iter().take_while(|byte| byte.is_ascii_digit()).count();
    let sign = usize::from(text.first() == Some(&b'-'));
    let mut length = sign + digits(sign);
    let leading_zero = text.get(sign) == Some(&b'0') && length > sign + 1;
    if length == sign || leading_zero {
        return None;
    }
    if text.get(length) == Some(&b'.') {
        let fraction = digits(length + 1);
        length += 1 + fraction;
        if fraction == 0 {
            return None;
        }
    }
    if matches!(text.get(length), Some(b'e' | b'E')) {
        let exponent_sign = usize::from(matches!(text.get(length + 1), Some(b'+' | b'-')));
        let exponent = digits(length + 1 + exponent_sign);
        length += 1 + exponent_sign + exponent;
        if exponent == 0 {
            return None;
        }
    }
    Some(length)
}

#[cfg(test)]
mod tests {
    use super::canonical;

    #[test]
    fn spellings_of_one_value_are_equal() {
        for (left, right) in [
            (r#"{"a":1,"b":2}"#, r#" { "b" : 2 , "a" : 1 } "#),
            (r#"{"x":{"d":[],"c":{}}}"#, "{\"x\":{\"c\":{ },\t\"d\":[\n]}}"),
            (r#"["\u00e9","\/","\ud83d\ude00"]"#, r#"["é","/","😀"]"#),
            (r#""\u000a""#, r#""\n""#),
            (r#""\ud800""#, r#""\uD800""#),
            (r#"{"a":1,"\u0061":2}"#, r#"{"a":1,"a":2}"#),
        ] {
            assert_eq!(canonical(left.as_bytes()), canonical(right.as_bytes()), "{left} and {right}");
            assert!(canonical(left.as_bytes()).is_some(), "{left}");
        }
    }

    #[test]
    fn different_values_differ() {
        let values = [
            "1",
            "1.0",
            "1e0",
            "10e-1",
            "-0",
            "0",
            "\"1\"",
            "[1,2]",
            "[2,1]",
            "[[1],2]",
            "[[1,2]]",
            "[]",
            "[[]]",
            "{}",
            "null",
            "true",
            "false",
            r#"{"a":1,"a":2}"#,
            r#"{"a":2,"a":1}"#,
            r#"{"a":1}"#,
            r#"{"a":"b\",\"c\":\"d"}"#,
            r#"{"a":"b","c":"d"}"#,
            r#""\\ud800""#,
            r#""\ud800""#,
            r#""\\""#,
            r#""\"""#,
            "12345678901234567890",
            "12345678901234567891",
        ];
        let distinct: std::collections::HashSet<_> =
            values.iter().map(|value| canonical(value.as_bytes()).expect(value)).collect();
        assert_eq!(distinct.len(), values.len());
    }

    #[test]
    fn what_is_no_json_is_refused_as_serde_json_refuses_it() {
        for body in [
            "",
            " ",
            "{",
            "}",
            "{\"a\"}",
            "{\"a\":}",
            "{\"a\":1,}",
            "[1,]",
            "[1 2]",
            "01",
            "1.",
            ".5",
            "+1",
            "1e",
            "nul",
            "\"",
            "\"\n\"",
            "\"\\x\"",
            "\"\\u12\"",
            "\"\\u12g4\"",
            "1 1",
            "{\"a\":1}}",
            "NaN",
            "{a:1}",
            "'a'",
            "-",
            "--1",
            "\u{feff}1",
        ] {
            assert!(canonical(body.as_bytes()).is_none(), "{body}");
            assert!(serde_json::from_str::<serde::de::IgnoredAny>(body).is_err(), "{body}");
        }
        assert!(canonical(b"\"\xff\"").is_none());
    }

    #[test]
    fn depth_is_an_answer_and_not_a_stack_overflow() {
        assert!(canonical(&[b'['; 100_000]).is_none());
        assert!(canonical("{\"a\":".repeat(100_000).as_bytes()).is_none());
        let nested = |depth: usize| "[".repeat(depth) + &"]".repeat(depth);
        assert!(canonical(nested(128).as_bytes()).is_some());
        assert!(canonical(nested(1_000).as_bytes()).is_none());
    }
}

//! JSON text taken apart without the canonicaliser, to put it together in another way.

use std::collections::HashSet;

/// Slices of a text that serde_json accepts.
pub(super) enum Tree<'a> {
    Object(Vec<(&'a str, Tree<'a>)>),
    Array(Vec<Tree<'a>>),
    Leaf(&'a str),
}

const WHITE_SPACE: [char; 4] = [' ', '\t', '\n', '\r'];

/// Far beyond any limit, and within the stack.
const TOO_DEEP: usize = 300;

impl<'a> Tree<'a> {
    /// `None` if it is far too deep.
    pub(super) fn read(text: &'a str) -> Option<Self> {
        Some(Self::read_value(text, 0)?.0)
    }

    fn read_value(text: &'a str, depth: usize) -> Option<(Self, &'a str)> {
        let text = text.trim_start_matches(WHITE_SPACE);
        if depth > TOO_DEEP {
            return None;
        }
        match text.as_bytes()[0] {
            b'{' => Self::read_items(&text[1..], '}', depth, |text, depth| {
                let name = string(text.trim_start_matches(WHITE_SPACE));
                let rest = text.trim_start_matches(WHITE_SPACE)[name.len()..].trim_start_matches(WHITE_SPACE);
                let (value, rest) = Self::read_value(&rest[1..], depth)?;
                Some(((name, value), rest))
            })
            .map(|(members, rest)| (Self::Object(members), rest)),
            b'[' => Self::read_items(&text[1..], ']', depth, Self::read_value)
                .map(|(items, rest)| (Self::Array(items), rest)),
            b'"' => Some((Self::Leaf(string(text)), &text[string(text).len()..])),
            _ => {
                let end = text.find(|c| WHITE_SPACE.contains(&c) || [',', ']', '}'].contains(&c)).unwrap_or(text.len());
                Some((Self::Leaf(&text[..end]), &text[end..]))
            }
        }
    }

    fn read_items<T>(
        text: &'a str,
        end: char,
        depth: usize,
        read: impl Fn(&'a str, usize) -> Option<(T, &'a str)>,
    ) -> Option<(Vec<T>, &'a str)> {
        let mut items = Vec::new();
        let mut rest = text.trim_start_matches(WHITE_SPACE);
        if let Some(rest) = rest.strip_prefix(end) {
            return Some((items, rest));
        }
        loop {
            let (item, after) = read(rest, depth + 1)?;
            items.push(item);
            let after = after.trim_start_matches(WHITE_SPACE);
            match after.strip_prefix(end) {
                Some(after) => return Some((items, after)),
                None => rest = &after[1..],
            }
        }
    }

    /// How deep the deepest value lies; the whole one lies at 0.
    pub(super) fn depth(&self) -> usize {
        let below = match self {
            Self::Object(members) => members.iter().map(|(_, value)| value.depth()).max(),
            Self::Array(items) => items.iter().map(Self::depth).max(),
            Self::Leaf(_) => None,
        };
        below.map_or(0, |below| below + 1)
    }

    /// With white space elsewhere, and members in another order where their names are distinct.
    pub(super) fn print_mixed(&self, text: &mut String, seed: u64) {
        let space = WHITE_SPACE[(seed % 4) as usize];
        text.push(space);
        match self {
            Self::Object(members) => {
                let names: Option<HashSet<String>> =
                    members.iter().map(|(name, _)| serde_json::from_str(name).ok()).collect();
                let mut members: Vec<_> = members.iter().collect();
                if names.is_some_and(|names| names.len() == members.len()) {
                    members.reverse();
                    let middle = (seed as usize) % members.len().max(1);
                    members.rotate_left(middle);
                }
                print_items(text, ('{', '}'), members, |text, (name, value)| {
                    text.push_str(name);
                    text.push(space);
                    text.push(':');
                    value.print_mixed(text, seed / 2);
                });
            }
            Self::Array(items) => print_items(text, ('[', ']'), items, |text, item| item.print_mixed(text, seed / 3)),
            Self::Leaf(leaf) => text.push_str(leaf),
        }
        text.push(space);
    }

    fn print(&self, text: &mut String) {
        match self {
            Self::Object(members) => print_items(text, ('{', '}'), members, |text, (name, value)| {
                text.push_str(name);
                text.push(':');
                value.print(text);
            }),
            Self::Array(items) => print_items(text, ('[', ']'), items, |text, item| item.print(text)),
            Self::Leaf(leaf) => text.push_str(leaf),
        }
    }

    /// Texts that mean something else.
    pub(super) fn changes(&self) -> Vec<String> {
        let printed = |tree: &Tree| {
            let mut text = String::new();
            tree.print(&mut text);
            text
        };
        let whole = printed(self);
        let mut changes = vec![format!("[{whole}]"), format!("{{\"a\":{whole}}}")];
        match self {
            Self::Object(members) => {
                let member = |(name, value): &(&str, Tree)| format!("{name}:{}", printed(value));
                let members: Vec<_> = members.iter().map(member).collect();
                if let Some((_, first)) = members.split_last() {
                    changes.push(format!("{{{}}}", first.join(",")));
                }
                if let Some(last) = members.last() {
                    changes.push(format!("{{{},{last}}}", members.join(",")));
                }
            }
            Self::Array(items) => {
                let items: Vec<_> = items.iter().map(printed).collect();
                changes.push(format!(
                    "[{}]",
                    items.iter().map(String::as_str).chain(["null"]).collect::<Vec<_>>().join(",")
                ));
            }
            Self::Leaf(leaf) if leaf.starts_with('"') => {
                changes.push(format!("{} \"", &leaf[..leaf.len() - 1]));
            }
            Self::Leaf(leaf) if leaf.ends_with(|c: char| c.is_ascii_digit()) => changes.push(format!("{leaf}e0")),
            Self::Leaf(_) => {}
        }
        changes.retain(|change| serde_json::from_str::<serde::de::IgnoredAny>(change).is_ok());
        changes
    }
}

fn print_items<T>(
    text: &mut String,
    (begin, end): (char, char),
    items: impl IntoIterator<Item = T>,
    mut print: impl FnMut(&mut String, T),
) {
    text.push(begin);
    for (number, item) in items.into_iter().enumerate() {
        if number > 0 {
            text.push(',');
        }
        print(text, item);
    }
    text.push(end);
}

/// The string that `text` begins with, quotes included.
fn string(text: &str) -> &str {
    let mut escaped = false;
    let end = text[1..].find(|c| match (escaped, c) {
        (true, _) => {
            escaped = false;
            false
        }
        (false, '\\') => {
            escaped = true;
            false
        }
        (false, c) => c == '"',
    });
    &text[..end.map_or(text.len(), |end| end + 2)]
}

/// Canonical text as JSON again: without the commas before the ends, and with control characters escaped.
pub(super) fn readable(canonical: &[u8]) -> Vec<u8> {
    let mut readable: Vec<u8> = Vec::with_capacity(canonical.len());
    let (mut inside, mut escaped) = (false, false);
    for byte in canonical {
        match byte {
            _ if escaped => escaped = false,
            b'\\' => escaped = true,
            b'"' => inside = !inside,
            b']' | b'}' if !inside && readable.last() == Some(&b',') => _ = readable.pop(),
            _ => {}
        }
        match byte {
            0..=0x1f => readable.extend_from_slice(format!("\\u{byte:04x}").as_bytes()),
            _ => readable.push(*byte),
        }
    }
    readable
}

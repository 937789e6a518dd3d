//! Statements without their literals: two executions of one statement then look alike, and nothing secret is shown.

/// Replaces strings, numbers and dollar-quoted texts by `?`.
pub(super) fn without_literals(sql: &str) -> String {
    let mut shown = String::with_capacity(sql.len());
    let mut rest = sql;
    while let Some(character) = rest.chars().next() {
        let length = match character {
            '\'' => string_length(rest, shown.ends_with(['e', 'E'])),
            '$' => dollar_quoted_length(rest),
            '0'..='9' if !shown.ends_with(|last: char| last.is_alphanumeric() || matches!(last, '_' | '$' | '"')) => {
                Some(number_length(rest))
            }
            _ => None,
        };
        if let Some(length) = length {
            let sign = shown.strip_suffix('-').filter(|before| before.ends_with(['(', ',', '=', ' ']));
            if let (Some(before), true) = (sign.map(str::len), character.is_ascii_digit()) {
                shown.truncate(before);
            }
            shown.push('?');
            rest = &rest[length..];
        } else {
            shown.push(character);
            rest = &rest[character.len_utf8()..];
        }
    }
    shown
}

fn string_length(text: &str, escapes: bool) -> Option<usize> {
    let mut characters = text.char_indices().skip(1).peekable();
    while let Some((at, character)) = characters.next() {
        match character {
            '\\' if escapes => drop(characters.next()),
            '\'' if characters.next_if(|(_, next)| *next == '\'').is_none() => return Some(at + 1),
            _ => {}
        }
    }
    Some(text.len())
}

/// `None` for a parameter such as `$1`.
fn dollar_quoted_length(text: &str) -> Option<usize> {
    let tag = &text[..text[1..].find('$')? + 2];
    let is_tag = tag[1..tag.len() - 1].chars().all(|c| c.is_alphanumeric() || c == '_')
        && !tag[1..].starts_with(|c: char| c.is_ascii_digit());
    let end = text[tag.len()..].find(tag).filter(|_| is_tag)?;
    Some(end + 2 * tag.len())
}

fn number_length(text: &str) -> usize {
    text.find(|c: char| !(c.is_ascii_alphanumeric() || c == '.')).unwrap_or(text.len())
}

#[cfg(test)]
mod tests {
    use super::without_literals;

    #[test]
    fn literals_are_hidden_and_everything_else_stays() {
        for (sql, shown) in [
            ("SELECT pg_try_advisory_xact_lock(-812734)", "SELECT pg_try_advisory_xact_lock(?)"),
            ("SELECT a-1, b - -2.5e7 FROM t1 WHERE x2 = $3", "SELECT a-?, b - ? FROM t1 WHERE x2 = $3"),
            ("VALUES ('it''s', E'a\\'b', '', 'é')", "VALUES (?, E?, ?, ?)"),
            ("SELECT $$a 'b'$$, $tag$ $1 $tag$, $1, $2", "SELECT ?, ?, $1, $2"),
            ("INSERT INTO \"idem\".\"k1\" VALUES ($1)", "INSERT INTO \"idem\".\"k1\" VALUES ($1)"),
            ("SET x = 'open", "SET x = ?"),
            ("VALUES ('\\x00'::bytea)", "VALUES (?::bytea)"),
        ] {
            assert_eq!(without_literals(sql), shown);
        }
    }
}

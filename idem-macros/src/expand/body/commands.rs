//! Finds transaction commands in SQL text. A handler that commits by itself would tear the claim, its writes and the
//! stored response apart, so the attribute refuses the literals in which it can see one.

/// A word, with what it is needed for: where statements begin and which keywords they begin with.
#[derive(Debug, PartialEq, Eq)]
enum Token {
    /// In upper case.
    Word(String),
    Semicolon,
    /// Anything else that is not white space or a comment; quoted text counts as one.
    Other,
}

/// The first transaction command of any statement in `sql`, in upper case, as far as it tells which command it is.
pub(in super::super) fn transaction_command(sql: &str) -> Option<String> {
    statements(sql).iter().find_map(|statement| command(statement))
}

fn command(statement: &[Token]) -> Option<String> {
    let word = |position: usize| match statement.get(position) {
        Some(Token::Word(word)) => word.as_str(),
        _ => "",
    };
    // `END` and `ABORT` are other words for `COMMIT` and `ROLLBACK`.
    match (word(0), word(1)) {
        ("ROLLBACK" | "ABORT", "TO") => None,
        ("ROLLBACK" | "ABORT", "WORK" | "TRANSACTION") if word(2) == "TO" => None,
        (first @ ("COMMIT" | "ROLLBACK"), "PREPARED") => Some(format!("{first} PREPARED")),
        ("PREPARE", "TRANSACTION") => Some("PREPARE TRANSACTION".to_owned()),
        ("START", "TRANSACTION") => Some("START TRANSACTION".to_owned()),
        (first @ ("COMMIT" | "ROLLBACK" | "BEGIN" | "END" | "ABORT"), _) => Some(first.to_owned()),
        _ => None,
    }
}

/// Splits at semicolons, except in parentheses (a rule's actions) and in a function's `BEGIN ATOMIC … END`.
fn statements(sql: &str) -> Vec<Vec<Token>> {
    let mut statements = vec![Vec::new()];
    let mut atomic_depth = 0_usize;
    let mut parentheses = 0_usize;
    let mut scanner = Scanner { rest: sql };
    let mut previous_is_begin = false;
    while let Some((token, character)) = scanner.next() {
        let is_begin = token == Token::Word("BEGIN".to_owned());
        match &token {
            Token::Word(word) if word == "ATOMIC" && previous_is_begin => atomic_depth += 1,
            Token::Word(word) if word == "CASE" && atomic_depth > 0 => atomic_depth += 1,
            Token::Word(word) if word == "END" => atomic_depth = atomic_depth.saturating_sub(1),
            Token::Other if character == '(' => parentheses += 1,
            Token::Other if character == ')' => parentheses = parentheses.saturating_sub(1),
            _ => {}
        }
        previous_is_begin = is_begin;
        match statements.last_mut() {
            Some(statement) if token != Token::Semicolon || atomic_depth > 0 || parentheses > 0 => {
                statement.push(token)
            }
            _ => statements.push(Vec::new()),
        }
    }
    statements
}

struct Scanner<'a> {
    rest: &'a str,
}

impl Scanner<'_> {
    /// The next token and the character it starts with.
    fn next(&mut self) -> Option<(Token, char)> {
        loop {
            self.rest = self.rest.trim_start();
            if let Some(comment) = self.rest.strip_prefix("--") {
                self.rest = comment.find('\n').map_or("", |end| &comment[end..]);
            } else if self.rest.starts_with("/*") {
                self.skip_block_comment();
            } else {
                break;
            }
        }
        let first = self.rest.chars().next()?;
        let token = match first {
            ';' => self.skip(1, Token::Semicolon),
            '\'' => self.skip_quoted('\'', false),
            '"' => self.skip_quoted('"', false),
            '$' => self.skip_dollar(),
            _ if first.is_alphabetic() || first == '_' => self.word(),
            _ => self.skip(first.len_utf8(), Token::Other),
        };
        Some((token, first))
    }

    fn skip(&mut self, bytes: usize, token: Token) -> Token {
        self.rest = self.rest.get(bytes..).unwrap_or("");
        token
    }

    /// Block comments nest in Postgres.
    fn skip_block_comment(&mut self) {
        let mut depth = 0_usize;
        loop {
            if self.rest.starts_with("/*") {
                depth += 1;
                self.rest = &self.rest[2..];
            } else if self.rest.starts_with("*/") {
                depth -= 1;
                self.rest = &self.rest[2..];
            } else {
                let mut characters = self.rest.chars();
                if characters.next().is_none() {
                    return;
                }
                self.rest = characters.as_str();
            }
            if depth == 0 {
                return;
            }
        }
    }

    /// A doubled quote inside reads as two quoted texts in a row, which comes to the same.
    fn skip_quoted(&mut self, quote: char, backslash_escapes: bool) -> Token {
        let mut characters = self.rest.chars();
        characters.next();
        while let Some(character) = characters.next() {
            if character == quote {
                break;
            }
            if character == '\\' && backslash_escapes {
                characters.next();
            }
        }
        self.rest = characters.as_str();
        Token::Other
    }

    /// `$tag$ … $tag$`, or else a placeholder such as `$1`.
    fn skip_dollar(&mut self) -> Token {
        let after = &self.rest[1..];
        let tag = after.find(|c: char| !is_word(c) || c == '$').unwrap_or(after.len());
        let is_quote = after[tag..].starts_with('$') && !after.starts_with(|c: char| c.is_ascii_digit());
        if !is_quote {
            return self.skip(1, Token::Other);
        }
        let (delimiter, quoted) = self.rest.split_at(tag + 2);
        self.rest = quoted.find(delimiter).map_or("", |end| &quoted[end + delimiter.len()..]);
        Token::Other
    }

    fn word(&mut self) -> Token {
        let end = self.rest.find(|c: char| !is_word(c)).unwrap_or(self.rest.len());
        let (word, after) = self.rest.split_at(end);
        self.rest = after;
        if matches!(word, "e" | "E") && after.starts_with('\'') {
            return self.skip_quoted('\'', true);
        }
        Token::Word(word.to_uppercase())
    }
}

fn is_word(character: char) -> bool {
    character.is_alphanumeric() || character == '_' || character == '$'
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn transaction_commands_are_found() {
        for (sql, found) in [
            ("COMMIT", "COMMIT"),
            ("commit;", "COMMIT"),
            ("  \n\tRollback", "ROLLBACK"),
            ("-- a note\nBEGIN", "BEGIN"),
            ("/* one /* two */ */ END", "END"),
            ("/**/COMMIT AND CHAIN", "COMMIT"),
            ("START TRANSACTION ISOLATION LEVEL SERIALIZABLE", "START TRANSACTION"),
            ("PREPARE TRANSACTION 'a'", "PREPARE TRANSACTION"),
            ("COMMIT PREPARED 'a'", "COMMIT PREPARED"),
            ("ROLLBACK PREPARED 'a'", "ROLLBACK PREPARED"),
            ("ABORT WORK", "ABORT"),
            ("INSERT INTO a VALUES (1); COMMIT", "COMMIT"),
            ("INSERT INTO a VALUES ('x;''y');\n-- done\nCOMMIT;", "COMMIT"),
            ("SELECT E'it\\'s; '; ROLLBACK", "ROLLBACK"),
            ("SELECT $$ a; b $$; END", "END"),
            ("SELECT $1; COMMIT", "COMMIT"),
            ("SELECT CASE WHEN true THEN 1 END; COMMIT", "COMMIT"),
            ("SELECT 1;; BEGIN", "BEGIN"),
            ("SELECT \"odd;name\"; ROLLBACK TRANSACTION", "ROLLBACK"),
        ] {
            assert_eq!(transaction_command(sql).as_deref(), Some(found), "{sql}");
        }
    }

    #[test]
    fn what_looks_like_one_is_left_alone() {
        for sql in [
            "",
            ";",
            "SELECT 1",
            "SAVEPOINT before",
            "RELEASE SAVEPOINT before",
            "RELEASE before",
            "ROLLBACK TO SAVEPOINT before",
            "ROLLBACK TO before",
            "ROLLBACK WORK TO SAVEPOINT before",
            "SELECT CASE WHEN a THEN 1 ELSE 2 END",
            "SELECT 'x; COMMIT'",
            "SELECT \"; COMMIT\"",
            "SELECT 1 -- ; COMMIT",
            "SELECT 1 /* ; COMMIT */",
            "SELECT E'\\'; COMMIT'",
            "DO $$ BEGIN PERFORM 1; END; $$",
            "DO $body$ BEGIN PERFORM $$x$$; END; $body$",
            "PREPARE plan AS SELECT 1",
            "UPDATE a SET commit = 1",
            "commitment",
            "COMMIT_LOG",
            "CREATE FUNCTION f() RETURNS int LANGUAGE sql BEGIN ATOMIC SELECT 1; SELECT CASE WHEN true THEN 2 END; END",
            "CREATE RULE r AS ON INSERT TO a DO (SELECT 1; SELECT 2)",
            "'unterminated; COMMIT",
            "/* unterminated COMMIT",
            "$tag$ unterminated; COMMIT",
        ] {
            assert_eq!(transaction_command(sql), None, "{sql}");
        }
    }

    #[test]
    fn any_text_is_scanned_to_its_end() {
        for sql in ["$", "$$", "$ä$", "ä;'", "\u{0}", "--", "/*", "/*/", "e'", "E'\\", "$1$2$", "'''", "💥;💥"] {
            assert_eq!(transaction_command(sql), None, "{sql}");
        }
    }
}

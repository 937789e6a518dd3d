//! Shows a tour: scenes of what was sent, what came back and what is in the database, and whether each promise held.

use std::collections::BTreeMap;
use std::fmt::{Debug, Display};
use std::io::IsTerminal;

use crate::http::{Client, Reply, Request};
use crate::{Error, Server};

/// The response headers that a tour shows.
const SHOWN: [&str; 5] = ["Location", "Idempotency-Replayed", "Retry-After", "ETag", "Content-Type"];

/// Content types of which the body says enough.
const PLAIN: [&str; 2] = ["application/json", "text/plain; charset=utf-8"];

const WIDTH: usize = 80;

/// What is in the database: names and values, in the order to show them in.
pub type Facts = Vec<(&'static str, String)>;

/// Prints a tour and keeps count of its promises.
#[derive(Debug)]
pub struct Stage {
    /// Sends without printing.
    pub client: Client,
    coloured: bool,
    last: Piece,
    scenes: usize,
    kept: usize,
    broken: Vec<String>,
}

/// What was printed last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Piece {
    Heading,
    Text,
    Request,
    Response,
    Database,
    Promise,
}

impl Stage {
    pub(crate) fn open(title: &str, subtitle: &str) -> Self {
        let coloured = std::io::stdout().is_terminal() && std::env::var_os("NO_COLOR").is_none();
        let stage =
            Self { client: Client::default(), coloured, last: Piece::Heading, scenes: 0, kept: 0, broken: Vec::new() };
        println!("\n{}\n{subtitle}", stage.bold(title));
        stage
    }

    /// Begins a scene.
    pub fn scene(&mut self, title: &str, what_happens: &str) {
        self.scenes += 1;
        let heading = format!("── {}. {title} ", self.scenes);
        let rule = "─".repeat(WIDTH.saturating_sub(heading.chars().count()));
        println!("\n{}", self.bold(&format!("{heading}{rule}")));
        for line in wrapped(what_happens, WIDTH) {
            println!("{line}");
        }
        self.last = Piece::Heading;
    }

    /// Sends a request and shows it with its answer.
    ///
    /// # Errors
    /// If there is no answer.
    pub async fn send(&mut self, server: &Server, request: &Request) -> Result<Reply, Error> {
        self.show_request(request);
        let reply = self.client.send(server.address(), request).await?;
        self.show_reply(&reply);
        Ok(reply)
    }

    /// Shows a request that somebody else sends.
    pub fn show_request(&mut self, request: &Request) {
        let mut lines = vec![self.bold(&format!("{} {}", request.method, request.path))];
        let shown = |(name, value): &&(&str, String)| *name != "Content-Type" || !PLAIN.contains(&value.as_str());
        lines.extend(request.headers.iter().filter(shown).map(|(name, value)| format!("{name}: {value}")));
        lines.extend(text_lines(&request.body));
        self.block(Piece::Request, "request", lines);
    }

    /// Shows an answer.
    pub fn show_reply(&mut self, reply: &Reply) {
        let mut lines = vec![self.bold(&reply.status.to_string())];
        for name in SHOWN {
            let value = reply.header(name);
            if !value.is_empty() && !PLAIN.contains(&value) {
                lines.push(format!("{name}: {value}"));
            }
        }
        lines.extend(readable_lines(&reply.body));
        self.block(Piece::Response, "response", lines);
    }

    /// Shows how many answers of each kind there were.
    pub fn show_tally<'a>(&mut self, replies: impl IntoIterator<Item = &'a Reply>) {
        let mut tally = BTreeMap::new();
        for reply in replies {
            let mut kind = reply.status.to_string();
            if reply.is_replay() {
                kind.push_str("   Idempotency-Replayed: true");
            } else if !reply.header("retry-after").is_empty() {
                kind.push_str("   Retry-After: ");
                kind.push_str(reply.header("retry-after"));
            }
            *tally.entry(kind).or_insert(0) += 1;
        }
        let lines = tally.into_iter().map(|(kind, count)| format!("{count} × {kind}")).collect();
        self.block(Piece::Response, "responses", lines);
    }

    /// Shows what is in the database.
    pub fn show_facts(&mut self, facts: &Facts) {
        let widest = facts.iter().map(|(name, _)| name.chars().count()).max().unwrap_or_default();
        let dots = |name: &str| ".".repeat(widest + 2 - name.chars().count());
        let lines = facts.iter().map(|(name, value)| format!("{name} {} {value}", dots(name))).collect();
        self.block(Piece::Database, "database", lines);
    }

    /// Shows lines of another source, such as what another system has counted.
    pub fn show_lines(&mut self, label: &str, lines: impl IntoIterator<Item = impl Into<String>>) {
        self.block(Piece::Database, label, lines.into_iter().map(Into::into).collect());
    }

    /// Shows a table: names of columns and rows. Numbers are aligned right.
    pub fn show_table<const N: usize>(&mut self, columns: [&str; N], rows: &[[String; N]]) {
        self.separate(Piece::Text);
        let width = |column: usize| {
            let cells = rows.iter().map(|row| row[column].chars().count());
            cells.chain([columns[column].chars().count()]).max().unwrap_or_default()
        };
        let line = |cells: [&str; N], is_heading: bool| {
            let padded = (0..N).map(|column| {
                let numeric = rows.iter().all(|row| row[column].parse::<u64>().is_ok());
                let padding = " ".repeat(width(column) - cells[column].chars().count());
                if numeric { format!("{padding}{}", cells[column]) } else { format!("{}{padding}", cells[column]) }
            });
            let line = padded.collect::<Vec<_>>().join("  ");
            println!("  {}", if is_heading { self.paint("2", line.trim_end()) } else { line.trim_end().to_owned() });
        };
        line(columns, true);
        for row in rows {
            line(row.each_ref().map(String::as_str), false);
        }
    }

    /// Says what the tour does.
    pub fn say(&mut self, what: impl Display) {
        self.separate(Piece::Text);
        for line in wrapped(&what.to_string(), WIDTH - 2) {
            println!("  {line}");
        }
    }

    /// Checks a promise: what was found must be what was expected.
    pub fn promise<T: PartialEq + Debug>(&mut self, promise: &str, found: T, expected: T) {
        self.separate(Piece::Promise);
        if found == expected {
            self.kept += 1;
            println!("  {} {promise}", self.paint("32", "✓"));
        } else {
            println!("  {} {promise}: expected {expected:?}, found {found:?}", self.paint("31", "✗"));
            self.broken.push(format!("{}. {promise}", self.scenes));
        }
    }

    /// Prints what came of it. True if every promise held.
    pub(crate) fn close(self) -> bool {
        println!("\n{}", "─".repeat(WIDTH));
        let (scenes, promises) = (self.scenes, self.kept + self.broken.len());
        if self.broken.is_empty() {
            println!("{}", self.paint("32", &format!("✓ {promises} promises in {scenes} scenes, and every one held")));
        } else {
            let broken = self.broken.len();
            println!("{}", self.paint("31", &format!("✗ {broken} of {promises} promises in {scenes} scenes broken:")));
            for promise in &self.broken {
                println!("  {promise}");
            }
        }
        self.broken.is_empty() && self.kept > 0
    }

    fn block(&mut self, piece: Piece, label: &str, lines: Vec<String>) {
        self.separate(piece);
        for (number, line) in lines.into_iter().enumerate() {
            let label = if number == 0 { label } else { "" };
            println!("  {} {line}", self.paint("2", &format!("{label:<9}")));
        }
    }

    /// An empty line, unless the next piece belongs to the last one.
    fn separate(&mut self, next: Piece) {
        let joined = [
            (Piece::Request, Piece::Response),
            (Piece::Response, Piece::Database),
            (Piece::Database, Piece::Database),
            (Piece::Promise, Piece::Promise),
        ];
        if !joined.contains(&(self.last, next)) {
            println!();
        }
        self.last = next;
    }

    fn bold(&self, text: &str) -> String {
        self.paint("1", text)
    }

    fn paint(&self, code: &str, text: &str) -> String {
        if self.coloured { format!("\x1b[{code}m{text}\x1b[0m") } else { text.to_owned() }
    }
}

/// A body as lines of text, as it is; what is no text, or a lot, by its size.
fn text_lines(body: &[u8]) -> Vec<String> {
    match std::str::from_utf8(body) {
        Ok(text) if body.len() <= 1_000 => text.lines().map(str::to_owned).collect(),
        _ => vec![format!("({} bytes)", body.len())],
    }
}

/// Long JSON with a field a line, anything else as it is.
fn readable_lines(body: &[u8]) -> Vec<String> {
    match serde_json::from_slice::<serde_json::Value>(body) {
        Ok(value) if body.len() > WIDTH => format!("{value:#}").lines().map(str::to_owned).collect(),
        _ => text_lines(body),
    }
}

/// Breaks at spaces so that no line is longer than `width`, unless a word is.
fn wrapped(text: &str, width: usize) -> Vec<String> {
    let mut lines = vec![String::new()];
    for word in text.split(' ') {
        let line = lines.last_mut().expect("never empty");
        if !line.is_empty() && line.chars().count() + 1 + word.chars().count() > width {
            lines.push(word.to_owned());
        } else {
            if !line.is_empty() {
                line.push(' ');
            }
            line.push_str(word);
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::{Stage, wrapped};

    #[test]
    fn one_broken_promise_breaks_the_tour() {
        let mut stage = Stage::open("title", "subtitle");
        stage.promise("kept", 1, 1);
        assert!(stage.close());

        let mut stage = Stage::open("title", "subtitle");
        stage.promise("kept", 1, 1);
        stage.promise("broken", 1, 2);
        stage.promise("kept", 1, 1);
        assert!(!stage.close());
    }

    #[test]
    fn a_tour_without_promises_has_shown_nothing() {
        assert!(!Stage::open("title", "subtitle").close());
    }

    #[test]
    fn lines_break_at_spaces() {
        assert_eq!(wrapped("aa bb cc", 5), ["aa bb", "cc"]);
        assert_eq!(wrapped("aaaaaaaa b", 5), ["aaaaaaaa", "b"]);
    }
}
